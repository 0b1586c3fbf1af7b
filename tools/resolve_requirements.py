"""Checks that the pinned requirements resolve wherever they are installed.

  python -m tools.resolve_requirements [--lock] [FILE ...]

For each file, by default all but those of peers, each Python and each processor
uv resolves it from binary packages alone, and installs nothing.  uv evaluates
environment markers for the Python and the processor that are asked for, while
`pip download --python-version --platform` does so for its own, and so resolves
other pins.

A file FILE.txt is a short list that people read and edit.  Beside it FILE.lock
has its pins and those of all packages that they need, each with the hashes of
its files, for all Pythons and processors: pip installs nothing else from it.
--lock writes the locks anew; without it each lock is compared with its file.
Versions that a lock has stay, unless the file has others.

The package index that uv is configured for is asked for metadata.  The exit
code is 1 if a file does not resolve or a lock differs, and 0 with the reason if
no index is reached.
"""

import itertools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from absl import app, flags

PYTHONS = ('3.11', '3.12')
MACHINES = ('x86_64', 'aarch64')
_GLIBC = 'manylinux_2_28'  # glibc of RHEL 8, Debian 10, Ubuntu 20.04 and later.
_ROOT = pathlib.Path(__file__).parents[1]
# The first one is installed below all others, whose locks have its versions.
FILES = tuple(
  _ROOT / f'requirements{name}.txt'
  for name in ('-cpu', '', '-dev', '-docs', '-ray', '-mlflow')
)
_LIMIT_S = 120.0
# Texts in uv's output if it does not reach the index.
_OFFLINE = ('error sending request', 'Failed to fetch', 'network was disabled')

_LOCK = flags.DEFINE_bool('lock', False, 'Write the locks.')


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
  words = [f'--python-version={python}', *options, str(file)]
  return _compile([f'--python-platform={machine}-{_GLIBC}', *words])


def lock_of(file: pathlib.Path) -> pathlib.Path:
  """Returns the path of the lock of a file."""
  return file.with_suffix('.lock')


def lock(
  file: pathlib.Path,
  *,
  below: pathlib.Path | None = None,
  options: Sequence[str] = (),
) -> str:
  """Returns the text of a file's lock; its present one if that is up to date.

  Args:
    file: Requirements.
    below: Lock of what is installed already, whose versions are taken.
    options: Further options of uv, such as those of an index.

  Raises:
    ConnectionError: If the index is not reached.
    FileNotFoundError: If uv is not installed.
    ValueError: If the file does not resolve.
  """
  words = ['--universal', '--generate-hashes', f'--python-version={PYTHONS[0]}']
  words += ['--no-header', '--no-annotate', *options]
  if below:
    words.append(f'--constraints={below}')
  with tempfile.TemporaryDirectory() as folder:
    output = pathlib.Path(folder, 'lock')
    if lock_of(file).exists():  # uv keeps its versions.
      shutil.copy(lock_of(file), output)
    problem = _compile([*words, f'--output-file={output}', str(file)])
    if problem:
      raise ValueError(f'{file.name}: {problem}')
    return output.read_text()


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
  """Resolves the files for all Pythons and processors, or locks them."""
  files = [*map(pathlib.Path, argv[1:])] or FILES
  if _LOCK.value:
    for file in files:
      lock_of(file).write_text(_lock(file))
    return
  problems = []
  try:
    for file in files:
      problems += [_compare(file)]
    for file, python, machine in itertools.product(files, PYTHONS, MACHINES):
      problems += [resolve(file, python=python, machine=machine)]
      name = f'{file.name}, Python {python}, {machine}'
      print(f'{name}: {problems[-1] or "resolves"}')
  except (ConnectionError, FileNotFoundError) as error:
    print(f'Not checked: {error}')
  sys.exit(any(problems))


def _lock(file: pathlib.Path) -> str:
  """Returns the text of the lock of one of this repository's files."""
  is_first = file.absolute() == FILES[0]
  return lock(file, below=None if is_first else lock_of(FILES[0]))


def _compare(file: pathlib.Path) -> str:
  """Returns why a file's lock is not up to date, which it prints, or ''."""
  path = lock_of(file)
  try:
    is_current = path.exists() and _pins(path.read_text()) == _pins(_lock(file))
    problem = '' if is_current else 'differs from its file; make lock'
  except ValueError as error:
    problem = str(error)
  print(f'{path.name}: {problem or "is up to date"}')
  return problem


def _pins(lock: str) -> list[str]:
  """Returns a lock without hashes: a version may get more files later on."""
  return [each for each in lock.splitlines() if not each.startswith(' ')]


def _compile(words: Sequence[str]) -> str:
  """Runs `uv pip compile`; returns why it fails, '' if it does not.

  Raises:
    ConnectionError: If the index is not reached.
    FileNotFoundError: If uv is not installed.
  """
  command = [find_uv(), 'pip', 'compile', '--quiet', '--only-binary=:all:']
  command += ['--no-python-downloads', *words]
  try:
    done = subprocess.run(
      command, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
  except subprocess.TimeoutExpired as error:
    raise ConnectionError(f'no answer in {error.timeout:g} s') from error
  if done.returncode == 0:
    return ''
  problem = ' '.join(done.stderr.split())
  if any(words in problem for words in _OFFLINE):
    raise ConnectionError(problem)
  return problem


if __name__ == '__main__':
  app.run(main)
