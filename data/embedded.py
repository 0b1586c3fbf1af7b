"""A text that comes with Python: its reference manual, by topics.

`pydoc_data.topics`, which `help('TOPIC')` shows; 466,196 bytes in Python 3.11.
It differs from version to version.
"""

import hashlib

_MODULE = 'pydoc_data.topics'


def read() -> tuple[str, str]:
  """Returns the text, with a zero character before each topic, and its module.

  The zeros begin documents: see `data.text`.
  """
  from pydoc_data import topics  # Half a megabyte, for runs on text alone.

  return ''.join(f'\0{topic}' for topic in topics.topics.values()), _MODULE


def sha256() -> str:
  """Returns the SHA-256 of the text in UTF-8, in hexadecimal digits."""
  return hashlib.sha256(read()[0].encode()).hexdigest()
