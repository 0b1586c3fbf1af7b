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
import os
import pathlib
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from configs import declared, user_parts
from configs.checks import describe_password, hide_passwords, require
from configs.fields.field import Field, Need, Section

# Function of a section's path that returns the chosen name and its fields.
Choose = Callable[[str], tuple[str, dict[str, Any]]]

_ROOT = pathlib.Path(__file__).parents[1]
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
# Fields of the parts that the caller can replace, as patterns.
_REPLACED = {
  'scheme': ('sync.*',),
  'task': (
    *('model.*', 'data.crop_padding', 'data.crop_area', 'data.flip'),
    *('precision.dtype', 'eval_top', 'eval_loss'),
  ),
  'dataset': ('data.name', 'data.dir', 'data.*.*'),
}


def check_fields(config: ConfigDict) -> None:
  """Checks that a config has all fields, and each a value in its range.

  Raises:
    ValueError: If a field is unknown, missing, of another type or out of its
      range.
  """
  _check_fields(config, declared.RUN, 'config')
  thresholds = Field((), 'Values of a measure.')
  for name, values in config.time_to_measure.items():
    _check_value(f'config.time_to_measure.{name}', values, thresholds)


def convert_numbers(config: ConfigDict) -> ConfigDict:
  """Returns a copy in which integers in fields of floats are floats.

  Fields that take no text convert them themselves.  The identity of a run
  depends on it.

  Args:
    config: Config that `check_fields` has passed.
  """
  converted = copy.deepcopy(config)
  values = dict(iterate_fields(config))
  for path, field in declared.iterate_fields():
    if field.takes_text and not isinstance(values[path], str):
      number = type(field.default)(values[path])
      converted.update_from_flattened_dict({path: number})
  return converted


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
  """Returns all fields of a user's part: the given ones, then its defaults."""
  for field in given:
    if field not in defaults:
      raise ValueError(
        f'{path}.{field}: unknown; expected the fields {sorted(defaults)}.'
      )
  complete = {}
  for field, value in defaults.items():
    got = given.get(field, value)
    if value is not inspect.Parameter.empty:
      _check_value(f'{path}.{field}', got, Field(value, '', infinite=True))
    elif got is value:
      raise ValueError(f'{path}.{field}: expected a value: it has no default.')
    else:
      expected = 'a number, text, or a tuple of numbers'
      require(user_parts.is_value(got), f'{path}.{field}', expected, got)
    complete[field] = float(got) if isinstance(value, float) else got
  return complete


def chosen_path(config: ConfigDict, section: str) -> str:
  """Returns the path of the sub-section that a section chooses."""
  name = _read_field(config, section).name
  chosen = user_parts.SECTION if user_parts.is_own(name) else name
  return f'config.{section}.{chosen}'


