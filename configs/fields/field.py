"""Declarations of config fields: default, meaning, unit and range.

The modules beside this one declare all sections, as plain data below all parts;
configs/declared.py has the whole tree.
"""

import dataclasses
import functools
import math
import numbers
import operator
from collections.abc import Mapping
from typing import Any, Literal

from configs.checks import check_uri, require

# Condition without which a field is ignored, so that it must have its default.
Need = Literal['model', 'virtual', 'real', 'local steps', 'island']
# What a path names: see `outputs.inputs`.  In the first row '~' is the home
# folder; files of the second are below config.data.dir.
File = Literal[
  '', 'unread', 'file', 'files', 'links',
  'data', 'text', 'idx', 'photographs', 'images',
]  # fmt: skip
_NOUNS = {int: 'an integer', float: 'a number'}
_PLURALS = {int: 'integers', float: 'numbers'}


@dataclasses.dataclass(frozen=True)
class Field:
  """A field.  Its values are of the type of its default.

  Attributes:
    default: Its default.
    doc: Its meaning.
    unit: Unit of a number, or of each number of a tuple.
    at_least: Smallest value.
    above: Bound that all values exceed.
    at_most: Largest value.
    below: Bound that exceeds all values.
    infinite: Whether inf is a value.
    whole: Whether only whole numbers are values, although the type is float.
    choices: All values; () for any in range.
    words: Texts that may take the place of a number.
    or_seconds: Whether a text such as '10s', seconds on the run's clock, may
      take the place of a number: see `read_seconds`.
    items: Type of a tuple's items; None if a part checks them.
    file: What a path names; '' if the field is no path.
    is_uri: Whether it is a URI, which must have no password.
    needs: Conditions without which the field must have its default.
    is_local: Whether the hosts of a run may have different values.
    is_display: Whether it changes no result: a run may resume with another
      value.
  """

  default: Any
  doc: str
  _: dataclasses.KW_ONLY
  unit: str = ''
  at_least: float | None = None
  above: float | None = None
  at_most: float | None = None
  below: float | None = None
  infinite: bool = False
  whole: bool = False
  choices: tuple[Any, ...] = ()
  words: tuple[str, ...] = ()
  or_seconds: bool = False
  items: type | None = float
  file: File = ''
  is_uri: bool = False
  needs: tuple[Need, ...] = ()
  is_local: bool = False
  is_display: bool = False

  def check(self, name: str, value: object) -> None:
    """Raises ValueError unless `value` is of the type and in the range.

    NumPy's numbers are numbers, too.  `name` is that of the field, for the
    message.
    """
    require(self._accepts(value), name, self.expected, value)
    if self.is_uri:
      check_uri(name, str(value))

  @property
  def takes_text(self) -> bool:
    """True if the value of a field for numbers may be a text."""
    return bool(self.words) or self.or_seconds

  @functools.cached_property
  def expected(self) -> str:
    """Description of the values, such as 'an integer of at least 1'."""
    if self.choices:
      return f'one of {list(self.choices)}'
    kind = type(self.default)
    if kind is bool:
      return 'True or False'
    if kind is str:
      return 'text'
    if kind is not tuple:
      noun = 'a whole number' if self.whole else _NOUNS[kind]
      words = ''.join(f', or {word!r}' for word in self.words)
      if self.or_seconds:
        words += ", or seconds on the run's clock as a text such as '10s'"
      return f'{self._describe(noun, kind)}{words}'
    if self.items is None:
      return 'a tuple'
    return f'a tuple of {self._describe(_PLURALS[self.items], self.items)}'

  def _describe(self, noun: str, kind: type) -> str:
    """Returns a noun with range and unit."""
    has_most = self.at_most is not None or self.below is not None
    if kind is float and not (has_most or self.infinite):
      article, _, rest = noun.rpartition(' ')
      noun = f'{article} finite {rest}'.strip()
    if self.at_least is not None and self.at_most is not None:
      bounds = [f' from {self.at_least} to {self.at_most}']
    else:
      bounds = [
        f'{text} {bound}'
        for bound, text in (
          (self.at_least, ' of at least'),
          (self.above, ' above'),
          (self.at_most, ', at most'),
          (self.below, ', below'),
        )
        if bound is not None
      ]
    unit = f', in {self.unit}' if self.unit else ''
    inf = ', or inf' if self.infinite and bounds else ''
    return f'{noun}{"".join(bounds)}{unit}{inf}'

  def _accepts(self, value: Any) -> bool:
    kind = type(self.default)
    if self.choices:
      return not isinstance(value, bool) and value in self.choices
    if kind is tuple and self.items is not None:
      return isinstance(value, list | tuple) and all(
        self._accepts_number(item, self.items) for item in value
      )
    if kind in (int, float):
      if self.or_seconds and (seconds := read_seconds(value)) is not None:
        value = seconds
      return value in self.words or self._accepts_number(value, kind)
    return isinstance(value, kind)

  def _accepts_number(self, value: Any, kind: type) -> bool:
    if self.words and value == 'inf':  # Flags pass all but literals as text.
      value = math.inf
    is_number = isinstance(
      value, numbers.Integral if kind is int else numbers.Real
    )
    if not is_number or isinstance(value, bool):
      return False
    if math.isinf(value) and not self.infinite:
      return False
    if self.whole and math.isfinite(value) and value != int(value):
      return False
    return all(
      bound is None or compare(value, bound)
      for compare, bound in (
        (operator.ge, self.at_least),
        (operator.gt, self.above),
        (operator.le, self.at_most),
        (operator.lt, self.below),
      )
    )


