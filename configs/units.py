"""Numbers of bytes with units, as users write them."""

import re

from configs.checks import require

_UNITS = {'B': 1, 'kB': 10**3, 'MB': 10**6, 'GB': 10**9}
_UNITS |= {'KiB': 2**10, 'MiB': 2**20, 'GiB': 2**30}


def parse_bytes(text: str) -> int:
  """Returns a number of bytes such as '100MB', '1.5 GiB' or '4096'.

  Raises:
    ValueError: If it is none, or less than one byte.
  """
  match = re.fullmatch(r'(\d+(?:\.\d+)?) ?([a-zA-Z]*)', text)
  unit = _UNITS.get(match[2] or 'B', 0) if match else 0
  size = round(float(match[1]) * unit) if match else 0
  expected = f'bytes, with one of {", ".join(_UNITS)}'
  require(size >= 1, 'size', expected, text)
  return size
