"""Sums among workers of one process, each in a thread of its own."""

import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np

from tests.support.small_models import jit
from wire import codec as codecs


class _Meeting:
  """Where all workers bring a message, and take all of them along."""

  def __init__(self, count):
    self.bytes = []  # Of each message that worker 0 has brought.
    self._brought = [None] * count
    self._barrier = threading.Barrier(count, timeout=60.0)

  def exchange(self, index, message):
    self._brought[index] = message
    if index == 0:
      self.bytes.append(sum(leaf.nbytes for leaf in jax.tree.leaves(message)))
    self._barrier.wait()
    messages = list(self._brought)
    self._barrier.wait()
    return messages


class _Collective:
  """See `wire.codec.Collective`; sums are made in order of worker."""

  def __init__(self, meeting, index):
    self._meeting, self._index = meeting, index

  def sum(self, message, add=None):
    messages = self._meeting.exchange(self._index, message)
    add = add or (lambda one, other: jax.tree.map(np.add, one, other))
    return functools.reduce(add, map(_numpy, messages))

  def gather(self, message):
    messages = self._meeting.exchange(self._index, message)
    return jax.tree.map(lambda *leaves: np.stack(leaves), *messages)


def _numpy(message):
  return jax.tree.map(np.asarray, message)


def jitted(codec):
  """Returns a codec whose parts are compiled, which is quicker than not."""
  arrived = codec.arrived and jit(codec.arrived, static_argnums=1)
  return codec._replace(
    encode=jit(codec.encode),
    decode=jit(codec.decode, static_argnums=1),
    arrived=arrived,
    rounds=[jit(each) for each in codec.rounds],
  )


def reduced(codec, states, vectors):
  """Returns what each worker gets and remembers, and the bytes that one says.

  Args:
    codec: Of pushes.
    states: Of all workers.
    vectors: Theirs.
  """
  meeting = _Meeting(len(states))

  def worker(index):
    collective = _Collective(meeting, index)
    vector = jnp.asarray(vectors[index])
    return codecs.reduce(codec, states[index], vector, collective)

  with ThreadPoolExecutor(len(states)) as pool:
    found = list(pool.map(worker, range(len(states))))
  return [each for each, _ in found], [s for _, s in found], meeting.bytes
