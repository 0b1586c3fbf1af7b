"""Cells of tables."""


def rate(rate_Bps: float, bound: bool) -> str:
  """Returns a rate in MB/s without its unit, with 3 significant digits.

  Args:
    rate_Bps: The rate, bytes per second.
    bound: Whether it ever limited a transfer.  If not, it is only a lower
      bound, and the text begins with '>='.
  """
  return f'{"" if bound else ">= "}{rate_Bps / 1e6:.3g}'
