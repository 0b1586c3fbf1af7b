"""Allreduce of gradients by XLA's collectives, over jax.distributed.

The collectives are NCCL's on GPUs, gloo's on CPUs.  A compiled program has one
for each bucket.  Between accelerators each collective costs a launch, and many
gain nothing: buckets are joined until they have
`config.route.native.combine_bytes`.  XLA's collectives do not survive a lost
process: then all processes restart from the newest checkpoint.

Numbers of 16 bits are not left to psum: on CPUs XLA would send bfloat16 as
float32, and add float16 in float16; NCCL rounds each partial sum.  Here each
worker gets its share of all contributions in 16 bits, adds them in float32 in
the order of the workers, and rounds the sum once, which goes to all.  These are
two collectives for a bucket, an all-to-all and an all-gather, with as many
numbers as a ring sends.
"""

import contextlib
import math
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cluster.allreduce.sums.codec_state import CodecState, NoCodecState
from cluster.network import interfaces, sockets
from cluster.network.errors import Closed
from cluster.network.messages import ConnectMembers
from cluster.process import xla_group
from cluster.process.exits import Unmendable
from configs.checks import require
from learning import placement, warm_up
from learning.iteration import Iteration
from learning.layout import Layout
from learning.learning import Gradient, Learner
from system import clock, net
from wire.codec import Payload

# Keeps XLA from joining collectives.
OPTIONS = {
  'xla_disable_hlo_passes': (
    'all-reduce-combiner,cpu-all-reduce-combiner,gpu-all-reduce-combiner'
  )
}
AXIS = 'workers'
_NCCL = 'NCCL_SOCKET_IFNAME'
_RETRY_S = 1.0  # Seconds between checks that a coordinator still listens.


def join(
  coordinator: str,
  port: int,
  *,
  host: str,
  index: int,
  workers: int,
  devices: Sequence[int],
  start_s: float,
  tls: xla_group.Tls | None,
) -> None:
  """Joins jax.distributed with all other processes, before XLA starts.

  Its coordination service listens in the coordinator's process.

  Args:
    coordinator: Address 'host:port' on which the coordinator listens.
    port: Port of the coordination service; 0 for the one after the
      coordinator's.
    host: Address of this host to listen on.
    index: Index of this worker.
    workers: Number of workers.
    devices: Positions of this worker's GPUs among those that it sees; none on
      CPUs.
    start_s: Seconds within which all processes have to join; otherwise JAX ends
      this process with SIGABRT.
    tls: Files of mutual TLS; None without.

  Raises:
    ValueError: If there is no port after the coordinator's; names the field.
    OSError: If another process has the port, in worker 0, whose JAX would
      crash.
    Unmendable: If a run that another process of this rank has joined continues
      for longer than `start_s`.
  """
  if xla_group.has_joined():
    return  # By an earlier start that failed later on.
  name, _, coordinator_port = coordinator.rpartition(':')
  port = port or int(coordinator_port) + 1
  expected = (
    'a port, as there is none after that of the coordinator, '
    f'{coordinator_port}'
  )
  require(port < 2**16, 'config.route.native.port', expected, 0)
  address = f'{name}:{port}'
  listen = '' if index else sockets.join(host, port)
  if listen and (taken := sockets.refusal(host, port)):  # JAX would crash.
    raise OSError(taken.errno, f'{listen}, where XLA meets: {taken.strerror}')
  if index:
    _wait_for_next_run(coordinator, index, start_s)
  xla_group.join(
    address,
    listen=listen,
    count=workers,
    index=index,
    devices=devices,
    start_s=start_s,
    tls=tls,
  )


def use_interface(interface: str) -> None:
  """Restricts NCCL to the network interface that the config names.

  Call it before XLA starts.  A NCCL_SOCKET_IFNAME that the user has
  set stays as it is.  Gloo has no such variable: it uses the address that the
  host's name resolves to.

  Args:
    interface: config.cluster.interface.

  Raises:
    ValueError: If it names no interface of this host.
  """
  name = interfaces.interface_name(interface)
  configured = os.environ.get(_NCCL)
  if not configured:
    os.environ[_NCCL] = f'={name}'
  elif not _selects(configured, name):
    logging.warning(
      '%s is %r, which NCCL follows, and leaves out %s, the interface that '
      'config.cluster.interface=%r names.',
      *(_NCCL, configured, name, interface),
    )


