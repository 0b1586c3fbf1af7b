"""Parser of grids: the fields and values of a sweep, as text.

  sync.name=bsp,elastic; cluster.workers=4,16; seed=0,1,2

stands for every combination; the last field changes fastest.  Fields that
change together are joined by &, and so are their values.  An empty value leaves
the field as the config has it:

  sync.name & sync.ssp.bound = bsp &, ssp & 1, ssp & 10
"""

import itertools
import re
from collections.abc import Iterator, Mapping

from configs.checks import require

# Values of one run by field, as the flags of main.py take them.
Point = Mapping[str, str]

_FIELD = re.compile(r'[A-Za-z_]\w*(\.\w+)*')
_CLOSING = {'(': ')', '[': ']', '{': '}'}


def points(text: str) -> list[Point]:
  """Returns the runs of a grid, in their order.

  Args:
    text: Text as in this module's description.  Commas, semicolons and &
      within brackets or quotes belong to a value; quotes around a whole value
      do not.

  Raises:
    ValueError: If the text cannot be parsed, names a field twice, or has no
      run.

  Example:
    >>> points('seed=0,1; cluster.speed.slowdown=(1.0, 2.0)')[1]
    {'seed': '1', 'cluster.speed.slowdown': '(1.0, 2.0)'}
  """
  axes = [_parse_axis(part) for part in _split(text, ';') if part]
  require(bool(axes), 'grid', 'FIELD=VALUE,VALUE; ...', text)
  fields = [field for axis in axes for field in axis[0]]
  for field in fields:
    require(fields.count(field) == 1, 'grid', f'{field} once', text)
  return [
    {field: value for one in chosen for field, value in one.items()}
    for chosen in itertools.product(*axes)
  ]


def _parse_axis(text: str) -> list[dict[str, str]]:
  """Returns the values in turn of fields that change together."""
  left, equals, right = text.partition('=')
  require(bool(equals), 'grid', 'FIELD=VALUE,VALUE', text)
  fields = [field.strip() for field in left.split('&')]
  for field in fields:
    name = field.removeprefix('config.')
    known = 'a field such as sync.name'
    require(bool(_FIELD.fullmatch(name)), 'grid', known, field)
  names = [field.removeprefix('config.') for field in fields]
  require(bool(right.strip()), f'grid: {text}', 'a value at least', right)
  return [_parse_values(names, each) for each in _split(right, ',')]


def _parse_values(names: list[str], text: str) -> dict[str, str]:
  values = _split(text, '&')
  expected = f'{len(names)} values for {" & ".join(names)}'
  require(len(values) == len(names), 'grid', expected, text)
  require(len(names) > 1 or bool(text), 'grid', f'a value of {names[0]}', text)
  return {
    name: _unquote(value)
    for name, value in zip(names, values, strict=True)
    if value
  }


def _unquote(value: str) -> str:
  is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in '\'"'
  return value[1:-1] if is_quoted and value[0] not in value[1:-1] else value


def _split(text: str, separator: str) -> list[str]:
  """Returns the parts between separators outside brackets and quotes."""
  parts = ['']
  for letter, is_outside in _scan(text):
    if letter == separator and is_outside:
      parts.append('')
    else:
      parts[-1] += letter
  return [part.strip() for part in parts]


def _scan(text: str) -> Iterator[tuple[str, bool]]:
  """Yields characters, each with True if outside brackets and quotes."""
  expected: list[str] = []  # Closing characters, the innermost last.
  for letter in text:
    is_quoted = bool(expected) and expected[-1] in '\'"'
    yield letter, not expected
    if expected and letter == expected[-1]:
      expected.pop()
    elif letter in '\'"' and not is_quoted:
      expected.append(letter)
    elif letter in _CLOSING and not is_quoted:
      expected.append(_CLOSING[letter])
    elif letter in _CLOSING.values() and not is_quoted:
      raise ValueError(
        f'grid: expected no {letter} before it opens, got {text!r}.'
      )
  require(not expected, 'grid', f'{"".join(expected[::-1])} at the end', text)
