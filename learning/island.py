"""Islands: workers whose pushes the devices of several processes compute.

The processes of an island are joined by jax.distributed.  One of them, the
leader, is the worker: it pulls, encodes and pushes.  The others, its followers,
run the same programs with it, in the same order, as XLA requires of processes
that share a mesh (multi-controller JAX).  Before each push the leader announces
to its followers what comes, and the parameters go from its device to all
others.  Each process reads its own part of every micro-batch, and XLA sums the
gradients, with NCCL on GPUs and gloo on CPUs.

With the sharding 'fsdp' parameters, gradients and the state of the inner
optimizer are divided over the devices (ZeRO stage 3, arXiv 1910.02054); each
device gathers the parameters while it computes.  With 'replicated' each device
has all of them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from configs.checks import require
from data.stream import Ranges
from learning.gradient import TaskGradient
from learning.iteration import Iteration
from learning.local_steps import LocalSteps
from wire.codec import Payload

_AXIS = 'examples'
_FIELD = 'config.cluster.island_sharding'
# Arrays with fewer numbers may stay whole on each device, such as biases.
_SMALL = 1024


class Followers(Protocol):
  """Announcements of a leader to its followers, each before a computation."""

  def prepare(self, ranges: Ranges) -> None:
    """Announces the examples of a later push."""

  def warm_up(self, examples: int | None, *, changing: bool) -> None:
    """Announces `IslandPushes.warm_up`, which all processes of the island call.

    Args:
      examples: Examples of a batch, the largest one if batches change; None if
        there is no bound.
      changing: Whether later batches may be smaller.
    """

  def push(
    self,
    ranges: Ranges,
    *,
    iteration: int,
    scale: float,
    rate: float | None,
    has_state: bool,
  ) -> None:
    """Announces a push.

    Args:
      ranges: Positions of its examples.
      iteration: Number of the iteration.
      scale: Factor of the gradient.
      rate: Learning rate of local steps; None without a model.
      has_state: Whether the leader sends the state of the inner optimizer; if
        not, each process continues with its own.
    """

  def fail(self, error: Exception) -> NoReturn:
    """Ends this process after an error of XLA: the island is lost."""


class IslandMesh:
  """Devices of all processes of an island, and how arrays lie on them.

  Attributes:
    devices: The devices, the leader's first.
    count: Number of the devices.
    kinds: Kind of each device.

  Args:
    sharding: 'replicated' or 'fsdp'.
  """

  def __init__(self, devices: Sequence[jax.Device], sharding: str):
    self.devices, self.count = devices, len(devices)
    self.kinds = [device.device_kind for device in devices]
    self._is_sharded = sharding == 'fsdp'
    mesh = Mesh(np.array(devices), (_AXIS,))
    self._mesh = mesh
    self._split = NamedSharding(mesh, PartitionSpec(_AXIS))
    self._everywhere = NamedSharding(mesh, PartitionSpec())
    own = jax.process_index()
    self._local = [each for each in devices if each.process_index == own]
    self._has_first = devices[0].process_index == own
    self._row = jax.jit(lambda tree: jax.tree.map(lambda x: x[None], tree))
    self._sum_whole = jax.jit(_sum_rows, out_shardings=self._everywhere)
    self._sum_parts = {
      axis: jax.jit(_sum_rows, out_shardings=self._along(axis))
      for axis in range(8)
    }
    self._gather = jax.jit(lambda leaf: leaf, out_shardings=self._everywhere)

  def shardings(self, tree: Any) -> Any:
    """Returns the sharding of each array of a pytree, by its shape alone."""
    return jax.tree.map(lambda leaf: self._sharding(leaf.shape), tree)

  def constrain(self, tree: Any) -> Any:
    """Returns a pytree, traced, whose arrays lie as `shardings` says."""
    return jax.lax.with_sharding_constraint(tree, self.shardings(tree))

  def whole(self, tree: Any) -> Any:
    """Returns a pytree, traced, whose arrays are whole on each device."""
    if not self._is_sharded:
      return tree
    return jax.tree.map(
      lambda leaf: jax.lax.with_sharding_constraint(leaf, self._everywhere),
      tree,
    )

  def check(self, params: Any) -> None:
    """Checks that large arrays can be divided over the devices.

    Raises:
      ValueError: If one of the parameters cannot; names the field.
    """
    if not self._is_sharded:
      return
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
      valid = leaf.size < _SMALL or self._axis(leaf.shape) is not None
      expected = (
        f"'replicated', as no dimension of {jax.tree_util.keystr(path)}, of "
        f'shape {leaf.shape}, is a multiple of {self.count}, the devices of an '
        'island'
      )
      require(valid, _FIELD, expected, 'fsdp')

  def share(self, like: Any, tree: Any) -> Any:
    """Returns the leader's arrays on the mesh; all processes call it.

    Args:
      like: Pytree of the arrays' shapes and dtypes.
      tree: The arrays of the leader; anything in the other processes.
    """
    leaves, structure = jax.tree.flatten(like)
    rows: list[Any] = [None] * len(leaves)
    if self._has_first:
      first = self._local[0]
      rows = self._row(jax.device_put(jax.tree.leaves(tree), first))
    if not self._is_sharded:
      arrays = self._sum_whole(
        [self._stack(*pair) for pair in zip(leaves, rows, strict=True)]
      )
      self.settle(arrays)
    else:
      # One by one, as each is whole on a device meanwhile.
      arrays = []
      for leaf, row in zip(leaves, rows, strict=True):
        axis = self._axis(leaf.shape)
        sums = self._sum_whole if axis is None else self._sum_parts[axis]
        arrays.append(self.settle(sums(self._stack(leaf, row))))
    return jax.tree.unflatten(structure, arrays)

  def unshare(self, tree: Any) -> Any:
    """Returns arrays of the mesh in this process; all processes call it.

    Arrays that are divided over devices are put together on the host.
    """
    if not self._is_sharded:
      return jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)
    return jax.tree.map(self._on_host, tree)

  def settle(self, tree: Any) -> Any:
    """Returns a program's result, on CPUs once it is there.

    On CPUs XLA may start a later program first, if its arguments are there
    first: two processes would then wait in different collectives for ever.
    """
    if self._local[0].platform == 'cpu':
      jax.block_until_ready(tree)
    return tree

  def spread(self, params: Any) -> Callable[..., '_MeshSpread']:
    """Returns the constructor of a `Spread` for `TaskGradient`.

    Args:
      params: Pytree like the parameters, for its shapes.
    """

    def make(part: Callable[..., Any], *, others: int) -> _MeshSpread:
      return _MeshSpread(self, part, params, others=others)

    return make

  def bind(self, leaf: Any) -> Any:
    """Returns an array on this process's first device."""
    if isinstance(leaf, jax.Array | np.ndarray):
      return jax.device_put(leaf, self._local[0])
    return leaf

  def compile(
    self, part: Callable[..., Any], params: Any, *, others: int, split: bool
  ) -> Callable[..., Any]:
    """Returns a jitted `part`.

    Args:
      part: As `TaskGradient.part`.
      params: Pytree like the parameters.
      others: Number of its arguments after the targets.
      split: Whether each device computes a part of the examples, or all.
    """
    examples = self._split if split else self._everywhere
    shardings = self.shardings(params)

    def of_whole(params: Any, *rest: Any) -> tuple[Payload, Any]:
      payload, loss = part(params, *rest, seen=self.whole)
      return payload, loss

    return jax.jit(
      of_whole,
      in_shardings=(
        shardings,
        examples,
        examples,
        *[self._everywhere] * others,
      ),
      out_shardings=(
        Payload(shardings, self._everywhere, self._everywhere),
        self._everywhere,
      ),
    )

  def place(self, array: np.ndarray, *, split: bool) -> jax.Array:
    """Returns an array that each process has, on the mesh.

    Args:
      array: The whole array, the same in every process.
      split: Whether its first axis is divided over the devices; if not, each
        device has all of it.
    """
    sharding = self._split if split else self._everywhere
    array = np.asarray(array)
    return jax.make_array_from_callback(
      array.shape, sharding, lambda index: array[index]
    )

  def _stack(self, leaf: Any, row: Any) -> jax.Array:
    """Returns a row for each device: the leader's first, the others 0."""
    shape = (1, *leaf.shape)
    shards = []
    for number, device in enumerate(self._local):
      if number == 0 and row is not None:
        shards.append(row)
      else:
        shards.append(jax.device_put(np.zeros(shape, leaf.dtype), device))
    return jax.make_array_from_single_device_arrays(
      (self.count, *leaf.shape), self._split, shards
    )

  def _on_host(self, leaf: jax.Array) -> jax.Array:
    whole = leaf
    if not leaf.is_fully_replicated:
      whole = self.settle(self._gather(leaf))
    array: jax.Array = whole.addressable_data(0)
    if self._local[0].platform != 'cpu':
      cpu = jax.local_devices(backend='cpu')[0]
      array = jax.device_put(np.asarray(array), cpu)
    return array

  def _sharding(self, shape: Sequence[int]) -> NamedSharding:
    axis = self._axis(shape) if self._is_sharded else None
    return self._everywhere if axis is None else self._along(axis)

  def _along(self, axis: int) -> NamedSharding:
    return NamedSharding(self._mesh, PartitionSpec(*[None] * axis, _AXIS))

  def _axis(self, shape: Sequence[int]) -> int | None:
    """Returns the longest axis that the devices divide; None without one."""
    axes = [k for k, n in enumerate(shape) if n and n % self.count == 0]
    return max(axes, key=lambda k: shape[k], default=None)


