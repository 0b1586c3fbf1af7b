"""Flags that are lists with commas, whose values are checked as they are read.

Values that are refused end the command with the name of the flag and what it
expects.
"""

from collections.abc import Sequence
from typing import Any

from absl import flags

# Flags are those of the module that calls this one, and in its --help.
flags.disclaim_key_flags()


class _Parser(flags.ListParser):
  """Parser of a list whose values have a parser of their own."""

  def __init__(self, each: flags.ArgumentParser[Any]):
    super().__init__()
    self._each = each

  def parse(self, argument: Any) -> list[Any]:
    values = super().parse(argument)
    if not values:
      raise ValueError('expected at least one value')
    return [self._each.parse(value) for value in values]


def define_choices(
  name: str,
  choices: Sequence[str],
  text: str,
  *,
  flag_values: flags.FlagValues = flags.FLAGS,
) -> None:
  """Defines a flag for some of several names, by default all of them."""
  parser = _Parser(flags.EnumParser([*choices]))
  _define(parser, name, choices, text, flag_values)


def define_integers(
  name: str,
  default: Sequence[int],
  text: str,
  *,
  flag_values: flags.FlagValues = flags.FLAGS,
) -> None:
  """Defines a flag for positive integers."""
  parser = _Parser(flags.IntegerParser(lower_bound=1))
  _define(parser, name, default, text, flag_values)


def _define(
  parser: _Parser,
  name: str,
  default: Sequence[Any],
  text: str,
  flag_values: flags.FlagValues,
) -> None:
  flags.DEFINE(
    parser,
    name,
    [*default],
    text,
    flag_values,
    flags.CsvListSerializer(','),
  )
