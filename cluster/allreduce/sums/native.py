"""Sums by XLA's collectives, over all processes of jax.distributed.

NCCL on GPUs, gloo on CPUs.  A range is summed in one collective, so that a
compiled program has as many as there are ranges.  Between accelerators each
collective costs a launch, and nothing is gained by many: ranges are joined
until they have `config.route.native.combine_bytes`.  XLA's collectives do not
survive a process: when one is lost, all begin again from the newest checkpoint.

What travels in half of float32 is not left to psum: on CPUs XLA would send
bfloat16 as float32, and add float16 in float16; NCCL adds both rounded at each
step.  Here each worker gets a share of all parts, as they travel, adds it in
float32 in the order of the workers, and rounds the sum once, which goes to all:
two collectives for a range, an all-to-all and an all-gather, with as many
numbers as a ring sends.
"""

import contextlib
import math
import os
import random
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cluster.allreduce.sums.memory import Nothing
from cluster.network import interfaces, sockets
from cluster.network.errors import Closed
from cluster.network.messages import ConnectMembers
from cluster.process.exits import Unmendable
from cluster.process.faults import Fault, spoilt
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
_NCCL = 'NCCL_SOCKET_IFNAME'
_LOOK_S = (
  1.0  # Between two looks at whether the coordinator of a run still listens.
)


def join(
  coordinator: str,
  port: int,
  *,
  index: int,
  workers: int,
  devices: Sequence[int],
  start_s: float,
) -> None:
  """Meets all other processes in jax.distributed, before XLA starts.

  Its coordination service listens beside the coordinator.  It knows no token, and nor
  do gloo and NCCL.

  JAX's detection of clusters is off: under SLURM and Open MPI it would take the
  GPU whose index is the local rank, of this process or not.

  Args:
    coordinator: 'host:port' where the coordinator listens.
    port: Of the coordination service; 0 for the one after the coordinator's.
    index: Of this worker.
    workers: How many there are.
    devices: Positions of this worker's GPUs among those that it sees; none on
      CPUs.
    start_s: Until all have to be there: if they are not, then JAX ends this
      process with SIGABRT.

  Raises:
    ValueError: If there is no port after the coordinator's; names the field.
    OSError: If another process has the port, in worker 0, whose JAX would
      crash.
    Unmendable: If a run that has begun with another process of this rank goes
      on for longer than `start_s`.
  """
  if jax.distributed.is_initialized():
    return  # By a start before, which something else has kept from going on.
  host, _, own = coordinator.rpartition(':')
  port = port or int(own) + 1
  expected = f'a port, as there is none after that of the coordinator, {own}'
  require(port < 2**16, 'config.route.native.port', expected, 0)
  address = f'{host}:{port}'
  # JAX listens on all addresses.
  if index == 0 and (taken := sockets.refusal('', port)):
    raise OSError(taken.errno, f'{address}, where XLA meets: {taken.strerror}')
  if index:
    _wait_for_the_next_run(coordinator, index, start_s)
  logging.info('XLA meets at %s, without a token.', address)
  jax.distributed.initialize(
    address,
    workers,
    index,
    local_device_ids=[*devices],
    cluster_detection_method='deactivate',
    initialization_timeout=max(round(start_s), 1),
  )


def use_interface(interface: str) -> None:
  """Has NCCL connect over the interface that the config names.

  To be called before XLA starts.  A NCCL_SOCKET_IFNAME of the user's own is
  left as it is.  Gloo has no such variable: it uses the address that the host's
  name resolves to.

  Args:
    interface: config.cluster.interface.

  Raises:
    ValueError: If it names no interface of this host.
  """
  name = interfaces.interface_name(interface)
  own = os.environ.get(_NCCL)
  if not own:
    os.environ[_NCCL] = f'={name}'
  elif not _selects(own, name):
    logging.warning(
      '%s is %r, which NCCL follows, and leaves out %s, the interface that '
      'config.cluster.interface=%r names.',
      *(_NCCL, own, name, interface),
    )


