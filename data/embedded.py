"""A text that comes with Python: its reference manual, by topics.

`pydoc_data.topics`, which `help('TOPIC')` shows; 465,048 characters in Python
3.11.  It differs from version to version.
"""

import hashlib

_MODULE = 'pydoc_data.topics'


def read() -> tuple[str, str]:
  """Returns the text, and the name of its module."""
  from pydoc_data import topics  # Half a megabyte, for runs on text alone.

  return '\n'.join(topics.topics.values()), _MODULE


def sha256() -> str:
  """Returns the SHA-256 of the text in UTF-8, in hexadecimal digits."""
  return hashlib.sha256(read()[0].encode()).hexdigest()
