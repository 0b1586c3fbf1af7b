"""The fault matrix: every kind of fault in every phase of a real run.

The runs are those of `tests.soak.fault_runs`, by name, in a lab of hosts.
Failures inside processes are those of config.cluster.faults; links and the disk
are disturbed from outside (`tests.soak.disturbances`).

A cell of the table that a run prints has the number of faults that happened
over the number of faults that were planned; the checks of the run follow.
"""

import collections
import pathlib
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from absl.testing import absltest, parameterized

import analysis
from analysis import printing, runs
from bench import clusters
from cluster.process.faults import SLOWER, Faults, Kind, Phase
from tests.soak import disturbances
from tests.soak.disturbances import Disturbances
from tests.soak.fault_runs import RUNS, Run
from tests.support import certificates, requires
from tests.support.accounts import (
  Check,
  accounts,
  check_history,
  check_parameters,
  failed,
)
from tests.support.run_processes import RunProcesses

_STANDSTILL = 3.0  # Longest time without a push, in timeouts.
_LINK = '1gbit'
_TLS_NAME = 'syncopate'
_BACKOFF_S = 0.5  # Pause of the launcher before a restart.
_LIMIT_S, _POLL_S, _TIMEOUT_S = 900.0, 0.05, 2.0
_FIELDS = {
  'model.name': 'mlp',
  'epochs': 70.0,
  'eval_every': 0.5,
  'log_every': 1000,
  'batching.worker_batch': 32,
  'checkpoint.every_examples': 500,
  'cluster.timeout_s': _TIMEOUT_S,
  'cluster.start_s': 60.0,
  'cluster.speed.injected': True,
  'cluster.speed.fixed_s': 0.1,
  'cluster.speed.per_example_s': 0.0,
  'cluster.speed.slowdown': '(1.0,)',
}


class FaultRunsTest(parameterized.TestCase):
  @parameterized.parameters(*RUNS)
  def test_faults_are_accepted(self, name):
    run = RUNS[name]
    faults = _make(run.entries, run.workers, max(run.servers, 1))
    self.assertEqual(bool(run.entries), bool(faults.kinds))

  @parameterized.parameters('die:5', 'memory:5', 'stop:0')
  def test_seconds_of_other_kinds_are_refused(self, kind):
    with self.assertRaisesRegex(ValueError, 'seconds, above 0'):
      _make(((0, 1, kind),), 1, 1)

  def test_a_counted_phase_fails_at_its_number_and_only_once(self):
    faults = _make(((0, 1, 'memory', 'serve'),), 1, 1)
    faults.strike_counted(0, Phase.SERVE)
    with self.assertRaisesRegex(MemoryError, 'as the config says'):
      faults.strike_counted(0, Phase.SERVE)
    faults.strike_counted(0, Phase.SERVE)
    self.assertEqual(faults.kinds, {Kind.MEMORY})


@pytest.mark.soak
@pytest.mark.timeout(2 * _LIMIT_S)
class MatrixTest(parameterized.TestCase):
  @parameterized.named_parameters(*((name, name) for name in RUNS))
  def test_a_run_continues_after_its_faults(self, name):
    requires.lab()
    path = pathlib.Path(tempfile.mkdtemp(), name)
    self.assertEmpty(_run(path, RUNS[name]))


def _make(entries, workers, servers):
  return Faults(
    entries,
    num_workers=workers,
    num_servers=servers,
    directory=pathlib.Path(tempfile.mkdtemp()),
    interface='eth0',
    timeout_s=1.0,
  )


