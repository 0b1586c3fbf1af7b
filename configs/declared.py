"""All declared fields of a config, and checks of arguments against them.

A part that is used without a config, too, checks its arguments by the
declarations of its section, so that no range is written twice:

  @declared.check_arguments('sync.ssp')
  def make(*, num_workers: int, bound: float) -> Scheme:
"""

import functools
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from configs import user_parts
from configs.fields.field import Field, Need, Section
from configs.fields.run import RUN as RUN

_Arguments = ParamSpec('_Arguments')
_Result = TypeVar('_Result')


def find_section(path: str) -> Section:
  """Returns the section at a path, such as 'sync.ssp'; '' for the root.

  Raises:
    KeyError: If there is none.
  """
  section = RUN
  for name in path.split('.') if path else ():
    member = section.members[name]
    if isinstance(member, Field):
      raise KeyError(path)
    section = member
  return section


def find_field(path: str) -> Field:
  """Returns the field at a path, such as 'sync.ssp.bound'.

  Raises:
    KeyError: If there is none.
  """
  above, _, name = path.rpartition('.')
  field = find_section(above).members[name]
  if isinstance(field, Section):
    raise KeyError(path)
  return field


def iterate_fields(section: str = '') -> Iterator[tuple[str, Field]]:
  """Yields path and declaration of every field of a section, '' for all."""
  for name, member in find_section(section).members.items():
    path = f'{section}.{name}'.removeprefix('.')
    if isinstance(member, Field):
      yield path, member
    else:
      yield from iterate_fields(path)


def options(section: str) -> list[str]:
  """Returns the sub-sections that a section's `name` chooses from."""
  return [
    name
    for name, member in find_section(section).members.items()
    if isinstance(member, Section) and name != user_parts.SECTION
  ]


def that_need(need: Need) -> list[str]:
  """Returns the paths of the fields that are only used under a condition."""
  return [path for path, field in iterate_fields() if need in field.needs]


def check(section: str, **values: object) -> None:
  """Checks values by the declarations of a section.

  Args:
    section: Path of the section, such as 'sync.ssp'.
    **values: Values by the names of their fields.  Names that are no field are
      ignored, and so is the content of a field's file.

  Raises:
    ValueError: If a value is out of its range; names the field.
  """
  members = find_section(section).members
  for name, value in values.items():
    field = members.get(name)
    if isinstance(field, Field) and not field.file:
      field.check(name, value)


def check_arguments(
  section: str,
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
  """Returns a decorator that checks keyword arguments as `check` does."""

  def decorate(
    make: Callable[_Arguments, _Result],
  ) -> Callable[_Arguments, _Result]:
    @functools.wraps(make)
    def checked(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
      check(section, **kwargs)
      return make(*args, **kwargs)

    return checked

  return decorate
