"""Injected failures of runs whose replicas sum gradients by an allreduce.

Each class overrides the phases of a product class in which failures can
happen; `cluster.process.faults` describes the failures.  A run without
`config.cluster.faults` imports nothing of this.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from cluster.allreduce.executor.connections import MembershipConnections
from cluster.allreduce.executor.exchange import Exchange
from cluster.allreduce.executor.executor import Executor
from cluster.allreduce.executor.lanes import OnEnd
from cluster.allreduce.executor.membership import Membership
from cluster.allreduce.executor.program import Roles
from cluster.allreduce.executor.reduction import Reduction
from cluster.allreduce.planning import PackingRequest
from cluster.allreduce.rendezvous import Rendezvous
from cluster.allreduce.replica import Replica
from cluster.allreduce.site import AllreduceSite
from cluster.allreduce.sums.fragments import FragmentReducer
from cluster.allreduce.sums.host import CheckedFiller, HostReducer
from cluster.allreduce.sums.multi_round import MultiRoundReducer
from cluster.allreduce.sums.multi_round_native import NativeMultiRoundReducer
from cluster.allreduce.sums.native import NativeReducer
from cluster.membership.faults import FaultyRealSite, strike_end
from cluster.membership.process import Meeting
from cluster.membership.session import Session
from cluster.network import messages
from cluster.network.frames import FrameHeader
from cluster.network.socket_loop import SocketLoop
from cluster.process import faults as faults_
from cluster.process.deadlines import ProgressCounter
from cluster.process.faults import Fault, Faults, Kind, Phase
from cluster.runtime import Parts
from learning.iteration import Iteration
from learning.learning import Learner
from route.route import Allreduce


class ChunkFaults:
  """Failures of the chunks that a worker exchanges in one iteration."""

  def __init__(
    self, faults: Faults, worker: int, iteration: int, push: Fault | None
  ):
    """Creates the failures of one iteration.

    Args:
      faults: Failures of the run.
      worker: Rank of the worker.
      iteration: Number of the iteration.
      push: Failure of the push as a whole; None for none.
    """
    self._faults, self._target = faults, (worker, iteration)
    self._push = push
    self._first: Fault | None = None
    self._has_received = self._has_sent = False

  def damage(self, body: Any, chunks_left: int) -> tuple[Any, Any]:
    """Returns the bytes that a chunk's header describes, and those to send.

    They differ if the chunk is to arrive corrupt.

    Args:
      body: Bytes of the chunk.
      chunks_left: Number of chunks that are still to be sent, with this one.
    """
    last = self._due(Phase.LAST) if chunks_left == 1 else None
    faults = [self._push, last]
    self._push = None
    if not self._has_sent:
      self._first = self._due(Phase.FIRST)
      faults.append(self._first)
    kinds = {fault.kind for fault in faults if fault}
    if Kind.WRONG_SIZE in kinds:
      body = body[:-4]
    sent = body
    if Kind.CORRUPT in kinds:
      sent = bytearray(body)
      sent[0] ^= 1
    self._faults.happen(last)
    return body, sent

  def note_sent(self) -> None:
    """Carries out the failure after the first chunk that is sent."""
    if not self._has_sent:
      self._has_sent = True
      self._faults.happen(self._first)

  def note_received(self) -> None:
    """Carries out the failure after the first chunk that is received."""
    if not self._has_received:
      self._has_received = True
      self._faults.happen(self._due(Phase.PULL))

  def _due(self, phase: Phase) -> Fault | None:
    return self._faults.due(*self._target, phase)


def chunk_faults(
  faults: Faults, worker: int, iteration: int, push: Fault | None
) -> ChunkFaults | None:
  """Returns the failures of an iteration's chunks; None if there are none."""
  phases = (Phase.PULL, Phase.FIRST, Phase.LAST)
  if push or faults.is_planned(worker, iteration, phases):
    return ChunkFaults(faults, worker, iteration, push)
  return None


class _FaultyConnections(MembershipConnections):
  """Connections of a membership whose chunks fail.

  Attributes:
    faults: Failures of chunks, by the number of the sum; shared with the
      executor.
  """

  faults: dict[int, ChunkFaults]
  _current: ChunkFaults | None = None

  def begin(self, iteration: int, exchange: Exchange) -> None:
    """Begins a sum, with the failures of its chunks."""
    self._current = self.faults.pop(iteration, None)
    super().begin(iteration, exchange)

  def _pack(
    self, exchange: Exchange, kind: int, chunk: int, body: Any, dtype: int
  ) -> tuple[bytes, Any]:
    sent: Any = None
    if self._current:
      body, sent = self._current.damage(body, exchange.num_unsent)
    header, packed = super()._pack(exchange, kind, chunk, body, dtype)
    return header, packed if sent is None else sent

  def _sent(self, exchange: Exchange, worker: int) -> None:
    super()._sent(exchange, worker)
    if self._current:
      self._current.note_sent()

  def _deliver(self, worker: int, frame: FrameHeader, body: memoryview) -> None:
    is_current = self._exchange and frame.iteration == self.iteration
    super()._deliver(worker, frame, body)
    if self._current and is_current:
      self._current.note_received()


