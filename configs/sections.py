"""Checks of whole configs, and choice of the implementations they name.

Every config obeys the same rules, whichever file and flags it comes from: known
fields of known types, values in range, and no field that would be ignored.
"""

import contextlib
import copy
import difflib
import fnmatch
import functools
import importlib
import inspect
import json
import math
import os
import pathlib
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from configs import user_parts
from configs.checks import require

# Function of a section's path that returns the chosen name and its fields.
Choose = Callable[[str], tuple[str, dict[str, Any]]]

# Values of config.precision.matmul, from jax.default_matmul_precision.
MATMULS = ('float32', 'tensorfloat32', 'bfloat16')
# Values of config.cluster.island_sharding.
ISLAND_SHARDINGS = ('replicated', 'fsdp')
_ROOT = pathlib.Path(__file__).parents[1]
MOST_LANES = 16  # Largest value of config.route.lanes.
AUTO = 'auto'  # Value of config.route.bucket_bytes beside numbers.

# Package of the modules that a section chooses from.
_PACKAGES = {
  'sync': 'sync',
  'batching': 'batching',
  'batching.lb_bsp.predictor': 'predict',
  'wire': 'wire',
  'route': 'route',
  'model': 'models',
  'data': 'data',
}
# Fields of the arguments that sections share.
_FIELDS = {
  'num_workers': 'config.cluster.workers',
  'worker_batch': 'config.batching.worker_batch',
  'seed': 'config.seed',
  'dtype': 'config.precision.dtype',
  'directory': 'config.data.dir',
}
# Folders of the modules of ml_collections.
_CONFIG_FOLDERS = ('config_flags', 'config_dict')
# Former names of fields, and their present names.
_RENAMED = {
  'route.range_bytes': 'route.bucket_bytes',
  'sync.bsp.pipelined': 'route.server.pipelined',
  'batching.r2sp.recent': 'batching.r2sp_released.recent',
  'batching.r2sp.threshold': 'batching.r2sp_released.threshold',
  'time_to_perplexity': 'time_to_measure.perplexity',
  'time_to_bits_per_byte': 'time_to_measure.bits_per_byte',
}
# Numbers of tasks, as set by srun, Open MPI, and other mpiruns.
_TASKS = ('SLURM_STEP_NUM_TASKS', 'OMPI_COMM_WORLD_SIZE', 'PMI_SIZE')
_NAMES = {
  bool: 'True or False',
  int: 'an integer',
  float: 'a number',
  str: 'text',
  tuple: 'a tuple of numbers',
  ConfigDict: 'a section',
}

# Fields that are unused without a model, or with a task or data set of the
# caller.
_SOURCE = ('data.name', 'data.dir', 'data.*.*')
_AUGMENTED = ('data.crop_padding', 'data.crop_area', 'data.flip')
_NO_MODEL = (
  *(*_SOURCE, *_AUGMENTED, 'optimizer.*', 'schedule.*', 'time_to*'),
  *('eval_top', 'eval_loss'),
  *('precision.*', 'model.init'),
  *('batching.micro_batch', 'cluster.devices_per_worker'),
  *('cluster.workers_per_gpu', 'outer.*', 'staleness.*'),
)
_REAL = (
  *('cluster.min_workers', 'cluster.faults'),
  *('cluster.timeout_s', 'cluster.start_s'),
  *('cluster.interface', 'cluster.port', 'cluster.token_file'),
  *('cluster.certificate_file', 'cluster.key_file', 'cluster.tls_name'),
  *('cluster.speed.injected', 'route.server.dedicated'),
  'route.server.mirror_s',
  *('cluster.workers_per_gpu', 'route.lanes', 'outputs.metrics_port'),
)
# Recipes describe a virtual cluster (network, speed) as well, which is no error
# on a real one.
_UNUSED = {'virtual': _REAL, 'distributed': ('cluster.script',)}
_REPLACED = {
  'scheme': ('sync.*',),
  'task': (
    *('model.*', *_AUGMENTED),
    *('precision.dtype', 'eval_top', 'eval_loss'),
  ),
  'dataset': _SOURCE,
}


