"""What is learned, whoever learns it: the interfaces that runtimes rely on.

`learning.build` makes a Learning of a config: of a model and its data, or of
nothing (`learning.nothing`), which takes time and bytes alone.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from data.stream import Ranges, Stream
from learning.gradient_buffer import LeafSink
from learning.layout import FLOAT32, Layout
from learning.scaling import Scaling
from learning.schedule import Schedule
from learning.shard_codec import ShardCodec
from wire.codec import Payload, Wire


class Overlap(enum.StrEnum):
  """What still runs while the first parts of a gradient are already sent."""

  BACKWARD = 'backward'  # The backward pass.
  COPIES = 'copies'  # Copies of later parts from an accelerator to its host.
  NONE = 'none'  # Nothing.


class Gradient(Protocol):
  """Computes what is pushed.

  Attributes:
    computed: Examples computed so far, with padding.
  """

  computed: int

  def __call__(
    self,
    params: Any,
    ranges: Ranges,
    *,
    worker: int,
    iteration: int,
    scale: float = 1.0,
  ) -> tuple[Payload, jax.Array | None]:
    """Returns what is pushed, and the loss summed over the examples.

    The gradient is multiplied by the scale, and the loss is not.
    """

  def prepare(self, ranges: Ranges) -> None:
    """Gathers the examples of a call ahead of it."""

  def placed(self, tree: Any) -> Any:
    """Returns a tree with its arrays where those of a push will be."""

  def warm_up(
    self, params: Any, examples: int | None, *, changing: bool
  ) -> list[Payload]:
    """Compiles all that batches need; returns payloads of every kind."""


class Streaming(Gradient, Protocol):
  """Computes what is summed with others', and hands it out leaf by leaf.

  Attributes:
    overlap: What still runs while leaves are handed out.
  """

  overlap: Overlap

  def stream(
    self,
    params: Any,
    ranges: Ranges,
    *,
    worker: int,
    iteration: int,
    sink: LeafSink,
    scale: float = 1.0,
  ) -> tuple[Any, jax.Array | None]:
    """Hands out the gradient; returns the statistics and the loss, summed."""

  def warm_up_stream(
    self, params: Any, examples: int | None, *, changing: bool
  ) -> None:
    """Compiles all that streams need."""


class Learner(Protocol):
  """Holds parameters, optimiser state and the sums of what is not yet applied.

  Attributes:
    params: Pytree of arrays, or a vector where it is a share of them.
    stats: Running statistics, likewise; () if there are none.
    version: Updates applied, or skipped.
    examples: Examples in them.
    scaling: Of the sums that it applies, where all workers have the same: they
      are divided by it.  None if they are not scaled.
  """

  params: Any
  stats: Any
  version: int
  examples: int
  scaling: Scaling | None

  @property
  def learning_rate(self) -> float | None:
    """The learning rate of the next update; None if nothing is learned."""

  def twin(self, params: Any, stats: Any) -> 'Learner':
    """Returns one of other parameters, with the same compiled programs."""

  def fork(self) -> 'Learner':
    """Returns one that goes on from here, while this one stays as it is."""

  def warm_up(self, like: Payload | None = None) -> None:
    """Compiles what payloads like this need; None: those of all numbers."""

  def add(
    self,
    update: int,
    payload: Payload,
    examples: int,
    *,
    pushes: int = 1,
    scale: float = 1.0,
  ) -> None:
    """Sums a push, or a sum of some, into an update, divided by its scale."""

  def replace(
    self, update: int, function: Callable[[Payload], Payload]
  ) -> Payload:
    """Puts a function of an update's sum in its place, and returns that."""

  def commit(self, update: int) -> None:
    """Applies an update; the version becomes one higher."""

  def skip(self, update: int | None = None) -> None:
    """Forgets an update, if there is any; the version becomes one higher."""

  def apply_buffer(
    self,
    layout: Layout,
    vector: np.ndarray,
    examples: int,
    *,
    pushes: int,
    arrived: Any = (),
  ) -> None:
    """Applies the sum of all pushes of an update, as a pool holds it."""

  def warm_up_buffer(self, layout: Layout, arrived: Any = ()) -> None:
    """Compiles all that `apply_buffer` needs of such a payload."""

  def state(self) -> dict[str, Any]:
    """Returns what commits and sums change."""

  def restore(self, state: dict[str, Any]) -> None:
    """Goes back to where `state` was taken."""


