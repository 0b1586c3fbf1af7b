"""Multi-round allreduces of a run: its codecs' generators, driven and measured.

In each round a worker contributes an array, and receives the sum of what all
workers have contributed.  The vectors of all workers have one length, and all
get the same reduced vector.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wire.codec import (
  Codec,
  PartialVector,
  Rounds,
  Rows,
  State,
  Wire,
  Workspace,
)

_ITEM = 4  # Bytes of a float32.


class MultiRoundAllreduce:
  """The allreduce of a wire whose codecs need rounds, for vectors of one size.

  Attributes:
    size: Numbers of each vector.
    uses_numpy: Whether hosts reduce NumPy arrays, and not XLA its own.
    codecs: Codecs of these vectors, by stage of the wire.
    init: Compiled: returns a worker's first state, of its index.
    contribution_sizes: By stage: numbers that a worker contributes in each
      round.
    half_precision: By stage: how many numbers of the last contribution, the
      first ones, travel in 16 bits, and their dtype.
    streamable: By stage: what can be sent before the gradient is complete, or
      None.
    overflows: Whether finite numbers may become infinite on their way.
    most_rounds: Rounds of the stage that has most of them.

  Args:
    wire: Wire whose codecs of gradients have an allreduce.
    matrices: Matrices in the vectors; without any the wire is used as it is.

  Raises:
    ValueError: If the vectors do not fit the codecs; names a setting of the
      wire.
  """

  def __init__(
    self, wire: Wire, size: int, matrices: Sequence[Rows], *, uses_numpy: bool
  ):
    self.size, self.uses_numpy = size, uses_numpy
    self.codecs = (wire.for_matrices(matrices) if matrices else wire).pushes
    self.init = jax.jit(lambda worker: self.codecs[-1].init(size, worker))
    self.contribution_sizes = [
      _contribution_sizes(codec, size) for codec in self.codecs
    ]
    self.half_precision = [
      (half.count(size), half.dtype) if half else (0, np.dtype(np.float32))
      for half in (codec.half_precision for codec in self.codecs)
    ]
    self.streamable = [
      prefix if prefix and prefix.count(size) else None
      for prefix in (codec.streamable for codec in self.codecs)
    ]
    self.overflows = any(codec.overflows for codec in self.codecs)
    self.most_rounds = max(map(len, self.contribution_sizes))

  def start(
    self,
    state: State,
    vector: Any,
    *,
    stage: int,
    scale: float,
    workspace: Workspace,
  ) -> Rounds:
    """Returns the rounds of one worker; see `Codec.allreduce`.

    Args:
      state: State of the worker's codec.
      vector: The worker's gradient, float32 [size]: a NumPy array if
        `uses_numpy`, else one of JAX.
      stage: Stage of the wire.
      scale: Power of two that the vectors are multiplied by.
      workspace: Arrays that the worker's next allreduce uses again.
    """
    return _rounds(self.codecs[stage], state, vector, scale, workspace)

  def size_bytes(self, stage: int) -> list[int]:
    """Returns the bytes of a worker's contribution in each round."""
    count, dtype = self.half_precision[stage]
    sizes = [_ITEM * numbers for numbers in self.contribution_sizes[stage]]
    return [*sizes[:-1], sizes[-1] - count * (_ITEM - dtype.itemsize)]

  def reduce(
    self,
    states: Mapping[int, State],
    vectors: Mapping[int, jax.Array],
    *,
    stage: int,
    scale: float,
  ) -> tuple[PartialVector, dict[int, State]]:
    """Returns the allreduce of workers that are all in this process.

    Args:
      states: States of the codecs, by worker.
      vectors: Gradients, float32 [size], by worker.
      stage: Stage of the wire.
      scale: Power of two that the vectors are multiplied by.

    Returns:
      The reduced vector, and the next states by worker.
    """
    rounds = {
      worker: self.start(
        states[worker],
        np.array(vector) if self.uses_numpy else jnp.asarray(vector),
        stage=stage,
        scale=scale,
        workspace=Workspace(),
      )
      for worker, vector in sorted(vectors.items())
    }
    contributions = [next(each) for each in rounds.values()]
    count, dtype = self.half_precision[stage]
    for remaining in reversed(range(len(self.contribution_sizes[stage]))):
      total = np.asarray(contributions[0])
      for contribution in contributions[1:]:
        total = total + np.asarray(contribution)
      if not remaining and count:
        total = np.array(total)
        with np.errstate(over='ignore', invalid='ignore'):
          total[:count] = total[:count].astype(dtype)
      contributions, next_states = [], {}
      for worker, each in rounds.items():
        try:
          contributions.append(each.send(total))
        except StopIteration as end:
          reduced, next_states[worker] = end.value
    return reduced, next_states

  def warm_up(self, vector: jax.Array) -> Iterator[PartialVector]:
    """Compiles all rounds for vectors like this; yields a result by stage."""
    for stage in range(len(self.codecs)):
      states = {0: self.init(0)}
      for scale in (1.0, 2.0):  # Scaling of residuals is compiled, too.
        reduced, states = self.reduce(
          states, {0: vector}, stage=stage, scale=scale
        )
      yield jax.block_until_ready(reduced)


def _rounds(
  codec: Codec, state: State, vector: Any, scale: float, workspace: Workspace
) -> Rounds:
  if codec.allreduce is None:
    raise RuntimeError('Expected a codec with an allreduce, got none.')
  return codec.allreduce(state, vector, scale, workspace)


def _contribution_sizes(codec: Codec, size: int) -> list[int]:
  """Returns the numbers of each contribution to an allreduce, by tracing it."""
  sizes: list[int] = []

  def trace(vector: jax.Array) -> None:
    rounds = _rounds(codec, codec.init(size, 0), vector, 1.0, Workspace())
    contribution = next(rounds)
    while True:
      sizes.append(contribution.size)
      try:
        contribution = rounds.send(contribution)
      except StopIteration:
        return

  jax.eval_shape(trace, jax.ShapeDtypeStruct((size,), np.float32))
  return sizes
