"""Clusters of well-known shapes, with exact capacities, and by their name.

Workers are 'w0', 'w1' and so on, switches 's0', 's1'.  All capacities are in
1e9 bytes per second: integers, fractions, or floats and strings, which stand
for the decimals they show.
"""

import ast
import inspect
from fractions import Fraction
from typing import Any

from topology.clusters.cluster import Cluster
from topology.clusters.machines import dgx_1, dgx_a100, dgx_h100, mi250, pcie
from topology.clusters.randomized import random_mesh, random_switched, spread
from topology.clusters.shapes import (
  bcube,
  dcell,
  fat_tree,
  full_mesh,
  hypercube,
  line,
  ring,
  star,
  torus,
  tree,
  wan,
)

__all__ = [
  'bcube',
  'dcell',
  'dgx_1',
  'dgx_a100',
  'dgx_h100',
  'fat_tree',
  'full_mesh',
  'hypercube',
  'line',
  'mi250',
  'named',
  'pcie',
  'random_mesh',
  'random_switched',
  'ring',
  'spread',
  'star',
  'torus',
  'tree',
  'wan',
]


def named(spec: str) -> Cluster:
  """Returns the cluster that a call of one of these builders makes.

  Args:
    spec: `NAME(argument, key=argument)` in Python's syntax.  Arguments are
      numbers, strings, bools, lists, tuples, or such a call where a builder
      takes a cluster.  A number with a point stands for the decimal as written,
      and so does the string '100/3' for that fraction.

  Raises:
    ValueError: If this is no such call, the name is unknown, or the builder
      does not take the arguments.

  Example:
    >>> named('torus([4, 4], 12.5)') == torus([4, 4], '12.5')
    True
    >>> len(named('spread(full_mesh(4, 25), ratio=100, seed=1)').links)
    12
  """
  try:
    body = ast.parse(spec.strip(), mode='eval').body
  except SyntaxError as error:
    raise ValueError(_expected(spec)) from error
  if not isinstance(body, ast.Call):
    raise ValueError(_expected(spec))
  return _built(body, spec.strip())


def _expected(got: str) -> str:
  return (
    f"Expected NAME(arguments) as in 'ring(8, 25)', got {got!r}; the names are "
    f'{_known()}.'
  )


def _known() -> str:
  return ', '.join(name for name in __all__ if name != 'named')


def _built(call: ast.Call, spec: str) -> Cluster:
  name = ast.get_source_segment(spec, call.func)
  if name not in __all__ or name == 'named':
    raise ValueError(f'Expected one of {_known()}, got {name!r}.')
  build = globals()[name]
  args = [_value(arg, spec) for arg in call.args]
  kwargs: dict[str, Any] = {}
  for keyword in call.keywords:
    if keyword.arg is None or keyword.arg in kwargs:
      raise ValueError(
        f'{name}: expected each key=value once, got {keyword.arg or "**"!r}.'
      )
    kwargs[keyword.arg] = _value(keyword.value, spec)
  signature = inspect.signature(build)
  try:
    given = signature.bind(*args, **kwargs).arguments
  except TypeError as error:
    takes = ', '.join(str(p) for p in signature.parameters)
    raise ValueError(f'{name}({takes}): {error}.') from error
  for key, value in given.items():
    flag = signature.parameters[key].annotation is bool
    if flag and not isinstance(value, bool):
      raise ValueError(f'{name}: {key}: expected a bool, got {value!r}.')
  try:
    return build(*args, **kwargs)
  except ValueError as error:
    raise ValueError(f'{name}: {error}') from error


def _value(node: ast.expr, spec: str) -> Any:
  """The value of an argument; its source text is part of `spec`."""
  if isinstance(node, ast.List | ast.Tuple):
    return [_value(item, spec) for item in node.elts]
  if isinstance(node, ast.Call):
    return _built(node, spec)
  if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
    value = _value(node.operand, spec)
    if isinstance(value, int | Fraction) and not isinstance(value, bool):
      return -value
  if isinstance(node, ast.Constant):
    if isinstance(node.value, float):  # Which has lost digits past the 17th.
      return Fraction(ast.get_source_segment(spec, node))
    if isinstance(node.value, int | str):
      return node.value
  raise ValueError(
    'Expected numbers, strings, bools, lists or tuples, got '
    f'{ast.get_source_segment(spec, node)!r}.'
  )
