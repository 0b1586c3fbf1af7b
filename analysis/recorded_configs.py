"""Configs of recorded runs, and the schemes and codecs that they name.

Predictions change the cluster of such a config to a virtual one.
"""

import fnmatch
import functools
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from analysis import runs
from configs import declared, default, sections, user_parts
from configs.checks import require
from sync.scheme import Scheme
from wire.codec import Wire

# Fields of a real cluster that predictions ignore or measure: they stay at
# their defaults, and may be unknown.
_REAL = ('cluster.*', 'route.forest.adapt', *declared.that_need('real'))
_SHARED = ('cluster.workers',)


def restore_config(path: pathlib.Path) -> ConfigDict:
  """Returns the config of a run, for a simulation of it.

  The config's cluster is the virtual one of `configs.default`, with the run's
  number of workers.  Other fields of real clusters are at their defaults, too,
  such as `route.server.dedicated`.  All other fields are the run's.

  Args:
    path: Folder of the run.

  Raises:
    ValueError: If there is no run, if its config has an unknown field, or if it
      names a user's module that this process has not imported.
    OSError: If it cannot be read.
  """
  return _make_virtual(runs.read(path).config)


def virtual_config(config: ConfigDict) -> ConfigDict:
  """Returns a real run's config for a simulation: see `restore_config`.

  Args:
    config: Config from flags or code, whose own parts are imported.

  Raises:
    ValueError: If a part of the user's own is wrong; names the field.
  """
  return _make_virtual(sections.resolve_own(config).to_dict())


def restore_section(recorded: Mapping[str, Any], name: str) -> ConfigDict:
  """Returns a section of a recorded config as a ConfigDict.

  Args:
    recorded: Config of a manifest.
    name: Name of the section.

  Raises:
    ValueError: If the section has an unknown field, or names a user's module
      that this process has not imported.
  """
  section = default.get_config()[name]
  _restore(section, recorded[name], f'{name}.')
  return section


def make_scheme(recorded: Mapping[str, Any], num_workers: int) -> Scheme:
  """Returns the scheme of a recorded run before its first event.

  Args:
    recorded: Config of a manifest.
    num_workers: Number of workers.

  Raises:
    ValueError: If the scheme has an unknown field, or is a user's module that
      this process has not imported.
  """
  part = _make_part('sync', restore_section(recorded, 'sync'))
  scheme: Scheme = part(num_workers=num_workers)
  return scheme


def make_wire(section: ConfigDict) -> Wire:
  """Returns the codecs that a section config.wire describes."""
  wire: Wire = _make_part('wire', section)()
  return wire


def _make_part(name: str, section: ConfigDict) -> Callable[..., Any]:
  """Returns the `make` of the part that a section chooses, with its fields."""
  make = sections.load_part(name, section.name).make
  is_own = user_parts.is_own(section.name)
  fields = section[user_parts.SECTION if is_own else section.name].to_dict()
  return functools.partial(make, **fields)


def num_train(path: pathlib.Path) -> int:
  """Returns the number of training examples of a run's epoch.

  Args:
    path: Folder of the run.

  Raises:
    ValueError: If the metrics of the run have no row with examples.
    OSError: If it cannot be read.
  """
  for row in runs.read(path).rows:
    if row['epoch']:
      examples: int = round(row['examples'] / row['epoch'])
      return examples
  raise ValueError(
    f'{path}/metrics.jsonl: expected a row with examples, got none.'
  )