class _FaultyExecutor(Executor):
  """An executor whose chunks fail."""

  def __init__(self, index: int, **arguments: Any):
    """Listens: see `Executor`."""
    self._chunk_faults: dict[int, ChunkFaults] = {}
    super().__init__(index, **arguments)

  def plan(self, number: int, faults: ChunkFaults) -> None:
    """Injects failures into the chunks of a sum that has not begun."""
    self._chunk_faults[number] = faults

  def _make_connections(
    self, loop: SocketLoop, membership: Membership, roles: Roles, on_end: OnEnd
  ) -> MembershipConnections:
    connections = _FaultyConnections(
      loop, membership, roles, self._index, on_end
    )
    connections.faults = self._chunk_faults
    return connections


class _NanFiller(CheckedFiller):
  """A filler of a gradient that is not a number."""

  def put(self, leaf: int, array: np.ndarray) -> None:
    """Writes not-a-number in place of a leaf's numbers."""
    super().put(leaf, array * np.float32('nan'))


class FaultyHostReducer(HostReducer):
  """A HostReducer with failures of gradients and chunks."""

  def __init__(self, index: int, *, faults: Faults, **arguments: Any):
    """Creates the sum: see `HostReducer`."""
    super().__init__(index, **arguments)
    self._faults = faults
    self._planned: ChunkFaults | None = None

  def _make_executor(self) -> Executor:
    return _FaultyExecutor(self._index, **self._executor_arguments)

  def compute(
    self, learner: Learner, iteration: Iteration, **kwargs: Any
  ) -> tuple[float | None, bool]:
    """Computes a gradient: see `Reducer`."""
    self._planned = chunk_faults(
      self._faults, iteration.worker, iteration.number, self._faults.push
    )
    return super().compute(learner, iteration, **kwargs)

  def _begin_sum(self, number: int, *args: Any, is_last: bool) -> Reduction:
    executor = self._running
    if is_last and self._planned and isinstance(executor, _FaultyExecutor):
      executor.plan(number, self._planned)
    return super()._begin_sum(number, *args, is_last=is_last)

  def _make_filler(
    self, vector: np.ndarray, ready: Callable[[int], None]
  ) -> CheckedFiller:
    push = self._faults.push
    if push and push.kind == Kind.NAN:
      return _NanFiller(self._layout, vector, ready)
    return super()._make_filler(vector, ready)


class _FaultyMultiRoundReducer(FaultyHostReducer, MultiRoundReducer):
  """A MultiRoundReducer with failures of gradients and chunks."""


class _FaultyFragmentReducer(FaultyHostReducer, FragmentReducer):
  """A FragmentReducer with failures of displacements and chunks."""


class _FaultyNativeReducer(NativeReducer):
  """A NativeReducer whose gradients fail; its chunks are XLA's."""

  def __init__(self, *args: Any, faults: Faults, **arguments: Any):
    """Creates the sum: see `NativeReducer`."""
    super().__init__(*args, **arguments)
    self._faults = faults

  def compute(
    self, learner: Learner, iteration: Iteration, **kwargs: Any
  ) -> tuple[float | None, bool]:
    """Computes a gradient: see `Reducer`."""
    loss, is_finite = super().compute(learner, iteration, **kwargs)
    push = self._faults.push
    if push and push.kind == Kind.NAN:
      self._payload = self.place(faults_.to_nan(push, self._payload))
      is_finite = bool(jax.device_get(self._is_finite(self._payload)))
    return loss, is_finite


class _FaultyNativeMultiRoundReducer(
  _FaultyNativeReducer, NativeMultiRoundReducer
):
  """A NativeMultiRoundReducer whose gradients fail."""


class _FaultyProgress(ProgressCounter):
  """A counter of progress that calls a function at each chunk."""

  def __init__(self, strike: Callable[[], None]):
    """Starts with no progress recorded."""
    super().__init__()
    self._strike = strike

  def count_chunk(self) -> None:
    """Counts a chunk, and carries out the failure that is due."""
    super().count_chunk()
    self._strike()


