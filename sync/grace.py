"""Grace windows, which merge the pushes of workers that finish close together.

For schemes under which every push is an update of its own.  A push opens a
window of `grace_s` seconds.  The pushes that arrive in it are summed into one
update, which is applied at its end, or as soon as no worker is running.  All
workers that the scheme has released meanwhile then continue together, from the
merged version: a worker that is nearly as fast as another has a staleness of 0
instead of 1, and momentum is applied once.

Such a window is part of the example released with Liu et al., 'Asynchronous
Local-SGD training for language modeling', arXiv 2401.09135; that it ends when
no worker is running is this project's.
"""

import dataclasses
from typing import Protocol

from configs import declared
from sync.scheme import Decision, Members, Push, Scheme


class Mergeable(Scheme, Protocol):
  """Scheme without timers, whose pushes are updates of their own.

  Attributes:
    members: State of each worker.
  """

  members: Members


@dataclasses.dataclass
class Grace:
  """State of a scheme with grace windows.

  A worker that joins while a window is open waits for its end.

  Attributes:
    grace_s: Length of a window, seconds.
    scheme: Scheme whose pushes are merged.  Workers that are held count as
      running there.
    held: Workers that the scheme has released and that wait for the end of the
      window.
    ends_at: End of the window, seconds; None if none is open.
    updates: Number of updates so far, and the id of the next one.
  """

  is_state = True  # Plain data: checkpoints hold it.

  grace_s: float
  scheme: Mergeable
  held: list[int] = dataclasses.field(default_factory=list)
  ends_at: float | None = None
  updates: int = 0

  def start(self, time: float) -> Decision:
    return self.scheme.start(time)

  def push(self, push: Push) -> Decision:
    if push.worker in self.held:
      raise ValueError(
        f'worker: expected worker {push.worker} to be running, got waiting.'
      )
    update, released = self.updates, self.scheme.push(push).release
    if self.ends_at is None:
      self.ends_at = push.time + self.grace_s
    # Other pushes of the same instant come before the wake.
    is_over = push.time > self.ends_at
    return self._advance(released, is_over=is_over)._replace(into=update)

  def wake(self, time: float) -> Decision:
    is_over = self.ends_at is not None and time >= self.ends_at
    return self._advance((), is_over=is_over)

  def leave(self, worker: int, time: float) -> Decision:
    released = self.scheme.leave(worker, time).release
    self.held = [other for other in self.held if other != worker]
    return self._advance(released, is_over=False)

  def join(self, worker: int, time: float) -> Decision:
    released = self.scheme.join(worker, time).release
    return self._advance(released, is_over=False)

  def _advance(self, released: tuple[int, ...], *, is_over: bool) -> Decision:
    """Releases workers, now or at the end of the window, and may end it."""
    if self.ends_at is None:
      return Decision(release=released)
    self.held += released
    if self.scheme.members.running > len(self.held) and not is_over:
      return Decision(wake_at=self.ends_at)
    update, release = self.updates, tuple(sorted(self.held))
    self.updates += 1
    self.held, self.ends_at = [], None
    return Decision(commit=(update,), release=release)


def merge(scheme: Mergeable, *, grace_s: float) -> Scheme:
  """Returns the scheme with grace windows, or unchanged if `grace_s` is 0.

  Args:
    scheme: Scheme before its start.
    grace_s: Length of a window, seconds, at least 0.

  Raises:
    ValueError: If `grace_s` is out of range.
  """
  declared.check('sync.asp', grace_s=grace_s)
  return Grace(grace_s=grace_s, scheme=scheme) if grace_s else scheme
