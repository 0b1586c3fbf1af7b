"""Checks that the pinned requirements resolve wherever they are installed.

  python -m tools.resolve_requirements [FILE ...]

For each file, by default all but those of peers, each Python and each processor
uv resolves it from binary packages alone, and installs nothing.  uv evaluates
environment markers for the Python and the processor that are asked for, while
`pip download --python-version --platform` does so for its own, and so resolves
other pins.

The package index that uv is configured for is asked for metadata.  The exit
code is 1 if a file does not resolve, and 0 with the reason if no index is
reached.
"""

import itertools
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Sequence

from absl import app

PYTHONS = ('3.11', '3.12')
MACHINES = ('x86_64', 'aarch64')
_GLIBC = 'manylinux_2_28'  # glibc of RHEL 8, Debian 10, Ubuntu 20.04 and later.
_ROOT = pathlib.Path(__file__).parents[1]
FILES = tuple(
  _ROOT / f'requirements{name}.txt'
  for name in ('', '-cpu', '-dev', '-docs', '-ray', '-mlflow')
)
_LIMIT_S = 120.0
# Texts in uv's output if it does not reach the index.
_OFFLINE = ('error sending request', 'Failed to fetch', 'network was disabled')


def resolve(
  file: pathlib.Path,
  *,
  python: str,
  machine: str,
  options: Sequence[str] = (),
) -> str:
  """Returns why a file does not resolve; '' if it does.

  Args:
    file: Requirements.
    python: Version, such as '3.12'.
    machine: Processor, 'x86_64' or 'aarch64', with Linux.
    options: Further options of uv, such as those of an index.

  Raises:
    ConnectionError: If the index is not reached.
    FileNotFoundError: If uv is not installed.
  """
  words = [find_uv(), 'pip', 'compile', '--quiet', '--only-binary=:all:']
  words += [f'--python-version={python}', '--no-python-downloads']
  words += [f'--python-platform={machine}-{_GLIBC}', *options, str(file)]
  try:
    done = subprocess.run(
      words, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
  except subprocess.TimeoutExpired as error:
    raise ConnectionError(f'no answer in {error.timeout:g} s') from error
  if done.returncode == 0:
    return ''
  problem = ' '.join(done.stderr.split())
  if any(words in problem for words in _OFFLINE):
    raise ConnectionError(problem)
  return problem


def find_uv() -> str:
  """Returns the path of uv, of this environment or of PATH.

  Raises:
    FileNotFoundError: If it is not installed.
  """
  here = str(pathlib.Path(sys.executable).parent)
  path = os.pathsep.join([here, os.environ.get('PATH', '')])
  if found := shutil.which('uv', path=path):
    return found
  raise FileNotFoundError('uv is not installed; requirements-dev.txt has it.')


def main(argv: list[str]) -> None:
  """Resolves the files for all Pythons and processors."""
  files = [*map(pathlib.Path, argv[1:])] or FILES
  failed = 0
  for file, python, machine in itertools.product(files, PYTHONS, MACHINES):
    try:
      problem = resolve(file, python=python, machine=machine)
    except (ConnectionError, FileNotFoundError) as error:
      print(f'Not checked: {error}')
      break
    failed += bool(problem)
    print(f'{file.name}, Python {python}, {machine}: {problem or "resolves"}')
  sys.exit(failed > 0)


if __name__ == '__main__':
  app.run(main)