def _selects(filters: str, name: str) -> bool:
  """Returns whether NCCL uses an interface with this NCCL_SOCKET_IFNAME.

  It is a list of prefixes, separated by commas.  After '=' these are whole
  names, after '^' names or prefixes that NCCL does not use (NCCL user guide,
  "Environment Variables").
  """
  excludes = filters.startswith('^')
  listed = filters.removeprefix('^')
  is_exact = listed.startswith('=')
  texts = [each for each in listed.removeprefix('=').split(',') if each]
  if is_exact:
    is_listed = name in texts
  else:
    is_listed = any(name.startswith(each) for each in texts)
  return is_listed != excludes


def _wait_for_next_run(coordinator: str, index: int, start_s: float) -> None:
  """Waits until no coordinator of an earlier run listens at the address.

  A process of the same rank takes part in that run.  The coordination service
  would end all its processes if a second one joined with this rank.

  Args:
    coordinator: Address 'host:port' on which the coordinator listens.
    index: Index of this worker.
    start_s: Seconds to wait.

  Raises:
    Unmendable: If the coordinator still listens then.
  """
  deadline, has_warned = clock.monotonic() + start_s, False
  while _listens(coordinator):
    held = (
      f'worker {index} is held by another process, with which the run at '
      f'{coordinator} has begun'
    )
    wait_s = random.uniform(0.5, 1.0) * _RETRY_S
    if clock.monotonic() + wait_s >= deadline:
      raise Unmendable(f'Worker {index} gives up: {held}')
    if not has_warned:
      logging.warning('Tries again for up to %.0f s: %s', start_s, held)
    has_warned = True
    clock.sleep(wait_s)


def _listens(address: str) -> bool:
  """Returns whether 'host:port' can be connected to."""
  host, _, port = address.rpartition(':')
  with contextlib.suppress(OSError):
    net.create_connection((host, int(port)), timeout=_RETRY_S).close()
    return True
  return False


class CollectiveSum:
  """Compiled sum of all workers' gradient buffers, on each's first device.

  Attributes:
    buckets: Numbers that each collective sums, in order.
    program: Compiled: returns the sums of buckets of all workers, [workers, n]
      each with a row on each device, in the memory of the contributions.
    split: Compiled: returns a worker's contribution to each bucket, [1, n], of
      its payload and step statistics.
    device: This worker's device.
  """

  def __init__(
    self,
    layout: Layout,
    devices: Sequence[jax.Device],
    *,
    combine_bytes: float = 0.0,
  ):
    """Defines the programs, which are compiled when they are first called.

    Args:
      layout: Layout of gradient, statistics and step statistics.
      devices: First device of each worker, in order.
      combine_bytes: As of `Layout.combined_buckets`.
    """
    self._layout, self._count = layout, len(devices)
    self.buckets = layout.combined_buckets(combine_bytes)
    mesh = Mesh(np.array(devices), (AXIS,))
    self._sharding = NamedSharding(mesh, PartitionSpec(AXIS))
    self.device = next(
      d for d in devices if d.process_index == jax.process_index()
    )
    self.program = jax.jit(
      jax.shard_map(
        self._sum_buckets,
        mesh=mesh,
        in_specs=PartitionSpec(AXIS),
        out_specs=PartitionSpec(AXIS),
      ),
      compiler_options=OPTIONS,
      donate_argnums=0,
    )
    self.split = jax.jit(self._split_payload)
    self._join = jax.jit(self._join_buckets)

  def contribute(
    self, payload: Payload, numbers: np.ndarray
  ) -> list[jax.Array]:
    """Returns this worker's contributions, as rows of arrays of all workers."""
    return [
      jax.make_array_from_single_device_arrays(
        (self._count, part.size), self._sharding, [part]
      )
      for part in self.split(payload, numbers)
    ]

  def __call__(
    self, payload: Payload, numbers: np.ndarray
  ) -> tuple[Payload, np.ndarray]:
    """Returns the sums of all workers, the same on each of them.

    Args:
      payload: Payload of this worker, on `device`.
      numbers: Step statistics of this worker, float32.
    """
    rows = self.contribute(payload, numbers)
    with raising_closed():
      sums = [each.addressable_data(0) for each in self.program(rows)]
      received, summed_numbers = self._join(sums)
      return received, np.asarray(summed_numbers)

  def _split_payload(
    self, payload: Payload, numbers: jax.Array
  ) -> list[jax.Array]:
    """Returns the numbers of each bucket, [1, n], in the dtype that is sent.

    16-bit numbers are sent as integers, which XLA does not convert.
    """
    vector = self._layout.pack(payload, numbers)
    return [
      narrow(vector[None, each.start : each.end], each.dtype)
      for each in self.buckets
    ]

  def _sum_buckets(self, parts: list[jax.Array]) -> list[jax.Array]:
    return [
      sum_over_workers(part, each.dtype, self._count)
      for part, each in zip(parts, self.buckets, strict=True)
    ]

  def _join_buckets(self, sums: list[jax.Array]) -> tuple[Payload, jax.Array]:
    """Returns payload and step statistics of the sums of buckets, [1, n]."""
    vector = jnp.zeros(self._layout.size, jnp.float32)
    for part, each in zip(sums, self.buckets, strict=True):
      vector = jax.lax.dynamic_update_slice(
        vector, widen(part[0], each.dtype), (each.start,)
      )
    return self._layout.payload(vector), self._layout.step_statistics(vector)