class Section:
  """Fields and sections below one path.

  Args:
    doc: What the section is about.
    needs: Further conditions without which no field of it is used.
    **members: Fields and sections by name.

  Attributes:
    doc: What the section is about.
    members: Fields and sections by name.
  """

  def __init__(
    self,
    doc: str = '',
    needs: tuple[Need, ...] = (),
    /,
    **members: 'Field | Section',
  ):
    self.doc = doc
    self.members: Mapping[str, Field | Section] = {
      name: _with_needs(member, needs) for name, member in members.items()
    }


def _with_needs(
  member: Field | Section, needs: tuple[Need, ...]
) -> Field | Section:
  """Returns a member all of whose fields have further needs."""
  if isinstance(member, Field):
    return dataclasses.replace(member, needs=(*member.needs, *needs))
  return Section(member.doc, needs, **member.members)


def read_seconds(value: object) -> float | None:
  """Returns the seconds of a text such as '10s' or '0.5s'; None for others."""
  if not (isinstance(value, str) and value.endswith('s')):
    return None
  try:
    return float(value.removesuffix('s'))
  except ValueError:
    return None


def count(default: int, doc: str, **more: Any) -> Field:
  """Declares a field that is an integer of at least 1.

  Args:
    default: Default value.
    doc: What it means, for the reference of fields.
    **more: Further attributes of `Field`; so in the functions below.
  """
  return Field(default, doc, at_least=1, **more)


def natural(default: int, doc: str, **more: Any) -> Field:
  """Declares a field that is an integer of at least 0."""
  return Field(default, doc, at_least=0, **more)


def seed(default: int, doc: str) -> Field:
  """Declares a field that is the seed of a random number generator."""
  return Field(default, doc, at_least=0, at_most=2**32 - 1)


def port(default: int, doc: str, **more: Any) -> Field:
  """Declares a field that is a TCP port."""
  return Field(default, doc, at_least=0, at_most=2**16 - 1, **more)


def positive(
  default: float | tuple[float, ...], doc: str, **more: Any
) -> Field:
  """Declares a field of finite numbers above 0."""
  return Field(default, doc, above=0, **more)


def nonnegative(default: float, doc: str, **more: Any) -> Field:
  """Declares a field that is a finite number of at least 0."""
  return Field(default, doc, at_least=0, **more)


def seconds(default: float, doc: str, **more: Any) -> Field:
  """Declares a field that is a time: finite seconds, at least 0."""
  return Field(default, doc, at_least=0, unit='seconds', **more)


def Bps(default: float | tuple[float, ...], doc: str, **more: Any) -> Field:
  """Declares a field that is a rate: bytes per second above 0, or infinity."""
  return Field(
    default, doc, above=0, infinite=True, unit='bytes per second', **more
  )


def share(default: float, doc: str, **more: Any) -> Field:
  """Declares a field that is a share: a number above 0, at most 1."""
  return Field(default, doc, above=0, at_most=1, **more)


def fraction(default: float, doc: str, **more: Any) -> Field:
  """Declares a field that is a number from 0 to 1."""
  return Field(default, doc, at_least=0, at_most=1, **more)


def decay(default: float, doc: str, **more: Any) -> Field:
  """Declares a field that is a number of at least 0, below 1."""
  return Field(default, doc, at_least=0, below=1, **more)


def weight_decay(default: float, target: str) -> Field:
  """Declares a field: the multiple of the parameters added to `target`."""
  return nonnegative(
    default, f'Multiple of the parameters that is added to {target}.'
  )
