"""Cells of CSV files, which spreadsheets must not take for formulas.

A spreadsheet computes a cell whose text begins with =, +, -, @, a tab or a
carriage return, and what it computes can read other cells and call programs.
Text of configs and errors may begin so.  An apostrophe before it makes it text,
as OWASP advises (CSV Injection); numbers stay numbers.
"""

import re
from typing import Any

# Apostrophes before a formula are those of the text itself.
_FORMULA = re.compile("'*[=+\\-@\t\r]")
_NUMBER = re.compile(
  r'[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)', re.IGNORECASE
)


def neutral(value: Any) -> Any:
  """Returns a value as it is written: text that is no formula.

  Example:
    >>> neutral('=1+1'), neutral('-0.5'), neutral(-0.5), neutral("'=1+1")
    ("'=1+1", '-0.5', -0.5, "''=1+1")
  """
  if not isinstance(value, str) or _NUMBER.fullmatch(value):
    return value
  return f"'{value}" if _FORMULA.match(value) else value


def original(text: str) -> str:
  """Returns the text of which `neutral` has made a cell.

  Example:
    >>> original("'=1+1"), original('-0.5'), original("'s-Hertogenbosch")
    ('=1+1', '-0.5', "'s-Hertogenbosch")
  """
  made = text.startswith("'") and _FORMULA.match(text)
  return text[1:] if made else text
