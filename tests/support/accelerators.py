"""Fake accelerators of processes, and records of the arrays on them.

Tests start processes with `environment(folder)`.  Afterwards `records` returns
the programs that each client of JAX has compiled and the bytes that it has
received, by process.  See `tests/support/fake_gpu/sitecustomize.py`.
"""

import collections
import dataclasses
import json
import os
import pathlib
import unittest

_ROOT = pathlib.Path(__file__).parents[2]
FOLDER = _ROOT / 'tests/support/fake_gpu'
NATIVE = 'XLA joins no processes by it.'


def environment(
  record: pathlib.Path | None = None, *, devices: int = 1, platforms: str = ''
) -> dict[str, str]:
  """Returns the variables that give a Python process a fake accelerator.

  Args:
    record: Folder for the records of processes, which is created; None for no
      records.
    devices: Number of the accelerator's devices.
    platforms: JAX_PLATFORMS; empty for the default, as on a host with a GPU.
  """
  variables = {
    'PYTHONPATH': f'{FOLDER}{os.pathsep}{_ROOT}',
    'SYNCOPATE_FAKE_GPU': str(devices),
    'JAX_PLATFORMS': platforms,
    'CUDA_VISIBLE_DEVICES': '',  # Hides real GPUs.
  }
  if record is not None:
    record.mkdir(parents=True, exist_ok=True)
    variables['SYNCOPATE_FAKE_GPU_RECORD'] = str(record)
  return variables


def inherited() -> dict[str, str]:
  """Returns the variables of a process with the devices of this process.

  These are the CPU, or the fake accelerator if all tests use it (see
  `tests/conftest.py`).
  """
  if is_fake():
    return {'PYTHONPATH': f'{FOLDER}{os.pathsep}{_ROOT}', 'JAX_PLATFORMS': ''}
  return {'PYTHONPATH': str(_ROOT), 'JAX_PLATFORMS': 'cpu'}


def cpu() -> dict[str, str]:
  """Returns the variables of a process that has only the CPU, in all tests."""
  variables = {'PYTHONPATH': str(_ROOT), 'JAX_PLATFORMS': 'cpu'}
  return variables | {'SYNCOPATE_FAKE_GPU': ''}


def is_fake() -> bool:
  """Returns whether all tests use the fake accelerator."""
  return bool(os.environ.get('SYNCOPATE_FAKE_GPU'))


def skip_if_fake(reason: str) -> None:
  """Skips a test that the fake accelerator does not support."""
  if is_fake():
    raise unittest.SkipTest(f'With the fake accelerator: {reason}')


@dataclasses.dataclass
class Client:
  """Client of JAX for a platform, in one process.

  Attributes:
    computations: Names of the programs compiled for it, with counts.
    bytes: Sizes of the arrays explicitly put on its devices, in order.
  """

  computations: collections.Counter[str] = dataclasses.field(
    default_factory=collections.Counter
  )
  bytes: list[int] = dataclasses.field(default_factory=list)

  @property
  def has_arrays(self) -> bool:
    """True if the client has ever held an array."""
    return bool(self.computations or self.bytes)


@dataclasses.dataclass
class Record:
  """Record of a process that has started clients of JAX.

  Attributes:
    argv: Command line of the process.
    clients: Started clients by platform: 'cpu', 'fake'.
  """

  argv: list[str]
  clients: dict[str, Client] = dataclasses.field(default_factory=dict)

  def has(self, text: str) -> bool:
    """Returns whether a word of the command line contains a text."""
    return any(text in word for word in self.argv)


def records(folder: pathlib.Path) -> list[Record]:
  """Returns the records in a folder, in no particular order."""
  return [_read(path) for path in sorted(folder.glob('*.jsonl'))]


def _read(path: pathlib.Path) -> Record:
  rows = [json.loads(line) for line in path.read_text().splitlines()]
  record = Record(rows[0]['argv'])
  for row in rows[1:]:
    client = record.clients.setdefault(row['client'], Client())
    if 'computation' in row:
      client.computations[row['computation']] += 1
    elif 'bytes' in row:
      client.bytes.append(row['bytes'])
  return record
