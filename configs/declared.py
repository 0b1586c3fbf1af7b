"""All declared fields of a config, and checks of arguments against them.

A part that is used without a config, too, checks its arguments by the
declarations of its section, so that no range is written twice:

  @declared.check_arguments('sync.ssp')
  def make(*, num_workers: int, bound: float) -> Scheme:
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from configs.fields.field import Field, Need, Section
from configs.fields.run import RUN

_Arguments = ParamSpec('_Arguments')
_Result = TypeVar('_Result')


def find(path: str) -> Field | Section:
  """Returns the field or section at a path, such as 'sync.ssp.bound'.

  Args:
    path: Names with dots between them; '' for all.

  Raises:
    KeyError: If there is none.
  """
  found: Field | Section = RUN
  for name in path.split('.') if path else ():
    if isinstance(found, Field):
      raise KeyError(path)
    found = found.members[name]
  return found


def iterate_fields(
  section: Section = RUN, above: str = ''
) -> Iterator[tuple[str, Field]]:
  """Yields path and declaration of every field of a section."""
  for name, member in section.members.items():
    if isinstance(member, Field):
      yield f'{above}{name}', member
    else:
      yield from iterate_fields(member, f'{above}{name}.')


def defaults(section: Section = RUN) -> dict[str, Any]:
  """Returns the defaults of a section, nested as its sections are."""
  return {
    name: member.default if isinstance(member, Field) else defaults(member)
    for name, member in section.members.items()
  }


def that_need(need: Need) -> list[str]:
  """Returns the paths of the fields that are unused without a condition."""
  return [path for path, field in iterate_fields() if need in field.needs]


def check(section: str, **values: object) -> None:
  """Checks values by the declarations of a section.

  Args:
    section: Path of the section, such as 'sync.ssp'.
    **values: Values by the names of their fields.  Those of other names are not
      checked, nor is what has been read from a field's file.

  Raises:
    ValueError: If a value is out of its range; names the field.
  """
  found = find(section)
  members = found.members if isinstance(found, Section) else {}
  for name, value in values.items():
    field = members.get(name)
    if isinstance(field, Field) and not field.file:
      field.check(name, value)


def check_arguments(
  section: str,
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
  """Returns a decorator: keyword arguments are checked as by `check`."""

  def decorate(
    make: Callable[_Arguments, _Result],
  ) -> Callable[_Arguments, _Result]:
    @functools.wraps(make)
    def checked(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
      check(section, **kwargs)
      return make(*args, **kwargs)

    return checked

  return decorate