class ParameterStore(Protocol):
  """Who holds the learner, as the coordinator and the recorder see it.

  The learner may be in this process, or in shares on many servers, which have
  the pushes: the coordinator says only which push is summed into which update.

  Attributes:
    version: Updates applied, or skipped.
    examples: Examples in them.
    scalings: Loss scales: of each worker, or of all; [] without.
  """

  version: int
  examples: int
  scalings: list[Scaling]

  @property
  def learning_rate(self) -> float | None:
    """The learning rate of the next update; None if nothing is learned."""

  def add(
    self, update: int, worker: int, examples: int, *, finite: bool = True
  ) -> None:
    """Sums the push of a worker, which has arrived, into an update.

    What is not finite is left out, and changes its worker's scale.  Where
    workers have the same scale it is all of the update that is skipped.
    """

  def commit(self, update: int) -> bool:
    """Applies an update; the version becomes one higher.

    Returns:
      Whether all of it was finite; else it is skipped.

    Raises:
      FloatingPointError: If it is not, for another reason than its scale.
    """

  def hold(self) -> int:
    """Keeps this version's parameters and statistics; returns a number.

    What is held is part of checkpoints where time goes on while it is read.
    """

  def drop(self, held: int) -> None:
    """Forgets a version that was held."""

  def read(self, held: int) -> Callable[[], tuple[Any, Any]]:
    """Returns what gives a version that is held, in any thread."""


class Evaluation(Protocol):
  """Says how good a version is."""

  def __call__(self, params: Any, stats: Any) -> Mapping[str, float]:
    """Returns accuracy, 0 to 1, and what else is evaluated, by name."""

  def is_finite(self, params: Any) -> bool:
    """Returns whether all parameters are finite."""

  def warm_up(self, params: Any, stats: Any) -> None:
    """Compiles the evaluation of versions like this one."""


class Learning(Protocol):
  """All that a run needs to know of what it learns.

  Attributes:
    num_train: Examples of an epoch.
    stream: Which examples an iteration uses.
    gradient: Computes.
    evaluate: Gives the accuracy of a version; None if nothing is learned.
    schedule: Of the learning rate; None if nothing is learned.
    scaling: What loss scales start with; None if there are none.
    params: Initial parameters, as workers of one process share them.
    stats: Initial running statistics; () if there are none.
    elements: How many float32 numbers parameters and statistics have.
    other_bytes: Of their other numbers, which travel as they are.
    sizes: Bytes of the gradient's leaves, in the order in which the backward
      pass makes them; none if nothing is learned.
    devices: Kinds of this process's devices that compute gradients; none if no
      gradient is computed here.
  """

  num_train: int
  stream: Stream
  gradient: Gradient
  evaluate: Evaluation | None
  schedule: Schedule | None
  scaling: Scaling | None
  params: Any
  stats: Any
  elements: tuple[int, int]
  other_bytes: int

  @property
  def devices(self) -> Sequence[str]:
    """Kinds of this process's devices that compute gradients."""

  @property
  def sizes(self) -> list[int]:
    """Bytes of the gradient's leaves, in the order of the backward pass."""

  def learner(self, params: Any, stats: Any) -> Learner:
    """Returns a learner that starts at these parameters and statistics."""

  def epochs(self, *, examples: int, updates: int) -> float:
    """Returns how far a run is, as its schedule counts it, if it has one."""

  def shard_codec(self, *, servers: int, wire: Wire) -> ShardCodec:
    """Returns how parameters and statistics are divided among servers."""

  def layout(
    self,
    *,
    bucket_bytes: float,
    step_statistics: int,
    dtype: np.dtype = FLOAT32,
    multiple: int = 1,
  ) -> Layout:
    """Returns what lies where in the pool of a replica."""

  def find_overlap(self, *, wanted: bool) -> tuple[Overlap, str]:
    """Returns what sending gradients overlaps with, and a sentence about it.

    Args:
      wanted: config.route.overlap.
    """

  def streaming(self, layout: Layout, *, overlap: bool) -> Streaming:
    """Returns what computes the gradient range by range."""