class Pause(NamedTuple):
  """Time without a push in a run whose processes all restart.

  Attributes:
    seconds: Length of the pause.
    faults: Names of the faults in this time.
    starts: Number of restarts of all processes.
    cut_s: Seconds for which links were cut.
  """

  seconds: float
  faults: tuple[str, ...]
  starts: int
  cut_s: float

  def limit_s(self, timeout_s: float, start_s: float, first_s: float) -> float:
    """Returns the longest acceptable pause, seconds.

    Args:
      timeout_s: config.cluster.timeout_s of the run.
      start_s: config.cluster.start_s of the run.
      first_s: Seconds from the first start to the first push.
    """
    hung, slow = (
      sum(name.endswith(f'-{kind}-start') for name in self.faults)
      for kind in ('hang', 'slow')
    )
    return (
      _STANDSTILL * timeout_s * max(self.starts, 1)
      + (first_s + _BACKOFF_S) * self.starts
      + self.cut_s
      + start_s * hung
      + SLOWER * timeout_s * slow
    )


def _run(path: pathlib.Path, run: Run) -> list[Check]:
  """Executes a run, and prints it; returns the checks that do not hold."""
  fields = _FIELDS | run.fields | {'cluster.interface': 'eth0'}
  if run.is_encrypted:
    certificate, key = certificates.write(path.parent, f'DNS:{_TLS_NAME}')
    fields |= {
      'cluster.certificate_file': str(certificate),
      'cluster.key_file': str(key),
      'cluster.tls_name': _TLS_NAME,
    }
  words = clusters.command(
    path,
    'configs/default.py',
    fields | {'cluster.faults': repr(run.entries)},
    workers=run.workers,
    servers=run.servers,
    dedicated=run.is_dedicated,
    link=_LINK,
    restarts=max(len(run.entries), 3),
  )
  with disturbances.small_disk(path, run.disk):
    return _execute(path, run, fields, words)


def _execute(
  path: pathlib.Path, run: Run, fields: dict[str, Any], words: list[str]
) -> list[Check]:
  timeout_s, start_s = (
    float(fields[f'cluster.{name}']) for name in ('timeout_s', 'start_s')
  )
  outside = Disturbances(run.disturbances, path, _LINK)
  limit_s, pauses = _STANDSTILL * timeout_s + run.longer_s, []
  if run.all_restart:
    first_s, pauses = _pauses(path, words, run.workers)
    limits_s = [each.limit_s(timeout_s, start_s, first_s) for each in pauses]
    still_s, limit_s = max(
      (
        (each.seconds, allowed_s)
        for each, allowed_s in zip(pauses, limits_s, strict=True)
      ),
      key=lambda pair: pair[0] / pair[1],
    )
    print(_pause_table(first_s, pauses, limits_s))
  else:
    still_s = _longest_pause_s(path, words, outside)
  folder = path / 'faults'
  injected = (
    {file.name for file in folder.iterdir()} if folder.exists() else set()
  )
  counts = collections.defaultdict(lambda: [0, 0])
  for target, number, kind, phase in run.entries:
    name = f'{target}-{-1 if phase == "end" else number}-{kind.split(":")[0]}'
    name += f'-{phase}' * (phase != 'compute')
    counts[phase, kind][0] += name in injected
    counts[phase, kind][1] += 1
  kinds = dict.fromkeys(kind for _, _, kind, _ in run.entries)
  rows = [(path.name, *kinds)]
  for phase in dict.fromkeys(phase for _, _, _, phase in run.entries):
    cells = [counts.get((phase, kind)) for kind in kinds]
    rows.append((phase, *('{}/{}'.format(*c) if c else '-' for c in cells)))
  print(f'\n{printing.markdown(rows)}\n')
  return failed(_checks(path, run, counts, outside, still_s, limit_s))


def _pushes(
  path: pathlib.Path, words: list[str], outside: Disturbances | None = None
) -> Iterator[tuple[float, RunProcesses]]:
  """Executes a run and yields at each new push.

  Args:
    path: Folder of the run.
    words: Command of the run.
    outside: Disturbances of the run.

  Yields:
    Seconds since the push before, or since the start of the first worker, and
    the processes of the run.
  """
  processes = RunProcesses(path)
  start, pushed_at, pushes = time.monotonic(), 0.0, 0
  with clusters.start(words, path) as run:
    while run.names() and time.monotonic() - start < _LIMIT_S:
      run.next_ends(_POLL_S)
      processes.update()
      if outside:
        outside.update(processes.pushes)
      now = time.time()
      if processes.pushes > pushes:
        since = pushed_at or processes.alive['worker:0'][1]
        yield now - since, processes
        pushed_at, pushes = now, processes.pushes
    run.finish(1.0)