class NativeReducer:
  """A `Reducer` that uses XLA, in the memory of devices."""

  steps = 0
  simulates_time = False
  can_abandon = False
  codec_state: CodecState | NoCodecState = NoCodecState()

  def __init__(
    self,
    gradient: Gradient,
    layout: Layout,
    like: Payload,
    *,
    step_statistics: int,
    workers: int,
    combine_bytes: float,
  ):
    """Creates a reducer; compiles nothing yet.

    Args:
      gradient: Computes gradients.
      layout: Layout of gradient, statistics and step statistics.
      like: Payload of the shapes of all payloads.
      step_statistics: Number of step statistics.
      workers: Number of workers.
      combine_bytes: Value of config.route.native.combine_bytes.

    Raises:
      ValueError: If XLA does not see the devices of all workers.
    """
    self._gradient, self._layout, self._like = gradient, layout, like
    self._devices = devices(workers)
    least = 0.0 if jax.default_backend() == 'cpu' else combine_bytes
    self._sum = CollectiveSum(layout, self._devices, combine_bytes=least)
    self._checks_sums = any(
      bucket.dtype == jnp.float16 for bucket in layout.buckets
    )
    self._payload: Payload = like
    self._numbers = np.zeros(step_statistics, np.float32)
    self._is_finite = jax.jit(_is_finite)

  def warm_up(
    self, learner: Learner, examples: int | None, *, changing: bool
  ) -> None:
    """Compiles everything that needs no other worker."""
    # Programs are compiled again for arrays that are committed to a device, as
    # sums and the parameters after them are.
    learner.restore(self.place(learner.state()))
    payloads = self._gradient.warm_up(
      learner.params, examples, changing=changing
    )
    self._like = self.place(payloads[-1])
    jax.block_until_ready(self._is_finite(self._like))
    like = Payload(learner.params, learner.stats)
    warm_up.apply_updates(learner, like, adds=False)

  def place(self, tree: Any) -> Any:
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
    """Returns '': jax.distributed has connected the processes already."""
    return ''

  def close(self) -> None:
    """Returns at once: XLA's connections last as long as the process."""

  def form(self, order: ConnectMembers, limit_s: float) -> None:
    """Compiles the sum, while all other workers do the same."""
    del order, limit_s
    payload = jax.tree.map(jnp.zeros_like, self._like)
    self.finish(np.zeros_like(self._numbers))
    self._payload = self.place(payload)
    self.total()

  def count_unanswered(self) -> int:
    """Returns 0: there is no executor whose thread could hang."""
    return 0

  def traffic(self) -> Mapping[int, Any]:
    """Returns {}: XLA does not report its traffic."""
    return {}

  def abandon(self, before: float = math.inf) -> None:
    """Returns at once: a collective of XLA cannot be interrupted."""

  def compute(
    self,
    learner: Learner,
    iteration: Iteration,
    *,
    stage: int,
    least_s: float,
  ) -> tuple[float | None, bool]:
    """Computes a gradient; nothing is sent before `total`."""
    del stage, least_s
    payload, loss = self._gradient(learner.params, iteration)
    self._payload = self.place(payload)
    finite = self._is_finite(self._payload)
    return None if loss is None else float(loss), bool(finite)

  def finish(self, numbers: np.ndarray) -> None:
    """Stores the step statistics, which `total` sums with the gradient."""
    self._numbers = numbers

  def total(self) -> tuple[list[float], bool]:
    """Sums all buckets; returns as `Reducer.total`."""
    self._payload, numbers = self._sum(self._payload, self._numbers)
    finite = not self._checks_sums or bool(self._is_finite(self._payload))
    return numbers.tolist(), finite

  def apply(
    self, learner: Learner, *, examples: int, weight: float, pushes: int
  ) -> None:
    """Applies the sum to the learner."""
    learner.apply(self._payload, examples, weight=weight, pushes=pushes)

  def copy_sum(self) -> Any:
    """Raises RuntimeError: no worker can join where XLA sums."""
    raise RuntimeError('Expected a sum of hosts, got one of XLA.')

  def apply_copy(
    self,
    learner: Learner,
    sums: Any,
    *,
    examples: int,
    weight: float,
    pushes: int,
  ) -> None:
    """Raises RuntimeError, as `copy_sum`."""
    raise RuntimeError('Expected a sum of hosts, got one of XLA.')

  def collect(self, version: int) -> None:
    """Returns at once: there are no residuals."""


