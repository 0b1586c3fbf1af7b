"""Allreduces of workers in one process, and compiled codecs, for tests."""

import jax.numpy as jnp
import numpy as np

from tests.support.small_models import jit
from wire.codec import Wire, Workspace
from wire.multi_round import MultiRoundAllreduce


def jit_codec(codec):
  """Returns a codec whose functions are compiled once."""
  return codec._replace(
    encode=jit(codec.encode), decode=jit(codec.decode, static_argnums=1)
  )


def allreduce(codec, states, vectors, *, uses_numpy=False):
  """Runs the multi-round allreduce of a codec, and checks contribution sizes.

  Args:
    codec: Codec of gradients, with an allreduce.
    states: States of all workers.
    vectors: Gradients of all workers, float32 [workers, n].
    uses_numpy: True to reduce NumPy arrays, False for arrays of XLA.

  Returns:
    Each worker's reduced vector and next state, and the bytes of a worker's
    contribution in each round.
  """
  wire = Wire(push=codec, pull=codec, stats=codec)
  multi_round = MultiRoundAllreduce(
    wire, len(vectors[0]), (), uses_numpy=uses_numpy
  )
  workers = [
    multi_round.start(
      state,
      np.array(vector) if uses_numpy else jnp.asarray(vector),
      stage=0,
      scale=1.0,
      workspace=Workspace(),
    )
    for state, vector in zip(states, vectors, strict=True)
  ]
  contributions = [next(rounds) for rounds in workers]
  sizes, results = [], []
  while not results:
    sizes.append(contributions[0].nbytes)
    total, contributions = np.sum(contributions, axis=0), []
    for rounds in workers:
      try:
        contributions.append(rounds.send(total))
      except StopIteration as end:
        results.append(end.value)
  expected = [4 * count for count in multi_round.contribution_sizes[0]]
  if sizes != expected:
    raise AssertionError(f'Expected contributions of {expected}, got {sizes}.')
  return [one for one, _ in results], [state for _, state in results], sizes
