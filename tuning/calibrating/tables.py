"""Cells of tables."""


def rate(rate_Bps: float, bound: bool) -> str:
  """Returns a rate in MB/s, with >= if it never limited a transfer."""
  return f'{"" if bound else ">= "}{rate_Bps / 1e6:.3g}'