class FaultyRendezvous(Rendezvous):
  """A rendezvous whose process fails before it packs a forest."""

  def __init__(self, *args: Any, faults: Faults, local: int, **arguments: Any):
    """Creates a rendezvous: see `Rendezvous`."""
    super().__init__(*args, local=local, **arguments)
    self._faults = faults

  def _make_request(self, *args: Any) -> PackingRequest:
    self._faults.strike_counted(self.local, Phase.PACK)
    return super()._make_request(*args)


class FaultyReplica(Replica):
  """A replica that fails in its phases as the config says."""

  def __init__(self, index: int, *, faults: Faults, **arguments: Any):
    """Creates the replica: see `Replica`."""
    super().__init__(index, **arguments)
    self._faults, self._is_fetching = faults, False

  def _prepare(self, session: Session[messages.ToReplica]) -> None:
    self._progress = _FaultyProgress(self._strike_fetch)
    super()._prepare(session)

  def _strike_fetch(self) -> None:
    if self._is_fetching:
      self._is_fetching = False
      self._faults.strike_counted(self.index, Phase.FETCH)

  def _fetch(self, *args: Any, **kwargs: Any) -> Any:
    self._is_fetching = True
    try:
      return super()._fetch(*args, **kwargs)
    finally:
      self._is_fetching = False

  def _state_of(self, request: messages.StateRequest) -> tuple[Any, str]:
    self._faults.strike_counted(self.index, Phase.SERVE)
    return super()._state_of(request)

  def _handle(
    self,
    session: Session[messages.ToReplica],
    message: messages.ToReplica | None,
  ) -> None:
    if isinstance(message, messages.ConnectMembers):
      self._faults.strike_counted(self.index, Phase.RENDEZVOUS)
    elif isinstance(message, messages.ProbeOrder):
      self._faults.strike_counted(self.index, Phase.PROBE)
    super()._handle(session, message)

  def _apply(self, assignment: messages.Assignment) -> None:
    super()._apply(assignment)
    self._faults.strike(self.index, assignment.iteration, Phase.APPLIED)

  def _report_ready(
    self, session: Session[messages.ToReplica], address: str
  ) -> None:
    self._faults.strike(self.index, session.incarnation, Phase.START)
    super()._report_ready(session, address)

  def _log_end(self, session: Session[messages.ToReplica]) -> None:
    super()._log_end(session)
    strike_end(self._faults, self.index, session)

  def _begin(self, assignment: messages.Assignment) -> None:
    super()._begin(assignment)
    if isinstance(self._reducer, NativeReducer):  # It shows no chunks.
      self._faults.strike(self.index, assignment.iteration, Phase.PULL)

  def _compute_gradient(
    self, assignment: messages.Assignment, least_s: float
  ) -> tuple[float | None, bool]:
    push = self._faults.strike_push(self.index, assignment.iteration)
    if push and push.kind == Kind.FLIP:
      self._flip()
    return super()._compute_gradient(assignment, least_s)

  def _flip(self) -> None:
    """Changes a bit of the parameters, as damaged memory would."""
    state = self.learner.state()
    flipped = faults_.flip_bit(state['params'])
    state |= {'params': self._reducer.place(flipped)}
    with self._state_lock:
      self.learner.restore(state)
      self._known_digest = None


class FaultyAllreduceSite(FaultyRealSite, AllreduceSite):
  """A site of a run whose replicas fail as `config.cluster.faults` says."""

  def __init__(
    self, config: ConfigDict, meeting: Meeting, parts: Parts, plan: Allreduce
  ):
    """Creates the site: see `AllreduceSite`.

    Raises:
      ValueError: If a failure has the wrong form; names the field.
    """
    folder = parts.files.workdir / 'faults'
    self.faults = faults_.make(config, 1, folder)

    def with_faults(type_: Callable[..., Any]) -> Callable[..., Any]:
      return functools.partial(type_, faults=self.faults)

    self._replica_type = with_faults(FaultyReplica)
    self._rendezvous_type = with_faults(FaultyRendezvous)
    self._host_type = with_faults(FaultyHostReducer)
    self._fragment_type = with_faults(_FaultyFragmentReducer)
    self._multi_round_type = with_faults(_FaultyMultiRoundReducer)
    self._native_type = with_faults(_FaultyNativeReducer)
    self._native_multi_round_type = with_faults(_FaultyNativeMultiRoundReducer)
    AllreduceSite.__init__(self, config, meeting, parts, plan)