def choose_section(
  config: ConfigDict, section: str
) -> tuple[str, dict[str, Any]]:
  """Returns the name that a section chooses, and the fields of that choice.

  Args:
    config: Config that `check_fields` has passed; with a part of the user's
      own, the result of `resolve_own`.
    section: Path of the section, such as 'sync'.

  Raises:
    ValueError: If there is no such choice, or if a field of another sub-section
      differs from its default: it would be ignored.
  """
  chosen = _read_field(config, section)
  options = declared.options(section)
  is_own = section in user_parts.SUPPLIED and user_parts.is_own(chosen.name)
  if not is_own and chosen.name not in options:
    raise ValueError(
      f'config.{section}.name: expected one of {options}, got {chosen.name!r}.'
      f'{_explain_name(section, chosen.name)}'
    )
  for option in options:
    for name, field in declared.iterate_fields(f'{section}.{option}'):
      got = _read_field(config, name)
      if option != chosen.name and got != field.default:
        raise ValueError(
          f'config.{name}: {got!r} is ignored by '
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


def check_used(config: ConfigDict, own: Mapping[str, Any]) -> None:
  """Checks that unused fields have their default values.

  Args:
    config: Config that `check_fields` has passed.
    own: Objects of the caller that replace parts of the config, by the keys
      'scheme', 'task' and 'dataset'; None where there is none.

  Raises:
    ValueError: If an unused field differs from its default; names it.
  """
  runtime = config.cluster.runtime
  # Recipes describe a virtual cluster (network, speed) as well, which is no
  # error on a real one.
  missing: Need = 'real' if runtime == 'virtual' else 'virtual'
  unused = declared.that_need(missing)
  check_default(config, unused, f'config.cluster.runtime is {runtime!r}')
  if config.batching.local_steps == 1:
    reason = 'config.batching.local_steps is 1'
    check_default(config, declared.that_need('local steps'), reason)
  if config.model.name == 'none':
    reason = "config.model.name is 'none'"
    check_default(config, declared.that_need('model'), reason)
    field, got = 'config.time_to_measure', config.time_to_measure.to_dict()
    require(not got, field, f'no fields, because {reason}', got)
  if config.cluster.hosts_per_worker == 1:
    reason = 'config.cluster.hosts_per_worker is 1'
    check_default(config, declared.that_need('island'), reason)
  if config.cluster.links:
    links = 'cluster.network.worker_*_Bps'
    check_default(config, (links,), 'config.cluster.links gives the links')
  for part, value in own.items():
    if value is not None:
      if part != 'scheme' and config.model.name == 'none':
        raise ValueError(
          f"config.model.name: expected a model to use the {part}, got 'none'."
        )
      check_default(config, _REPLACED[part], f'there is a {part} of its own')


def check_default(
  config: ConfigDict, patterns: Iterable[str], reason: str
) -> None:
  """Checks that the fields that match a pattern have their default values.

  Args:
    config: Config that `check_fields` has passed.
    patterns: Patterns of paths, such as 'data.*.*'.
    reason: Reason why the fields are unused, for the message.

  Raises:
    ValueError: If a field differs from its default; names it.
  """
  for path, field in declared.iterate_fields():
    got = _read_field(config, path)
    if got != field.default and any(
      fnmatch.fnmatch(path, pattern) for pattern in patterns
    ):
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

  Raises:
    SystemExit: If the config file does not exist, or if a flag or that file
      names an unknown or renamed field, or if a word has a URI with a password,
      which messages and files would repeat.
  """
  for word in argv[1:]:
    if hide_passwords(word) != word:
      name = word.partition('=')[0].partition('://')[0]
      sys.exit(f'Refused: {describe_password(name)}')
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
  """Returns the message on an unknown field; `close` is a similar one."""
  if not close:
    return f'{path}: unknown; --help_fields= prints all fields.'
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
  """Returns the line of a config file that raised; whether a check raised."""
  # The line has file, number and text, and is '' if no config file raised.
  # Otherwise the file's own code has raised.
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
    network: Section with a field KIND_LINK for each kind of host and each of
      'up_Bps', 'down_Bps' and 'latency_s'.
    **hosts: Number of hosts of each kind, in their order.

  Returns:
    One value per host for each of 'up_Bps', 'down_Bps' and 'latency_s'.

  Raises:
    ValueError: If there are too many values or too few.
  """
  values_by_link: dict[str, tuple[float, ...]] = {}
  for link in ('up_Bps', 'down_Bps', 'latency_s'):
    values_by_link[link] = ()
    for host, count in hosts.items():
      path = f'config.cluster.network.{host}_{link}'
      values = network[f'{host}_{link}']
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


def _check_fields(config: ConfigDict, section: Section, path: str) -> None:
  for name in sorted(set(config) ^ set(section.members)):
    now = _RENAMED.get(f'{path}.{name}'.removeprefix('config.'))
    if now and name in config:
      raise ValueError(
        f'{path}.{name}: expected config.{now}, the new name of this field.'
      )
    if name not in config:
      raise ValueError(f'{path}.{name}: missing.')
    close = difflib.get_close_matches(name, section.members, n=1)
    raise ValueError(_describe_unknown(f'{path}.{name}', *close))
  for name, member in section.members.items():
    got = config[name]
    if isinstance(member, Field):
      _check_value(f'{path}.{name}', got, member)
      continue
    is_section = isinstance(got, ConfigDict)
    require(is_section, f'{path}.{name}', 'a section', got)
    if name not in user_parts.OPEN:  # Fields depend on the user's modules.
      _check_fields(got, member, f'{path}.{name}')


def _check_value(path: str, value: object, field: Field) -> None:
  """Checks type and range.  Manifests hold plain values, none of NumPy's."""
  is_plain = field.items is None or user_parts.is_value(value)
  require(is_plain, path, field.expected, value)
  field.check(path, value)


def bucket_bytes(config: ConfigDict) -> float | None:
  """Returns the smallest size of a bucket, bytes; None: the run chooses it."""
  value = config.route.bucket_bytes
  return None if value == AUTO else float(value)
