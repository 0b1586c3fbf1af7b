"""Sums by XLA's collectives, over all processes of jax.distributed.

NCCL on GPUs, gloo on CPUs.  A range is summed in one collective, so that a
compiled program has as many as there are ranges.  XLA's collectives
do not survive a process: when one is lost, all begin again from the newest
checkpoint.

What travels in half of float32 is not left to psum: on CPUs XLA would send
bfloat16 as float32, and add float16 in float16; NCCL adds both rounded at each
step.  Here each worker gets a share of all parts, as they travel, adds it in
float32 in the order of the workers, and rounds the sum once, which goes to all:
two collectives for a range, an all-to-all and an all-gather, with as many
numbers as a ring sends.
"""

import contextlib
import math
import random
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cluster.distributed.faults import Fault, spoilt
from cluster.distributed.reduced.sums.memory import Nothing
from cluster.transport import sockets
from cluster.transport.errors import Closed
from cluster.transport.heart import Unmendable
from configs.checks import require
from data.stream import Ranges
from learning.learning import Gradient, Learner
from learning.pool import Pool
from learning.scaling import factor
from wire.codec import Payload

# XLA would make one collective of several.
OPTIONS = {
  'xla_disable_hlo_passes': (
    'all-reduce-combiner,cpu-all-reduce-combiner,gpu-all-reduce-combiner'
  )
}
AXIS = 'workers'
_LOOK_S = 1.0  # Between two looks at whether the lead of a run still listens.


def join(
  lead: str,
  port: int,
  *,
  index: int,
  workers: int,
  devices: Sequence[int],
  start_s: float,
) -> None:
  """Meets all other processes in jax.distributed, before XLA starts.

  Its coordination service listens beside the lead.  It knows no token, and nor
  do gloo and NCCL.

  JAX's detection of clusters is off: under SLURM and Open MPI it would take the
  GPU whose index is the local rank, of this process or not.

  Args:
    lead: 'host:port' where the lead listens.
    port: Of the coordination service; 0 for the one after the lead's.
    index: Of this worker.
    workers: How many there are.
    devices: Positions of this worker's GPUs among those that it sees; none on
      CPUs.
    start_s: Until all have to be there: if they are not, then JAX ends this
      process with SIGABRT.

  Raises:
    ValueError: If there is no port after the lead's; names the field.
    OSError: If another process has the port, in worker 0, whose JAX would
      crash.
    Unmendable: If a run that has begun with another process of this rank goes
      on for longer than `start_s`.
  """
  if jax.distributed.is_initialized():
    return  # By a start before, which something else has kept from going on.
  host, _, own = lead.rpartition(':')
  port = port or int(own) + 1
  expected = f'a port, as there is none after that of the lead, {own}'
  require(port < 2**16, 'config.route.native.port', expected, 0)
  address = f'{host}:{port}'
  # JAX listens on all addresses.
  if index == 0 and (taken := sockets.refusal('', port)):
    raise OSError(taken.errno, f'{address}, where XLA meets: {taken.strerror}')
  if index:
    _wait_for_the_next_run(lead, index, start_s)
  logging.info('XLA meets at %s, without a token.', address)
  jax.distributed.initialize(
    address,
    workers,
    index,
    local_device_ids=[*devices],
    cluster_detection_method='deactivate',
    initialization_timeout=max(round(start_s), 1),
  )


def _wait_for_the_next_run(lead: str, index: int, start_s: float) -> None:
  """Waits while a lead listens: its workers have all met already.

  Another process of this rank is among them.  The coordination service ends all
  of them for one that comes twice.

  Args:
    lead: 'host:port' where the lead listens.
    index: Of this worker.
    start_s: For how long.

  Raises:
    Unmendable: If the lead still listens then.
  """
  deadline, told = time.monotonic() + start_s, False
  while _listens(lead):
    held = (
      f'worker {index} is held by another process, with which the run at '
      f'{lead} has begun'
    )
    wait_s = random.uniform(0.5, 1.0) * _LOOK_S
    if time.monotonic() + wait_s >= deadline:
      raise Unmendable(f'Worker {index} gives up: {held}')
    if not told:
      logging.warning('Tries again for up to %.0f s: %s', start_s, held)
    told = True
    time.sleep(wait_s)


def _listens(address: str) -> bool:
  """Returns whether 'host:port' can be connected to."""
  host, _, port = address.rpartition(':')
  with contextlib.suppress(OSError):
    socket.create_connection((host, int(port)), timeout=_LOOK_S).close()
    return True
  return False


