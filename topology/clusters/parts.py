"""Helpers of the cluster builders: argument checks, node ids, links."""

import numbers
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

from topology.clusters.cluster import Cluster, Link

Capacity = int | float | str | Fraction
LinkTo = tuple[str, str, Fraction | int]  # src, dst, GBps.


def check_integer(value: object, field: str, least: int = 1) -> int:
  """Returns the value as int; raises ValueError unless it is >= `least`."""
  if isinstance(value, numbers.Integral) and not isinstance(value, bool):
    exact = int(value)
    if exact >= least:
      return exact
  raise ValueError(
    f'{field}: expected an integer of at least {least}, got {value!r}.'
  )


def check_capacity(value: object, field: str = 'GBps') -> Fraction:
  """Returns a capacity as Fraction; raises ValueError unless it is above 0.

  A float stands for the decimal that it prints as.
  """
  try:
    exact = Fraction(str(value))
  except (ValueError, ZeroDivisionError):
    exact = Fraction(0)
  if exact <= 0:
    raise ValueError(f'{field}: expected a number above 0, got {value!r}.')
  return exact


def check_list(
  values: object, field: str, check: Callable[[Any, str], Any] | None = None
) -> list[Any]:
  """Returns an argument of a cluster as a list, after a check of its values.

  Args:
    values: List, tuple or other iterable of values, but no string.
    field: Name of the argument, for errors.
    check: Function of a value and `field` that returns the value to use; None
      for values as they are.

  Raises:
    ValueError: If `values` is no iterable or is empty, or if `check` refuses a
      value; names the field.
  """
  if isinstance(values, str) or not isinstance(values, Iterable):
    raise ValueError(f'{field}: expected a list, got {values!r}.')
  checked = [check(value, field) if check else value for value in values]
  if not checked:
    raise ValueError(f'{field}: expected one or more, got none.')
  return checked


def make_names(prefix: str, count: int, start: int = 0) -> list[str]:
  """Returns ids: the prefix and `count` numbers from `start` on."""
  return [f'{prefix}{i}' for i in range(start, start + count)]


def make_links(
  pairs: Iterable[tuple[str, str]], GBps: Capacity, field: str = 'GBps'
) -> list[LinkTo]:
  """Returns two links, one in each direction, for each pair of nodes."""
  exact = check_capacity(GBps, field)
  return [link for a, b in pairs for link in ((a, b, exact), (b, a, exact))]


def make_cluster(
  workers: Sequence[str], switches: Sequence[str], links: Iterable[LinkTo]
) -> Cluster:
  """Returns the cluster of these nodes and links, workers before switches."""
  return Cluster(
    (*workers, *switches),
    tuple(workers),
    tuple(Link(src, dst, Fraction(GBps)) for src, dst, GBps in links),
  )
