"""Event loop of the coordinator, common to the runtimes on real hosts.

Takes events from the queue that the reception fills, and evicts processes that
send no heartbeat.
"""

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from absl import logging

from cluster.coordinator import Coordinator
from cluster.membership.admission import Reception
from cluster.network.heartbeat import BEATS
from cluster.process.deadlines import Deadlines, Seen
from cluster.process.exits import Unmendable
from outputs.files import counted

_TELL_S = 10.0  # Between two lines on who is not there.


class Leading:
  """Part of a `Runtime`: see `cluster.runtime`.

  Attributes:
    time: Seconds since the start, of this process and those before it.
    coordinator: Asks the scheme.
  """

  # What follows from an event, by what is told.
  _reactions: Mapping[str, Callable[[dict[str, Any]], None]]

  def __init__(
    self,
    *,
    coordinator: Coordinator,
    reception: Reception,
    timeout_s: float,
    start_s: float,
    deadlines: Deadlines,
    local: Callable[[str], Callable[[], object]] | None,
  ):
    """Listens to nobody yet.

    Args:
      coordinator: Asks the scheme.
      reception: Talks to workers.
      timeout_s: Silence after which a process counts as lost.
      start_s: Until all have to be there, or one again if all were lost.
      deadlines: After which one that does not go on counts as lost.
      local: Makes the worker of this process, to be called in a thread, given
        the address to connect to; None if it has none.
    """
    self.time = 0.0
    self.coordinator = coordinator
    self._reception = reception
    self._members = reception.members
    self._timeout_s, self._start_s = timeout_s, start_s
    self._deadlines = deadlines
    self._local = local
    self._started = False
    self._began: float | None = None  # Monotonic seconds.
    self._before: dict[str, Any] = {}  # The coordinator's state to go on from.
    self._look_at = 0.0  # Monotonic seconds.
    # Kinds of devices of workers, as they have been recorded.
    self._devices: dict[int, list[str]] = {}

  def start(self) -> None:
    """Releases the first iterations."""
    self._began = time.monotonic() - self.time
    self._started = True
    self._record_devices()
    self.coordinator.start(self.time)

  def close(self) -> None:
    """Ends the run for all processes, however it went."""
    self._reception.looked = math.inf
    self.coordinator.close(self.time)
    self._started = False
    self._reception.close(finished=self._over)

  def summary(self) -> dict[str, Any]:
    """Returns what summary.json says of this runtime alone."""
    return {
      'virtual_s': None,
      'lives': [member.lives for member in self._members],
      'late_compilations': sum(
        sum(member.compilations.values()) for member in self._members
      ),
    }

  @property
  def _over(self) -> bool:
    return self.coordinator.milestones.finished

  def _wait(
    self,
    address: str,
    *,
    done: Callable[[], object],
    missing: Callable[[], str],
  ) -> None:
    """Starts the worker of this process, and waits until all are there.

    Args:
      address: That workers connect to.
      done: Returns whether they are.
      missing: Returns what is known of what is not, lines.

    Raises:
      Unmendable: If it takes too long.
    """
    if self._local:
      worker = self._telling()(self._local(address))
      threading.Thread(target=worker, daemon=True).start()
    now = time.monotonic()
    deadline, tell_at = now + self._start_s, now + _TELL_S
    while not done():
      next_s = min(deadline, tell_at, now + self._timeout_s / BEATS) - now
      self._take(next_s)
      self._lose_silent()
      now, what = time.monotonic(), missing()
      if now >= deadline:
        raise Unmendable(
          f'Not all were there within {self._start_s:g} s:\n{what}'
        )
      if now >= tell_at and what:
        tell_at = now + _TELL_S
        logging.info('The run waits for\n%s', what)

  @contextlib.contextmanager
  def _telling(self) -> Iterator[None]:
    """Tells the coordinator of what the worker of this process raises."""
    try:
      yield
    except BaseException as error:  # The thread has nobody else to tell.
      self._reception.give_up(
        f'The worker of the coordinator failed: {error!r}'
      )
      raise

  def _take(self, wait_s: float) -> None:
    """Deals with the next event, if one comes in time."""
    if event := self._next(wait_s):
      self._react(event)

  def _react(self, event: dict[str, Any]) -> None:
    """Does what follows from an event, unless its incarnation is over."""
    if self._counts(event):
      self._reactions[event['event']](event)

  def _counts(self, event: dict[str, Any]) -> bool:
    """Returns whether an event is of no worker, or of one that takes part."""
    if 'life' not in event or event['event'] in ('ready', 'failed'):
      return True
    member = self._members[event['worker']]
    return event['life'] == member.life and member.stream is not None

  def _next(self, wait_s: float) -> dict[str, Any] | None:
    """Returns the next event, if one comes in time; it is then."""
    try:
      event = self._reception.events.get(timeout=max(wait_s, 0.0))
    except queue.Empty:
      self.time = max(self.time, self._now())
      return None
    at = event.get('at', time.monotonic())
    if self._began is not None:
      self.time = max(self.time, at - self._began)
    return event

  def _look(self) -> None:
    """Looks around, once in a beat: who has hundreds of workers has events."""
    if time.monotonic() >= self._look_at:
      self._look_around()
      self._look_at = time.monotonic() + self._timeout_s / BEATS
    self._reception.looked = math.inf if self._over else time.monotonic()

  def _look_around(self) -> None:
    """Gives up who is silent or does not go on."""
    raise NotImplementedError

  def _admits(self, event: dict[str, Any]) -> bool:
    """Takes in a worker that is ready; returns False if it is an old life."""
    index, member = event['worker'], self._members[event['worker']]
    reason = 'A newer incarnation of it is there.'
    if event['life'] < member.life:
      self._reception.evict(index, event['stream'], reason)
      return False
    if member.stream is not None:
      self._lose(index, reason)
    member.life = event['life']
    member.stream, member.seen = event['stream'], time.monotonic()
    member.pace = Seen(moved=member.seen)
    member.devices = event.get('devices') or ()
    if self._started:
      self._record_devices()
    return True

  def _record_devices(self) -> None:
    """Records on which devices workers compute, and logs it once it changes."""
    kinds = {k: list(m.devices) for k, m in enumerate(self._members)}
    changed = {
      k: devices
      for k, devices in kinds.items()
      if devices and devices != self._devices.get(k)
    }
    if not changed:
      return
    before = {tuple(devices) for devices in self._devices.values()}
    self._devices |= changed
    self.coordinator.recorder.record_devices(changed)
    found = {tuple(devices) for devices in self._devices.values()}
    if found != before:
      described = [f'{counted(each)} ({self._on(each)})' for each in found]
      logging.info('Workers compute on %s.', ' and '.join(sorted(described)))
    if len(found) > 1 and found != before:
      logging.warning(
        'Workers compute on devices of different kinds or numbers: what they '
        'compute differs by rounding.'
      )

  def _on(self, kinds: tuple[str, ...]) -> str:
    """Returns which workers compute on some devices, as text."""
    on = [k for k, devices in self._devices.items() if tuple(devices) == kinds]
    if len(on) == 1:
      return f'worker {on[0]}'
    return 'workers ' + ', '.join(map(str, sorted(on)))

  def _unmendable(self, event: dict[str, Any]) -> None:
    raise Unmendable(event['reason'])

  def _lose(self, index: int, reason: str) -> None:
    """A worker is gone, or as good as gone."""
    raise NotImplementedError

  def _lose_silent(self) -> None:
    now = time.monotonic()
    for index, member in enumerate(self._members):
      if member.stream is not None and now - member.seen > self._timeout_s:
        self._lose(index, f'It was silent for {now - member.seen:.1f} s.')

  def _now(self) -> float:
    return 0.0 if self._began is None else time.monotonic() - self._began
