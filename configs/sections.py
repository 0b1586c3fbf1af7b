"""The rules that every config obeys, whichever file and flags it came from."""

import contextlib
import fnmatch
import functools
import importlib
import json
import os
import pathlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

# Chooses a section of a config: returns a name and the fields of its own.
Choose = Callable[[str], tuple[str, dict[str, Any]]]

# What config.precision.matmul may be, as jax.default_matmul_precision has it.
MATMULS = ('float32', 'tensorfloat32', 'bfloat16')
AUTO = 'auto'  # Value of config.route.bucket_bytes beside numbers.

# Where the modules are that a section names.
_PACKAGES = {
  'sync': 'sync',
  'batching': 'batching',
  'batching.lb_bsp.predictor': 'predict',
  'wire': 'wire',
  'route': 'route',
  'model': 'models',
  'data': 'data',
}
# Fields of before, and what they are called now.
_RENAMED = {
  'route.range_bytes': 'route.bucket_bytes',
  'sync.bsp.pipelined': 'route.server.pipelined',
  'batching.r2sp.recent': 'batching.r2sp_released.recent',
  'batching.r2sp.threshold': 'batching.r2sp_released.threshold',
}
# Set where several tasks are started: by srun, Open MPI, and other mpiruns.
_TASKS = ('SLURM_STEP_NUM_TASKS', 'OMPI_COMM_WORLD_SIZE', 'PMI_SIZE')
_NAMES = {
  bool: 'True or False',
  int: 'an integer',
  float: 'a number',
  str: 'text',
  tuple: 'a tuple of numbers',
  ConfigDict: 'a section',
}

# Fields that are not used without a model, or beside a part of one's own.
_SOURCE = ('data.name', 'data.dir', 'data.*.*')
_AUGMENTED = ('data.crop_padding', 'data.crop_area', 'data.flip')
_NO_MODEL = (
  *(*_SOURCE, *_AUGMENTED, 'optimizer.*', 'schedule.*', 'time_to*'),
  'eval_top',
  'precision.*',
  *('batching.micro_batch', 'cluster.devices_per_worker'),
  'cluster.workers_per_gpu',
)
_REAL = (
  *('cluster.timeout_s', 'cluster.start_s', 'cluster.faults'),
  *('cluster.interface', 'cluster.token_file'),
  *('cluster.certificate_file', 'cluster.key_file', 'cluster.tls_name'),
  *('cluster.speed.injected', 'route.server.dedicated'),
  'cluster.workers_per_gpu',
)
# Recipes describe a virtual cluster (network, speed) beside all else; a real
# one says that it makes no use of that.
_UNUSED = {'virtual': _REAL, 'distributed': ('cluster.script',)}
_REPLACED = {
  'scheme': ('sync.*',),
  'task': ('model.*', *_AUGMENTED, 'precision.dtype', 'eval_top'),
  'dataset': _SOURCE,
}


def check_fields(config: ConfigDict, default: ConfigDict) -> None:
  """Checks that a config has the fields of the default, of the same types.

  Args:
    config: To be checked.
    default: What `configs.default` gives.

  Raises:
    ValueError: If a field is unknown, missing or of another type.
  """
  _check_fields(config, default, 'config')


def check_values(config: ConfigDict) -> None:
  """Checks the values that nothing made from the config checks.

  Args:
    config: With all fields.

  Raises:
    ValueError: If a value is out of its range, or if several tasks were started
      for a run that is one process.
  """
  if config.cluster.runtime not in _UNUSED:
    raise ValueError(
      f'config.cluster.runtime: expected one of {list(_UNUSED)}, got '
      f'{config.cluster.runtime!r}.'
    )
  virtual = config.cluster.runtime == 'virtual'
  for variable in _TASKS if virtual else ():
    if os.environ.get(variable, '1') not in ('', '0', '1'):
      raise ValueError(
        "config.cluster.runtime: 'virtual' runs in one process, but "
        f'{variable} says that {os.environ[variable]} were started.'
      )
  positive = (
    *('epochs', 'eval_every', 'log_every', 'cluster.workers'),
    *('batching.worker_batch', 'batching.micro_batch'),
    *('cluster.timeout_s', 'cluster.start_s', 'cluster.workers_per_gpu'),
    *('model.none.size_bytes', 'model.none.num_train'),
  )
  for field in positive:
    value = _leaf(config, field)
    if not 0 < value < float('inf'):
      raise ValueError(f'config.{field}: expected more than 0, got {value}.')
  devices, most = config.cluster.devices_per_worker, config.batching.micro_batch
  if not 0 < devices <= most or devices & (devices - 1):
    raise ValueError(
      'config.cluster.devices_per_worker: expected a power of two up to '
      f'config.batching.micro_batch, {most}, got {devices}.'
    )
  wire, optimizer = config.wire, config.optimizer
  if wire.name == 'sparse' and wire.sparse.correction == 'local':
    reason = "as workers have it with config.wire.sparse.correction='local'"
    if optimizer.name != 'sgd' or optimizer.sgd.momentum:
      raise ValueError(
        f"config.optimizer: expected 'sgd' without momentum, {reason}, got "
        f'{optimizer.name!r} with {optimizer[optimizer.name].to_dict()}.'
      )
  precision = config.precision
  if precision.matmul not in MATMULS:
    raise ValueError(
      f'config.precision.matmul: expected one of {list(MATMULS)}, got '
      f'{precision.matmul!r}.'
    )
  half = precision.dtype != 'float32'
  if half and precision.matmul != 'float32':
    raise ValueError(
      "config.precision.matmul: expected the default 'float32', because "
      f'config.precision.dtype is {precision.dtype!r} and leaves no products '
      f'of float32, got {precision.matmul!r}.'
    )
  if not 0 <= config.seed < 2**32:
    raise ValueError(f'config.seed: expected 0 to 2^32 - 1, got {config.seed}.')
  for accuracy in config.time_to:
    if not 0 < accuracy <= 1:
      raise ValueError(f'config.time_to: expected 0 to 1, got {accuracy}.')
  for loss in config.time_to_loss:
    if not 0 < loss < float('inf'):
      raise ValueError(f'config.time_to_loss: expected above 0, got {loss}.')


