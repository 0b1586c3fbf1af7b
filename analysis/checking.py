"""Command line and output of tools that check recorded runs."""

import pathlib
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn, TypeVar

from absl import app, flags

from configs import user_parts

_T = TypeVar('_T')

# Help of --own, a list of modules.
OWN = (
  'Modules of your own parts that the runs use, such as my_lab.backup; none is '
  'imported because a run names it.'
)


class Difference(NamedTuple):
  """First difference of two sequences.

  Attributes:
    row: Index of the elements, from 0.
    before: Element of the first sequence.
    after: Element of the second sequence.
  """

  row: int
  before: Any
  after: Any


def check_runs(
  argv: list[str], check: Callable[[pathlib.Path], bool]
) -> NoReturn:
  """Checks the runs that a command line names, and ends the process.

  The exit code is 0 if all runs pass, and 1 if one fails or is refused.

  Args:
    argv: Command line: the program and the folders of runs.
    check: Checks a run, prints the result, and returns True if the run passes.

  Raises:
    app.UsageError: If no folder is named.
  """
  if len(argv) < 2:
    raise app.UsageError('Expected at least one folder of a run, got none.')
  try:
    import_modules()
    passed = [check(pathlib.Path(path)) for path in argv[1:]]
  except (OSError, ValueError) as error:
    sys.exit(f'Refused: {error}')
  sys.exit(0 if all(passed) else 1)


def import_modules() -> None:
  """Imports the user's modules that --own names.

  Raises:
    ValueError: If one is no module of a part.
  """
  if 'own' in flags.FLAGS:
    for name in flags.FLAGS['own'].value or ():
      user_parts.load('--own', name)


def first_difference(pairs: Iterable[tuple[_T, _T]]) -> Difference | None:
  """Returns the first pair of unequal elements, or None."""
  for index, (before, after) in enumerate(pairs):
    if before != after:
      return Difference(index, before, after)
  return None