def check_fields(config: ConfigDict, default: ConfigDict) -> None:
  """Checks that a config has the fields of the default, of the same types.

  Args:
    config: Config to check.
    default: Config of `configs.default`.

  Raises:
    ValueError: If a field is unknown, missing or of another type.
  """
  _check_fields(config, default, 'config')


def check_values(config: ConfigDict) -> None:
  """Checks the values that no part built from the config checks itself.

  Args:
    config: Config with all fields.

  Raises:
    ValueError: If a value is out of its range, or if several tasks were started
      for a virtual run, which is one process.
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
        "config.cluster.runtime: expected one process for 'virtual', got "
        f'{os.environ[variable]} by {variable}.'
      )
  positive = (
    *('epochs', 'eval_every', 'log_every', 'cluster.workers'),
    *('batching.worker_batch', 'batching.micro_batch'),
    *('batching.local_steps', 'route.fragments'),
    *('cluster.timeout_s', 'cluster.start_s', 'cluster.workers_per_gpu'),
    *('model.none.size_bytes', 'model.none.num_train'),
  )
  for field in positive:
    value = _read_field(config, field)
    if not 0 < value < float('inf'):
      raise ValueError(f'config.{field}: expected more than 0, got {value}.')
  least, workers = config.cluster.min_workers, config.cluster.workers
  if not 0 <= least <= workers:
    raise ValueError(
      'config.cluster.min_workers: expected 0 to config.cluster.workers, '
      f'{workers}, got {least}.'
    )
  port = config.cluster.port
  if not 0 <= port < 2**16:
    raise ValueError(
      f'config.cluster.port: expected a port below {2**16}, or 0 for free '
      f'ones, got {port}.'
    )
  devices, most = config.cluster.devices_per_worker, config.batching.micro_batch
  if not 0 < devices <= most or devices & (devices - 1):
    raise ValueError(
      'config.cluster.devices_per_worker: expected a power of two up to '
      f'config.batching.micro_batch, {most}, got {devices}.'
    )
  _check_islands(config)
  wire, optimizer = config.wire, config.optimizer
  if wire.name == 'sparse' and wire.sparse.correction == 'local':
    reason = "as config.wire.sparse.correction is 'local': workers apply it"
    if optimizer.name != 'sgd' or optimizer.sgd.momentum:
      raise ValueError(
        f"config.optimizer: expected 'sgd' without momentum, {reason}, got "
        f'{optimizer.name!r} with {optimizer[optimizer.name].to_dict()}.'
      )
  if config.batching.local_steps > 1:
    _check_local_steps(config)
  elif optimizer.name == 'muon':
    valid = wire.name != 'sparse' or wire.sparse.correction == 'none'
    if not valid:
      raise ValueError(
        "config.wire.sparse.correction: expected 'none', as steps of "
        "config.optimizer.name 'muon' are of whole matrices, got "
        f'{wire.sparse.correction!r}.'
      )
  _check_fragments(config)
  precision = config.precision
  if precision.matmul not in MATMULS:
    raise ValueError(
      f'config.precision.matmul: expected one of {list(MATMULS)}, got '
      f'{precision.matmul!r}.'
    )
  half = precision.dtype != 'float32'
  if half and precision.matmul != 'float32':
    raise ValueError(
      "config.precision.matmul: expected the default 'float32', because with "
      f'config.precision.dtype {precision.dtype!r} there are no float32 '
      f'products, got {precision.matmul!r}.'
    )
  if not 0 <= config.route.lanes <= MOST_LANES:
    raise ValueError(
      f'config.route.lanes: expected 0 to {MOST_LANES}, got '
      f'{config.route.lanes}.'
    )
  if not 0 <= config.seed < 2**32:
    raise ValueError(f'config.seed: expected 0 to 2^32 - 1, got {config.seed}.')
  for accuracy in config.time_to:
    if not 0 < accuracy <= 1:
      raise ValueError(
        f'config.time_to: expected above 0, at most 1, got {accuracy}.'
      )
  for value in config.time_to_loss:
    if not 0 < value < float('inf'):
      raise ValueError(f'config.time_to_loss: expected above 0, got {value}.')
  for name, values in config.time_to_measure.items():
    valid = type(values) is tuple and all(
      type(value) in (int, float) and math.isfinite(value) for value in values
    )
    field = f'config.time_to_measure.{name}'
    require(valid, field, 'a tuple of numbers, such as (0.5,)', values)


def _check_islands(config: ConfigDict) -> None:
  """Checks the fields of workers that are several processes."""
  cluster, most = config.cluster, config.batching.micro_batch
  hosts = cluster.hosts_per_worker
  if (
    hosts < 1
    or hosts & (hosts - 1)
    or hosts * cluster.devices_per_worker > most
  ):
    raise ValueError(
      'config.cluster.hosts_per_worker: expected a power of two, and with '
      'config.cluster.devices_per_worker up to config.batching.micro_batch, '
      f'{most}, devices, got {hosts}.'
    )
  sharding = cluster.island_sharding
  if sharding not in ISLAND_SHARDINGS:
    raise ValueError(
      'config.cluster.island_sharding: expected one of '
      f'{list(ISLAND_SHARDINGS)}, got {sharding!r}.'
    )
  if hosts == 1:
    if sharding != 'replicated':
      raise ValueError(
        "config.cluster.island_sharding: expected 'replicated', as "
        f'config.cluster.hosts_per_worker is 1, got {sharding!r}.'
      )
    return
  if cluster.runtime == 'distributed' and config.model.name == 'none':
    raise ValueError(
      'config.cluster.hosts_per_worker: expected 1, as config.model.name is '
      f"'none', and the processes of an island compute gradients, got {hosts}."
    )
  if cluster.workers_per_gpu > 1:
    raise ValueError(
      'config.cluster.workers_per_gpu: expected 1, as '
      f'config.cluster.hosts_per_worker is {hosts}: NCCL refuses a GPU twice, '
      f'got {cluster.workers_per_gpu}.'
    )
  if config.route.name == 'native':
    raise ValueError(
      'config.cluster.hosts_per_worker: expected 1, as config.route.name is '
      "'native', whose processes jax.distributed has joined already, got "
      f'{hosts}.'
    )


def _check_local_steps(config: ConfigDict) -> None:
  """Checks fields that several local steps exclude."""
  reason = f'as config.batching.local_steps is {config.batching.local_steps}'
  reduction = config.optimizer.reduction
  if reduction != 'sum':
    raise ValueError(
      f"config.optimizer.reduction: expected the default 'sum', {reason}: "
      f'config.outer.reduction takes its place, got {reduction!r}.'
    )
  precision = config.precision
  if precision.dtype == 'float16' or precision.loss_scaling == 'dynamic':
    raise ValueError(
      f"config.precision.dtype: expected 'float32' or 'bfloat16', {reason}: "
      f'displacements have no loss scale, got {precision.dtype!r} with '
      f'loss_scaling {precision.loss_scaling!r}.'
    )
  correction = config.wire.sparse.correction
  if config.wire.name == 'sparse' and correction == 'local':
    raise ValueError(
      f"config.wire.sparse.correction: expected 'masked' or 'none', {reason}: "
      f'momentum is corrected in gradients alone, got {correction!r}.'
    )


def _check_fragments(config: ConfigDict) -> None:
  """Checks fields of fragments that depend on the local steps alone."""
  route, steps = config.route, config.batching.local_steps
  reason = f'as config.batching.local_steps is {steps}'
  if steps % route.fragments:
    raise ValueError(
      f'config.route.fragments: expected a divisor of the local steps, {reason}'
      f', got {route.fragments}.'
    )
  between = iteration_steps(config) if steps > 1 else 0
  if not 0 <= route.overlap_steps <= between:
    raise ValueError(
      f'config.route.overlap_steps: expected 0 to {between}, the local steps '
      f'from one fragment to the next, {reason} and config.route.fragments is '
      f'{route.fragments}, got {route.overlap_steps}.'
    )
  if not 0 <= route.blend < 1:
    raise ValueError(
      f'config.route.blend: expected at least 0, below 1, got {route.blend}.'
    )
  if route.blend and steps == 1:
    raise ValueError(
      f'config.route.blend: expected the default 0.0, {reason}: workers have '
      f'no parameters of their own, got {route.blend}.'
    )


def iteration_steps(config: ConfigDict) -> int:
  """Returns the local steps of an iteration, which ends with one sum.

  With fragments it has the steps from one fragment to the next, H / F.
  """
  return int(config.batching.local_steps // config.route.fragments)


def has_fragments(config: ConfigDict) -> bool:
  """Returns whether workers keep parameters of their own between sums."""
  route = config.route
  return route.fragments > 1 or bool(route.overlap_steps or route.blend)


def resolve_own(config: ConfigDict) -> ConfigDict:
  """Imports the user's modules that a config names, and completes its fields.

  Args:
    config: Config that `check_fields` has passed.

  Returns:
    A copy in which the section `own` of each user's part has all fields of the
    part, with the defaults of its `make`.

  Raises:
    ValueError: If there is no such module, or if a field is unknown, missing or
      of another type than its default; or if there are fields of an own part
      where none is chosen.
  """
  resolved = copy.deepcopy(config)
  for section in user_parts.SUPPLIED:
    part = _read_field(resolved, section)
    path = f'config.{section}.{user_parts.SECTION}'
    if user_parts.is_own(part.name):
      field = f'config.{section}.name'
      module = user_parts.load(field, part.name)
      defaults = user_parts.defaults(field, section, module)
      part[user_parts.SECTION] = ConfigDict(_complete(path, part.own, defaults))
    elif part.own:
      raise ValueError(
        f'{path}: expected no fields, because config.{section}.name is '
        f'{part.name!r}, which is no module of your own, got '
        f'{part.own.to_dict()}.'
      )
  return resolved


def _complete(
  path: str, given: ConfigDict, defaults: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns all fields of a user's part.

  Args:
    path: Path of the section, for messages.
    given: Fields that the config sets.
    defaults: Fields of the part: see `user_parts.defaults`.
  """
  for field in given:
    if field not in defaults:
      raise ValueError(
        f'{path}.{field}: unknown; expected the fields {sorted(defaults)}.'
      )
  complete = {}
  for field, value in defaults.items():
    got = given.get(field, value)
    if value is inspect.Parameter.empty:
      if got is value:
        raise ValueError(
          f'{path}.{field}: expected a value: it has no default.'
        )
      valid, expected = (
        user_parts.is_value(got),
        'a number, text, or a tuple of numbers',
      )
    else:
      valid, expected = _same_type(got, value), _NAMES[type(value)]
    if not valid:
      raise ValueError(f'{path}.{field}: expected {expected}, got {got!r}.')
    complete[field] = float(got) if isinstance(value, float) else got
  return complete


