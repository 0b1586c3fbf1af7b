"""Parts of the user's own: modules that a config names by a dotted path.

`config.sync.name='my_lab.backup'` chooses the module my_lab/backup.py, on
PYTHONPATH or in the current folder.  Its `make` returns the part.  The keyword
arguments of `make` that Syncopate does not supply itself are the fields of the
section `config.sync.own`.
"""

import importlib
import inspect
import os
import pathlib
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from configs.checks import require

# Arguments of `make` that Syncopate supplies, by section with a `name`.
SUPPLIED: Mapping[str, tuple[str, ...]] = {
  'sync': ('num_workers',),
  'batching': ('num_workers', 'worker_batch'),
  'batching.lb_bsp.predictor': ('num_workers', 'num_factors', 'seed'),
  'wire': (),
  'route': (),
  'model': ('input_shape', 'num_classes', 'seed', 'dtype'),
  'data': ('directory',),
}
SECTION = 'own'  # Section of the fields, beside the name.
# Sections whose fields depend on the user's modules.
OPEN = (SECTION, 'time_to_measure')

_ROOT = pathlib.Path(__file__).parents[1]
_KINDS = (bool, int, float, str, tuple)  # Types of fields.


def is_own(name: str) -> bool:
  """Returns whether a name is the dotted path of a user's module."""
  return '.' in name


def load(field: str, name: str) -> ModuleType:
  """Imports a user's module.  An error inside the module is not caught.

  Args:
    field: Field or flag that names the module, for messages.
    name: Dotted path of the module.

  Raises:
    ValueError: If there is no such module, or if it has no function `make`.
    ImportError: If the module itself raises a ValueError or an OSError, so that
      this is not taken for an error of the config.
  """
  expected = "the dotted path of a module, such as 'my_lab.backup'"
  is_path = all(part.isidentifier() for part in name.split('.'))
  require(is_path, field, expected, name)
  folder = os.getcwd()
  if '' not in sys.path and folder not in sys.path:
    sys.path.append(folder)  # Last: no folder of the user hides a package.
  try:
    module = importlib.import_module(name)
  except ModuleNotFoundError as error:
    if not f'{name}.'.startswith(f'{error.name}.'):
      raise  # The module imports another one, which is missing.
    raise ValueError(
      f'{field}: expected a module on PYTHONPATH or in the current folder, '
      f'{folder}, got {name!r}: {error}.{_explain_collision(name)}'
    ) from error
  except (ValueError, OSError) as error:
    raise ImportError(f'{field}: the import of {name!r} failed.') from error
  make = getattr(module, 'make', None)
  require(callable(make), field, 'a module with a function make', name)
  return module


def find_loaded(field: str, name: str) -> ModuleType:
  """Returns a user's module that this process has imported before.

  A name that a run folder records is never imported: the folder may be from
  elsewhere.

  Args:
    field: Field of the run's config, for messages.
    name: Dotted path of the module.

  Raises:
    ValueError: If this process has not imported such a module.
  """
  module = sys.modules.get(name)
  if module is None or not callable(getattr(module, 'make', None)):
    raise ValueError(
      f'{field}: the run uses the module {name!r}, which is not imported '
      f'because a file names it; if you trust it, add --own={name}.'
    )
  return module


def defaults(field: str, section: str, module: ModuleType) -> dict[str, Any]:
  """Returns the fields of a user's part and their default values.

  Args:
    field: Field that names the module, for messages.
    section: Section of the config, a key of `SUPPLIED`.

  Returns:
    The default of each field by its name; `inspect.Parameter.empty` if the
    field has none.

  Raises:
    ValueError: If `make` does not take an argument that Syncopate supplies, or
      if a default is of a type that no field can have.
  """
  supplied = SUPPLIED[section]
  arguments = inspect.signature(module.make).parameters
  kinds = {each.kind for each in arguments.values()}
  if inspect.Parameter.VAR_KEYWORD not in kinds:
    missing = [each for each in supplied if each not in arguments]
    expected = f'{module.__name__}.make(*, {", ".join(supplied)}, FIELDS)'
    require(not missing, field, expected, f'make without {missing}')
  fields = {}
  for name, argument in arguments.items():
    if name in supplied or argument.kind not in (
      inspect.Parameter.KEYWORD_ONLY,
      inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
      continue
    default = argument.default
    expected = (
      'True, False, a number, text or a tuple of numbers as the default of '
      f'the argument {name} of {module.__name__}.make'
    )
    valid = default is argument.empty or is_value(default)
    require(valid, field, expected, default)
    fields[name] = default
  return fields


def is_value(value: object) -> bool:
  """Returns whether a field can have a value of this type.

  The types are bool, int, float, str, and tuples of int and float.  Subclasses,
  such as NumPy's float64, are refused.
  """
  if isinstance(value, tuple):
    return all(type(item) in (int, float) for item in value)
  return type(value) in _KINDS


def restore(value: Any, default: Any) -> Any:
  """Returns a field's value from that in a manifest, which is JSON.

  There, lists stand for tuples, and texts for infinite numbers.
  """
  if isinstance(value, list):
    return tuple(map(float, value)) if 'inf' in value else tuple(value)
  if isinstance(default, float) and isinstance(value, str):
    return float(value)
  return value


def _explain_collision(name: str) -> str:
  """Returns a sentence if the name is that of a package of Syncopate."""
  top, _, _ = name.partition('.')
  if not (_ROOT / top).is_dir():
    return ''
  return f'  {top!r} is a package of Syncopate: give yours another name.'
