"""Processes that have an accelerator without there being one, and their arrays.

Tests start processes with `environment(folder)`, and afterwards ask `records`
which client of JAX has compiled what in each of them, and how many bytes it was
given.  See `tests/support/fake_gpu/sitecustomize.py`.
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
    record: Folder, made here, for the records of processes; None for none.
    devices: Number of the accelerator's devices.
    platforms: JAX_PLATFORMS; empty for the default, as on a host with a GPU.
  """
  own = {
    'PYTHONPATH': f'{FOLDER}{os.pathsep}{_ROOT}',
    'SYNCOPATE_FAKE_GPU': str(devices),
    'JAX_PLATFORMS': platforms,
    'CUDA_VISIBLE_DEVICES': '',  # Real ones take no part.
  }
  if record is not None:
    record.mkdir(parents=True, exist_ok=True)
    own['SYNCOPATE_FAKE_GPU_RECORD'] = str(record)
  return own


def inherited() -> dict[str, str]:
  """Returns the variables of a process that has this one's kind of devices.

  The CPU; the fake accelerator if all tests have it (see `tests/conftest.py`).
  """
  if is_fake():
    return {'PYTHONPATH': f'{FOLDER}{os.pathsep}{_ROOT}', 'JAX_PLATFORMS': ''}
  return {'PYTHONPATH': str(_ROOT), 'JAX_PLATFORMS': 'cpu'}


def cpu() -> dict[str, str]:
  """Returns the variables of a process that has the CPU alone, in all tests."""
  own = {'PYTHONPATH': str(_ROOT), 'JAX_PLATFORMS': 'cpu'}
  return own | {'SYNCOPATE_FAKE_GPU': ''}


def is_fake() -> bool:
  """Returns whether all tests have the fake accelerator."""
  return bool(os.environ.get('SYNCOPATE_FAKE_GPU'))


def skip_if_fake(reason: str) -> None:
  """Skips a test that the fake accelerator cannot have."""
  if is_fake():
    raise unittest.SkipTest(f'With the fake accelerator: {reason}')


@dataclasses.dataclass
class Client:
  """One client of JAX in one process.

  Attributes:
    computations: Names of what has been compiled for it, with counts.
    bytes: Sizes of the arrays that it was given explicitly, in order.
  """

  computations: collections.Counter[str] = dataclasses.field(
    default_factory=collections.Counter
  )
  bytes: list[int] = dataclasses.field(default_factory=list)

  @property
  def used(self) -> bool:
    """Whether it has ever held an array."""
    return bool(self.computations or self.bytes)


@dataclasses.dataclass
class Record:
  """A process that has started clients of JAX.

  Attributes:
    argv: Its command line.
    clients: Those that have started, by platform: 'cpu', 'fake'.
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