def timing_config(
  config: ConfigDict,
  *,
  cluster: ConfigDict,
  size_bytes: int,
  num_train: int,
  epochs: float,
) -> ConfigDict:
  """Returns the config of a virtual run that has only times: no model or data.

  Args:
    config: Config of the run.
    cluster: Section that replaces its config.cluster.
    size_bytes: Bytes of a push and of a pull on the wire.
    num_train: Examples of an epoch.
    epochs: Length of the run.
  """
  timing = default.get_config()
  micro_batch = timing.batching.micro_batch
  for section in ('sync', 'batching', 'wire', 'route'):
    timing[section] = config[section]
  timing.cluster = cluster
  timing = (
    timing.copy_and_resolve_references()
  )  # Leaves the arguments unchanged.
  timing.batching.micro_batch = micro_batch
  timing.seed = config.seed
  timing.data.ahead = config.data.ahead
  timing.epochs = timing.eval_every = epochs
  timing.log_every = max(round(epochs * num_train), 1)  # One row, at the end.
  timing.checkpoint.every_s = math.inf
  timing.model.name = 'none'
  timing.model.none.size_bytes = float32_bytes(config.wire, size_bytes)
  timing.model.none.num_train = num_train
  return timing


def float32_bytes(section: ConfigDict, size_bytes: int) -> int:
  """Returns the bytes of float32 parameters whose transfers have a size.

  Args:
    section: Section config.wire of the transfers.
    size_bytes: Mean bytes of a push and of a pull.
  """
  wire, many = make_wire(section), 2**20
  each = (wire.push_bytes(many, 0) + wire.pull_bytes(many, 0)) / (2 * many)
  numbers: int = round(size_bytes / each)
  return 4 * numbers


def changed_fields(config: ConfigDict) -> Iterator[tuple[str, Any]]:
  """Yields the fields that are not at their defaults, by dotted name."""
  return _changed_fields(config, default.get_config(), '')


def fields_text(config: ConfigDict) -> str:
  """Returns a line of a config file for each field not at its default."""
  return ''.join(
    f'  {field!r}: {value!r},\n' for field, value in changed_fields(config)
  )


def field_value(config: ConfigDict, path: str) -> Any:
  """Returns a field, or a section as a dictionary, by its dotted name."""
  for part in path.split('.'):
    config = config[part]
  return config.to_dict() if isinstance(config, ConfigDict) else config


def _make_virtual(recorded: Mapping[str, Any]) -> ConfigDict:
  config = default.get_config()
  _restore(config, recorded, '')
  return config


def _restore(
  section: ConfigDict, recorded: Mapping[str, Any], above: str
) -> None:
  for field, value in recorded.items():
    path = above + field
    if field == user_parts.SECTION and value:
      _restore_own(section, recorded, above.removesuffix('.'))
    elif field == 'time_to_measure':
      section[field].update(
        {name: tuple(values) for name, values in value.items()}
      )
    elif isinstance(value, Mapping) and field in section:
      _restore(section[field], value, f'{path}.')
    elif path in _SHARED or not any(fnmatch.fnmatch(path, p) for p in _REAL):
      expected = f'one of {sorted(section)}'
      require(field in section, f'config.{path}', expected, field)
      section[field] = _convert(value, section[field])
    if field == 'name' and user_parts.is_own(str(value)):
      user_parts.find_loaded(f'config.{path}', str(value))


def _restore_own(
  section: ConfigDict, recorded: Mapping[str, Any], path: str
) -> None:
  """Restores the fields of a part of the user's own."""
  field = f'config.{path}.name'
  module = user_parts.find_loaded(field, recorded['name'])
  defaults = user_parts.defaults(field, path, module)
  for name, value in recorded[user_parts.SECTION].items():
    section.own[name] = user_parts.restore(value, defaults.get(name))


def _convert(value: Any, example: Any) -> Any:
  """Returns a value of a manifest in the type of a config's field."""
  if isinstance(example, tuple):
    return tuple(_convert(item, 0.0) for item in value)
  if isinstance(example, float) and value in ('inf', '-inf', 'nan'):
    return float(value)
  return value


def _changed_fields(
  config: ConfigDict, defaults: ConfigDict, above: str
) -> Iterator[tuple[str, Any]]:
  for field, value in config.items():
    if field in user_parts.OPEN:
      for name, got in value.items():
        yield f'{above}{field}.{name}', got
    elif isinstance(value, ConfigDict):
      yield from _changed_fields(value, defaults[field], f'{above}{field}.')
    elif value != defaults[field]:
      yield above + field, value
