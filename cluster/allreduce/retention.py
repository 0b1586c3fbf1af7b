"""States and sums that a member retains for workers that catch up.

A worker that joins a running allreduce run fetches the state of one version,
which takes as long as its link needs, while the members continue.  Then it
fetches the sums of the updates since, and applies them by the same program, so
that it has the members' parameters and optimizer state bit for bit.

Some members retain that state and those sums in host memory, until the
coordinator releases them.  Their size is bounded: if the sums take more memory
than the state, a few further sums and 64 MiB, the oldest are dropped, and the
state with them.  While a worker fetches the state over a link of B bytes per
second, as many bytes of sums accumulate as the state has if an update of P
bytes comes every P / B seconds: a worker that finds more of them could not
fetch updates as fast as they come.  The rest of the bound is for what takes
time whatever its size, such as connections: small models make hundreds of
updates meanwhile.
"""

import collections
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from cluster.membership.handover import StateCopy
from cluster.network.messages import StateRequest
from system import clock, threads

# Sums that are retained beside as many bytes as the state has.
SPARE_UPDATES, SPARE_BYTES = 4, 2**26


class Update(NamedTuple):
  """The sum that a replica has applied to a version, and its arguments.

  Attributes:
    sums: Copy of the sum, as of `Reducer.copy_sum`; None if it was skipped, as
      it was not finite.
    examples: Number of examples that it was summed over.
    weight: Their weight, in examples.
    pushes: Number of workers that took part.
    replicated: Replicated part of the codec state after the update.
  """

  sums: Any
  examples: int
  weight: float
  pushes: int
  replicated: Any

  @property
  def size_bytes(self) -> int:
    """Size of its arrays, bytes."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(self) if _is_array(leaf))


class Retention:
  """Retained state and updates of a replica.

  The replica's thread calls all methods but `find`, which any thread may call.
  """

  def __init__(self, wait_s: float):
    """Retains nothing.

    Args:
      wait_s: Seconds that `find` waits for a version that is still to come.
    """
    self._wait_s = wait_s
    self._changed = threads.Condition()
    self._due: int | None = None  # Version of a state that is to be retained.
    self._state: tuple[int, StateCopy] | None = None
    self._updates: collections.deque[Update] = collections.deque()
    self._updates_bytes = 0
    self._state_bytes = 0  # Of the last state that was retained.
    self._first = 0  # Version to which the oldest update was applied.
    self._is_recording = False

  @property
  def is_recording(self) -> bool:
    """True if the next update is to be recorded."""
    return self._is_recording

  @property
  def size_bytes(self) -> int:
    """Size of the retained arrays, bytes."""
    with self._changed:
      state_bytes = self._state[1].size_bytes if self._state else 0
      return state_bytes + self._updates_bytes

  def plan(self, version: int) -> None:
    """Plans to retain the state of a version, once `is_due`."""
    with self._changed:
      self._due = version

  def is_due(self, version: int) -> bool:
    """Returns whether the state of this version is to be retained."""
    return self._due == version

  def retain(self, version: int, state: Any) -> None:
    """Retains a state, and updates from now on."""
    copy = StateCopy(_copy_arrays(state))
    with self._changed:
      self._state_bytes = copy.size_bytes
      self._state, self._due = (version, copy), None
      if not self._is_recording:
        self._first, self._is_recording = version, True
      self._changed.notify_all()

  def record(self, version: int, update: Update) -> None:
    """Records the update that was applied to a version."""
    with self._changed:
      if not self._is_recording:
        return
      if version != self._first + len(self._updates):
        raise RuntimeError(
          f'Expected the update of version {self._first + len(self._updates)}, '
          f'got {version}.'
        )
      replicated = _copy_arrays(update.replicated)
      self._updates.append(update._replace(replicated=replicated))
      self._updates_bytes += update.size_bytes
      self._limit()
      self._changed.notify_all()

  def release(self, before: int | None) -> None:
    """Drops what leads to earlier versions; None to drop all, and to end."""
    if before is None:
      self.clear()
      return
    with self._changed:
      if self._state and self._state[0] < before:
        self._state = None
      while self._updates and self._first < before:
        self._drop_oldest()

  def clear(self) -> None:
    """Drops all: the replica has got another state, or its session ends."""
    with self._changed:
      self._due = self._state = None
      self._updates.clear()
      self._updates_bytes = 0
      self._is_recording = False
      self._changed.notify_all()

  def find(self, request: StateRequest) -> tuple[StateCopy, str]:
    """Returns a retained state, or the updates since a version, and its digest.

    Waits for a version that this replica reaches soon: others may be ahead.

    Raises:
      LookupError: If this replica does not have it.
    """
    deadline = clock.monotonic() + self._wait_s
    with self._changed:
      while self._is_awaited(request):
        if not self._changed.wait(deadline - clock.monotonic()):
          break
      copy = self._find_copy(request)
    return copy, copy.digest

  def _is_awaited(self, request: StateRequest) -> bool:
    if request.since is None:
      return self._due == request.version
    end = self._first + len(self._updates)
    return self._is_recording and request.since <= end < request.version

  def _find_copy(self, request: StateRequest) -> StateCopy:
    version, since = request.version, request.since
    if since is None:
      if self._state is None or self._state[0] != version:
        raise LookupError(f'expected to retain the state of version {version}')
      return self._state[1]
    end = self._first + len(self._updates)
    if not (self._is_recording and self._first <= since < version <= end):
      raise LookupError(
        f'expected to retain the updates from version {since} to {version}, '
        f'got those from {self._first} to {end}'
      )
    found: Sequence[Update] = [
      self._updates[k - self._first] for k in range(since, version)
    ]
    return StateCopy(found)

  def _limit(self) -> None:
    """Drops the oldest updates beyond the limit, and an older state."""
    spare_bytes = SPARE_BYTES + SPARE_UPDATES * self._updates[-1].size_bytes
    while self._updates_bytes > self._state_bytes + spare_bytes:
      self._drop_oldest()
    if self._state and self._state[0] < self._first:
      self._state = None

  def _drop_oldest(self) -> None:
    self._updates_bytes -= self._updates.popleft().size_bytes
    self._first += 1


def _copy_arrays(tree: Any) -> Any:
  """Returns a tree with copies of its NumPy arrays, which may be reused."""
  return jax.tree.map(
    lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, tree
  )


def _is_array(leaf: Any) -> bool:
  return isinstance(leaf, jax.Array | np.ndarray)