class NativeSum:
  """Sums vectors of all workers, range by range, on the first device of each.

  Attributes:
    program: Compiled: the sums of a pool's ranges.
    ranges: Compiled: what lies in each, [1, n].
  """

  def __init__(self, pool: Pool, devices: Sequence[jax.Device]):
    """Compiles nothing yet.

    Args:
      pool: What lies where.
      devices: The first of each worker, in order.
    """
    self._pool, self._count = pool, len(devices)
    mesh = Mesh(np.array(devices), (AXIS,))
    self._split = NamedSharding(mesh, PartitionSpec(AXIS))
    self.device = next(
      d for d in devices if d.process_index == jax.process_index()
    )
    self.program = jax.jit(
      jax.shard_map(
        self._summed,
        mesh=mesh,
        in_specs=PartitionSpec(AXIS),
        out_specs=PartitionSpec(),
        # That all have what has been gathered is not seen.
        check_vma=all(dtype == jnp.float32 for dtype in pool.dtypes),
      ),
      compiler_options=OPTIONS,
    )
    self.ranges = jax.jit(self._cut)
    self._payload = jax.jit(
      lambda ranges: pool.payload(_joined(ranges, pool.size))
    )

  def shared(self, payload: Payload, books: np.ndarray) -> list[jax.Array]:
    """Returns what this worker adds, as parts of arrays over all workers."""
    return [
      jax.make_array_from_single_device_arrays(
        (self._count, part.size), self._split, [part]
      )
      for part in self.ranges(payload, books)
    ]

  def __call__(
    self, payload: Payload, books: np.ndarray
  ) -> tuple[Payload, np.ndarray]:
    """Returns the sums of all workers, the same on each of them.

    Args:
      payload: What this worker adds, on `device`.
      books: The same, float32.
    """
    shared = self.shared(payload, books)
    with together():
      summed = [each.addressable_data(0) for each in self.program(shared)]
      last = np.asarray(summed[-1])
    return self._payload(summed), last[last.size - books.size :]

  def _cut(self, payload: Payload, books: jax.Array) -> list[jax.Array]:
    """Returns what lies in each range, [1, n], as it travels.

    Halves of float32 look like integers, of which XLA makes nothing else.
    """
    whole = jnp.zeros(self._pool.size, jnp.float32)
    for start, part in self._pool.parts(payload, books):
      # XLA's concatenation is many times slower on CPUs.
      whole = jax.lax.dynamic_update_slice(whole, part.ravel(), (start,))
    return [
      narrowed(whole[None, start:end], dtype)
      for (start, end), dtype in zip(
        self._pool.ranges, self._pool.dtypes, strict=True
      )
    ]

  def _summed(self, ranges: list[jax.Array]) -> list[jax.Array]:
    return [
      summed(part, dtype, self._count)
      for part, dtype in zip(ranges, self._pool.dtypes, strict=True)
    ]


