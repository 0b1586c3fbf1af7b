"""Parameter store of an allreduce run, in the coordinator's process."""

from collections.abc import Callable
from typing import Any

from cluster.allreduce.replica import Replica
from learning.scaling import Scaling
from learning.schedule import Schedule


class ReplicaStore:
  """A `ParameterStore` (see `learning.learning`) backed by a replica.

  Replicas apply updates by themselves: the store only counts them.  Parameters
  are read from the coordinator's own replica, between two iterations.

  Attributes:
    version: Number of updates that were applied or skipped.
    examples: Number of examples in applied updates.
    scalings: The loss scale of all workers, if there is one: that after
      `version`, while the replica may be one version ahead.
    has_inner_optimizer: True if workers have states of inner optimizers.
  """

  def __init__(
    self,
    replica: Replica,
    schedule: Schedule | None,
    scaling: Scaling | None = None,
    *,
    has_inner_optimizer: bool = False,
  ):
    """Creates a store at version 0.

    Args:
      replica: Replica of this process.
      schedule: Schedule of the learning rate; None if nothing is learned.
      scaling: Scale of the losses; None for none.
      has_inner_optimizer: Whether workers have states of inner optimizers.
    """
    self.has_inner_optimizer = has_inner_optimizer
    self.scalings = [scaling] if scaling else []
    self.version = self.examples = 0
    self._replica, self._schedule = replica, schedule
    self._pending: dict[int, int] = {}  # Examples, by update.
    self._not_finite: set[int] = set()  # Pending updates.
    self._held: dict[int, tuple[Any, Any]] = {}

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
    """Counts a worker's contribution to an update."""
    del worker, weight  # Replicas have the sum of all weights.
    del staleness_weight  # 1: no contribution is stale.
    self._pending[update] = self._pending.get(update, 0) + examples
    if not finite:
      self._not_finite.add(update)

  def commit(self, update: int) -> bool:
    """Counts an update, and raises the version.

    Returns:
      Whether it is finite: if not, replicas have skipped it.
    """
    examples = self._pending.pop(update)
    finite = update not in self._not_finite
    self._not_finite.discard(update)
    self.examples += examples if finite else 0
    self.version += 1
    self.scalings = [each.after(finite=finite) for each in self.scalings]
    return finite

  def discard(self, worker: int) -> None:
    """Raises RuntimeError: a contribution is part of the sum of all."""
    raise RuntimeError('Expected a push to a server, got a contribution.')

  def hold(self) -> int:
    """Retains this version's parameters and statistics; returns a handle."""
    learner = self._replica.learner
    if learner.version != self.version:
      raise RuntimeError(
        f'Expected the replica at version {self.version}, got '
        f'{learner.version}.'
      )
    handle = max(self._held, default=0) + 1
    self._held[handle] = learner.params, learner.stats
    return handle

  def free(self, handle: int) -> None:
    """Frees a held version."""
    self._held.pop(handle)

  def read(self, handle: int) -> Callable[[], tuple[Any, Any]]:
    """Returns a function that returns a held version, in any thread."""
    version = self._held[handle]
    return lambda: version

  @property
  def state_bytes(self) -> int:
    """Size of the state that replicas fetch, bytes."""
    return self._replica.state_bytes

  @property
  def has_residuals(self) -> bool:
    """True if workers have residuals."""
    return self._replica.codec_state.has_residual

  def state(self) -> dict[str, Any]:
    """Returns the learner, the sum of residuals, and the counts."""
    return {
      'codec': self._replica.codec_state.for_checkpoint(),
      'learner': self._replica.learner.state(),
      'counts': (self.version, self.examples, self._pending),
      'held': self._held,
    }

  def restore(self, state: dict[str, Any]) -> None:
    """Restores the result of `state`, which the store owns from now on."""
    learner = self._replica.learner
    learner.restore(state['learner'])
    self.scalings = [learner.scaling] if learner.scaling else []
    self.version, self.examples, self._pending = state['counts']
    self._replica.codec_state.restore(self.version, state['codec'])
    self._held = state['held']

  def counts(self) -> dict[str, Any]:
    """Returns the state without the learner, for a successor's store."""
    return {
      'counts': (self.version, self.examples, dict(self._pending)),
      'scalings': list(self.scalings),
    }

  def take_over(self, counts: dict[str, Any]) -> None:
    """Continues from `counts`; the replica's learner may be newer."""
    self.version, self.examples, self._pending = counts['counts']
    self.scalings = counts['scalings']

  @property
  def pending(self) -> list[int]:
    """Updates with pushes that are not applied: none between iterations."""
    return sorted(self._pending)

  @property
  def learning_rate(self) -> float | None:
    """Learning rate of the next update; None if nothing is learned."""
    if self._schedule is None:
      return None
    return self._schedule(examples=self.examples, updates=self.version)