def chosen_path(config: ConfigDict, section: str) -> str:
  """Returns the path of the sub-section that a section chooses."""
  name = _read_field(config, section).name
  chosen = user_parts.SECTION if user_parts.is_own(name) else name
  return f'config.{section}.{chosen}'


def choose_section(
  config: ConfigDict, default: ConfigDict, section: str
) -> tuple[str, dict[str, Any]]:
  """Returns the name that a section chooses, and the fields of that choice.

  Args:
    config: Config that `check_fields` has passed; with a part of the user's
      own, one from `resolve_own`.
    default: Config of `configs.default`.
    section: Path of the section, such as 'sync' or 'cluster.speed'.

  Raises:
    ValueError: If there is no sub-section of that name, or if a field of
      another sub-section differs from its default: it would be ignored.
  """
  chosen, defaults = config, default
  for part in section.split('.'):
    chosen, defaults = chosen[part], defaults[part]
  options = [
    key
    for key in defaults
    if isinstance(defaults[key], ConfigDict) and key != user_parts.SECTION
  ]
  is_own = section in user_parts.SUPPLIED and user_parts.is_own(chosen.name)
  if not is_own and chosen.name not in options:
    raise ValueError(
      f'config.{section}.name: expected one of {options}, got {chosen.name!r}.'
      f'{_explain_name(section, chosen.name)}'
    )
  for option in options:
    for field, value in iterate_fields(defaults[option]):
      got = _read_field(chosen[option], field)
      if option != chosen.name and got != value:
        raise ValueError(
          f'config.{section}.{option}.{field}: {got!r} is ignored by '
          f'config.{section}.name={chosen.name!r}; remove it, or choose '
          f'{option!r}.'
        )
  fields = chosen[user_parts.SECTION if is_own else chosen.name]
  return chosen.name, fields.to_dict()


