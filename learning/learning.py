"""The learning of a run, and the interfaces that runtimes use.

`learning.build` creates a `Learning` for a config: with a model and its data
(`learning.tasks`), or without a model (`learning.timing_only`), which costs
time and bytes alone.
"""

import dataclasses
import enum
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from data.dataset import Dataset
from data.digest import digest
from data.stream import Ranges, Stream
from learning.device_copies import DeviceCopies
from learning.fragments import Fragments
from learning.gradient_buffer import Sink
from learning.iteration import Iteration
from learning.layout import FLOAT32, Layout, count_float32, other_bytes
from learning.scaling import Scaling
from learning.schedule import Schedule
from learning.shard_codec import ShardCodec
from wire.codec import Payload


class Overlap(enum.StrEnum):
  """Work that is still running while parts of a gradient are already sent."""

  BACKWARD = 'backward'  # The backward pass.
  STEPS = 'steps'  # Later local steps.
  COPIES = 'copies'  # Copies of later parts from an accelerator to its host.
  NONE = 'none'  # Nothing.


class Computation(Protocol):
  """Computation on the examples of a worker."""

  @property
  def computed(self) -> int:
    """Number of examples computed so far, with padding."""

  def prepare(self, ranges: Ranges) -> None:
    """Gathers the examples of the next call, which may then begin sooner.

    Drops those that were gathered for other calls.
    """

  def weigh(self, ranges: Ranges) -> float:
    """Returns the weight of examples in the mean of an update, in examples.

    It is their number, unless the task weighs: then each example counts as the
    share of its targets that count, so that all targets weigh alike.
    """

  def place(self, tree: Any) -> Any:
    """Returns a pytree with its arrays on the device of pushes."""

  def warm_up(
    self, params: Any, examples: int | None, *, changing: bool
  ) -> list[Payload]:
    """Compiles every program that calls need.

    Args:
      params: Pytree of arrays.
      examples: Examples of a batch, the largest one if batches change; None if
        there is no bound.
      changing: Whether later batches may be smaller.

    Returns:
      A payload of every kind that may be pushed; [] if leaves go to a sink.
    """


class Pushes(Computation, Protocol):
  """Computation of pushes: gradients, or displacements of local steps."""

  def init(self, params: Any) -> Any:
    """Returns the state of a worker at its start; () if there is none."""

  def push(
    self, params: Any, iteration: Iteration, state: Any
  ) -> tuple[Payload, jax.Array | None, Any]:
    """Returns a worker's push, its loss, and its state.

    Push and loss are weighted sums over the examples: see `weigh`.

    Args:
      params: Pytree of arrays: the version that the worker has pulled.
      iteration: The iteration.
      state: State of the worker, which stays valid: a push may be lost.
    """


class Gradient(Computation, Protocol):
  """Computation of gradients."""

  def __call__(
    self, params: Any, iteration: Iteration
  ) -> tuple[Payload, jax.Array | None]:
    """Returns a worker's gradient, and its loss: see `Pushes.push`."""


class Streaming(Computation, Protocol):
  """Computation of gradients whose leaves are handed over one by one."""

  @property
  def overlap(self) -> Overlap:
    """Work that is still running while leaves are handed over."""

  @property
  def copies(self) -> DeviceCopies | None:
    """Copies between accelerator and host that overlap with sums, or None.

    None also if leaves and sums are in the memory of the host.
    """

  def stream(
    self, params: Any, iteration: Iteration, sink: Sink
  ) -> tuple[Any, jax.Array | None]:
    """Computes a gradient, and hands its leaves to a sink.

    Args:
      params: Pytree of arrays.
      iteration: The iteration.
      sink: Receiver of each leaf, called once for each and from any thread.

    Returns:
      Statistics, summed over the examples, and loss, as in `Pushes.push`.
    """


