"""Hundreds of killed workers in one run: python -m bench.soak, or `make soak`.

  python -m bench.soak [--kills=200] [--seed=0] [--mean_s=3] [--out=DIR]

ElasticBSP with four workers and a dedicated server on this machine.  Once it
goes, at random moments, --mean_s apart in the mean, a random living worker gets
SIGKILL, also one that is still starting again.
One that has died several times in a row soon after its start is spared until it
is older, as the launcher would give the run up.  Beside it goes the same run
without kills.
Everything that must hold afterwards is printed; the exit code is 1 if anything
does not.  Takes about 13 minutes on two cores.
"""

import argparse
import json
import math
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from bench import clusters
from tools import replay
from tools.reading import records

_WORKERS = 4
_PUSHES = 66  # For each kill: the run lasts a little longer than they do.
_EPOCH = 1437 / 16  # The same, of digits.
_FIELDS = {
  'model.name': 'mlp',
  'eval_every': 10.0,
  'log_every': 1000,
  'cluster.timeout_s': 10.0,
  'cluster.speed.injected': True,
  'cluster.speed.fixed_s': 0.05,
  'cluster.speed.per_example_s': 0.0,
}
_YOUNG_S = 5.5  # The launcher counts lives of less than 5 s,
_SPARED = 3  # and gives up after 5 of them in a row.
_LIMIT_S = 890.0
_APART = 0.01  # Largest difference of accuracies.
_POLL_S = 0.05
_PUSH = b'"told":"push"'  # In events.jsonl.
_LISTEN = '0A'  # State in /proc/net/tcp.
_ADDRESS = re.compile(r'--lead=\S+?:(\d+)')


class Check(NamedTuple):
  """Something that must hold.

  Attributes:
    name: What it is.
    holds: Whether it does.
    detail: What was found.
  """

  name: str
  holds: bool
  detail: str


class _Lines:
  """The lines of a file that grows."""

  def __init__(self, path: pathlib.Path):
    self._path = path
    self._read = 0

  def more(self) -> list[bytes]:
    """Returns the whole lines that are new."""
    if not self._path.exists():
      return []
    with self._path.open('rb') as file:
      file.seek(self._read)
      data = file.read()
    whole = data[: data.rfind(b'\n') + 1]
    self._read += len(whole)
    return whole.splitlines()


class Launched:
  """The processes of a run, as launch.jsonl tells of them.

  Attributes:
    living: By role, the number of the process and the Unix time of its start.
    starts: How many there were.
    deaths: Ends with another code than 0.
    ports: That were to be listened on.
    pushes: Of the run so far.
  """

  def __init__(self, workdir: pathlib.Path):
    """Knows of no process yet."""
    self.living: dict[str, tuple[int, float]] = {}
    self.starts = self.deaths = 0
    self.ports: set[int] = set()
    self.pushes = 0
    self._launch = _Lines(workdir / 'launch.jsonl')
    self._events = _Lines(workdir / 'events.jsonl')
    self._short: Counter[str] = Counter()

  def look(self) -> None:
    """Reads what has been written since."""
    for line in self._launch.more():
      self._take(json.loads(line))
    self.pushes += sum(_PUSH in line for line in self._events.more())
    for pid, _ in self.living.values():
      self.ports |= set(map(int, _ADDRESS.findall(command_line(pid))))

  def victims(self) -> list[str]:
    """Returns the workers that may be killed."""
    now = time.time()
    return [
      role
      for role, (_, start) in sorted(self.living.items())
      if role.startswith('worker')
      and (self._short[role] < _SPARED or now - start > _YOUNG_S)
    ]

  def kill(self, role: str) -> bool:
    """Sends SIGKILL to a process; returns whether it still was that one."""
    pid, _ = self.living[role]
    try:
      handle = os.pidfd_open(pid)
    except ProcessLookupError:
      return False
    try:
      # Between fork and exec it still has the command line of its parent.
      if f'--role={role}' not in command_line(pid):
        return False
      signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
      return False
    finally:
      os.close(handle)
    return True

  def _take(self, row: Mapping[str, Any]) -> None:
    role = row['role']
    if row['event'] == 'start':
      self.living[role] = row['pid'], row['time']
      self.starts += 1
      return
    _, start = self.living.pop(role)
    short = row['time'] - start < _YOUNG_S
    self._short[role] = self._short[role] + 1 if short else 0
    self.deaths += row['code'] != 0


def main(argv: list[str] | None = None) -> None:
  """Makes both runs and prints what holds."""
  parser = argparse.ArgumentParser(
    prog='bench.soak', description=__doc__.splitlines()[0]
  )
  parser.add_argument('--kills', type=int, default=200)
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--mean_s', type=float, default=3.0)
  parser.add_argument('--out', help='folder of the runs; a new one by default')
  given = parser.parse_args(argv)
  out = pathlib.Path(given.out or tempfile.mkdtemp()).resolve()
  print(f'runs are in {out}', flush=True)
  start = time.monotonic()
  fields = _FIELDS | {'epochs': _PUSHES * given.kills / _EPOCH}
  runs = {
    name: clusters.start(
      clusters.command(
        out / name, 'configs/vgg16_elastic.py', fields, workers=_WORKERS
      ),
      out / f'{name}.log',
    )
    for name in ('killed', 'calm')
  }
  launched = Launched(out / 'killed')
  try:
    kills = _kill(runs['killed'], launched, given, start)
    for name, process in runs.items():
      left_s = max(start + _LIMIT_S - time.monotonic(), 1.0)
      clusters.finish(process, out / f'{name}.log', left_s)
  finally:
    for process in runs.values():
      clusters.end(process)
  launched.look()
  print(
    f'{kills} kills, {launched.deaths} deaths, {launched.starts} starts, '
    f'{time.monotonic() - start:.0f} s'
  )
  checks = [Check('all kills made', kills == given.kills, f'{kills}')]
  checks += judged(out / 'killed', out / 'calm', launched)
  for check in checks:
    print(f'{"ok  " if check.holds else "FAIL"}  {check.name}: {check.detail}')
  sys.exit(0 if all(check.holds for check in checks) else 1)