def _explain_name(section: str, name: str) -> str:
  """Returns what to do about a name that is no option, after two spaces."""
  package = _PACKAGES.get(section)
  if not package:
    return ''
  if name.isidentifier() and (_ROOT / package / f'{name}.py').exists():
    return (
      f'  {package}/{name}.py exists, but configs/fields/ has no section '
      f'config.{section}.{name} with its fields.'
    )
  return "  A module of your own has a dotted path, such as 'my_lab.part'."


def load_part(section: str, name: str) -> Any:
  """Returns the module of a part: one of Syncopate, or one of the user."""
  if user_parts.is_own(name):
    return user_parts.load(f'config.{section}.name', name)
  return importlib.import_module(f'{_PACKAGES[section]}.{name}')


def build_section(section: str, choose: Choose, **shared: Any) -> Any:
  """Returns the object that a section of the config describes.

  Imports the module that the section chooses, and calls its `make` with the
  fields of the choice.

  Args:
    section: Path of the section, such as 'sync'.
    choose: Returns the name that a section chooses, and its fields.
    **shared: More arguments of `make`; one with the name of a field replaces
      the field.

  Raises:
    ValueError: If an argument is invalid; names the field.
  """
  name, fields = choose(section)
  module = load_part(section, name)
  try:
    return module.make(**fields | shared)
  except ValueError as error:
    argument = str(error).partition(':')[0]
    field = _FIELDS.get(argument, '') if argument not in fields else ''
    if field:
      raise ValueError(f'{field}{str(error).removeprefix(argument)}') from error
    if not user_parts.is_own(name):
      raise ValueError(f'config.{section}.{name}.{error}') from error
    if argument not in fields:
      # Not an error of the config: its traceback is shown.
      raise RuntimeError(f'{module.__name__}.make failed.') from error
    path = f'config.{section}.{user_parts.SECTION}'
    raise ValueError(f'{path}.{error}') from error


