"""Sums by XLA's collectives, over all processes of jax.distributed.

NCCL on GPUs, gloo on CPUs.  A range is summed in one collective, so that a
compiled program has as many as there are ranges.  XLA's collectives
do not survive a process: when one is lost, all begin again from the newest
checkpoint.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from learning.pool import Pool
from wire.codec import Payload

# XLA would make one collective of several.
_OPTIONS = {
  'xla_disable_hlo_passes': (
    'all-reduce-combiner,cpu-all-reduce-combiner,gpu-all-reduce-combiner'
  )
}
_AXIS = 'workers'


def join(address: str, index: int, workers: int, start_s: float) -> None:
  """Meets all other processes, before XLA starts.

  Args:
    address: 'host:port' where the first of them is to listen.
    index: Of this worker.
    workers: How many there are.
    start_s: Until all have to be there.

  Raises:
    RuntimeError: If they are not.
  """
  jax.distributed.initialize(
    address,
    workers,
    index,
    initialization_timeout=max(round(start_s), 1),
  )


class NativeSum:
  """Sums what workers have, on the first device of each.

  Attributes:
    program: Compiled: the sums of a pool's ranges.
  """

  def __init__(self, pool: Pool, devices: Sequence[jax.Device]):
    """Compiles nothing yet.

    Args:
      pool: What lies where; the books last.
      devices: The first of each worker, in order.
    """
    self._pool, self._count = pool, len(devices)
    mesh = Mesh(np.array(devices), (_AXIS,))
    self._split = NamedSharding(mesh, PartitionSpec(_AXIS))
    self._device = next(
      d for d in devices if d.process_index == jax.process_index()
    )
    self.program = jax.jit(
      jax.shard_map(
        self._summed,
        mesh=mesh,
        in_specs=PartitionSpec(_AXIS),
        out_specs=PartitionSpec(),
      ),
      compiler_options=_OPTIONS,
    )
    self._ranges = jax.jit(self._cut)
    self._payload = jax.jit(
      lambda ranges: self._pool.payload(_joined(ranges, pool.size))
    )

  def __call__(
    self, payload: Payload, books: np.ndarray
  ) -> tuple[Payload, np.ndarray]:
    """Returns the sums of all workers, the same on each of them.

    Args:
      payload: What this worker adds.
      books: The same, float32.
    """
    own = jax.device_put((payload, books), self._device)
    shares = [
      jax.make_array_from_single_device_arrays(
        (self._count, part.size), self._split, [part[None]]
      )
      for part in self._ranges(*own)
    ]
    summed = [each.addressable_data(0) for each in self.program(shares)]
    last = np.asarray(summed[-1])
    return self._payload(summed), last[last.size - books.size :]

  def warm_up(self, payload: Payload, books: np.ndarray) -> None:
    """Compiles everything, with all other workers, who call this, too."""
    jax.block_until_ready(self(payload, books)[0])

  def _cut(self, payload: Payload, books: jax.Array) -> list[jax.Array]:
    """Returns what lies in each range, end to end."""
    whole = jnp.zeros(self._pool.size, jnp.float32)
    for start, part in self._pool.parts(payload, books):
      # XLA's concatenation is many times slower on CPUs.
      whole = jax.lax.dynamic_update_slice(whole, part.ravel(), (start,))
    return [whole[start:end] for start, end in self._pool.ranges]

  @staticmethod
  def _summed(ranges: list[jax.Array]) -> list[jax.Array]:
    psum = functools.partial(jax.lax.psum, axis_name=_AXIS)
    return [psum(part)[0] for part in ranges]


def _joined(ranges: Sequence[jax.Array], size: int) -> jax.Array:
  whole, place = jnp.zeros(size, jnp.float32), 0
  for part in ranges:
    whole = jax.lax.dynamic_update_slice(whole, part, (place,))
    place += part.size
  return whole


def devices() -> list[Any]:
  """Returns the first device of each process, in the order of processes."""
  found = {}
  for device in sorted(jax.devices(), key=lambda each: each.id):
    found.setdefault(device.process_index, device)
  return [found[index] for index in sorted(found)]
