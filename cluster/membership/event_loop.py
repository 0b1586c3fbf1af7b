"""Event loop of the coordinator, common to both runtimes on real hosts.

The loop takes events from the queue that the reception fills, and evicts
workers that send no heartbeat.
"""

import math
from collections.abc import Callable, Collection
from typing import Any

from absl import logging

from cluster.coordinator import Coordinator
from cluster.membership import live_status
from cluster.membership.admission import Reception
from cluster.membership.events import (
  Event,
  RunFailed,
  WorkerDraining,
  WorkerEvent,
  WorkerJoined,
  WorkerLost,
)
from cluster.membership.process import Settings
from cluster.membership.silence import Silence
from cluster.network import sockets
from cluster.network.errors import InvalidMessage
from cluster.network.heartbeat import BEATS
from cluster.process.deadlines import Deadlines, ReceivedProgress
from cluster.process.exits import HandedOver, Unmendable
from cluster.process.monitoring import Monitor, Status
from cluster.process.stops import TERMINATING
from outputs.starts import describe_kinds
from system import clock, processes, threads

_LOG_INTERVAL_S = 10.0  # Between two lines on missing processes.
# Time between the signals of a scheduler that ends all processes of a run: a
# worker that has got one leaves only if the coordinator gets none meanwhile.
DRAIN_S = 5.0
DRAINED = 'It was drained: it has left after SIGTERM.'


