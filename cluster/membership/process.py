"""Common parts of the processes of a run on real hosts, for all routes."""

import math
import secrets
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from absl import logging
from ml_collections import ConfigDict

from cluster.islands.meeting import Follower, Leader
from cluster.membership.versions import find_versions
from cluster.network import sockets
from cluster.network.handshake import Security
from cluster.network.messages import Versions
from cluster.network.port import Port
from cluster.process import roles, stacks, stops
from cluster.process.deadlines import Deadlines, Jobs
from cluster.process.exits import STOPPED, Exit, Reason
from cluster.runtime import Parts
from cluster.speed import driving
from learning.learning import Evaluation
from outputs import terminal
from outputs.manifests import fingerprint, identity
from system import clock, processes, threads

_SAME_S = 1.0  # A signal that is repeated within this time is ignored.


class Meeting(NamedTuple):
  """Result of the rendezvous: the role of a process, and how to connect.

  Attributes:
    role: Role of this process, with the address of the coordinator.
    address: Address of this host to listen on.
    finished: Whether the run has finished before, so that none of its processes
      can be reached.
    devices: Number of devices on which this process computes gradients.
    security: Credentials of all streams.
    port: Port that this process listens on, unless it is the coordinator, whose
      address has one; 0 for any.
    follows: Whether a worker has succeeded the coordinator that this process
      would be by its rank.
    island: This process's end of its island; None without one.
  """

  role: roles.Role
  address: str
  finished: bool
  devices: int
  security: Security
  port: int = 0
  follows: bool = False
  island: Leader | Follower | None = None

  @property
  def followers(self) -> Leader | None:
    """The leader's end of an island; None in any other process."""
    return self.island if isinstance(self.island, Leader) else None


class Settings(NamedTuple):
  """Settings of a process; all but `port` and `process` are of the run.

  Attributes:
    port: Port of this process, on which all its services listen.
    fingerprint: Hash of the run's config, the same for all processes.
    fields: The run's config by field, for messages.
    timeout_s: Silence after which a process counts as lost.
    start_s: Seconds within which all processes have to join.
    process: Random identity of this process.  By it the coordinator
      distinguishes a process that reconnects from another one of its rank.
    devices: Kinds of this process's devices that compute gradients.
    adapt: Whether links are measured during the run and forests adapted to
      them: see `route.route.Allreduce`.
    versions: Versions of this process, which others must share.
    is_draining: Returns whether the worker of this process wants to leave.
    metrics_port: Port of the coordinator's metrics; 0 for none.
    min_workers: Fewest workers with which the run starts; 0 for all.
  """

  port: Port
  fingerprint: str
  timeout_s: float
  start_s: float
  process: str
  devices: Sequence[str] = ()
  adapt: bool = False
  versions: Versions = Versions()
  is_draining: Callable[[], bool] = lambda: False
  metrics_port: int = 0
  min_workers: int = 0
  fields: Mapping[str, str] = types.MappingProxyType({})

  @property
  def security(self) -> Security:
    """Credentials of all connections."""
    return self.port.security


class Inherited(Protocol):
  """A run that its coordinator has left to another process."""

  @property
  def state(self) -> Mapping[str, Any]:
    """State of the recorder, the files and the runtime."""

  @property
  def age_s(self) -> float:
    """Seconds since that state."""