def _longest_pause_s(
  path: pathlib.Path, words: list[str], outside: Disturbances
) -> float:
  """Executes a run; returns the longest time between two pushes, seconds.

  The time for which links of servers are cut does not count, because no worker
  can push then; nor does the time to the first push.
  """
  longest_s, is_first = 0.0, True
  for still_s, _ in _pushes(path, words, outside):
    cut_s = sum(_cuts_s(_recent_faults(path, still_s, 'server*')))
    longest_s = max(longest_s, 0.0 if is_first else still_s - cut_s)
    is_first = False
  return longest_s


def _pauses(
  path: pathlib.Path, words: list[str], workers: int
) -> tuple[float, list[Pause]]:
  """Executes a run; returns the seconds of its first start, and its pauses."""
  first_s, starts, pauses = None, workers, []
  for still_s, processes in _pushes(path, words):
    if first_s is None:
      first_s = still_s
      continue
    files = _recent_faults(path, still_s, '*')
    restarts = (processes.starts - starts) // workers
    starts = processes.starts
    names = tuple(file.name for file in files)
    pauses.append(Pause(still_s, names, restarts, sum(_cuts_s(files))))
  if first_s is None:
    raise RuntimeError(f'{path}: expected pushes, got none.')
  return first_s, pauses


def _pause_table(
  first_s: float, pauses: list[Pause], limits_s: list[float]
) -> str:
  """Returns a table of the pauses with faults or restarts."""
  rows = [('faults', 'restarts', 'pause, s', 'links cut, s', 'limit, s')]
  rows += [
    (
      ', '.join(pause.faults) or '-',
      f'{pause.starts}',
      f'{pause.seconds:.1f}',
      f'{pause.cut_s:g}',
      f'{limit_s:.1f}',
    )
    for pause, limit_s in zip(pauses, limits_s, strict=True)
    if pause.faults or pause.starts
  ]
  return f'\nfirst start: {first_s:.1f} s\n\n{printing.markdown(rows)}'


def _recent_faults(
  path: pathlib.Path, last_s: float, pattern: str
) -> list[pathlib.Path]:
  """Returns the files of the faults of the last seconds, in order."""
  since = time.time() - last_s - _POLL_S
  files = (path / 'faults').glob(pattern)
  dated = sorted((file.stat().st_mtime, file) for file in files)
  return [file for injected_at, file in dated if injected_at > since]


def _cuts_s(files: list[pathlib.Path]) -> list[float]:
  """Returns the seconds of each cut among the files of faults."""
  return [float(file.read_text()) for file in files if '-cut' in file.name]


def _checks(
  path: pathlib.Path,
  run: Run,
  counts: dict[tuple[str, str], list[int]],
  outside: Disturbances,
  still_s: float,
  limit_s: float,
) -> Iterator[Check]:
  summary = analysis.read(path).summary
  missing: list[Any] = [
    cell for cell, (count, planned) in counts.items() if count < planned
  ]
  missing += [d.kind for d in run.disturbances if d not in outside.begun]
  yield Check('all faults happened', not missing, f'all but {missing}')
  yield Check('ended', summary['ended'] == 'finished', summary['ended'])
  detail = f'{still_s:.1f} s between two pushes, {limit_s:g} s at most'
  yield Check('continues after faults', still_s <= limit_s, detail)
  yield from accounts(path)
  starts = [e for e in runs.read_events(path) if e['event'] == 'start']
  if len(starts) == 1:  # After a restart from a checkpoint, updates repeat.
    yield check_history(path)
  yield from check_parameters(path)


if __name__ == '__main__':
  absltest.main()