class Learner(Protocol):
  """Parameters, optimizer state, and sums of pushes that are not yet applied.

  Attributes:
    has_model: Whether updates compute anything.
    params: Pytree of arrays; a vector if it is a shard of them.
    stats: Running statistics, in the same form; () if there are none.
    version: Number of updates applied or skipped.
    examples: Number of examples in applied updates.
    scaling: Loss scale by which sums are divided, if all workers have the same
      one; None if sums are not scaled.
  """

  has_model: bool
  params: Any
  stats: Any
  version: int
  examples: int
  scaling: Scaling | None

  def twin(self, params: Any, stats: Any) -> 'Learner':
    """Returns a learner of other parameters that shares compiled programs.

    The state of its optimizer begins anew, and nothing is added to its updates.
    With a model, version, examples and scaling are those of this learner;
    without one they begin anew.

    Args:
      params: Pytree of arrays, which the new learner refers to.
      stats: Running statistics; () if there are none.
    """

  def fork(self) -> 'Learner':
    """Returns an independent copy: later calls change only one of the two.

    It shares compiled programs, and arrays that are never changed in place.
    """

  def add(
    self,
    update: int,
    payload: Payload,
    examples: int,
    *,
    weight: float | None = None,
    pushes: int = 1,
    scale: float = 1.0,
  ) -> None:
    """Adds a push, or the sum of several, to an update.

    Args:
      update: Number of the update.
      payload: The push; the learner owns its memory from now on.
      examples: Number of examples that it was summed over.
      weight: Their weight, in examples; None for their number.
      pushes: Number of pushes that it is the sum of.
      scale: Loss scale by which its gradient is divided.
    """

  def replace(
    self, update: int, function: Callable[[Payload], Payload]
  ) -> Payload:
    """Replaces an update's sum by a function of it, and returns the result.

    Args:
      update: Number of an update to which something was added.
      function: Called with the sum, whose memory it may reuse; not called
        without a model.
    """

  def commit(self, update: int) -> None:
    """Applies an update and increments the version.

    An update of weight 0 counts its examples, and changes nothing else.
    """

  def skip(self, update: int | None = None) -> None:
    """Drops an update, if there is one, and increments the version."""

  def apply(
    self,
    payload: Payload,
    examples: int,
    *,
    weight: float | None = None,
    pushes: int,
  ) -> None:
    """Applies the sum of an update's pushes, as `add` and `commit` would.

    The payload's memory may be used again afterwards.

    Args:
      payload: The sum.
      examples: Number of examples that it was summed over.
      weight: Their weight, in examples; None for their number.
      pushes: Number of pushes that it is the sum of.
    """

  def state(self) -> dict[str, Any]:
    """Returns the learner's state for a checkpoint, with sums of pushes.

    It refers to the learner's own arrays: later calls may reuse the memory of
    the optimizer's state and of the sums.
    """

  def restore(self, state: dict[str, Any]) -> None:
    """Restores the result of `state`, whose memory the learner owns then."""


class ParameterStore(Protocol):
  """Holder of the parameters, as coordinator and recorder use it.

  The learner may be in this process, or in shards on many servers, which then
  have the pushes: the coordinator only decides which push is summed into which
  update.

  Attributes:
    version: Number of updates applied or skipped.
    examples: Number of examples in applied updates.
    scalings: Loss scale of each worker, or one for all; [] without scaling.
  """

  @property
  def version(self) -> int:
    """Number of updates applied or skipped."""

  @property
  def examples(self) -> int:
    """Number of examples in applied updates; skipped ones do not count."""

  @property
  def scalings(self) -> list[Scaling]:
    """Loss scale of each worker, or one for all; [] without scaling."""

  @property
  def learning_rate(self) -> float | None:
    """The learning rate of the next update; None without a model."""

  def add(
    self,
    update: int,
    worker: int,
    examples: int,
    *,
    weight: float | None = None,
    staleness_weight: float = 1.0,
    finite: bool = True,
  ) -> None:
    """Adds a worker's push, which has arrived, to an update.

    A push that is not finite is left out and lowers its worker's scale.  If all
    workers have the same scale, the whole update is skipped instead.

    Args:
      update: Number of the update.
      worker: Index of the worker.
      examples: Number of examples of the push.
      weight: Their weight, in examples; None for their number.
      staleness_weight: Factor of its gradient or displacement, above 0;
        1 in an allreduce.
      finite: Whether all of its numbers are finite.
    """

  def discard(self, worker: int) -> None:
    """Drops a worker's push, which has arrived."""

  def commit(self, update: int) -> bool:
    """Applies an update and increments the version.

    Returns:
      Whether the update was finite; if not, it was skipped.

    Raises:
      FloatingPointError: If it was not finite for another reason than its loss
        scale.
    """

  def hold(self) -> int:
    """Keeps the current version for `read` until `free`; returns a handle.

    Checkpoints include held versions, unless they are read at once, as under
    the virtual clock.
    """

  def free(self, handle: int) -> None:
    """Frees a held version; its handle must not be used again."""

  def read(self, handle: int) -> Callable[[], tuple[Any, Any]]:
    """Returns a function that returns parameters and statistics of a version.

    It may be called in any thread, and may wait for servers.

    Args:
      handle: Result of `hold`, to be freed only after the function was called.
    """


class Evaluation(Protocol):
  """Measurement of how good a version is."""

  @property
  def measures(self) -> Mapping[str, str]:
    """Directions of its measures, 'rises' or 'falls', the primary one first."""

  def __call__(self, params: Any, stats: Any) -> Mapping[str, float]:
    """Returns the measures by name; an accuracy is 0 to 1."""

  def is_finite(self, params: Any) -> bool:
    """Returns whether all parameters are finite."""

  def warm_up(self, params: Any, stats: Any) -> None:
    """Compiles the evaluation of versions like this one."""