class RealSite:
  """Common base of the sites of real runs: see `Site` of `cluster.runtime`.

  Attributes:
    clock: Kind of time that the run is measured in.
    meeting: Role of this process, and how to connect to the others.
    parts: Components of the run.
    settings: Settings of this process.
    deadlines: Progress deadlines, after which a process counts as lost.
    jobs: Evaluations and checkpoints beside the coordinator's event loop.
    make_run: Function that returns the run, if this process becomes its
      coordinator; set by the builder.
  """

  make_run: Callable[[], Any]
  clock: Literal['real'] = 'real'

  def __init__(
    self,
    config: ConfigDict,
    meeting: Meeting,
    parts: Parts,
    *,
    windows: bool,
  ):
    """Creates the parts that every process of a run has.

    Args:
      config: Config of the run.
      meeting: Role of this process, and how to connect to the others.
      parts: Components of the run.
      windows: Whether workers wait for one another's chunks: see `Deadlines`.

    Raises:
      ValueError: If a setting is wrong; names the field.
      OSError: If another process has the port of this one, or the coordinator's
        port of metrics.
    """
    self.meeting, self.parts = meeting, parts
    number = meeting.port
    if self.is_coordinator:
      number = self._coordinator_port
    else:
      _check_free(meeting.address, number)
    self._draining = threads.Event()
    if not meeting.finished:
      stacks.dump_on_signal(
        parts.files.workdir, f'{meeting.role.kind}-{meeting.role.index}'
      )
    port, field = config.outputs.metrics_port, 'config.outputs.metrics_port'
    if self.is_coordinator and not meeting.finished:
      _check_free(meeting.address, port, f'{field}: ')
    self.settings = Settings(
      Port(meeting.address, number, meeting.security),
      fingerprint(parts.manifest),
      config.cluster.timeout_s,
      config.cluster.start_s,
      process=secrets.token_hex(16),
      devices=tuple(parts.learned.devices),
      versions=find_versions(parts.manifest, parts.learned.data_digest),
      is_draining=self._draining.is_set,
      metrics_port=config.outputs.metrics_port,
      min_workers=config.cluster.min_workers,
      fields=identity(parts.manifest),
    )
    self.deadlines = Deadlines(
      timeout_s=config.cluster.timeout_s,
      start_s=config.cluster.start_s,
      windows=windows,
    )
    self.jobs = Jobs(self.deadlines)
    self._terminated_at = math.inf  # Monotonic time of the first SIGTERM.

  def __call__(self) -> None:
    """Runs this process's worker or server, beside another's coordinator.

    Raises:
      Exit: With LOST if the coordinator is lost, as a restart may help; with
        STOPPED if it has ended the run before the run has finished; with
        DRAINED if this process has left the run after SIGTERM.
    """
    if self.meeting.finished:
      logging.info('The run has finished before.')
      return
    self._defer_termination()
    if not self._take_part():
      raise Exit(STOPPED, Reason.STOPPED, 'The coordinator has ended the run.')

  def _take_part(self) -> bool:
    """Runs the worker or server; returns whether the run has finished."""
    raise NotImplementedError

  def _coordinate(self, inheritance: Inherited | None) -> None:
    """Continues the run as its coordinator, until it is over.

    Args:
      inheritance: State that the lost coordinator has left to this process.

    Raises:
      Relinquished: If another process continues it.
      SystemExit: After SIGTERM.
    """
    if inheritance is None:
      raise RuntimeError('Expected to be elected.')
    run = self.make_run()
    run.was_terminated = self._draining.is_set
    publish = run.take_over(
      inheritance.state, inheritance.age_s, self.parts.manifest
    )
    run.runtime.take_over(inheritance, publish)
    run()

  @property
  def can_drain(self) -> bool:
    """True if the run continues when this process leaves it."""
    raise NotImplementedError

  def _defer_termination(self) -> None:
    """Handles SIGTERM and SIGHUP from now on; only main threads can."""
    stops.handle_termination(self._handle_termination)

  def _handle_termination(self, number: int, frame: object) -> None:
    """Lets the coordinator decide at the first signal; the next one ends it.

    If a scheduler sends it to all processes, the coordinator saves a checkpoint
    and then ends the others.  If not, this one leaves, if the others can
    continue.  Its launcher may send the signal as well as the scheduler.
    """
    del frame
    terminal.drop_if_lost()
    name, now = processes.Signals(number).name, clock.monotonic()
    if now - self._terminated_at > _SAME_S:
      processes.handle_signal(number, processes.SIG_DFL)
      processes.kill(processes.getpid(), number)
    elif self._terminated_at == math.inf:
      self._terminated_at = now
      if self.can_drain:
        logging.info('%s: this worker leaves, unless the run ends.', name)
        self._draining.set()
      else:
        logging.info('%s: it is for the coordinator to end the run.', name)

  @property
  def is_coordinator(self) -> bool:
    """True if the coordinator is in this process."""
    raise NotImplementedError

  @property
  def _coordinator_port(self) -> int:
    """Port that the coordinator listens on."""
    return int(self.meeting.role.coordinator.rpartition(':')[2])

  @property
  def num_factors(self) -> int:
    """Number of driving factors that a worker may report."""
    speed = self.parts.speed
    return speed.model.num_driving if speed else len(driving.NAMES)

  @property
  def evaluate(self) -> Evaluation | None:
    """Evaluation of versions, in the coordinator's process; None for none."""
    return self.parts.learned.evaluate

  @processes.CachedProperty
  def run_in_thread(self) -> Callable[[Callable[[], Any]], threads.Future[Any]]:
    """Function that calls another one in a thread, for the coordinator."""
    pool = threads.ThreadPoolExecutor(1)
    return lambda call: pool.submit(self._evaluate, call)

  def _evaluate(self, call: Callable[[], Any]) -> Any:
    """Returns the result of an evaluation; called in a thread, as a job."""
    self.jobs.begin('an evaluation')
    try:
      return call()
    finally:
      self.jobs.end('an evaluation')


def _check_free(host: str, port: int, field: str = '') -> None:
  """Raises OSError if a port cannot be listened on; 0 is any port."""
  taken = sockets.refusal(host, port) if port else None
  if taken:
    where = sockets.join(host, port)
    raise OSError(taken.errno, f'{field}{where}: {taken.strerror}')
