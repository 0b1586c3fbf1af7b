"""Many killed processes in one run: python -m bench.soak, or `make soak`.

  python -m bench.soak [--kills=200] [--servers=0.1] [--mean_s=1.5] [--seed=0]
    [--out=DIR]

ElasticBSP on this machine, with four workers and two dedicated servers, one of
which is the coordinator.  Once the run has started, a random live process gets
SIGKILL at random moments, --mean_s apart in the mean, also during its restart:
a worker, or with the probability --servers a server or the coordinator, after
which all processes resume from a checkpoint.  A process that has died several
times in a row soon after its start is spared until it is older, because the
launcher would end the run.  Pauses are longer while all processes restart.

Everything that must hold afterwards is printed; the exit code is 1 if anything
does not.
"""

import argparse
import math
import pathlib
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator

from bench import clusters, launched
from bench.accounts import Check, accounts, check_parameters
from tools.reading import records

_WORKERS, _SERVERS = 4, 2
_PUSHES = 45  # For each kill: the run lasts a little longer than they do.
_EPOCH = 1437 / 16  # The same, of digits.
_FIELDS = {
  'model.name': 'mlp',
  'eval_every': 10.0,
  'log_every': 1000,
  'checkpoint.every_examples': 1000,
  'cluster.timeout_s': 10.0,
  'cluster.speed.injected': True,
  'cluster.speed.fixed_s': 0.05,
  'cluster.speed.per_example_s': 0.0,
}
_LIMIT_S = 6.0  # For each kill.
_STILL_S = 90.0  # Without a push: then it hangs.
_STARTING = 4  # Times longer are pauses while all start again.
_ACCURACY = 0.96
_MORE = 64.0, 16  # MiB and open files that a process may come to have.
_POLL_S, _MEASURE_S = 0.05, 2.0


def main(argv: list[str] | None = None) -> None:
  """Makes the run and prints what holds."""
  parser = argparse.ArgumentParser(
    prog='bench.soak', description=__doc__.splitlines()[0]
  )
  parser.add_argument('--kills', type=int, default=200)
  parser.add_argument('--servers', type=float, default=0.1)
  parser.add_argument('--mean_s', type=float, default=1.5)
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--out', help='folder of the run; a new one by default')
  given = parser.parse_args(argv)
  out = pathlib.Path(given.out or tempfile.mkdtemp()).resolve()
  print(f'the run is in {out}', flush=True)
  start = time.monotonic()
  words = clusters.command(
    out / 'run',
    'configs/vgg16_elastic.py',
    _FIELDS | {'epochs': _PUSHES * given.kills / _EPOCH},
    workers=_WORKERS,
    servers=_SERVERS,
    restarts=given.kills,
  )
  run = clusters.start(words, out / 'run.log')
  seen = launched.Launched(out / 'run')
  try:
    killed = Killing(run, seen, given)()
    left_s = max(start + _LIMIT_S * given.kills - time.monotonic(), 60.0)
    clusters.finish(run, out / 'run.log', left_s)
  finally:
    clusters.end(run)
  seen.look()
  kinds = ', '.join(f'{count} of {kind}' for kind, count in killed.items())
  print(
    f'{killed.total()} kills ({kinds}), {seen.deaths} deaths, {seen.starts} '
    f'starts, {time.monotonic() - start:.0f} s'
  )
  checks = [
    Check('all kills made', killed.total() == given.kills, f'{killed.total()}'),
    *judged(out / 'run', seen),
    *check_parameters(out / 'run'),
  ]
  for check in checks:
    print(f'{"ok  " if check.holds else "FAIL"}  {check.name}: {check.detail}')
  sys.exit(0 if all(check.holds for check in checks) else 1)


def judged(
  path: pathlib.Path, seen: launched.Launched, *, least: float = _ACCURACY
) -> Iterator[Check]:
  """Yields what must hold of a run with kills.

  Args:
    path: Folder of the run.
    seen: Processes of the run.
    least: Accuracy that it must have.
  """
  accuracy = records.read_summary(path)['final_accuracy']
  name = f'accuracy of at least {least:.0%}'
  yield Check(name, accuracy >= least, f'{accuracy:.2%}')
  yield from accounts(path)
  events = Counter(event['event'] for event in records.read_events(path))
  yield Check(
    'workers have come back',
    events['join'] > 0,
    f'{events["leave"]} times left, {events["join"]} times back, '
    f'{events["start"]} times all',
  )
  ports = sorted(seen.ports & launched.listening())
  yield Check(
    'no port is left',
    not ports,
    f'{ports} of {len(seen.ports)} are listened on',
  )
  shown = {
    role: f'{memory:.0f} MiB and {files} files'
    for role, (memory, files) in sorted(seen.grown.items())
  }
  yield Check(
    'no process grows',
    all(
      memory <= _MORE[0] and n <= _MORE[1] for memory, n in seen.grown.values()
    ),
    f'by at most {shown}',
  )


class Killing:
  """Kills processes until it is enough or the run has ended."""

  def __init__(
    self,
    run: subprocess.Popen,
    seen: launched.Launched,
    given: argparse.Namespace,
  ):
    """Initializes the object without kills.

    Args:
      run: The launcher.
      seen: What it has started.
      given: The flags.
    """
    self._run, self._seen, self._given = run, seen, given
    self._rng = random.Random(given.seed)
    self._killed: Counter[str] = Counter()

  def __call__(self) -> Counter[str]:
    """Returns how many it has killed, of servers and of workers.

    Raises:
      RuntimeError: If the run stands still.
    """
    given, seen = self._given, self._seen
    start = moved = measured = time.monotonic()
    due, pushes, again = math.inf, 0, -1
    while self._killed.total() < given.kills and self._run.poll() is None:
      time.sleep(_POLL_S)
      seen.look()
      now = time.monotonic()
      if now - measured > _MEASURE_S:
        measured = now
        seen.measure()
      if seen.pushes > pushes:
        moved, pushes = now, seen.pushes
      if now - moved > _STILL_S:
        raise RuntimeError(f'No push for {now - moved:.0f} s.')
      # Before, no worker may be missing: it would wait for the last one.
      if pushes and due == math.inf:
        due = now + self._pause_s()
      if now < due:
        continue
      if role := self._kill():
        print(f'{now - start:6.1f} s: kill {self._killed.total()}, {role}')
        sys.stdout.flush()
        if role.startswith('server'):
          again = pushes
        due = now + self._pause_s() * (_STARTING if pushes == again else 1)
    return self._killed

  def _kill(self) -> str:
    """Returns the role of the killed process; '' without one."""
    kinds = ['server', 'worker']
    if self._rng.random() >= self._given.servers:
      kinds.reverse()
    for kind in kinds:
      if victims := self._seen.victims(kind):
        victim = self._rng.choice(victims)
        if self._seen.kill(victim):
          coordinator = 'coordinator' if victim == 'server:0' else kind
          self._killed[coordinator] += 1
          return victim
        return ''
    return ''

  def _pause_s(self) -> float:
    """Returns how long to wait, less if the run would be over before."""
    given = self._given
    run_left = max(1 - self._seen.pushes / (_PUSHES * given.kills), 0.1)
    kills_left = 1 - self._killed.total() / given.kills
    return (
      self._rng.expovariate(1 / (given.mean_s * min(run_left / kills_left, 1)))
      if kills_left
      else 0.0
    )


if __name__ == '__main__':
  main()
