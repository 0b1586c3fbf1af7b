"""Escapes cells of CSV files that a spreadsheet would evaluate as formulas.

A spreadsheet evaluates a cell whose text begins with =, +, -, @, a tab or a
carriage return, and a formula can read other cells and start programs.  Texts
of configs and errors may begin with these characters.  A leading apostrophe
makes a cell text, as OWASP advises (CSV Injection).  Numbers are not escaped.
"""

import re
from typing import Any

# Leading apostrophes before a formula are escaped as well, so that `original`
# restores them.
_FORMULA = re.compile("'*[=+\\-@\t\r]")
_NUMBER = re.compile(
  r'[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)', re.IGNORECASE
)


def neutral(value: Any) -> Any:
  """Returns the value of a cell, with an apostrophe before a formula.

  Example:
    >>> neutral('=1+1'), neutral('-0.5'), neutral(-0.5), neutral("'=1+1")
    ("'=1+1", '-0.5', -0.5, "''=1+1")
  """
  if not isinstance(value, str) or _NUMBER.fullmatch(value):
    return value
  return f"'{value}" if _FORMULA.match(value) else value


def original(text: str) -> str:
  """Returns the text that `neutral` has escaped.

  Example:
    >>> original("'=1+1"), original('-0.5'), original("'s-Hertogenbosch")
    ('=1+1', '-0.5', "'s-Hertogenbosch")
  """
  made = text.startswith("'") and _FORMULA.match(text)
  return text[1:] if made else text
