"""Accounting of a run: worker time by phase, examples, bytes and staleness.

  event              state of a push before   state after
  add_push           under way                pending; skipped if not finite
  add_dropped_push   under way                dropped
  add_update         pending                  applied; skipped if its update is

An iteration whose push will never arrive is `lost`.
"""

import collections
import dataclasses
from typing import Any, NamedTuple

from sync.scheme import Push

PHASES = ('pull', 'compute', 'push', 'wait')


class DroppedPush(NamedTuple):
  """A push that the scheme has put into no update.

  Other workers get its examples.  `time` is when it had arrived whole, seconds.
  """

  worker: int
  iteration: int
  examples: int
  time: float


class LostIteration(NamedTuple):
  """An iteration whose push never arrived; other workers get its examples.

  `time` is when it was given up, seconds.
  """

  worker: int
  iteration: int
  examples: int
  time: float
  reason: str


class LostState(NamedTuple):
  """A state of an inner optimizer that is lost with its worker.

  `time` is that of the loss, seconds on the run's clock.
  """

  worker: int
  time: float
  reason: str


class NewState(NamedTuple):
  """A state of an inner optimizer that began after the start of the run.

  `time` is when its first push arrived, seconds.
  """

  worker: int
  time: float


class PendingPush(NamedTuple):
  """A push that is summed into an update which is not applied yet.

  Attributes:
    pulled: Version that the gradient was computed from.
    compute_s: Seconds of computing alone.
  """

  worker: int
  iteration: int
  pulled: int
  compute_s: float
  examples: int


class Rollback(NamedTuple):
  """A return to a mirror, after a process with parameters was lost.

  Attributes:
    updates: Number of updates that are lost; their examples are used again.
      None if neither the coordinator nor a server that has counted them is
      left.
    examples: Number of examples in these updates; None where `updates` is.
  """

  time: float
  updates: int | None
  examples: int | None
  reason: str