def check_used(
  config: ConfigDict, default: ConfigDict, own: Mapping[str, Any]
) -> None:
  """Checks that unused fields have their default values.

  Args:
    config: Config that `check_fields` has passed.
    default: Config of `configs.default`.
    own: Objects of the caller that replace parts of the config, by the keys
      'scheme', 'task' and 'dataset'; None where there is none.

  Raises:
    ValueError: If an unused field differs from its default; names it.
  """
  runtime = config.cluster.runtime
  reasons = {f'config.cluster.runtime is {runtime!r}': _UNUSED[runtime]}
  if config.batching.local_steps == 1:
    reasons['config.batching.local_steps is 1'] = ('outer.*',)
  if config.model.name == 'none':
    reason = "config.model.name is 'none'"
    reasons[reason] = _NO_MODEL
    field, got = 'config.time_to_measure', config.time_to_measure.to_dict()
    require(not got, field, f'no fields, because {reason}', got)
  if config.cluster.hosts_per_worker == 1:
    inside = ('cluster.network.island_*',)
    reasons['config.cluster.hosts_per_worker is 1'] = inside
  if config.cluster.links:
    links = 'cluster.network.worker_*_Bps'
    reasons['config.cluster.links gives the links'] = (links,)
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
  """Checks that the fields that match a pattern have their default values.

  Args:
    config: Config that `check_fields` has passed.
    default: Config of `configs.default`.
    patterns: Patterns of paths, such as 'data.*.*'.
    reason: Reason why the fields are unused, for the message.

  Raises:
    ValueError: If a field differs from its default; names it.
  """
  for path, value in iterate_fields(default):
    unused = any(fnmatch.fnmatch(path, pattern) for pattern in patterns)
    got = _read_field(config, path)
    if unused and got != value:
      raise ValueError(
        f'config.{path}: {got!r} is ignored because {reason}; remove it.'
      )


