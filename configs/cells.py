"""Escapes cells of CSV files that a spreadsheet would evaluate as formulas.

A spreadsheet evaluates a cell whose text begins with =, +, -, @, a tab or a
carriage return, and a formula can read other cells and start programs.  Texts
of configs and errors may begin with these characters.  A leading apostrophe
makes a cell text, as OWASP advises (CSV Injection).  Numbers are not escaped.
"""

import re
from typing import Any

# Leading apostrophes before a formula are escaped as well, so that `unescape`
# restores them.
_FORMULA = re.compile("'*[=+\\-@\t\r]")
_NUMBER = re.compile(
  r'[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)', re.IGNORECASE
)


def escape(value: Any) -> Any:
  """Returns the value of a cell; a text that is a formula gets an apostrophe.

  Example:
    >>> escape('=1+1'), escape('-0.5'), escape(-0.5), escape("'=1+1")
    ("'=1+1", '-0.5', -0.5, "''=1+1")
  """
  if not isinstance(value, str) or _NUMBER.fullmatch(value):
    return value
  return f"'{value}" if _FORMULA.match(value) else value


def unescape(text: str) -> str:
  """Returns the text of a cell as it was before `escape`.

  Example:
    >>> unescape("'=1+1"), unescape('-0.5'), unescape("'s-Hertogenbosch")
    ('=1+1', '-0.5', "'s-Hertogenbosch")
  """
  is_escaped = text.startswith("'") and _FORMULA.match(text)
  return text[1:] if is_escaped else text