def _selects(filters: str, name: str) -> bool:
  """Returns whether NCCL uses an interface with this NCCL_SOCKET_IFNAME.

  A list of prefixes, with commas between them; '=' before the list: of whole
  names; '^' before it: of those that are left out (NCCL user guide,
  "Environment Variables").
  """
  without = filters.startswith('^')
  listed = filters.removeprefix('^')
  whole = listed.startswith('=')
  texts = [each for each in listed.removeprefix('=').split(',') if each]
  if whole:
    found = name in texts
  else:
    found = any(name.startswith(each) for each in texts)
  return found != without


def _wait_for_the_next_run(
  coordinator: str, index: int, start_s: float
) -> None:
  """Waits while a coordinator listens: its workers have all met already.

  Another process of this rank is among them.  The coordination service ends all
  of them for one that comes twice.

  Args:
    coordinator: 'host:port' where the coordinator listens.
    index: Of this worker.
    start_s: For how long.

  Raises:
    Unmendable: If the coordinator still listens then.
  """
  deadline, told = time.monotonic() + start_s, False
  while _listens(coordinator):
    held = (
      f'worker {index} is held by another process, with which the run at '
      f'{coordinator} has begun'
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


class Bucket(NamedTuple):
  """Numbers of a pool that one collective sums.

  Attributes:
    start: Position of the first of them.
    end: Position after the last of them.
    dtype: Dtype that they travel as.
  """

  start: int
  end: int
  dtype: np.dtype

  @property
  def bytes(self) -> int:
    """Bytes that a worker adds, as they travel."""
    return (self.end - self.start) * self.dtype.itemsize


def buckets_of(pool: Pool, combine_bytes: float) -> list[Bucket]:
  """Returns the ranges of a pool, joined until they have so many bytes.

  Args:
    pool: What lies where.
    combine_bytes: 0 for one bucket for each range.  A range is never divided.
  """
  found: list[Bucket] = []
  for (start, end), dtype in zip(pool.ranges, pool.dtypes, strict=True):
    last = found[-1] if found else None
    if last and last.dtype == dtype and last.bytes < combine_bytes:
      found[-1] = last._replace(end=end)
    else:
      found.append(Bucket(start, end, dtype))
  return found


class NativeSum:
  """Sums vectors of all workers bucket by bucket, on the first device of each.

  Attributes:
    sent: Which numbers each collective sums, in order.
    program: Compiled: the sums of buckets of all workers, [workers, n] each and
      a row on each device, in the place of what is summed.
    buckets: Compiled: what a worker adds to each, [1, n].
  """

  def __init__(
    self,
    pool: Pool,
    devices: Sequence[jax.Device],
    *,
    combine_bytes: float = 0.0,
  ):
    """Compiles nothing yet.

    Args:
      pool: What lies where.
      devices: The first of each worker, in order.
      combine_bytes: As of `buckets_of`.
    """
    self._pool, self._count = pool, len(devices)
    self.sent = buckets_of(pool, combine_bytes)
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
        out_specs=PartitionSpec(AXIS),
      ),
      compiler_options=OPTIONS,
      donate_argnums=0,
    )
    self.buckets = jax.jit(self._cut)
    self._received = jax.jit(self._joined)

  def shared(self, payload: Payload, books: np.ndarray) -> list[jax.Array]:
    """Returns what this worker adds, as parts of arrays over all workers."""
    return [
      jax.make_array_from_single_device_arrays(
        (self._count, part.size), self._split, [part]
      )
      for part in self.buckets(payload, books)
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
      sums = [each.addressable_data(0) for each in self.program(shared)]
      received, numbers = self._received(sums)
      return received, np.asarray(numbers)

  def _cut(self, payload: Payload, books: jax.Array) -> list[jax.Array]:
    """Returns what lies in each bucket, [1, n], as it travels.

    Halves of float32 look like integers, of which XLA makes nothing else.
    """
    whole = jnp.zeros(self._pool.size, jnp.float32)
    for start, part in self._pool.parts(payload, books):
      # XLA's concatenation is many times slower on CPUs.
      whole = jax.lax.dynamic_update_slice(whole, part.ravel(), (start,))
    return [
      narrowed(whole[None, each.start : each.end], each.dtype)
      for each in self.sent
    ]

  def _summed(self, parts: list[jax.Array]) -> list[jax.Array]:
    return [
      summed(part, each.dtype, self._count)
      for part, each in zip(parts, self.sent, strict=True)
    ]

  def _joined(self, sums: list[jax.Array]) -> tuple[Payload, jax.Array]:
    """Returns payload and books that lie in buckets, [1, n], as they travel."""
    whole = jnp.zeros(self._pool.size, jnp.float32)
    for part, each in zip(sums, self.sent, strict=True):
      whole = jax.lax.dynamic_update_slice(
        whole, widened(part[0], each.dtype), (each.start,)
      )
    return self._pool.payload(whole), self._pool.books(whole)


class NativeSumming:
  """See `Summing`: by XLA, in the devices' memory."""

  steps = 0
  paced = False
  travels = False
  heeds = False
  memory = Nothing()

  def __init__(
    self,
    gradient: Gradient,
    pool: Pool,
    like: Payload,
    *,
    books: int,
    workers: int,
    combine_bytes: float,
  ):
    """Compiles nothing yet.

    Args:
      gradient: Computes.
      pool: What lies where.
      like: What a payload looks like.
      books: How many numbers they are.
      workers: How many there are.
      combine_bytes: config.route.native.combine_bytes.

    Raises:
      ValueError: If XLA does not see the devices of all workers.
    """
    self._gradient, self._pool, self._like = gradient, pool, like
    self._devices = devices(workers)
    least = 0.0 if jax.default_backend() == 'cpu' else combine_bytes
    self._sum = NativeSum(pool, self._devices, combine_bytes=least)
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

  def form(self, order: ConnectMembers, limit_s: float) -> None:
    """Compiles the sum, with all others, who do the same now."""
    del order, limit_s
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
  """Returns the sum over all workers, rounded; traced.

  Args:
    part: This worker's, [1, n], as `narrowed` has it, and so is what comes out.
    dtype: What it travels as.
    count: Of the workers.
  """
  if dtype == jnp.float32:
    return jax.lax.psum(part, AXIS)
  shares = jnp.pad(part[0], (0, -part.size % count)).reshape(count, -1)
  mine = jax.lax.all_to_all(shares, AXIS, 0, 0, tiled=True)
  # XLA's sum along an axis is many times slower on CPUs.
  total = widened(mine[0], dtype)
  for each in range(1, count):
    total = total + widened(mine[each], dtype)
  rounded = narrowed(total, dtype)
  whole = jax.lax.all_gather(rounded, AXIS, tiled=True)
  return whole[None, : part.size]


def narrowed(part: jax.Array, dtype: np.dtype) -> jax.Array:
  """Returns numbers as they travel: rounded, as uint16, or as they are."""
  if dtype == jnp.float32:
    return part
  return jax.lax.bitcast_convert_type(part.astype(dtype), jnp.uint16)


def widened(part: jax.Array, dtype: np.dtype) -> jax.Array:
  """Returns numbers that have travelled, float32."""
  if dtype == jnp.float32:
    return part
  return jax.lax.bitcast_convert_type(part, dtype).astype(jnp.float32)


def devices(workers: int) -> list[jax.Device]:
  """Returns the first device of each worker, in the order of workers.

  Args:
    workers: How many there are.

  Raises:
    ValueError: If XLA sees devices of another number of processes: then each
      process would sum alone, or with some of the others.
  """
  found: dict[int, jax.Device] = {}
  for device in sorted(jax.devices(), key=lambda each: each.id):
    found.setdefault(device.process_index, device)
  expected = (
    f'{len(found)}, as XLA sees devices of so many processes on the platform '
    f'{jax.default_backend()!r} (native needs processes that all have the same '
    'platform, one that jax.distributed joins)'
  )
  require(len(found) == workers, 'config.cluster.workers', expected, workers)
  return [found[index] for index in sorted(found)]