@contextlib.contextmanager
def error_prefix(path: str) -> Iterator[None]:
  """Prefixes the message of a ValueError with the path of a section."""
  try:
    yield
  except ValueError as error:
    raise ValueError(f'{path}.{error}') from error


def read_json(field: str, expected: str, path: str) -> Any:
  """Returns the decoded content of a JSON file.

  Args:
    field: Path of the field that names the file, for the message.
    expected: Description of valid content, for the message.
    path: Path of the file.

  Raises:
    ValueError: If the file cannot be read or is no JSON.
  """
  try:
    return json.loads(pathlib.Path(path).read_text(encoding='utf-8-sig'))
  except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
    raise ValueError(f'{field}: expected {expected}, got {error}.') from error


@contextlib.contextmanager
def reject_unknown_flags(argv: list[str]) -> Iterator[None]:
  """Ends the process if --config or a field is wrong, while flags are parsed.

  Args:
    argv: Command line.

  Raises:
    SystemExit: If the config file does not exist, or if a flag or that file
      names an unknown or renamed field.
  """
  _check_config_file(argv)
  try:
    yield
  except (AttributeError, KeyError) as error:  # Unknown field, or section.
    line, is_refused = _find_line(error)
    if not is_refused:
      raise  # An error of the config file's own code.
    cause: Any = error
    while isinstance(cause, BaseException):
      cause = cause.args[0]
    names = re.findall('[\'"](\\w+)[\'"]', str(cause))
    field = names[0] if names else str(cause)
    close = re.findall(r'Did you mean "(\w+)"', str(cause))
    where = f'{line}: ' if line else ''
    for path in [] if line else _flag_paths(argv):
      if field in path:
        field = '.'.join(path[: path.index(field) + 1])
        break
    renamed = [
      f'  config.{before} was renamed to config.{now}.'
      for before, now in _RENAMED.items()
      if before.rpartition('.')[2] in names
    ]
    unknown = _describe_unknown(field, *close)
    sys.exit(f'Refused: {where}{unknown}{"".join(renamed)}')


def _describe_unknown(path: str, close: str = '') -> str:
  """Returns the message on a field that does not exist.

  Args:
    path: Path of the field.
    close: Name of a similar field beside it; '' for none.
  """
  if not close:
    return f'{path}: unknown; configs/fields/ has all fields.'
  above = path.rpartition('.')[0]
  return f'{path}: unknown; did you mean {above}{"." * bool(above)}{close}?'


def _flag_paths(argv: Iterable[str]) -> list[list[str]]:
  """Returns the parts of the paths of fields that flags set."""
  flags = [arg.lstrip('-') for arg in argv if re.match('--?config[.]', arg)]
  return [flag.partition('=')[0].split('.') for flag in flags]


def _check_config_file(argv: Sequence[str]) -> None:
  """Ends the process if --config names a file that does not exist."""
  for arg, following in zip(argv, [*argv[1:], ''], strict=True):
    name, is_joined, value = arg.partition('=')
    file = (value if is_joined else following).partition(':')[0]
    if name in ('--config', '-config') and not os.path.isfile(file):
      sys.exit(
        'Refused: --config: expected a file, such as configs/vgg16_bsp.py, got '
        f'{file!r}, which does not exist.'
      )


