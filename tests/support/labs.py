"""Labs (see `tools.lab`) that exist for the duration of a test."""

import contextlib
import pathlib
import subprocess
import sys
from collections.abc import Iterator

from tests.tools import lab_test

_ROOT = pathlib.Path(__file__).parents[2]
_LIMIT_S = 60.0


@contextlib.contextmanager
def start(hosts: int) -> Iterator[str]:
  """Creates a lab; removes it at the end, with all processes in it.

  Args:
    hosts: Number of hosts, which are named host0, host1 and so on.

  Yields:
    The name of the lab, for `lab.command`.

  Raises:
    RuntimeError: If this machine cannot have a lab.
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
      process.stdin.close()  # Ends `cat`, and thereby the lab.
      process.wait(_LIMIT_S)


def why_not() -> str:
  """Returns the reason why this machine cannot have a lab; '' if it can."""
  return lab_test._why_not()
