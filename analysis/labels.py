"""Labels of runs, from the fields of their configs that differ."""

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

_PARTS = 5  # Parts of a label, at most.
_LONGEST = 28  # Characters of a part, at most.


def differing_fields(
  configs: Sequence[Mapping[str, Any]],
) -> dict[str, list[str | None]]:
  """Returns the fields in which runs differ, apart from their seeds.

  Fields of sub-sections that a run does not use, and of checkpoints, count as
  missing.

  Args:
    configs: Configs of runs, by section.

  Returns:
    The value of each run as text, None where it is missing, by dotted name.
  """
  every = [
    {name: _text(value) for name, value in _used_fields(config)}
    for config in configs
  ]
  names = dict.fromkeys(name for fields in every for name in fields)
  found = {name: [fields.get(name) for fields in every] for name in names}
  return {
    name: values
    for name, values in found.items()
    if len({value for value in values if value is not None}) > 1
  }


def find(configs: Sequence[Mapping[str, Any]]) -> list[str]:
  """Returns a label for each run; those of runs that differ by seed are equal.

  A label has the scheme and the values of fields in which runs differ, without
  values that more than half of the runs share.  Long labels are cut, and
  numbered if two would be equal.

  At most 5 parts of at most 28 characters are shown.

  Args:
    configs: Configs of runs, by section.
  """
  differing = differing_fields(configs)
  differing.pop('sync.name', None)
  short = shorten(differing)
  usual = {name: _usual(values) for name, values in differing.items()}
  labels: dict[tuple[str, ...], str] = {}
  found = []
  for place, config in enumerate(configs):
    differs = [
      f'{short[name]}={values[place]}'
      for name, values in differing.items()
      if values[place] not in (None, usual[name])
    ]
    parts = (config['sync']['name'], *differs)
    if parts not in labels:
      labels[parts] = _join(parts, used=labels.values())
    found.append(labels[parts])
  return found


def shorten(names: Iterable[str]) -> dict[str, str]:
  """Returns the last parts of dotted names; full names where these collide."""
  short = {
    name: name.removesuffix('.name').rpartition('.')[-1] for name in names
  }
  counts = collections.Counter(short.values())
  return {
    name: last if counts[last] == 1 else name for name, last in short.items()
  }


def _used_fields(
  section: Mapping[str, Any], above: str = ''
) -> Iterator[tuple[str, Any]]:
  """Yields the fields that a run uses, by dotted name."""
  for field, value in section.items():
    name = above + field
    if isinstance(value, Mapping):
      if section.get('name', field) == field and name != 'checkpoint':
        yield from _used_fields(value, f'{name}.')
    elif name != 'seed':
      yield name, value


def _usual(values: Iterable[str | None]) -> str | None:
  """Returns the value of more than half of the runs; None without one."""
  counts = collections.Counter(value for value in values if value is not None)
  value, count = counts.most_common(1)[0]
  return value if 2 * count > counts.total() else None


def _text(value: Any) -> str:
  if isinstance(value, list | tuple):
    return '(' + ','.join(map(_text, value)) + ')'
  return str(value).removesuffix('.0')


def _join(parts: Sequence[str], used: Iterable[str]) -> str:
  """Returns an unused label of the first parts."""
  shown = [
    part if len(part) <= _LONGEST else f'{part[: _LONGEST - 3]}...'
    for part in parts[:_PARTS]
  ]
  if len(parts) > _PARTS:
    shown.append('...')
  label, number = ', '.join(shown), 1
  while label in used:
    number += 1
    label = f'{", ".join(shown)} ({number})'
  return label
