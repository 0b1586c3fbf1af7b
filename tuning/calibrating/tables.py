"""Tables of text."""

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]]) -> str:
  """Returns rows as text, with right-aligned columns."""
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return '\n'.join(
    '  '.join(map(str.rjust, row, widths)).rstrip() for row in rows
  )


def rate(rate_Bps: float, bound: bool) -> str:
  """Returns a rate in MB/s, with >= if it never limited a transfer."""
  return f'{"" if bound else ">= "}{rate_Bps / 1e6:.3g}'
