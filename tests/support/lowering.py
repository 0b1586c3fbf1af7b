"""Lowers programs for CUDA, without a GPU, and finds their sequential loops.

With `--xla_gpu_deterministic_ops` XLA makes a loop with one trip for each index
of a scatter whose result depends on the order of its updates, and so of a
`select_and_scatter`, one trip for each window.  The order is of no consequence
where indices are unique, and in sums of integers, which are exact; `sort`,
`top_k`, gathers and reductions stay parallel.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np

_WINDOWS = 'stablehlo.select_and_scatter'
_INDICES = 'stablehlo.scatter'


class Loop(NamedTuple):
  """An operation that becomes a sequential loop.

  Attributes:
    operation: Its name, and the types of its operands.
    trips: Of the loop.
  """

  operation: str
  trips: int


def loops(
  function: Callable[..., Any], *args: Any, **static: Any
) -> list[Loop]:
  """Returns the sequential loops of a function's program on a GPU.

  Args:
    function: Pure; it is not run.
    *args: Arrays or `jax.ShapeDtypeStruct`s.
    **static: Arguments of `jax.jit`.
  """
  return _loops(_lowered(jax.jit(function, **static), *args))


@contextlib.contextmanager
def instead_of_runs() -> Iterator[dict[str, list[Loop]]]:
  """Functions that are jitted in this context are lowered, and return zeros.

  Yields:
    The loops of each one that has been called, by its qualified name.
  """
  found: dict[str, list[Loop]] = {}
  real = jax.jit

  def jit(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    jitted = real(function, **options)
    name = getattr(function, '__qualname__', repr(function))

    def call(*args: Any) -> Any:
      lowered = _lowered(jitted, *args)
      found.setdefault(name, []).extend(_loops(lowered))
      return jax.tree.map(
        lambda leaf: np.zeros(leaf.shape, leaf.dtype), lowered.out_info
      )

    return call

  with mock.patch.object(jax, 'jit', jit):
    yield found


def _lowered(jitted: Any, *args: Any) -> Any:
  return jitted.trace(*args).lower(lowering_platforms=('cuda',))


def _loops(lowered: Any) -> list[Loop]:
  module = lowered.compiler_ir('stablehlo')
  return [
    loop
    for operation in _operations(module.operation)
    if (loop := _loop(operation))
  ]


def _operations(operation: Any) -> Iterator[Any]:
  yield operation
  for region in operation.regions:
    for block in region.blocks:
      for inner in block.operations:
        yield from _operations(inner.operation)


def _loop(operation: Any) -> Loop | None:
  if operation.name not in (_WINDOWS, _INDICES):
    return None
  operands = [operand.type for operand in operation.operands]
  described = f'{operation.name} of {", ".join(map(str, operands))}'
  if operation.name == _WINDOWS:
    return Loop(described, math.prod(operands[1].shape))
  is_unique = operation.attributes['unique_indices'].value
  if is_unique or str(operands[0].element_type).startswith(('i', 'ui')):
    return None
  *indices, _ = operands[1].shape
  return Loop(described, math.prod(indices))
