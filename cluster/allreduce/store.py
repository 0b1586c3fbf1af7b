"""The learner of a reduced run, as the coordinator sees it: the replica beside it."""

from collections.abc import Callable
from typing import Any

from cluster.allreduce.replica import Replica
from learning.scaling import Scaling
from learning.schedule import Schedule


class ReplicaStore:
  """A ParameterStore: see `learning.learning`.

  It counts what replicas apply by themselves, and looks at its own while that
  waits.

  Attributes:
    version: Updates applied, or skipped.
    examples: Examples in them.
    scalings: The loss scale of all workers, if there is one: that after this
      version, where the replica may be one ahead.
  """

  def __init__(
    self,
    replica: Replica,
    schedule: Schedule | None,
    scaling: Scaling | None = None,
  ):
    """Starts at version 0.

    Args:
      replica: In this process.
      schedule: Of the learning rate; None if nothing is learned.
      scaling: Of the losses.
    """
    self.scalings = [scaling] if scaling else []
    self.version = self.examples = 0
    self._replica, self._schedule = replica, schedule
    self._sums: dict[int, int] = {}  # Examples of updates not yet applied.
    self._spoilt: set[int] = set()  # Of these, those that are not finite.
    self._held: dict[int, tuple[Any, Any]] = {}

  def add(
    self, update: int, worker: int, examples: int, *, finite: bool = True
  ) -> None:
    """Counts a worker's part of an update."""
    del worker
    self._sums[update] = self._sums.get(update, 0) + examples
    if not finite:
      self._spoilt.add(update)

  def commit(self, update: int) -> bool:
    """Counts an update, unless replicas skip it; the version is one higher."""
    examples, finite = self._sums.pop(update), update not in self._spoilt
    self._spoilt.discard(update)
    self.examples += examples if finite else 0
    self.version += 1
    self.scalings = [each.after(finite=finite) for each in self.scalings]
    return finite

  def hold(self) -> int:
    """Keeps this version's parameters and statistics; returns a number."""
    learner = self._replica.learner
    if learner.version != self.version:
      raise RuntimeError(
        f'Expected the replica at version {self.version}, got '
        f'{learner.version}.'
      )
    held = max(self._held, default=0) + 1
    self._held[held] = learner.params, learner.stats
    return held

  def drop(self, held: int) -> None:
    """Forgets a version that was held."""
    self._held.pop(held)

  def read(self, held: int) -> Callable[[], tuple[Any, Any]]:
    """Returns what gives a version that is held, in any thread."""
    kept = self._held[held]
    return lambda: kept

  @property
  def keeps(self) -> bool:
    """Whether workers keep some of their gradients."""
    return self._replica.codec_state.has_residual

  def state(self) -> dict[str, Any]:
    """Returns the learner, what workers keep, and what is counted here."""
    return {
      'codec': self._replica.codec_state.saved(),
      'learner': self._replica.learner.state(),
      'counted': (self.version, self.examples, self._sums),
      'held': self._held,
    }

  def restore(self, state: dict[str, Any]) -> None:
    """Goes back to where `state` was taken; it is the store's from now on."""
    learner = self._replica.learner
    learner.restore(state['learner'])
    self.scalings = [learner.scaling] if learner.scaling else []
    self.version, self.examples, self._sums = state['counted']
    self._replica.codec_state.restore(self.version, state['codec'])
    self._held = state['held']

  @property
  def pending(self) -> list[int]:
    """Updates with pushes that are not applied: none, between iterations."""
    return sorted(self._sums)

  @property
  def learning_rate(self) -> float | None:
    """The learning rate of the next update; None if nothing is learned."""
    if self._schedule is None:
      return None
    return self._schedule(examples=self.examples, updates=self.version)
