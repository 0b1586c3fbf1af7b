"""Configs of recorded runs, as a virtual cluster can use them."""

import fnmatch
import importlib
import math
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from configs import default
from configs.checks import require
from tools.reading import records

# Fields of the real cluster, which the virtual one does not use or has from the
# measurements: they stay at their defaults, known or unknown.
_REAL = ('cluster.*', 'route.server.dedicated', 'route.forest.adapt')
_KEPT = ('cluster.workers',)


def config(path: pathlib.Path) -> ConfigDict:
  """Returns the config of a run, with the virtual cluster at its defaults.

  Args:
    path: Folder of the run.

  Raises:
    ValueError: If there is no run, or if it has a field that is unknown today.
    OSError: If it cannot be read.
  """
  found = default.get_config()
  _restore(found, records.config(path), '')
  return found


def section(recorded: Mapping[str, Any], name: str) -> ConfigDict:
  """Returns a section of a recorded config.

  Fields that are younger than the run are at their defaults: they change
  nothing.

  Args:
    recorded: As a manifest has it.
    name: Of the section.

  Raises:
    ValueError: If it has a field that is unknown today.
  """
  found = default.get_config()[name]
  _restore(found, recorded[name], f'{name}.')
  return found


def num_train(path: pathlib.Path) -> int:
  """Returns the training examples of a run's epoch.

  Args:
    path: Folder of the run.

  Raises:
    ValueError: If the run has not got far enough to tell.
    OSError: If it cannot be read.
  """
  for row in records.load(path).rows:
    if row['epoch']:
      return round(row['examples'] / row['epoch'])
  raise ValueError(
    f'{path}/metrics.jsonl: expected a row with examples, got none.'
  )


def timed(
  config: ConfigDict,
  *,
  cluster: ConfigDict,
  size_bytes: int,
  num_train: int,
  epochs: float,
) -> ConfigDict:
  """Returns a config for the times alone of a run: without model and data.

  Args:
    config: Of the run.
    cluster: Replaces its config.cluster.
    size_bytes: Of a push and of a pull, as they travel.
    num_train: Examples of an epoch.
    epochs: Length of the run.
  """
  made = default.get_config()
  micro_batch = made.batching.micro_batch
  for section in ('sync', 'batching', 'wire', 'route'):
    made[section] = config[section]
  made.cluster = cluster
  made = made.copy_and_resolve_references()  # Nothing of theirs may change.
  made.batching.micro_batch = micro_batch
  made.seed = config.seed
  made.data.ahead = config.data.ahead
  made.epochs = made.eval_every = epochs
  made.log_every = max(round(epochs * num_train), 1)  # At the end at most.
  made.checkpoint.every_s = math.inf
  made.model.name = 'none'
  made.model.none.size_bytes = _in_float32(config.wire, size_bytes)
  made.model.none.num_train = num_train
  return made


def _in_float32(section: ConfigDict, size_bytes: int) -> int:
  """Returns the bytes of parameters whose transfers have so many."""
  module = importlib.import_module(f'wire.{section.name}')
  wire, many = module.make(**section[section.name]), 2**20
  each = (wire.push_bytes(many, 0) + wire.pull_bytes(many, 0)) / (2 * many)
  return 4 * round(size_bytes / each)


def changed(config: ConfigDict) -> Iterator[tuple[str, Any]]:
  """Yields the fields that are not at their defaults, by dotted name."""
  return _changed(config, default.get_config(), '')


def value(config: ConfigDict, path: str) -> Any:
  """Returns a field, or a section as a dictionary, by its dotted name."""
  for part in path.split('.'):
    config = config[part]
  return config.to_dict() if isinstance(config, ConfigDict) else config


def _restore(section: ConfigDict, recorded: Mapping, above: str) -> None:
  for field, value in recorded.items():
    path = above + field
    if isinstance(value, Mapping) and field in section:
      _restore(section[field], value, f'{path}.')
    elif path in _KEPT or not any(fnmatch.fnmatch(path, p) for p in _REAL):
      known = f'one of {sorted(section)}'
      require(field in section, f'config.{path}', known, field)
      section[field] = _typed(value, section[field])


def _typed(value: Any, example: Any) -> Any:
  """Returns a value of a manifest, where JSON has no type for it."""
  if isinstance(example, tuple):
    return tuple(_typed(item, 0.0) for item in value)
  if isinstance(example, float) and isinstance(value, str):
    return float(value)
  return value


def _changed(
  config: ConfigDict, defaults: ConfigDict, above: str
) -> Iterator[tuple[str, Any]]:
  for field, value in config.items():
    if isinstance(value, ConfigDict):
      yield from _changed(value, defaults[field], f'{above}{field}.')
    elif value != defaults[field]:
      yield above + field, value
