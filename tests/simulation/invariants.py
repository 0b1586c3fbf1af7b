"""Invariants of runs under faults: end, exit codes, examples, history."""

from collections.abc import Iterator

import analysis
from tests.simulation.runs import Outcome
from tests.support import accounts

_DONE = 'all processes have ended'


def violations(outcome: Outcome) -> list[str]:
  """Returns what does not hold for a run that was to finish."""
  return [
    *_unfinished(outcome),
    *_unaccounted(outcome),
    *_disordered(outcome),
  ]


def _unfinished(outcome: Outcome) -> Iterator[str]:
  """Yields which processes have not ended, or not well."""
  if outcome.end != _DONE:
    yield f'the run has not ended after {outcome.time_s:.0f} s: {outcome.end}'
  for name, code in outcome.codes.items():
    if code != 0:
      yield f'{name} has the exit code {code}'


def _unaccounted(outcome: Outcome) -> Iterator[str]:
  """Yields which examples are lost, repeated or not accounted for."""
  if not (outcome.folder / 'summary.json').exists():
    yield 'it has no summary'
    return
  try:
    checks = [*accounts.accounts(outcome.folder)]
  except (OSError, ValueError, KeyError) as error:
    yield f'its folder cannot be read: {error!r}'
    return
  for check in checks:
    if not check.holds:
      yield f'{check.name}: {check.detail}'


def _disordered(outcome: Outcome) -> Iterator[str]:
  """Yields what two writers of one history would do.

  After each start or return to mirrors updates count from 0 on.
  """
  updates: list[int] = []
  time_s = -1.0
  for event in analysis.read(outcome.folder).read_event_rows():
    if event['event'] == 'start':
      updates = []
    updates += event.get('decision', {}).get('commit', ())
    if updates != [*range(len(updates))]:
      yield f'updates are {updates} at {event["time"]:.3f} s'
      return
    if event['time'] < time_s:
      yield f'time goes back from {time_s:.3f} to {event["time"]:.3f} s'
      return
    time_s = event['time']
