"""Requirements of tests that not every machine meets.

Each function here returns if the requirement is met, and otherwise skips the
test that calls it, or whose setUp or setUpClass does, with the reason.  If the
environment variable SYNCOPATE_MUST_RUN names the requirement, the test fails
instead.  Its names are those of NAMES, separated by commas.
"""

import functools
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import unittest
from collections.abc import Mapping

from tests.support import labs
from tests.support import slurm as slurms

_PROGRAMS = ('hadolint', 'make', 'openssl')
_MODULES = ('kubernetes_validate', 'submitit')
NAMES = frozenset(
  (
    *('data', 'gpu', 'host', 'lab', 'mlflow', 'peers', 'ray'),
    *('simgrid', 'slurm', 'topologies', *_PROGRAMS, *_MODULES),
  )
)
_SYSTEM_PYTHON = '/usr/bin/python3'  # For Debian's python3-simgrid.
_VARIABLE = 'SYNCOPATE_MUST_RUN'


def must_run(environ: Mapping[str, str]) -> frozenset[str]:
  """Returns the requirements whose lack fails tests.

  Raises:
    ValueError: If SYNCOPATE_MUST_RUN has a name that is not in NAMES.
  """
  words = map(str.strip, environ.get(_VARIABLE, '').split(','))
  names = frozenset(filter(None, words))
  if unknown := sorted(names - NAMES):
    raise ValueError(
      f'{_VARIABLE}: expected names among {sorted(NAMES)}, got {unknown}'
    )
  return names


def lab() -> None:
  """Requires a machine that can have labs (see `tools.lab`)."""
  _require('lab', _why_no_lab())


def slurm() -> None:
  """Requires the programs of SLURM, and a lab in which they run."""
  _require('slurm', slurms.why_not() or _why_no_lab())


def simgrid() -> str:
  """Requires SimGrid in the system's Python; returns its path."""
  _require('simgrid', _why_not(_SYSTEM_PYTHON, 'import simgrid'))
  return _SYSTEM_PYTHON


def gpu() -> None:
  """Requires a GPU on which JAX computes."""
  import jax

  has_gpu = jax.default_backend() != 'cpu'
  _require('gpu', '' if has_gpu else 'JAX sees no GPU.')


def data(name: str) -> pathlib.Path:
  """Requires a file or a folder of SYNCOPATE_DATA; returns its path."""
  return _below('data', 'SYNCOPATE_DATA', name)


def topologies(name: str) -> pathlib.Path:
  """Requires a file of SYNCOPATE_TOPOLOGIES; returns its path."""
  return _below('topologies', 'SYNCOPATE_TOPOLOGIES', name)


def program(name: str) -> str:
  """Requires a program of this environment or of PATH; returns its path."""
  here = str(pathlib.Path(sys.executable).parent)
  places = os.pathsep.join((here, os.environ.get('PATH', os.defpath)))
  found = shutil.which(name, path=places) or ''
  _require(name, '' if found else f'{name} is not installed.')
  return found


def module(name: str) -> None:
  """Requires a module that this environment need not have."""
  found = importlib.util.find_spec(name)
  _require(name, '' if found else f'The module {name} is not installed.')


def ray() -> str:
  """Requires SYNCOPATE_RAY, an interpreter that has Ray and JAX; returns it."""
  return _interpreter('ray', 'SYNCOPATE_RAY', 'import ray, jax')


def mlflow() -> str:
  """Requires SYNCOPATE_MLFLOW, an interpreter with MLflow; returns it."""
  return _interpreter('mlflow', 'SYNCOPATE_MLFLOW', 'import mlflow, jax')


def peers() -> str:
  """Requires SYNCOPATE_PEERS, an interpreter with PyTorch; returns it."""
  return _interpreter('peers', 'SYNCOPATE_PEERS', 'import torch')


def host(is_met: bool, reason: str) -> None:
  """Requires what few hosts lack, such as IPv6.

  Args:
    is_met: Whether this host has it.
    reason: What it lacks otherwise.
  """
  _require('host', '' if is_met else reason)


def _require(name: str, reason: str) -> None:
  """Skips or fails a test if there is a reason."""
  if name not in NAMES:
    raise ValueError(f'name: expected one of {sorted(NAMES)}, got {name!r}')
  if not reason:
    return
  if name in must_run(os.environ):
    raise AssertionError(f'{_VARIABLE} has {name}: {reason}')
  raise unittest.SkipTest(f'{name}: {reason}')


def _below(name: str, variable: str, file: str) -> pathlib.Path:
  folder = os.environ.get(variable)
  path = pathlib.Path(folder or '', file)
  if not folder:
    _require(name, f'{variable} names no folder.')
  _require(name, '' if path.exists() else f'{variable} has no {file}.')
  return path


def _interpreter(name: str, variable: str, code: str) -> str:
  python = os.environ.get(variable, '')
  _require(
    name,
    _why_not(python, code) if python else f'{variable} names no interpreter.',
  )
  return python


@functools.cache
def _why_not(python: str, code: str) -> str:
  try:
    done = subprocess.run(
      [python, '-c', code], capture_output=True, text=True, check=False
    )
  except OSError as error:
    return str(error)
  return done.stderr if done.returncode else ''


@functools.cache
def _why_no_lab() -> str:
  return labs.why_not()