def judged(
  killed: pathlib.Path, calm: pathlib.Path, launched: Launched
) -> Iterator[Check]:
  """Yields what must hold of a run with kills.

  Args:
    killed: Its folder.
    calm: Folder of the same run without kills.
    launched: Its processes.
  """
  summary, beside = map(records.read_summary, (killed, calm))
  accuracies = summary['final_accuracy'], beside['final_accuracy']
  yield Check(
    f'accuracies within {_APART:.0%}',
    abs(accuracies[0] - accuracies[1]) <= _APART,
    '{:.2%} with kills, {:.2%} without'.format(*accuracies),
  )
  yield from accounts(killed)
  told = Counter(event['told'] for event in records.events(killed))
  yield Check(
    'workers have come back',
    told['join'] > 0,
    f'{told["leave"]} times left, {told["join"]} times back',
  )
  ports = sorted(launched.ports & _listening())
  yield Check(
    'no port is left',
    not ports,
    f'{ports} of {len(launched.ports)} are listened on',
  )


def accounts(path: pathlib.Path) -> Iterator[Check]:
  """Yields what must hold of any run on this machine, however it went.

  Args:
    path: Its folder.
  """
  summary, events = records.read_summary(path), list(records.events(path))
  pushed = sum(e['examples'] for e in events if e['told'] == 'push')
  counted = summary['examples'] + summary['examples_pending']
  yield Check(
    'pushed examples are applied or pending',
    pushed == counted,
    f'{pushed} pushed, {summary["examples"]} applied, '
    f'{summary["examples_pending"]} pending',
  )
  held = sum(stop - start for start, stop in summary['outstanding'])
  yield Check(
    'issued examples are pushed or outstanding',
    summary['issued'] == pushed + held,
    f'{summary["issued"]} issued, {held} outstanding',
  )
  lost = [(row['worker'], row['iteration']) for row in summary['lost']]
  yield Check(
    'lost iterations are listed',
    lost == _lost(events),
    f'{len(lost)}, in summary.json',
  )
  same = [recorded == replayed for recorded, replayed in replay.pairs(path)]
  detail = f'{sum(same)} of {len(same)} verdicts are the same'
  yield Check('events replay', all(same), detail)
  left = _left(path)
  yield Check('no process is left', not left, f'{left}')


def command_line(pid: int) -> str:
  """Returns the command of a process; '' if there is none."""
  try:
    data = pathlib.Path('/proc', str(pid), 'cmdline').read_bytes()
  except (FileNotFoundError, ProcessLookupError):
    return ''
  return data.replace(b'\0', b' ').decode(errors='replace')


def _kill(
  process: subprocess.Popen,
  launched: Launched,
  given: argparse.Namespace,
  start: float,
) -> int:
  """Kills workers until it is enough or the run has ended; returns how many."""
  rng = random.Random(given.seed)
  kills, due = 0, math.inf
  pushes = given.kills * _PUSHES
  while kills < given.kills and process.poll() is None:
    time.sleep(_POLL_S)
    launched.look()
    now = time.monotonic()
    if now - start > _LIMIT_S:
      break
    # Before, no worker may be missing, so that it would wait for the last one.
    if launched.pushes and due == math.inf:
      due = now + rng.expovariate(1 / given.mean_s)
    victims = launched.victims()
    if now < due or not victims:
      continue
    victim = rng.choice(victims)
    if launched.kill(victim):
      kills += 1
      # Where the run is faster than expected, so are the kills.
      run_left = max(1 - launched.pushes / pushes, 0.1)
      mean_s = given.mean_s * min(run_left / (1 - (kills - 1) / given.kills), 1)
      due = now + rng.expovariate(1 / mean_s)
      print(f'{now - start:6.1f} s: kill {kills}, {victim}', flush=True)
  return kills


def _lost(events: list[Mapping[str, Any]]) -> list[tuple[int, int]]:
  """Returns the iterations that workers were in when they left, in order."""
  iteration, running, lost = Counter(), set(), []
  for event in events:
    worker = event.get('worker')
    if event['told'] == 'leave' and worker in running:
      lost.append((worker, iteration[worker] - 1))
    if event['told'] in ('leave', 'push'):
      running.discard(worker)
    for released in event['said'].get('release', ()):
      iteration[released] += 1
      running.add(released)
  return lost


def _left(workdir: pathlib.Path) -> list[int]:
  """Returns the processes that have the folder in their command line."""
  every = (path.name for path in pathlib.Path('/proc').iterdir())
  numbers = [int(name) for name in every if name.isdecimal()]
  return [n for n in numbers if f'{workdir} ' in f'{command_line(n)} ']


def _listening() -> set[int]:
  """Returns the TCP ports of this machine that are listened on."""
  ports = set()
  for name in ('tcp', 'tcp6'):
    lines = pathlib.Path('/proc/net', name).read_text().splitlines()[1:]
    for line in lines:
      _, address, _, state, *_ = line.split()
      if state == _LISTEN:
        ports.add(int(address.rpartition(':')[2], 16))
  return ports


if __name__ == '__main__':
  main()
