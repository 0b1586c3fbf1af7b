"""Labs whose hosts run what a test says, for as long as it says."""

import contextlib
import pathlib
import subprocess
import sys
from collections.abc import Iterator

from tests.tools import lab_test

_ROOT = pathlib.Path(__file__).parents[2]
_LIMIT_S = 60.0


@contextlib.contextmanager
def started(hosts: int) -> Iterator[str]:
  """Makes a lab, and removes it with all that still runs in it.

  Args:
    hosts: How many it has, host0 and so on.

  Yields:
    Its name, for `lab.command`.

  Raises:
    RuntimeError: If there can be none.
  """
  argv = [sys.executable, '-m', 'tools.lab', f'--hosts={hosts}', '--', 'cat']
  pipe = subprocess.PIPE
  with subprocess.Popen(
    argv, cwd=_ROOT, stdin=pipe, stderr=pipe, text=True
  ) as process:
    line = process.stderr.readline()
    if 'SYNCOPATE_LAB=' not in line:
      raise RuntimeError(f'No lab: {line}{process.stderr.read()}')
    try:
      yield lab_test._name(line)
    finally:
      process.stdin.close()  # Of cat, which ends then.
      process.wait(_LIMIT_S)


def why_not() -> str:
  """Returns why this machine can have no lab; '' if it can."""
  return lab_test._why_not()
