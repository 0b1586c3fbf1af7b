"""Injected failures of runs with parameter servers.

Each class overrides the phases of a product class in which failures can
happen; `cluster.process.faults` describes the failures.  A run without
`config.cluster.faults` imports nothing of this.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from cluster.membership.faults import FaultyRealSite, strike_end
from cluster.membership.process import Meeting
from cluster.network import messages
from cluster.network.streams import Spoil, Stream, chunked
from cluster.parameter_server import checkpoints as sharded
from cluster.parameter_server.session import ParameterServerSession
from cluster.parameter_server.site import ParameterServerSite
from cluster.parameter_server.versions import Report, ShardVersions
from cluster.parameter_server.worker import Worker
from cluster.process import faults as faults_
from cluster.process.faults import Fault, Faults, Kind, Phase
from cluster.runtime import Parts
from configs.checks import require
from outputs import serialization
from route.route import ParameterServer
from system import threads
from wire.codec import Payload


class FaultyWorker(Worker):
  """A worker that fails in its phases as the config says.

  Failures that have a moment among chunks happen at those of server 0.
  """

  def __init__(self, index: int, *, faults: Faults, **arguments: Any):
    """Creates the worker: see `Worker`."""
    super().__init__(index, **arguments)
    self._faults = faults
    # Phases of the pull, and of the first and last chunk of the push.
    self._late: Fault | None = None
    self._first: Fault | None = None
    self._last: Fault | None = None

  def _report_ready(self, session: ParameterServerSession) -> None:
    self._faults.strike(self.index, session.incarnation, Phase.START)
    super()._report_ready(session)

  def _log_end(self, session: ParameterServerSession) -> None:
    super()._log_end(session)
    strike_end(self._faults, self.index, session)

  def _pull(self, streams: Sequence[Stream]) -> messages.Pull:
    due = self._faults.due
    self._late = due(self.index, self._iteration + 1, Phase.PULL)
    return super()._pull(streams)

  def _incoming(
    self, server: int, chunks: Iterable[np.ndarray]
  ) -> Iterable[np.ndarray]:
    if server == 0:
      chunks = self._faults.during(chunks, self._late, None)
    return super()._incoming(server, chunks)

  def _compute(
    self, pull: messages.Pull, optimizer: Any
  ) -> tuple[Payload, Any, Any]:
    payload, loss, optimizer = super()._compute(pull, optimizer)
    push = self._faults.strike_push(self.index, self._iteration)
    return faults_.to_nan(push, payload), loss, optimizer

  def _push(
    self, streams: Sequence[Stream], *arguments: Any
  ) -> list[threads.Future[None]]:
    due = self._faults.due
    self._first = due(self.index, self._iteration, Phase.FIRST)
    self._last = due(self.index, self._iteration, Phase.LAST)
    return super()._push(streams, *arguments)

  def _send(
    self,
    server: int,
    stream: Stream,
    report: messages.PushReport,
    push: list[np.ndarray],
  ) -> None:
    fault = self._faults.push
    if fault is None or fault.kind != Kind.WRONG_SIZE:
      super()._send(server, stream, report, push)
      return
    halves = [part[: part.size // 2] for part in push]
    size_bytes = sum(part.size for part in halves)
    self._transmit(server, stream, report, chunked(halves), size_bytes)

  def _transmit(
    self,
    server: int,
    stream: Stream,
    report: messages.PushReport,
    chunks: Iterable[np.ndarray],
    size_bytes: int,
  ) -> None:
    if server == 0:
      chunks = self._faults.during(chunks, self._first, self._last)
    corrupt = _corrupt_chunk(self._faults.push, self._first, self._last)
    stream.send(report, self._count_chunks(chunks), size_bytes, spoil=corrupt)


class FaultyShardVersions(ShardVersions):
  """A server's part of checkpoints, before whose writing failures happen."""

  def __init__(
    self, server: int, faults: Faults, *arguments: Any, **given: Any
  ):
    """Creates the part of a server: see `ShardVersions`."""
    super().__init__(*arguments, **given)
    self._server, self._faults = f'server:{server}', faults

  def _write(self, step: int, tree: Callable[[], serialization.Tree]) -> None:
    self._faults.strike(self._server, step, Phase.CHECKPOINT)
    super()._write(step, tree)


class FaultyParameterServerSite(FaultyRealSite, ParameterServerSite):
  """A site whose worker and server fail as `config.cluster.faults` says."""

  def __init__(
    self,
    config: ConfigDict,
    meeting: Meeting,
    parts: Parts,
    plan: ParameterServer,
  ):
    """Creates the site: see `ParameterServerSite`.

    Raises:
      ValueError: If a failure has the wrong form; names the field.
    """
    folder = parts.files.workdir / 'faults'
    self.faults = faults_.make(config, plan.servers, folder)
    flips = Kind.FLIP in self.faults.kinds
    expected = "no 'flip', as workers keep no parameters between iterations"
    require(not flips, 'config.cluster.faults', expected, config.cluster.faults)
    others = self.faults.phases & {Phase.APPLIED, *faults_.COUNTED}
    expected = f'none of {sorted(others)}, which only replicas have'
    require(
      not others, 'config.cluster.faults', expected, config.cluster.faults
    )
    self._worker_type = functools.partial(FaultyWorker, faults=self.faults)
    ParameterServerSite.__init__(self, config, meeting, parts, plan)

  def _make_versions(
    self, index: int, held: Mapping[int, Any], report: Report
  ) -> ShardVersions:
    return FaultyShardVersions(
      index,
      self.faults,
      self._directory,
      sharded.server_part(index),
      held=held,
      report=report,
    )


def _corrupt_chunk(
  push: Fault | None, first: Fault | None, last: Fault | None
) -> Spoil | None:
  """Returns which chunk of a push its failures corrupt; None for none."""
  if last and last.kind == Kind.CORRUPT:
    return 'last'
  is_early = any(one and one.kind == Kind.CORRUPT for one in (push, first))
  return 'first' if is_early else None