def _find_line(error: BaseException) -> tuple[str, bool]:
  """Returns the line of a config file that raised, and whether a config did.

  Returns:
    File, number and text of the line, '' if no config file raised; and whether
    the error is that of a config, not of the file's own code.
  """
  frames = traceback.extract_tb(error.__traceback__)
  folders = [pathlib.PurePath(frame.filename).parent.name for frame in frames]
  is_refused = folders[-1] in _CONFIG_FOLDERS
  line, is_loading = '', False
  for frame, folder in zip(frames, folders, strict=True):
    if folder == 'config_flags':
      line, is_loading = '', True
    elif is_loading and folder != 'config_dict':
      line = f'in {frame.filename}, line {frame.lineno} ({frame.line})'
  return line, is_refused


def expand_values(
  field: str, values: tuple[float, ...], count: int
) -> tuple[float, ...]:
  """Returns one value for each of `count` hosts.

  Args:
    field: Path of the field, for the message.
    values: One value for all hosts, or one each.
    count: Number of hosts.

  Raises:
    ValueError: If there are neither one nor `count` values.
  """
  if len(values) not in (1, count):
    raise ValueError(
      f'{field}: expected one value for all, such as '
      f'{values[:1] or (1.0,)!r}, or one for each of {count}, got {values!r}.'
    )
  return tuple(values) * (count // len(values))


def host_links(
  network: ConfigDict, **hosts: int
) -> dict[str, tuple[float, ...]]:
  """Returns the bandwidths and latencies of all hosts.

  Args:
    network: Section with a field {host}_{link} for every kind of both.
    **hosts: Number of hosts of each kind, in their order.

  Returns:
    One value per host for each of 'up_Bps', 'down_Bps' and 'latency_s'.

  Raises:
    ValueError: If a value is out of range, or if there are too many or too few.
  """
  values_by_link: dict[str, tuple[float, ...]] = {}
  for link in ('up_Bps', 'down_Bps', 'latency_s'):
    values_by_link[link] = ()
    for host, count in hosts.items():
      path = f'config.cluster.network.{host}_{link}'
      values = network[f'{host}_{link}']
      if link == 'latency_s':
        valid = all(0 <= value < float('inf') for value in values)
        expected = 'finite seconds, at least 0'
      else:
        valid = all(value > 0 for value in values)
        expected = 'more than 0'
      if not valid:
        raise ValueError(f'{path}: expected {expected}, got {values!r}.')
      values_by_link[link] += expand_values(path, values, count)
  return values_by_link


def _read_field(config: ConfigDict, path: str) -> Any:
  return functools.reduce(lambda node, key: node[key], path.split('.'), config)


def iterate_fields(
  config: ConfigDict, above: str = ''
) -> Iterator[tuple[str, Any]]:
  """Yields the path and the value of every field, sections excluded."""
  for field, value in config.items():
    if isinstance(value, ConfigDict):
      yield from iterate_fields(value, f'{above}{field}.')
    else:
      yield above + field, value


def _check_fields(config: ConfigDict, default: ConfigDict, path: str) -> None:
  for field in sorted(set(config) ^ set(default)):
    now = _RENAMED.get(f'{path}.{field}'.removeprefix('config.'))
    if now and field in config:
      raise ValueError(
        f'{path}.{field}: expected config.{now}, the new name of this field.'
      )
    if field not in config:
      raise ValueError(f'{path}.{field}: missing.')
    close = difflib.get_close_matches(field, default, n=1)
    raise ValueError(_describe_unknown(f'{path}.{field}', *close))
  for field, value in default.items():
    got = config[field]
    if field in user_parts.OPEN and isinstance(got, ConfigDict):
      continue  # Its fields depend on the user's modules.
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