class _MeshSpread:
  """A `Spread` over the devices of several processes, all of which call it."""

  def __init__(
    self,
    mesh: IslandMesh,
    part: Callable[..., Any],
    params: Any,
    *,
    others: int,
  ):
    self._mesh = mesh
    self._programs = {
      split: mesh.compile(part, params, others=others, split=split)
      for split in (True, False)
    }

  def copies(self, params: Any) -> Any:
    return params

  def bind(self, leaf: Any) -> Any:
    return self._mesh.bind(leaf)

  def __call__(
    self, copies: Any, inputs: np.ndarray, targets: np.ndarray, *rest: Any
  ) -> Any:
    split = len(inputs) >= self._mesh.count
    result = self._programs[split](
      copies,
      self._mesh.place(inputs, split=split),
      self._mesh.place(targets, split=split),
      *(self._mesh.place(each, split=False) for each in rest),
    )
    return self._mesh.settle(result)


class IslandPushes:
  """Pushes of an island: `Pushes` and `Gradient` of `learning.learning`.

  The leader calls it as any worker calls its pushes.  Followers call
  `follow_push` and `warm_up` as the leader announces.

  Args:
    pushes: Computes pushes on the mesh.
    gradient: Computes gradients on the mesh, for `pushes`.
    mesh: Devices of the island.
    params: Parameters, for their shapes.
    followers: Announces computations; None in a follower.

  Raises:
    ValueError: If the parameters cannot be divided; names the field.
  """

  def __init__(
    self,
    pushes: TaskGradient | LocalSteps,
    gradient: TaskGradient,
    mesh: IslandMesh,
    params: Any,
    followers: Followers | None,
  ):
    mesh.check(params)
    self._pushes, self._gradient, self._mesh = pushes, gradient, mesh
    self._followers = followers
    self._params = _shapes(params)
    self._state = jax.eval_shape(pushes.init, params)
    self._held: Any = ()  # State after the last push, on the mesh.
    self._returned: Any = ()  # The same, as it was returned.

  @property
  def computed(self) -> int:
    return self._gradient.computed

  @property
  def is_spread(self) -> bool:
    """True: several devices compute each gradient."""
    return True

  @property
  def part(self) -> Callable[..., tuple[Payload, jax.Array]]:
    """The gradient of a micro-batch: see `TaskGradient.part`."""
    return self._gradient.part

  def init(self, params: Any) -> Any:
    return self._pushes.init(params)

  def prepare(self, ranges: Ranges) -> None:
    if self._followers:
      self._followers.prepare(ranges)
    self._pushes.prepare(ranges)

  def weigh(self, ranges: Ranges) -> float:
    return self._gradient.weigh(ranges)

  def place(self, tree: Any) -> Any:
    return jax.tree.map(self._mesh.bind, tree)

  def batches(self, examples: int | None, *, changing: bool) -> list[int]:
    """Returns batch sizes that together use every program of a run.

    The arguments are those of `TaskGradient.batches`.
    """
    return self._gradient.batches(examples, changing=changing)

  def __call__(
    self, params: Any, iteration: Iteration
  ) -> tuple[Payload, jax.Array]:
    payload, loss, _ = self.push(params, iteration, ())
    return payload, loss

  def push(
    self, params: Any, iteration: Iteration, state: Any
  ) -> tuple[Payload, jax.Array, Any]:
    if not self._followers:
      raise RuntimeError('Expected the leader of an island, got a follower.')
    has_state = bool(jax.tree.leaves(state)) and state is not self._returned
    self._followers.push(
      iteration.ranges,
      iteration=iteration.number,
      scale=iteration.scale,
      rate=iteration.rate,
      has_state=has_state,
    )
    return self._compute(params, iteration, state, has_state=has_state)

  def follow_push(self, iteration: Iteration, *, has_state: bool) -> None:
    """Computes a push with the leader, as a follower: see `Followers.push`."""
    self._compute(None, iteration, None, has_state=has_state)

  def warm_up(
    self, params: Any, examples: int | None, *, changing: bool
  ) -> list[Payload]:
    if self._followers:
      self._followers.warm_up(examples, changing=changing)
    try:
      shared = self._mesh.share(self._params, params)
      payloads = self._pushes.warm_up(shared, examples, changing=changing)
      state: Any = ()
      if jax.tree.leaves(self._state):
        own = self.init(params) if self._followers else None
        state = self._mesh.share(self._state, own)
      found = [self._mesh.unshare((each, state))[0] for each in payloads]
      jax.block_until_ready(found)
    except jax.errors.JaxRuntimeError as error:
      self._fail(error)
    return found

  def _compute(
    self,
    params: Any,
    iteration: Iteration,
    state: Any,
    *,
    has_state: bool,
  ) -> tuple[Payload, jax.Array, Any]:
    """Computes a push in all processes; returns it as `push` does."""
    try:
      shared = self._mesh.share(self._params, params)
      held = self._held
      if has_state:
        held = self._mesh.share(self._state, state)
      payload, loss, self._held = self._pushes.push(shared, iteration, held)
      local = self._mesh.unshare((payload, loss, self._held))
      # An error of XLA is met here, where it is known to be the island's.
      payload, loss, self._returned = jax.block_until_ready(local)
    except jax.errors.JaxRuntimeError as error:
      self._fail(error)
    return payload, loss, self._returned

  def _fail(self, error: Exception) -> NoReturn:
    if self._followers:
      self._followers.fail(error)
    raise error


