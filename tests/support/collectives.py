"""Sums among workers of one process, and codecs that are compiled for tests."""

import jax.numpy as jnp
import numpy as np

from tests.support.small_models import jit
from wire.codec import Room, Wire
from wire.talks import Talks


def jitted(codec):
  """Returns a codec whose parts are compiled, which is quicker than not."""
  arrived = codec.arrived and jit(codec.arrived, static_argnums=1)
  return codec._replace(
    encode=jit(codec.encode),
    decode=jit(codec.decode, static_argnums=1),
    arrived=arrived,
  )


def reduced(codec, states, vectors, *, hosted=False):
  """Returns what each worker gets and remembers, and the bytes that one says.

  Args:
    codec: Of pushes, with rounds.
    states: Of all workers.
    vectors: Theirs.
    hosted: Whether hosts sum, and not XLA.
  """
  wire = Wire(push=codec, pull=codec, stats=codec)
  talks = Talks(wire, len(vectors[0]), (), hosted=hosted)
  each = [
    talks.talk(
      state,
      np.array(vector) if hosted else jnp.asarray(vector),
      stage=0,
      scale=1.0,
      room=Room(),
    )
    for state, vector in zip(states, vectors, strict=True)
  ]
  said, bytes_said, ends = [next(talk) for talk in each], [], []
  while not ends:
    bytes_said.append(said[0].nbytes)
    heard, said = np.sum(said, axis=0), []
    for talk in each:
      try:
        said.append(talk.send(heard))
      except StopIteration as end:
        ends.append(end.value)
  if bytes_said != [4 * count for count in talks.said[0]]:
    raise AssertionError(f'{bytes_said} for {talks.said}')
  return [one for one, _ in ends], [state for _, state in ends], bytes_said
