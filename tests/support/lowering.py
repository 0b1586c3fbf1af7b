"""Lowers programs for CUDA without a GPU, and finds their sequential loops.

With `--xla_gpu_deterministic_ops` XLA compiles a scatter whose result depends
on the order of its updates to a loop with one trip per index, and a
`select_and_scatter` to a loop with one trip per window.  The order does not
matter for unique indices and for sums of integers, which are exact; `sort`,
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
  """Operation that becomes a sequential loop.

  Attributes:
    operation: Name, and types of the operands.
    trips: Number of trips of the loop.
  """

  operation: str
  trips: int


def loops(
  function: Callable[..., Any], *args: Any, **static: Any
) -> list[Loop]:
  """Returns the sequential loops of a function's program on a GPU.

  Args:
    function: Pure function, which is not run.
    *args: Arrays or `jax.ShapeDtypeStruct`s.
    **static: Arguments of `jax.jit`.
  """
  return _loops(_lower(jax.jit(function, **static), *args))


@contextlib.contextmanager
def lower_instead_of_running() -> Iterator[dict[str, list[Loop]]]:
  """Replaces `jax.jit` by a function that lowers and returns zeros.

  Yields:
    The loops of each called function, by its qualified name.
  """
  loops_of: dict[str, list[Loop]] = {}
  real = jax.jit

  def jit(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    jitted = real(function, **options)
    name = getattr(function, '__qualname__', repr(function))

    def call(*args: Any) -> Any:
      lowered = _lower(jitted, *args)
      loops_of.setdefault(name, []).extend(_loops(lowered))
      return jax.tree.map(
        lambda leaf: np.zeros(leaf.shape, leaf.dtype), lowered.out_info
      )

    return call

  with mock.patch.object(jax, 'jit', jit):
    yield loops_of


def _lower(jitted: Any, *args: Any) -> Any:
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
  description = f'{operation.name} of {", ".join(map(str, operands))}'
  if operation.name == _WINDOWS:
    return Loop(description, math.prod(operands[1].shape))
  is_unique = operation.attributes['unique_indices'].value
  if is_unique or str(operands[0].element_type).startswith(('i', 'ui')):
    return None
  *indices, _ = operands[1].shape
  return Loop(description, math.prod(indices))
