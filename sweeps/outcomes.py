"""Outcomes of runs, read from the files in their folders.

All commands that start many runs decide by these outcomes which of them are
left: sweeps, comparisons, published tables and benchmarks.
"""

import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from outputs import atomic

_DIVERGED = 'FloatingPointError'  # Prefix of `ended` in summary.json.


class Outcome(NamedTuple):
  """Outcome of a run so far.

  Attributes:
    status: 'finished', 'diverged', 'failed', or 'unfinished'.
    error: Error that ended the run; '' without one.
  """

  status: str
  error: str = ''

  @property
  def is_final(self) -> bool:
    """True if the run would end in the same way if it were started again."""
    return self.status in ('finished', 'diverged')


def read_summary(folder: pathlib.Path) -> dict[str, Any] | None:
  """Returns the summary of a run; None if it is missing or incomplete.

  Raises:
    OSError: If there is a summary that cannot be read.
  """
  return atomic.read_object(folder / 'summary.json')


def read_outcome(folder: pathlib.Path) -> Outcome:
  """Returns the outcome of a run.

  Args:
    folder: Folder of the run, which need not exist.

  Raises:
    OSError: If there is a summary that cannot be read.
  """
  return outcome_of_summary(read_summary(folder))


def outcome_of_summary(summary: Mapping[str, Any] | None) -> Outcome:
  """Returns the outcome of a run with this summary.

  Args:
    summary: Content of summary.json; None without one.
  """
  ended = 'interrupted' if summary is None else summary.get('ended')
  if ended in (None, 'interrupted'):
    return Outcome('unfinished')
  if ended == 'finished':
    return Outcome('finished')
  status = 'diverged' if ended.startswith(_DIVERGED) else 'failed'
  return Outcome(status, ended)