@dataclasses.dataclass(frozen=True)
class Learning:
  """Everything that a run needs to know about its model and data.

  Without a model, `evaluate`, `schedule` and `dataset` are None, `params` and
  `stats` are (), and the model's numbers are `blank`.

  Attributes:
    num_train: Number of examples of an epoch.
    stream: Assignment of examples to iterations.
    gradient: Computation of gradients.
    pushes: Computation of pushes: gradients, or displacements of local steps.
    make_learner: Function that returns a learner, given the parameters and
      statistics at which it starts.
    shard_codec: Function that returns the codec of the messages between workers
      and servers, given `servers`, their number, and `wire`.
    find_overlap: Function that returns the work that sending overlaps with, and
      a sentence for the log, given `wanted`, config.route.overlap.
    streaming: Function that returns the computation of gradients bucket by
      bucket, given their layout and `overlap`.
    find_order: Function that returns the indices of the gradient's leaves in
      the order of the backward pass; it traces the gradient.
    evaluate: Evaluation of versions.
    schedule: Schedule of the learning rate.
    scaling: Initial loss scale; None without scaling.
    params: Initial parameters as workers of one process share them.
    stats: Initial running statistics; () if there are none.
    devices: Kinds of this process's devices that compute gradients.
    dataset: The data set.
    fragments: Parts of the model that synchronise in turn; None without these.
    blank: Float32 numbers that travel in place of parameters.
  """

  num_train: int
  stream: Stream
  gradient: Gradient
  pushes: Pushes
  make_learner: Callable[[Any, Any], Learner]
  shard_codec: Callable[..., ShardCodec]
  find_overlap: Callable[..., tuple[Overlap, str]]
  streaming: Callable[..., Streaming]
  find_order: Callable[[], Sequence[int]] = tuple
  evaluate: Evaluation | None = None
  schedule: Schedule | None = None
  scaling: Scaling | None = None
  params: Any = ()
  stats: Any = ()
  devices: Sequence[str] = ()
  dataset: Dataset | None = None
  fragments: Fragments | None = None
  blank: int = 0

  @functools.cached_property
  def has_inner_optimizer(self) -> bool:
    """True if workers have states of inner optimizers, of local steps."""
    state = jax.eval_shape(self.pushes.init, self.params)
    return bool(jax.tree.leaves(state))

  @functools.cached_property
  def data_digest(self) -> str:
    """Digest of the data set; '' without a model."""
    return digest(self.dataset) if self.dataset else ''

  @property
  def elements(self) -> tuple[int, int]:
    """Number of float32 numbers of parameters and of statistics."""
    params = count_float32(self.params) + self.blank
    return params, count_float32(self.stats)

  @property
  def other_bytes(self) -> int:
    """Bytes of parameters and statistics that are not float32.

    Codecs leave these numbers as they are.
    """
    return other_bytes((self.params, self.stats))

  @property
  def leaf_bytes(self) -> list[int]:
    """Bytes of the gradient's leaves in the order of the backward pass.

    Empty without a model.
    """
    leaves = jax.tree.leaves(self.params)
    ordered = [leaves[k] for k in self._order]
    return [leaf.nbytes for leaf in ordered if leaf.dtype == jnp.float32]

  def epochs(self, *, examples: int, updates: int) -> float:
    """Returns the progress of a run in epochs, which sets its learning rate.

    The progress also selects the codec of a wire with stages.  Rows of
    metrics.jsonl have another one, which counts examples alone.

    Args:
      examples: Number of examples in applied updates.
      updates: Number of updates; used in place of `examples` if the schedule
        counts each update as a fixed number of examples.
    """
    if self.schedule is None:
      return examples / self.num_train
    return self.schedule.epochs(examples=examples, updates=updates)

  def layout(
    self,
    *,
    bucket_bytes: float,
    step_statistics: int,
    dtype: np.dtype = FLOAT32,
    multiple: int = 1,
    fragment: int | None = None,
  ) -> Layout:
    """Returns the layout of a replica's gradient buffer.

    Args:
      bucket_bytes: As of `Layout`, and so are the next three.
      step_statistics: Numbers at the end.
      dtype: Dtype in which gradients travel.
      multiple: Divisor of the gradient's part.
      fragment: Number of the fragment whose leaves alone it has; None for the
        whole model.
    """
    only, blank = None, self.blank
    if fragment is not None and self.fragments:
      only = self.fragments.leaves[fragment]
      blank = self.fragments.numbers[fragment] if blank else 0
    return Layout(
      self.params,
      self.stats,
      order=self._order,
      only=only,
      blank=blank,
      bucket_bytes=bucket_bytes,
      step_statistics=step_statistics,
      dtype=dtype,
      multiple=multiple,
    )

  @functools.cached_property
  def _order(self) -> Sequence[int]:
    return self.find_order()
