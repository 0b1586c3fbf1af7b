"""The interface of allreduces of real workers, on hosts and by XLA."""

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from cluster.allreduce.executor.executor import Usage
from cluster.allreduce.sums.codec_state import CodecState, NoCodecState
from cluster.network.messages import ConnectMembers
from learning.iteration import Iteration
from learning.learning import Learner


class Reducer(Protocol):
  """Allreduces one gradient after the other in a membership epoch.

  Order of calls: `warm_up` once; `open` at the start of each session; `form` at
  the start of each epoch; for each iteration `compute`, `finish`, `total` and
  `apply`, perhaps with `copy_sum`; between two iterations perhaps `collect`;
  outside of epochs `apply_copy`; `close` at the session's
  end.

  The thread of a replica calls it, except for `abandon`, `steps`, `traffic` and
  `count_unanswered`.

  Attributes:
    steps: Number that grows with each chunk sent or received in an iteration,
      over all its sums; 0 between iterations.
    simulates_time: Whether there is nothing to compute, and `compute` waits for
      the time that it would take.
    can_abandon: Whether `abandon` has an effect.
    codec_state: State of the worker's codec.
  """

  simulates_time: bool
  can_abandon: bool
  codec_state: CodecState | NoCodecState

  @property
  def steps(self) -> int:
    """Number that grows with each chunk in an iteration, over all its sums."""

  def warm_up(
    self, learner: Learner, examples: int | None, *, changing: bool
  ) -> None:
    """Compiles everything that needs no other worker."""

  def place(self, tree: Any) -> Any:
    """Returns a pytree with its arrays on the devices of the learner."""

  def open(self) -> str:
    """Starts a session; returns the address for other workers, '' for none."""

  def close(self) -> None:
    """Ends a session, with its connections."""

  def form(self, order: ConnectMembers, limit_s: float) -> None:
    """Connects to the other members of an epoch.

    Args:
      order: The coordinator's order, with the members of the epoch.
      limit_s: Seconds to wait for others, which may have to fetch the learner
        first.

    Raises:
      PeerLost: If a worker cannot be reached.
      Abandoned: If `abandon` is called meanwhile.
      TransportError: If it takes too long.
    """

  def count_unanswered(self) -> int:
    """Returns the calls since the executor's thread last answered one."""

  def traffic(self) -> Mapping[int, Usage]:
    """Returns the bytes sent to and received from each worker in this session.

    From any thread; empty if they are not counted.
    """

  def abandon(self, before: float = math.inf) -> None:
    """Wakes all waits until the next `form`; thread-safe.

    Args:
      before: Bound of the numbers of abandoned epochs, formed or not.
    """

  def compute(
    self,
    learner: Learner,
    iteration: Iteration,
    *,
    stage: int,
    least_s: float,
  ) -> tuple[float | None, bool]:
    """Computes a gradient, parts of which may be sent at once.

    Args:
      learner: Learner with the parameters.
      iteration: The iteration, whose version is the number of the sum.
      stage: Stage of the wire.
      least_s: Seconds that it takes, if `simulates_time`.

    Returns:
      The loss, a weighted sum over the examples, None without one; and whether
      all of the gradient is finite.

    Raises:
      Abandoned: As of `total`.
    """

  def finish(self, numbers: np.ndarray) -> None:
    """Adds this worker's step statistics, float32, to the vector to sum."""

  def total(self) -> tuple[list[float], bool]:
    """Waits for all sums of an iteration.

    Returns:
      The summed step statistics, and whether all sums are finite, as far as
      float16 has changed them; the same on all workers.

    Raises:
      PeerLost: If a worker is lost; says which.
      Damaged: If a worker has sent something unexpected.
      Abandoned: If the epoch is abandoned.
    """

  def apply(
    self, learner: Learner, *, examples: int, weight: float, pushes: int
  ) -> None:
    """Applies the sum to the learner, whose version increases by 1.

    Args:
      learner: The learner.
      examples: Number of examples of all workers.
      weight: Their weight, in examples.
      pushes: Number of workers that took part.
    """

  def copy_sum(self) -> Any:
    """Returns a copy of the sum that `apply` applies, or has just applied.

    Returns:
      Pytree of NumPy arrays, as `apply_copy` takes it.
    """

  def apply_copy(
    self,
    learner: Learner,
    sums: Any,
    *,
    examples: int,
    weight: float,
    pushes: int,
  ) -> None:
    """Applies another worker's `copy_sum`, as `apply` has done there.

    The learner's state is then equal bit for bit, on a like processor.

    Args:
      learner: Learner at the version to which the sum was applied.
      sums: The copy.
      examples: Number of examples that it was summed over.
      weight: Their weight, in examples.
      pushes: Number of workers that took part.
    """

  def collect(self, version: int) -> None:
    """Sums all workers' residuals into `codec_state.residual_sum`.

    Raises as `total`.
    """