def find_devices(hosts: int, count: int) -> list[jax.Device]:
  """Returns the first devices of each process, the leader's first.

  Args:
    hosts: Number of the processes.
    count: Number of devices of each.

  Raises:
    ValueError: If XLA sees other processes, or one has too few devices.
  """
  found: dict[int, list[jax.Device]] = {}
  for device in sorted(jax.devices(), key=lambda each: each.id):
    found.setdefault(device.process_index, []).append(device)
  expected = (
    f'{len(found)}, as XLA sees devices of so many processes on the platform '
    f'{jax.default_backend()!r}'
  )
  require(
    len(found) == hosts, 'config.cluster.hosts_per_worker', expected, hosts
  )
  fewest = min(map(len, found.values()))
  expected = f'at most {fewest}, the devices of a process of the island'
  require(count <= fewest, 'config.cluster.devices_per_worker', expected, count)
  return [each for index in sorted(found) for each in found[index][:count]]


def _sum_rows(tree: Any) -> Any:
  """Returns the sum of the rows of arrays, of which one is not 0."""

  def add(rows: jax.Array) -> jax.Array:
    if rows.dtype == jnp.bool_:
      return jnp.any(rows, axis=0)
    return jnp.sum(rows, axis=0, dtype=rows.dtype)

  return jax.tree.map(add, tree)


def _shapes(tree: Any) -> Any:
  return jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree
  )
