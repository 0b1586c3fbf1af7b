"""Checks of the invariants of runs on real hosts, with and without faults."""

import pathlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import analysis
from analysis import runs
from outputs import checkpoints
from tests.support.recomputing import recompute
from tests.support.run_processes import command_line
from tools import replay


class Check(NamedTuple):
  """Result of checking one invariant of a run.

  Attributes:
    name: The invariant.
    holds: True if it holds.
    detail: Measured values.
  """

  name: str
  holds: bool
  detail: str


def failed(checks: Iterable[Check]) -> list[Check]:
  """Prints checks; returns those that do not hold."""
  checks = list(checks)
  for check in checks:
    print(f'{"ok  " if check.holds else "FAIL"}  {check.name}: {check.detail}')
  return [check for check in checks if not check.holds]


def accounts(path: pathlib.Path) -> Iterator[Check]:
  """Yields the checks of examples, events and processes of a run.

  Args:
    path: Folder of the run.
  """
  summary, events = analysis.read(path).summary, list(runs.read_events(path))
  pushed = sum(
    e['examples']
    for e in events
    if e['event'] == 'push' and 'into' in e['decision']
  )
  accounted = summary['examples'] + summary['examples_pending']
  yield Check(
    'pushed examples are applied or pending',
    pushed == accounted,
    f'{pushed} pushed, {summary["examples"]} applied, '
    f'{summary["examples_pending"]} pending',
  )
  outstanding = sum(stop - start for start, stop in summary['outstanding'])
  yield Check(
    'issued examples are pushed or outstanding',
    summary['issued'] == pushed + outstanding,
    f'{summary["issued"]} issued, {outstanding} outstanding',
  )
  rows = list(runs.read_events(path, with_rollbacks=True))
  listed = [(row['worker'], row['iteration']) for row in summary['lost']]
  yield Check(
    'lost iterations are listed',
    listed == find_lost(rows, summary['examples']),
    f'{len(listed)}, in summary.json',
  )
  same = [recorded == replayed for recorded, replayed in replay.pairs(path)]
  detail = f'{sum(same)} of {len(same)} decisions are the same'
  yield Check('events replay', all(same), detail)
  remaining = _remaining_processes(path)
  yield Check('no process is left', not remaining, f'{remaining}')


def check_history(path: pathlib.Path) -> Check:
  """Returns the check that a run's events are one line of history.

  Two writers of the folder would repeat an update or step back in time.
  """
  events = list(runs.read_events(path))
  updates = [u for e in events for u in e['decision'].get('commit', ())]
  since = [n for n, e in enumerate(events) if e['event'] == 'start'] or [0]
  times = [event['time'] for event in events[since[-1] :]]
  holds = updates == list(range(len(updates))) and times == sorted(times)
  return Check(
    'one line of history', holds, f'{len(updates)} updates, each once, in order'
  )


def check_parameters(path: pathlib.Path) -> Iterator[Check]:
  """Yields the checks of parameters and checkpoints of a run.

  Args:
    path: Folder of the run.
  """
  name = 'recomputed parameters are the same'
  try:
    difference = recompute.difference(path)
    detail = f'they differ by {difference:.3g} at most'
    yield Check(name, difference == 0, detail)
  except ValueError as error:  # A record is missing or wrong.
    yield Check(name, False, str(error))
  directory = path / 'checkpoints'
  parts = {
    folder.name: {*checkpoints.part_names(directory, int(folder.name))}
    for folder in directory.iterdir()
  }
  # Workers that left, and were perhaps away when a checkpoint was written.
  left = {
    f'worker{event["worker"]}'
    for event in runs.read_events(path)
    if event['event'] == 'leave'
  }
  everywhere = set().union(*parts.values()) - left
  alike = all(everywhere <= found for found in parts.values())
  detail = str({name: sorted(found) for name, found in parts.items()})
  yield Check('checkpoints have the same parts', alike, detail)


def find_lost(
  events: list[Mapping[str, Any]], examples: int
) -> list[tuple[int, int]]:
  """Returns the iterations that ended with their worker, in order.

  Args:
    events: Events of a run, with its returns to mirrors.
    examples: Examples applied at the end, after which a released worker does
      not start an iteration, even if the run is restarted; but it has started
      one if the run returns to a mirror later.

  Returns:
    Pairs of worker and iteration.
  """
  iteration, running, lost = Counter(), set(), []
  last: set[int] = set()  # Workers released once all examples were applied.
  pending, applied = Counter(), 0
  for event, absent in runs.split_absent(events):
    worker = event.get('worker')
    if event['event'] == runs.ROLLBACK:
      iteration.update(last)
      running |= last
      last.clear()
      continue
    if event['event'] == 'start':  # A restart from a checkpoint.
      lost += [(other, iteration[other] - 1) for other in sorted(running)]
      running.clear()
    if event['event'] == 'leave' and worker in running:
      lost.append((worker, iteration[worker] - 1))
    if event['event'] in ('leave', 'push'):
      running.discard(worker)
    if 'into' in event['decision']:  # A push that is not dropped.
      pending[event['decision']['into']] += event['examples']
    for update in event['decision'].get('commit', ()):
      applied += pending.pop(update, 0)
    released = {*event['decision'].get('release', ())} - {*absent}
    if applied == examples:
      last |= released
      continue
    for other in released:
      iteration[other] += 1
      running.add(other)
  return lost


def _remaining_processes(workdir: pathlib.Path) -> list[int]:
  """Returns the ids of processes with the folder in their command line."""
  entries = (path.name for path in pathlib.Path('/proc').iterdir())
  numbers = [int(name) for name in entries if name.isdecimal()]
  return [n for n in numbers if f'{workdir} ' in f'{command_line(n)} ']