def chosen(
  config: ConfigDict, default: ConfigDict, section: str
) -> tuple[str, dict[str, Any]]:
  """Returns what a section chooses: the name, and its sub-section's fields.

  Args:
    config: A checked config.
    default: What `configs.default` gives.
    section: Such as 'sync' or 'cluster.speed'.

  Raises:
    ValueError: If there is no sub-section of that name, or if a field of
      another sub-section differs from its default: it would be ignored.
  """
  mine, theirs = config, default
  for part in section.split('.'):
    mine, theirs = mine[part], theirs[part]
  options = [key for key in theirs if isinstance(theirs[key], ConfigDict)]
  if mine.name not in options:
    raise ValueError(
      f'config.{section}.name: expected one of {options}, got {mine.name!r}.'
    )
  for option in options:
    for field, value in _leaves(theirs[option]):
      got = _leaf(mine[option], field)
      if option != mine.name and got != value:
        raise ValueError(
          f'config.{section}.{option}.{field}: expected the default {value!r}, '
          f'because config.{section}.name is {mine.name!r} and would ignore '
          f'it, got {got!r}.'
        )
  return mine.name, mine[mine.name].to_dict()


def made(section: str, choose: Choose, **shared: Any) -> Any:
  """Calls `make` of the module that a section names.

  Args:
    section: Of the config.
    choose: Chooses a section of it.
    **shared: Arguments beside the section's own or in their place.

  Raises:
    ValueError: If an argument is wrong; names the field.
  """
  name, own = choose(section)
  module = importlib.import_module(f'{_PACKAGES[section]}.{name}')
  with named(f'config.{section}.{name}'):
    return module.make(**own | shared)


def check_used(
  config: ConfigDict, default: ConfigDict, own: Mapping[str, Any]
) -> None:
  """Checks that fields which are not used are left at their defaults.

  Args:
    config: A checked config.
    default: What `configs.default` gives.
    own: What replaces parts of the config, None where nothing does: 'scheme',
      'task' and 'dataset'.

  Raises:
    ValueError: If an unused field differs from its default; names it.
  """
  runtime = config.cluster.runtime
  reasons = {f'config.cluster.runtime is {runtime!r}': _UNUSED[runtime]}
  if config.model.name == 'none':
    reasons["config.model.name is 'none'"] = _NO_MODEL
  if config.cluster.links:
    links = 'cluster.network.worker_*_Bps'
    reasons['config.cluster.links says it'] = (links,)
  for part, value in own.items():
    if value is not None:
      if part != 'scheme' and config.model.name == 'none':
        raise ValueError(
          f"config.model.name: expected a model to use the {part}, got 'none'."
        )
      reasons[f'there is a {part} of its own'] = _REPLACED[part]
  for reason, patterns in reasons.items():
    check_default(config, default, patterns, reason)


def check_default(
  config: ConfigDict,
  default: ConfigDict,
  patterns: Iterable[str],
  reason: str,
) -> None:
  """Checks that the fields of some patterns are left at their defaults.

  Args:
    config: A checked config.
    default: What `configs.default` gives.
    patterns: Such as 'data.*.*'.
    reason: Why they are not used.

  Raises:
    ValueError: If one differs from its default; names it.
  """
  for path, value in _leaves(default):
    unused = any(fnmatch.fnmatch(path, pattern) for pattern in patterns)
    got = _leaf(config, path)
    if unused and got != value:
      raise ValueError(
        f'config.{path}: expected the default {value!r}, because {reason} and '
        f'would ignore it, got {got!r}.'
      )