class EventLoop:
  """Base of the runtimes on real hosts: see `Runtime` of `cluster.runtime`.

  `warm_up` of a runtime opens the reception and calls `_wait_for_processes`,
  which starts this process's own worker and handles events until the workers
  have joined that the run starts with (`config.cluster.min_workers`).  Others
  count as workers that have left, and join later.  `start` follows, or
  `resume`, which ends in `start`.  From then on each event passes
  `_take_event`, which sets the time of the run, `_dispatch`, and `_handle` of
  the runtime.  Once per heartbeat interval
  `_check_progress` calls `_check_processes` of the runtime.  A worker that is
  lost or overdue ends in `_lose` of the runtime, and may rejoin by an event.

  Attributes:
    time: Seconds since the start of the run, over all its processes.
    coordinator: Coordinator, which asks the scheme.
  """

  def __init__(
    self,
    *,
    coordinator: Coordinator,
    reception: Reception,
    settings: Settings,
    deadlines: Deadlines,
    make_local_worker: Callable[[str], Callable[[], object]] | None,
  ):
    """Creates the loop; the reception does not listen yet.

    Args:
      coordinator: Coordinator, which asks the scheme.
      reception: Control streams to the workers.
      settings: Settings of the coordinator's process.
      deadlines: Progress deadlines, after which a process counts as lost.
      make_local_worker: Creates the worker of this process, which is called in
        a thread, given the address of the coordinator; None if it has no
        worker.
    """
    self.time = 0.0
    self.coordinator = coordinator
    self._reception = reception
    self._members = reception.members
    self._timeout_s = settings.timeout_s
    self._start_s = settings.start_s
    self._deadlines = deadlines
    self._make_local_worker = make_local_worker
    self._started = False
    self._began: float | None = None  # Monotonic seconds.
    self._before: dict[str, Any] = {}  # The coordinator's restored state.
    self._check_at = 0.0  # Monotonic seconds.
    self._silence: Silence[int] = Silence(self._timeout_s / BEATS)
    # Incarnation of each worker that wants to leave, and when it may.
    self._drain_at: dict[int, tuple[int, float]] = {}
    self._settings = settings
    self._monitor: Monitor | None = None
    # Iterations at the last check, and the time when they last changed.
    self._progress = -1, clock.monotonic()
    self._turned_at = clock.monotonic()  # Last turn of the loop.
    # Kinds of the workers' devices, as they were recorded last.
    self._devices: dict[int, list[str]] = {}
    # Monotonic time at which this process may leave, after SIGTERM.
    self._leaves_at: float | None = None
    self._has_handed_over = False  # Others have all that they need.
    self._is_ending = False  # A signal ends the run, for good.

  def start(self) -> None:
    """Releases the first iterations."""
    self._began = clock.monotonic() - self.time
    self._started = True
    self._record_devices()
    count = len(self._members)
    present = self._present
    absent = [k for k in range(count) if k not in present]
    if absent:
      logging.info(
        'The run starts with %d of %d workers; the others may join later.',
        count - len(absent),
        count,
      )
    self.coordinator.start(self.time, absent)
    # Rows of the start's time are those of absent workers.
    self.time = math.nextafter(self.time, math.inf)

  def close(self) -> None:
    """Ends the run for all processes, also after an error."""
    self._reception.note_loop(is_watched=False)
    if self._monitor:
      self._monitor.close()
    self.coordinator.close(self.time)
    self._started = False
    self._reception.close(finished=self._is_finished)

  @property
  def has_successor(self) -> bool:
    """True if another process can continue the run."""
    raise NotImplementedError

  def _hand_over(self) -> None:
    """Lets another process continue the run, in steps between two events.

    Sets `_has_handed_over` with the last one.
    """
    raise NotImplementedError

  def is_ended_by(self, number: int) -> bool:
    """Returns whether a signal ends the run, or hands it over.

    SIGTERM or SIGHUP to this process alone hands the run over to another one.
    The run ends if other workers have got the signal, too, within `DRAIN_S`, or
    if no other process can continue.

    Args:
      number: Number of the signal.

    Raises:
      HandedOver: If another process is to continue the run.
    """
    if not self._has_handed_over:
      is_last = not self.has_successor
      self._is_ending |= number not in TERMINATING or is_last
      self._is_ending |= bool(self._drain_at)
      if self._is_ending:
        return True
      if self._leaves_at is None:
        name = processes.Signals(number).name
        logging.info('%s: this process leaves, unless the run ends.', name)
        self._leaves_at = clock.monotonic() + DRAIN_S
      if clock.monotonic() >= self._leaves_at:
        self._hand_over()
    if self._has_handed_over:
      self._reception.flush(self._timeout_s)
      raise HandedOver('This process has left after SIGTERM; others continue.')
    return False

  def summary(self) -> dict[str, Any]:
    """Returns the entries of summary.json that this runtime alone has."""
    return {
      'virtual_s': None,
      'admissions': [member.admissions for member in self._members],
      'late_compilations': sum(
        sum(member.compilations.values()) for member in self._members
      ),
    }

  @property
  def _present(self) -> Collection[int]:
    """Workers that take part from the start."""
    return [k for k, member in enumerate(self._members) if member.stream]

  @property
  def _is_finished(self) -> bool:
    return self.coordinator.milestones.finished

  def _wait_for_processes(
    self,
    address: str,
    *,
    done: Callable[[], object],
    missing: Callable[[], str],
    transfer_s: Callable[[], float] = lambda: 0.0,
  ) -> None:
    """Starts the worker of this process, and waits until enough have joined.

    Args:
      address: Address of the coordinator.
      done: Returns whether all have joined that the run starts with.
      missing: Returns lines on the processes that have not, for the log.
      transfer_s: Returns the seconds by which the start may take longer, as
        a state is read or fetched; called once `start_s` has passed.

    Raises:
      Unmendable: If it takes too long.
    """
    self._start_monitor()
    if self._make_local_worker:
      worker = self._make_local_worker(address)
      threads.Thread(
        target=self._run_local_worker, args=[worker], daemon=True
      ).start()
    now = clock.monotonic()
    deadline, log_at = now + self._start_s, now + _LOG_INTERVAL_S
    while not done():
      next_s = min(log_at - now, self._timeout_s / BEATS)
      if deadline > now:
        next_s = min(next_s, deadline - now)
      self._handle_next(next_s)
      self._lose_silent()
      now, lines = clock.monotonic(), missing()
      if now >= deadline and now >= deadline + transfer_s():
        limit_s = now - deadline + self._start_s
        raise Unmendable(f'Not all were there within {limit_s:.0f} s:\n{lines}')
      if now >= log_at:
        log_at = now + _LOG_INTERVAL_S
        if lines:
          logging.info('The run waits for\n%s', lines)

  def _start_monitor(self) -> None:
    """Starts to serve metrics, if `config.outputs.metrics_port` is set."""
    settings = self._settings
    if not settings.metrics_port:
      return
    host = settings.port.host
    where = sockets.join(host, settings.metrics_port)
    try:
      self._monitor = Monitor(host, settings.metrics_port, self._read_status)
    except OSError as error:  # A process has taken it since the start.
      raise OSError(
        error.errno, f'config.outputs.metrics_port: {where}: {error.strerror}'
      ) from error
    logging.info('Metrics at http://%s/metrics', where)

  def _read_status(self) -> Status:
    """Returns the status of the run; from any thread."""
    accounting, now = self.coordinator.recorder.accounting, clock.monotonic()
    before, since = self._progress
    if accounting.iterations != before:
      self._progress = accounting.iterations, now
      since = now
    return Status(
      iterations=accounting.iterations,
      updates=accounting.updates,
      examples=accounting.examples,
      dropped_examples=sum(each.examples for each in [*accounting.dropped]),
      lost_examples=sum(each.examples for each in [*accounting.lost]),
      delivered_bytes=accounting.bytes,
      workers_alive=sum(m.stream is not None for m in self._members),
      membership_epoch=self._membership_epoch,
      idle_s=now - since,
      is_alive=now - self._turned_at < self._start_s,
    )

  @property
  def _membership_epoch(self) -> int:
    """Number of the membership epoch; -1 without one."""
    return -1

  def _run_local_worker(self, worker: Callable[[], object]) -> None:
    """Runs the worker of this process, in a thread; an error ends the run."""
    try:
      worker()
    except BaseException as error:  # No caller of the thread would see it.
      self._reception.give_up(
        f'The worker of the coordinator failed: {error!r}', error
      )
      raise

  def _handle_next(self, wait_s: float) -> None:
    """Handles the next event, if one comes in time.

    Args:
      wait_s: Longest wait, seconds.
    """
    if event := self._take_event(wait_s):
      self._dispatch(event)

  def _dispatch(self, event: Event) -> None:
    """Handles an event, unless it is of an incarnation that takes no part.

    Raises:
      Unmendable: If the run cannot continue.
    """
    if isinstance(event, RunFailed):
      raise Unmendable(event.reason) from event.cause
    if not self._is_valid(event):
      return
    if isinstance(event, WorkerDraining):
      logging.info('Worker %d wants to leave: SIGTERM.', event.worker)
      at = clock.monotonic() + DRAIN_S
      self._drain_at[event.worker] = event.incarnation, at
      return
    if isinstance(event, WorkerEvent):
      try:
        self._check(event)
      except InvalidMessage as error:
        self._lose(event.worker, f'It has sent an invalid message: {error}')
        return
    self._handle(event)

  def _check(self, event: WorkerEvent) -> None:
    """Checks what only the runtime knows about an event of a worker.

    Raises:
      InvalidMessage: If it cannot be true; the worker is evicted, and the event
        is not handled.
    """
    raise NotImplementedError

  def _handle(self, event: Event) -> None:
    """Handles an event of one of the kinds that the runtime knows."""
    raise NotImplementedError

  def _is_valid(self, event: Event) -> bool:
    """Returns whether an event is of no worker, or of one that takes part."""
    if not isinstance(event, WorkerEvent):
      return True
    if isinstance(event, WorkerJoined | WorkerLost):
      return True
    member = self._members[event.worker]
    is_newest = event.incarnation == member.incarnation
    return is_newest and member.stream is not None

  def _take_event(self, wait_s: float) -> Event | None:
    """Returns the next event, if one comes in time; sets the run's time to it.

    Args:
      wait_s: Longest wait, seconds.
    """
    self._turned_at = clock.monotonic()
    try:
      event = self._reception.events.get(timeout=max(wait_s, 0.0))
    except threads.Empty:
      self.time = max(self.time, self._now())
      return None
    at = clock.monotonic() if event.at is None else event.at
    if self._began is not None:
      self.time = max(self.time, at - self._began)
    return event

  def _check_progress(self) -> None:
    """Checks all processes once per heartbeat interval, not at every event."""
    if clock.monotonic() >= self._check_at:
      self._read_status()  # Notes progress between two requests.
      self._check_processes()
      self._drain_due()
      self.coordinator.recorder.rows.live(
        live_status.describe(
          self.time,
          self._members,
          self.coordinator.workers,
          beat_s=self._timeout_s / BEATS,
        )
      )
      self._check_at = clock.monotonic() + self._timeout_s / BEATS
    self._reception.note_loop(is_watched=not self._is_finished)

  def _drain_due(self) -> None:
    """Lets workers leave that want to, once the run should have ended else."""
    if self._is_ending:
      return
    for index, (incarnation, at) in [*self._drain_at.items()]:
      member = self._members[index]
      if member.stream is None or member.incarnation != incarnation:
        del self._drain_at[index]
      elif clock.monotonic() >= at:
        self._drain(index)

  def _drain(self, index: int) -> None:
    """Lets a worker leave as soon as it has no iteration; may be repeated."""
    raise NotImplementedError

  def _check_processes(self) -> None:
    """Evicts workers that are silent or make no progress."""
    raise NotImplementedError

  def _admit(self, event: WorkerJoined) -> bool:
    """Lets a ready worker take part; returns False for an old incarnation."""
    index, member = event.worker, self._members[event.worker]
    reason = 'A newer incarnation of it is there.'
    if event.incarnation < member.incarnation:
      self._reception.evict(index, event.stream, reason)
      return False
    if member.stream is not None:
      self._lose(index, reason)
    member.incarnation = event.incarnation
    member.stream, member.last_heartbeat = event.stream, clock.monotonic()
    member.progress = ReceivedProgress(last_change=member.last_heartbeat)
    member.devices = event.ready.devices
    if self._started:
      self._record_devices()
    return True

  def _log_joined(self, event: WorkerJoined) -> None:
    verb = 'rejoined' if event.incarnation else 'joined'
    logging.info('Worker %d has %s.', event.worker, verb)

  def _record_devices(self) -> None:
    """Records the devices on which workers compute, and logs changes."""
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
      described = [
        f'{describe_kinds(each)} ({self._describe(each)})' for each in found
      ]
      logging.info('Workers compute on %s.', ' and '.join(sorted(described)))
    if len(found) > 1 and found != before:
      logging.warning(
        'Workers compute on devices of different kinds or numbers: what they '
        'compute differs by rounding.'
      )

  def _describe(self, kinds: tuple[str, ...]) -> str:
    """Returns the workers that compute on some kinds of devices, as text."""
    on = [k for k, devices in self._devices.items() if tuple(devices) == kinds]
    if len(on) == 1:
      return f'worker {on[0]}'
    return 'workers ' + ', '.join(map(str, sorted(on)))

  def _lose(self, index: int, reason: str) -> None:
    """Evicts a worker.

    Args:
      index: Rank of the worker.
      reason: Text for logs.
    """
    raise NotImplementedError

  def _lose_silent(self) -> None:
    """Evicts workers that have sent no heartbeat for too long."""
    heard = {
      index: member.last_heartbeat
      for index, member in enumerate(self._members)
      if member.stream is not None
    }
    silences_s = self._silence.measure(clock.monotonic(), heard)
    for index, silence_s in silences_s.items():
      if silence_s > self._timeout_s:
        self._lose(index, f'It was silent for {silence_s:.1f} s.')

  def _now(self) -> float:
    return 0.0 if self._began is None else clock.monotonic() - self._began
