"""Clusters by the call of a builder as text, such as 'dgx_a100(2)'.

Builders are the functions of `clusters.shapes`, `clusters.machines` and
`clusters.randomized`.
"""

import ast
import inspect
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from topology.clusters import machines, randomized, shapes
from topology.clusters.cluster import Cluster

BUILDERS: dict[str, Callable[..., Cluster]] = {
  name: build
  for module in (shapes, machines, randomized)
  for name, build in inspect.getmembers(module, inspect.isfunction)
  if build.__module__ == module.__name__ and not name.startswith('_')
}


def build_cluster(spec: str) -> Cluster:
  """Returns the cluster that a call of a builder makes.

  That is, of `NAME(argument, key=argument)` in Python's syntax.  Arguments are
  numbers, strings, bools, lists, tuples, or such a call where a builder takes a
  cluster.  A number with a point stands for the decimal as written, and so does
  the string '100/3' for that fraction.

  Raises:
    ValueError: If this is no such call, the name is unknown, or the builder
      does not take the arguments.

  Example:
    >>> build_cluster('torus([4, 4], 12.5)') == shapes.torus([4, 4], '12.5')
    True
    >>> len(build_cluster('spread(full_mesh(4, 25), ratio=100, seed=1)').links)
    12
  """
  expected = (
    f"Expected NAME(arguments) as in 'ring(8, 25)', got {spec!r}; the names "
    f'are {", ".join(sorted(BUILDERS))}.'
  )
  try:
    body = ast.parse(spec.strip(), mode='eval').body
  except SyntaxError as error:
    raise ValueError(expected) from error
  if not isinstance(body, ast.Call):
    raise ValueError(expected)
  return _build(body, spec.strip())


def _build(call: ast.Call, spec: str) -> Cluster:
  name = ast.get_source_segment(spec, call.func) or ''
  if name not in BUILDERS:
    raise ValueError(
      f'Expected one of {", ".join(sorted(BUILDERS))}, got {name!r}.'
    )
  args = [_value(arg, spec) for arg in call.args]
  kwargs: dict[str, Any] = {}
  for keyword in call.keywords:
    if keyword.arg is None or keyword.arg in kwargs:
      raise ValueError(
        f'{name}: expected each key=value once, got {keyword.arg or "**"!r}.'
      )
    kwargs[keyword.arg] = _value(keyword.value, spec)
  signature = inspect.signature(BUILDERS[name])
  try:
    given = signature.bind(*args, **kwargs).arguments
  except TypeError as error:
    takes = ', '.join(signature.parameters)
    raise ValueError(f'{name}({takes}): {error}.') from error
  for key, value in given.items():
    flag = signature.parameters[key].annotation is bool
    if flag and not isinstance(value, bool):
      raise ValueError(f'{name}: {key}: expected a bool, got {value!r}.')
  try:
    return BUILDERS[name](*args, **kwargs)
  except ValueError as error:
    raise ValueError(f'{name}: {error}') from error


def _value(node: ast.expr, spec: str) -> Any:
  """The value of an argument; its source text is part of `spec`."""
  source = ast.get_source_segment(spec, node) or ''
  if isinstance(node, ast.List | ast.Tuple):
    return [_value(item, spec) for item in node.elts]
  if isinstance(node, ast.Call):
    return _build(node, spec)
  if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
    value = _value(node.operand, spec)
    if isinstance(value, int | Fraction) and not isinstance(value, bool):
      return -value
  if isinstance(node, ast.Constant):
    if isinstance(node.value, float):  # Which has lost digits past the 17th.
      return Fraction(source)
    if isinstance(node.value, int | str):
      return node.value
  raise ValueError(
    f'Expected numbers, strings, bools, lists or tuples, got {source!r}.'
  )