@contextlib.contextmanager
def named(path: str) -> Iterator[None]:
  """Puts the path of a field in front of what is said about it."""
  try:
    yield
  except ValueError as error:
    raise ValueError(f'{path}.{error}') from error


def read_json(field: str, expected: str, path: str) -> Any:
  """Returns the content of a JSON file that a field names.

  Args:
    field: For the message.
    expected: What the file should hold, for the message.
    path: Of the file.

  Raises:
    ValueError: If it cannot be read.
  """
  try:
    return json.loads(pathlib.Path(path).read_text())
  except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
    raise ValueError(f'{field}: expected {expected}, got {error}.') from error


@contextlib.contextmanager
def known_fields(argv: list[str]) -> Iterator[None]:
  """Refuses flags of unknown fields while flags are parsed.

  Args:
    argv: The command line.

  Raises:
    SystemExit: If a flag names a field that there is not, or has another name
      now.
  """
  try:
    yield
  except (AttributeError, KeyError) as error:  # Of a field, of a section.
    given = [arg for arg in argv if arg.startswith('--config.')]
    renamed = [
      f'  config.{before} is called config.{now} now.'
      for before, now in _RENAMED.items()
      if before.rpartition('.')[2] in re.split('[\'"]', str(error))
    ]
    sys.exit(f'Refused: unknown field in {given}: {error}{"".join(renamed)}')


def each(
  field: str, values: tuple[float, ...], count: int
) -> tuple[float, ...]:
  """Returns one value for each of `count` hosts.

  Args:
    field: Whose values these are, for the message.
    values: One for all hosts, or one for each.
    count: Number of hosts.

  Raises:
    ValueError: If there are neither one nor `count` values.
  """
  if len(values) not in (1, count):
    raise ValueError(f'{field}: expected one value or {count}, got {values!r}.')
  return tuple(values) * (count // len(values))


def links(network: ConfigDict, **hosts: int) -> dict[str, tuple[float, ...]]:
  """Returns bandwidths and latencies of all hosts, by kind of link.

  Args:
    network: Section with a field {host}_{link} for every kind of both.
    **hosts: How many there are of each kind, in their order.

  Raises:
    ValueError: If a value is out of range, or if there are too many or too few.
  """
  found: dict[str, tuple[float, ...]] = {}
  for link in ('up_Bps', 'down_Bps', 'latency_s'):
    found[link] = ()
    for host, count in hosts.items():
      path = f'config.cluster.network.{host}_{link}'
      values = network[f'{host}_{link}']
      least = 'at least 0' if link == 'latency_s' else 'more than 0'
      if not all(v > 0 or (v == 0 and link == 'latency_s') for v in values):
        raise ValueError(f'{path}: expected {least}, got {values!r}.')
      found[link] += each(path, values, count)
  return found


def _leaf(config: ConfigDict, path: str) -> Any:
  return functools.reduce(lambda node, key: node[key], path.split('.'), config)


def _leaves(config: ConfigDict, above: str = '') -> Iterator[tuple[str, Any]]:
  for field, value in config.items():
    if isinstance(value, ConfigDict):
      yield from _leaves(value, f'{above}{field}.')
    else:
      yield above + field, value


def _check_fields(config: ConfigDict, default: ConfigDict, path: str) -> None:
  for field in sorted(set(config) ^ set(default)):
    now = _RENAMED.get(f'{path}.{field}'.removeprefix('config.'))
    if now and field in config:
      raise ValueError(f'{path}.{field}: it is called config.{now} now.')
    problem = 'unknown' if field in config else 'missing'
    raise ValueError(
      f'{path}.{field}: {problem}; expected the fields {sorted(default)}.'
    )
  for field, value in default.items():
    got = config[field]
    if isinstance(value, ConfigDict) and isinstance(got, ConfigDict):
      _check_fields(got, value, f'{path}.{field}')
    elif field == 'bucket_bytes':
      _check_bucket_bytes(got)
    elif not _same_type(got, value) and field not in ('script', 'faults'):
      raise ValueError(
        f'{path}.{field}: expected {_NAMES[type(value)]}, got {got!r}.'
      )


def bucket_bytes(config: ConfigDict) -> float | None:
  """Returns the least bytes of a bucket; None if they are to be chosen."""
  value = config.route.bucket_bytes
  return None if value == AUTO else float(value)


def _check_bucket_bytes(got: Any) -> None:
  # Flags give what is no literal as text.
  valid = type(got) in (int, float) or got in (AUTO, 'inf')
  if not valid or (got != AUTO and not float(got) >= 0):
    raise ValueError(
      'config.route.bucket_bytes: expected a number, at least 0, or '
      f'{AUTO!r}, got {got!r}.'
    )


def _same_type(got: Any, default: Any) -> bool:
  if isinstance(default, float) and type(got) is int:
    return True
  if isinstance(default, tuple) and isinstance(got, tuple):
    return all(type(item) in (int, float) for item in got)
  return type(got) is type(default)