@contextlib.contextmanager
def raising_closed() -> Iterator[None]:
  """Raises `Closed` for XLA's errors, such as the loss of a process."""
  try:
    yield
  except jax.errors.JaxRuntimeError as error:
    raise Closed(f'XLA: {error}') from error


def _is_finite(payload: Payload) -> jax.Array:
  leaves = jax.tree.leaves(payload.gradient)
  peaks = [jnp.max(jnp.abs(leaf), initial=0.0) for leaf in leaves]
  return jnp.isfinite(jnp.array(peaks)).all()


def sum_over_workers(part: jax.Array, dtype: np.dtype, count: int) -> jax.Array:
  """Returns the sum over all workers, rounded; traced.

  Args:
    part: Contribution of this worker, [1, n], in the form that `narrow`
      returns, as is the sum.
    dtype: Dtype that it is sent as.
    count: Number of workers.
  """
  if dtype == jnp.float32:
    total: jax.Array = jax.lax.psum(part, AXIS)
    return total
  shares = jnp.pad(part[0], (0, -part.size % count)).reshape(count, -1)
  received = jax.lax.all_to_all(shares, AXIS, 0, 0, tiled=True)
  # XLA's sum along an axis is many times slower on CPUs.
  total = widen(received[0], dtype)
  for each in range(1, count):
    total = total + widen(received[each], dtype)
  rounded = narrow(total, dtype)
  gathered = jax.lax.all_gather(rounded, AXIS, tiled=True)
  first: jax.Array = gathered[None, : part.size]
  return first


def narrow(part: jax.Array, dtype: np.dtype) -> jax.Array:
  """Returns numbers in their sent form: 16-bit ones as uint16, or unchanged."""
  if dtype == jnp.float32:
    return part
  return jax.lax.bitcast_convert_type(part.astype(dtype), jnp.uint16)


def widen(part: jax.Array, dtype: np.dtype) -> jax.Array:
  """Returns the float32 numbers that `narrow` has encoded."""
  if dtype == jnp.float32:
    return part
  return jax.lax.bitcast_convert_type(part, dtype).astype(jnp.float32)


def devices(workers: int) -> list[jax.Device]:
  """Returns the first device of each worker, in the order of workers.

  Args:
    workers: Number of workers.

  Raises:
    ValueError: If XLA sees devices of another number of processes: then each
      process would sum alone, or with some of the others.
  """
  placement.start()
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