@dataclasses.dataclass
class Accounting:
  """Counts of a run so far; plain data.

  Attributes:
    seconds: Worker seconds in each phase; waiting is 'wait', transferring
      'pull' and 'push'.
    iterations: Pushes that arrived whole, dropped ones included.
    updates: Updates applied, or skipped.
    examples: Examples in applied pushes.
    bytes: Bytes delivered, both ways.
    pushed_examples: Examples in pushes that arrived whole.
    computed_examples: Examples in these pushes, with padding.
    applied_s: Seconds of computing gradients that were applied.
    staleness: Number of applied pushes by staleness, versions.
    pending: Pushes by update that is not yet applied.
    dropped: Pushes that arrived whole, but that the scheme put into no update.
    lost: Iterations whose pushes never arrived.
    lost_states: States of inner optimizers that were lost with their workers.
    new_states: States of inner optimizers that began after the start.
    skipped: Pushes that were not applied, because they or their sum overflowed.
    skipped_examples: Examples in skipped pushes.
    rollbacks: Returns to mirrors, with the updates that were lost.
    mirror_bytes: Bytes of mirrors that were taken.
  """

  is_state = True  # Plain data: checkpoints hold it.

  seconds: dict[str, float] = dataclasses.field(
    default_factory=lambda: dict.fromkeys(PHASES, 0.0)
  )
  iterations: int = 0
  updates: int = 0
  examples: int = 0
  bytes: int = 0
  pushed_examples: int = 0
  computed_examples: int = 0
  applied_s: float = 0.0
  staleness: collections.Counter[int] = dataclasses.field(
    default_factory=collections.Counter
  )
  pending: dict[int, list[PendingPush]] = dataclasses.field(
    default_factory=dict
  )
  dropped: list[DroppedPush] = dataclasses.field(default_factory=list)
  lost: list[LostIteration] = dataclasses.field(default_factory=list)
  lost_states: list[LostState] = dataclasses.field(default_factory=list)
  new_states: list[NewState] = dataclasses.field(default_factory=list)
  skipped: int = 0
  skipped_examples: int = 0
  rollbacks: list[Rollback] = dataclasses.field(default_factory=list)
  mirror_bytes: int = 0

  def add_push(
    self,
    into: int,
    push: Push,
    *,
    iteration: int,
    pulled: int,
    computed: int,
    finite: bool = True,
  ) -> None:
    """Counts a push that is summed into an update.

    Args:
      into: Number of the update.
      iteration: Number of the worker's iteration.
      pulled: Version that the gradient was computed from.
      computed: Number of examples with padding; 0 if nothing is computed.
      finite: Whether it is part of the update; if not, it is skipped.
    """
    self._receive(push, computed)
    pushes = self.pending.setdefault(into, [])
    if not finite:
      self._skip(push.examples)
      return
    pushes.append(
      PendingPush(push.worker, iteration, pulled, push.compute_s, push.examples)
    )

  def add_dropped_push(
    self, push: Push, *, iteration: int, computed: int
  ) -> None:
    """Counts a push that the scheme puts into no update: see `add_push`."""
    self._receive(push, computed)
    self.dropped.append(
      DroppedPush(push.worker, iteration, push.examples, push.time)
    )

  def add_update(self, update: int, *, applied: bool = True) -> int:
    """Counts an update that was applied, or skipped with all of its pushes.

    Args:
      update: Number of an update with pushes of `add_push`.
      applied: Whether it was applied.

    Returns:
      The number of pushes that were applied.
    """
    pushes = self.pending.pop(update)
    for push in pushes:
      if not applied:
        self._skip(push.examples)
        continue
      self.staleness[self.updates - push.pulled] += 1
      self.applied_s += push.compute_s
      self.examples += push.examples
    self.updates += 1
    return len(pushes) if applied else 0

  def recover_state(self, worker: int) -> None:
    """Removes the newest lost state of a worker, whose process has it still."""
    mine = [lost for lost in self.lost_states if lost.worker == worker]
    self.lost_states.remove(mine[-1])

  def _receive(self, push: Push, computed: int) -> None:
    """Counts a push that has arrived whole."""
    self.iterations += 1
    self.pushed_examples += push.examples
    self.computed_examples += computed

  def _skip(self, examples: int) -> None:
    self.skipped += 1
    self.skipped_examples += examples

  @property
  def waiting_share(self) -> float | None:
    """Share of the living workers' time spent waiting; None at the start."""
    return _share(self.seconds['wait'], sum(self.seconds.values()))

  @property
  def goodput(self) -> float | None:
    """Share of the living workers' time in gradients that were applied."""
    return _share(self.applied_s, sum(self.seconds.values()))

  @property
  def padding_share(self) -> float | None:
    """Share of the computed examples that was padding."""
    if not self.computed_examples:
      return None
    return 1 - self.pushed_examples / self.computed_examples

  @property
  def staleness_mean(self) -> float | None:
    """Mean staleness of the applied pushes, versions."""
    total = sum(stale * count for stale, count in self.staleness.items())
    return _share(total, self.staleness.total())

  @property
  def staleness_max(self) -> int | None:
    """Largest staleness of an applied push, versions."""
    return max(self.staleness, default=None)

  def summary(self) -> dict[str, Any]:
    """Returns the fields of summary.json that are counts."""
    pending = [push for pushes in self.pending.values() for push in pushes]
    return {
      'iterations': self.iterations,
      'updates': self.updates,
      'examples': self.examples,
      'examples_pending': sum(push.examples for push in pending),
      'waiting_share': self.waiting_share,
      'staleness_mean': self.staleness_mean,
      'staleness_max': self.staleness_max,
      'staleness': {str(s): n for s, n in sorted(self.staleness.items())},
      'goodput': self.goodput,
      'padding_share': self.padding_share,
      'bytes': self.bytes,
      'worker_seconds': dict(self.seconds),
      'pending': [push._asdict() for push in pending],
      'dropped': [dropped._asdict() for dropped in self.dropped],
      'lost': [lost._asdict() for lost in self.lost],
      'lost_states': [lost._asdict() for lost in self.lost_states],
      'new_states': [new._asdict() for new in self.new_states],
      'skipped': self.skipped,
      'skipped_examples': self.skipped_examples,
      'rollbacks': [each._asdict() for each in self.rollbacks],
      'mirror_bytes': self.mirror_bytes,
    }


def _share(part: float, whole: float) -> float | None:
  return part / whole if whole else None
