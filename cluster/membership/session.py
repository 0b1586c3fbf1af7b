"""Session of a worker: its control stream to the coordinator."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Generic, Self, TypeVar

from absl import logging

from cluster.membership.joining import RankHeld, drop, join
from cluster.membership.process import Settings
from cluster.network.errors import InvalidMessage, Refused, TransportError
from cluster.network.heartbeat import BEATS, Heartbeat
from cluster.network.messages import (
  WORKER_ADMISSION,
  FromReplica,
  FromWorker,
  HeartbeatReply,
  Progress,
  Schema,
  SessionEnd,
  WorkerHeartbeat,
  WorkerHello,
)
from cluster.process.exits import DRAINED, LOST, Exit, Reason
from system import threads

T = TypeVar('T')


class Session(Generic[T]):
  """A context manager, within which the control stream is open.

  The functions that it calls from other threads are called after `__enter__`
  begins and before `__exit__` returns, so that none of them meets the next
  session of the worker.

  Attributes:
    incarnation: Number of the incarnation of the worker's process, from 0.
    succeeds: Term that the coordinator succeeds: see `WorkerAdmitted`.
    heartbeat: Heartbeat on the stream.
    stack: Resources that are closed with the session.
  """

  def __init__(
    self,
    coordinator: str | Callable[[], str],
    index: int,
    settings: Settings,
    *,
    schema: Schema[HeartbeatReply | SessionEnd | T],
    progress: Callable[[], Progress],
    receive: Callable[[T], None],
    on_hang: Callable[[str], None],
    on_end: Callable[[], None],
    is_blocked: Callable[[], bool] = lambda: False,
    patience_s: Callable[[], float] = lambda: 0.0,
  ):
    """Creates the session: connects to the coordinator.

    Args:
      coordinator: HOST:PORT of the coordinator, or a function that returns it
        for each attempt to connect.
      index: Rank of the worker.
      settings: Settings of all processes of the run.
      schema: Messages that the coordinator may send.
      progress: Returns the progress that every heartbeat carries.
      receive: Called with every message of the coordinator that is not about
        the session, from another thread.
      on_hang: Called from another thread if the context does not exit after the
        session has ended, or from `__exit__` if one of these functions does not
        return, with the coordinator's reason: 'left', 'over' or 'lost'.
      on_end: Called from another thread once the coordinator has ended the
        session, or is lost; must unblock everything that the context waits for.
      is_blocked: Returns whether the context waits for something that `on_end`
        cannot unblock; `on_hang` is then called sooner, unless the run has
        finished: the other workers end such a wait then.
      patience_s: Returns for how many more seconds the context may not exit if
        the coordinator is lost, as it does something that cannot be
        interrupted.

    Raises:
      TransportError: If the coordinator cannot be reached.
    """
    timeout_s = settings.timeout_s
    self._control, admission = join(
      coordinator,
      WorkerHello(
        *(index, settings.process, settings.fingerprint, settings.versions),
        dict(settings.fields),
      ),
      WORKER_ADMISSION,
      security=settings.security,
      timeout_s=timeout_s,
      start_s=settings.start_s,
      is_leaving=settings.is_draining,
    )
    self.incarnation = admission.incarnation
    self.succeeds = admission.succeeds
    self._index, self._timeout_s = index, timeout_s
    self._on_hang = on_hang
    self._on_end, self._is_blocked = on_end, is_blocked
    self._patience_s = patience_s
    self._exited = threads.Event()
    self.stack = contextlib.ExitStack()
    self.stack.callback(drop, self._control)
    self.heartbeat = Heartbeat(
      self._control,
      schema=schema,
      timeout_s=timeout_s,
      beat=lambda now: WorkerHeartbeat(now, progress(), settings.is_draining()),
      receive=receive,
      on_end=self._unblock,
    )

  def __enter__(self) -> Self:
    # Its threads use the attributes of this class and of derived ones.
    self.heartbeat.start()
    return self

  def __exit__(self, *exception: object) -> None:
    self._exited.set()
    self.stack.close()
    if not self.heartbeat.join(self._timeout_s):
      self._on_hang(self.heartbeat.end.kind)

  def send(self, message: FromWorker | FromReplica) -> None:
    """Sends a message to the coordinator, unless the session has ended."""
    if not self.heartbeat.ended.is_set():
      self._control.send(message)

  @contextlib.contextmanager
  def suppress_errors(self) -> Iterator[None]:
    """Suppresses transport errors at the end of the session.

    Raises:
      Refused: If the coordinator or a server has refused this worker.
      InvalidMessage: If one of them has sent a message that cannot be true.
    """
    try:
      yield
    except (Refused, InvalidMessage):
      raise
    except TransportError as error:
      # The coordinator may know the reason, and sends it.
      has_ended = self.heartbeat.ended.wait(self._timeout_s / BEATS)
      if has_ended and self.heartbeat.end.kind in ('over', 'drained'):
        return  # Streams end with the run.
      logging.info('Worker %d: %s', self._index, error)
    if self.heartbeat.invalid:
      raise self.heartbeat.invalid

  def _unblock(self) -> None:
    """Unblocks the context, in the heartbeat's thread, once the session ends.

    Calls `on_hang` if the context has not exited within `timeout_s`, or, if it
    is blocked by others, within a heartbeat.
    """
    self._on_end()
    end = self.heartbeat.end
    for _ in range(BEATS):
      if self._exited.wait(self._timeout_s / BEATS):
        return
      if self._is_blocked() and not end.is_finished:
        self._control.cancel('It waits for others.')
        break
    if end.kind == 'lost' and self._exited.wait(self._patience_s()):
      return
    self._on_hang(end.kind)


@contextlib.contextmanager
def exit_on_error(
  index: int, is_draining: Callable[[], bool]
) -> Iterator[None]:
  """Turns fatal transport errors of a worker into exit codes.

  Exceptions other than TransportError pass through.

  Args:
    index: Rank of the worker, for logs.
    is_draining: Returns whether the process wants to leave the run.

  Raises:
    Exit: Exit code LOST if the worker could not join for
      `config.cluster.start_s` seconds, because the coordinator did not answer
      or another process held the rank, and after any other TransportError;
      DRAINED if it wanted to leave anyhow.
      Exit code 1, with the reason as the message, if the coordinator or a
      server refuses the worker, or sends a message that cannot be true.
  """
  try:
    yield
  except Refused as error:
    raise Exit(1, Reason.REFUSED, f'Refused: {error}') from error
  except InvalidMessage as error:
    text = f'The coordinator or a server has sent an invalid message: {error}'
    raise Exit(1, Reason.FAILED, text) from error
  except TransportError as error:
    if is_draining():
      logging.warning('Worker %d leaves after SIGTERM: %s', index, error)
      text = f'This worker has left after SIGTERM: {error}'
      raise Exit(DRAINED, Reason.DRAINED, text) from error
    does = 'gives up' if isinstance(error, RankHeld) else 'has lost the cluster'
    logging.error('Worker %d %s: %s', index, does, error)
    raise Exit(LOST, Reason.LOST, str(error)) from error