class NativeSumming:
  """See `Summing`: by XLA, in the devices' memory."""

  steps = 0
  paced = False
  travels = False
  heeds = False
  memory = Nothing()

  def __init__(
    self, gradient: Gradient, pool: Pool, like: Payload, *, books: int
  ):
    """Compiles nothing yet.

    Args:
      gradient: Computes.
      pool: What lies where.
      like: What a payload looks like.
      books: How many numbers they are.
    """
    self._gradient, self._pool, self._like = gradient, pool, like
    self._sum = NativeSum(pool, devices())
    self._looks = jnp.float16 in pool.dtypes
    self._payload: Payload = like
    self._numbers = np.zeros(books, np.float32)
    self._is_finite = jax.jit(_is_finite)

  def warm_up(
    self, learner: Learner, examples: int | None, *, changing: bool
  ) -> None:
    """Compiles all that can be without the others."""
    # Programs are compiled anew for arrays that are bound to a device, as sums
    # and what follows from them are.
    learner.restore(self.placed(learner.state()))
    payloads = self._gradient.warm_up(
      learner.params, examples, changing=changing
    )
    self._like = self.placed(payloads[-1])
    jax.block_until_ready(self._is_finite(self._like))
    learner.warm_up()

  def placed(self, tree: Any) -> Any:
    """Returns a tree with its arrays on the device that sums."""
    return jax.tree.map(
      lambda leaf: (
        jax.device_put(leaf, self._sum.device)
        if isinstance(leaf, jax.Array | np.ndarray)
        else leaf
      ),
      tree,
    )

  def open(self) -> str:
    """Returns '': XLA's processes know each other."""
    return ''

  def close(self) -> None:
    """Does nothing: XLA's connections last as long as the process."""

  def form(self, said: Mapping[str, Any], limit_s: float) -> None:
    """Compiles the sum, with all others, who do the same now."""
    del said, limit_s
    payload = jax.tree.map(jnp.zeros_like, self._like)
    self.finish(np.zeros_like(self._numbers))
    self._payload = self.placed(payload)
    self.total()

  def unanswered(self) -> int:
    """Returns 0: there is no thread."""
    return 0

  def traffic(self) -> Mapping[int, Any]:
    """Returns {}: XLA does not say what it sends."""
    return {}

  def abandon(self, before: float = math.inf) -> None:
    """Does nothing: XLA waits until the process ends."""

  def compute(
    self,
    version: int,
    learner: Learner,
    ranges: Ranges,
    *,
    worker: int,
    iteration: int,
    stage: int,
    fault: Fault | None,
    least_s: float,
  ) -> tuple[float | None, bool]:
    """Computes a gradient."""
    del version, stage, least_s
    payload, loss = self._gradient(
      learner.params,
      ranges,
      worker=worker,
      iteration=iteration,
      scale=factor(learner.scaling),
    )
    self._payload = self.placed(spoilt(fault, payload))
    finite = self._is_finite(self._payload)
    return None if loss is None else float(loss), bool(finite)

  def finish(self, numbers: np.ndarray) -> None:
    """Takes what belongs into the books."""
    self._numbers = numbers

  def total(self) -> tuple[list[float], bool]:
    """Waits until everything is summed."""
    self._payload, books = self._sum(self._payload, self._numbers)
    finite = not self._looks or bool(self._is_finite(self._payload))
    return books.tolist(), finite

  def apply(self, learner: Learner, *, examples: int, pushes: int) -> None:
    """Applies the sum to the learner."""
    learner.add(learner.version, self._payload, examples, pushes=pushes)
    learner.commit(learner.version)
    jax.block_until_ready(learner.params)

  def collect(self, version: int) -> None:
    """Does nothing: nobody keeps anything."""


@contextlib.contextmanager
def together() -> Iterator[None]:
  """A context in which all take part, and one may be lost.

  Raises:
    Closed: If XLA says so.
  """
  try:
    yield
  except jax.errors.JaxRuntimeError as error:
    raise Closed(f'XLA: {error}') from error


def _is_finite(payload: Payload) -> jax.Array:
  leaves = jax.tree.leaves(payload.gradient)
  peaks = [jnp.max(jnp.abs(leaf), initial=0.0) for leaf in leaves]
  return jnp.isfinite(jnp.array(peaks)).all()


def summed(part: jax.Array, dtype: np.dtype, count: int) -> jax.Array:
  """Returns the sum over all workers, rounded, as float32 [n]; traced.

  Args:
    part: This worker's, [1, n], as `narrowed` has it.
    dtype: What it travels as.
    count: Of the workers.
  """
  if dtype == jnp.float32:
    return jax.lax.psum(part, AXIS)[0]
  shares = jnp.pad(part[0], (0, -part.size % count)).reshape(count, -1)
  mine = jax.lax.all_to_all(shares, AXIS, 0, 0, tiled=True)
  # XLA's sum along an axis is many times slower on CPUs.
  total = _widened(mine[0], dtype)
  for each in range(1, count):
    total = total + _widened(mine[each], dtype)
  rounded = narrowed(total, dtype)
  whole = jax.lax.all_gather(rounded, AXIS, tiled=True)
  return _widened(whole[: part.size], dtype)


def narrowed(part: jax.Array, dtype: np.dtype) -> jax.Array:
  """Returns numbers as they travel: rounded, as uint16, or as they are."""
  if dtype == jnp.float32:
    return part
  return jax.lax.bitcast_convert_type(part.astype(dtype), jnp.uint16)


def _widened(part: jax.Array, dtype: np.dtype) -> jax.Array:
  """Returns numbers that have travelled as uint16, float32."""
  return jax.lax.bitcast_convert_type(part, dtype).astype(jnp.float32)


def _joined(ranges: Sequence[jax.Array], size: int) -> jax.Array:
  whole, place = jnp.zeros(size, jnp.float32), 0
  for part in ranges:
    whole = jax.lax.dynamic_update_slice(whole, part, (place,))
    place += part.size
  return whole


def devices() -> list[jax.Device]:
  """Returns the first device of each process, in the order of processes."""
  found: dict[int, jax.Device] = {}
  for device in sorted(jax.devices(), key=lambda each: each.id):
    found.setdefault(device.process_index, device)
  return [found[index] for index in sorted(found)]
