"""What each process of a distributed run does.

Servers are threads of the workers' processes, server k in that of worker k, or
dedicated processes.  The lead is with server 0.
"""

import dataclasses
import functools
import pathlib
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from absl import logging

from batching.batching import Batching
from cluster.distributed.faults import Faults
from cluster.distributed.meeting import Rendezvous
from cluster.distributed.reception import Reception
from cluster.distributed.runtime import DistributedCluster
from cluster.distributed.served import checkpoints as sharded
from cluster.distributed.served.checkpoints import ShardedCheckpoints
from cluster.distributed.served.orders import Servers
from cluster.distributed.served.pieces import Pipeline
from cluster.distributed.served.server import Report, Shard, host
from cluster.distributed.worker import Worker
from cluster.lead import Lead
from cluster.speed.speed import Speed
from cluster.transport.heart import LOST, START, Unmendable
from cluster.transport.streams import Refused, Security
from wire.flat import share


@dataclasses.dataclass
class Processes:
  """What all processes of a run know.

  Attributes:
    meeting: Which process this is, and where the others are.
    num_servers: Number of servers.
    dedicated: Whether servers are processes of their own.
    layout: Of what travels.
    learning: What is learned: a gradient, servers, initial parameters.
    batching: How many examples iterations have.
    pipelined: Whether servers serve pieces before the barrier.
    speed: How long iterations take at least; None for as long as they take.
    faults: What goes wrong on purpose.
    directory: Of the checkpoints, which all processes share.
    checkpoint: Arguments of `Checkpoints`.
    fingerprint: Of the config.
    security: Of all streams.
    timeout_s: Silence after which a process counts as lost.
    servers: All of them, for the process that leads.
  """

  meeting: Rendezvous
  num_servers: int
  dedicated: bool
  layout: Any
  learning: Any
  batching: Batching
  pipelined: bool
  speed: Speed | None
  faults: Faults
  directory: pathlib.Path
  checkpoint: Mapping[str, Any]
  fingerprint: str
  security: Security
  timeout_s: float

  def __post_init__(self) -> None:
    self.servers = Servers(layout=self.layout, schedule=self.learning.schedule)

  @functools.cached_property
  def checkpoints(self) -> ShardedCheckpoints:
    """Of the run, for the process that leads."""
    return ShardedCheckpoints(
      self.directory,
      servers=self.servers,
      num_servers=self.num_servers,
      **self.checkpoint,
    )

  @property
  def leads(self) -> bool:
    """Whether this process is the lead."""
    kind = 'server' if self.dedicated else 'worker'
    return (self.meeting.role.kind, self.meeting.role.index) == (kind, 0)

  def cluster(self, lead: Lead) -> DistributedCluster:
    """Returns the whole cluster, for the process that leads."""
    local = None if self.dedicated else self._worker(leaving=lambda: None)
    reception = Reception(
      servers=self.servers,
      num_workers=len(lead.workers),
      num_servers=self.num_servers,
      host=self.meeting.address,
      port=self.meeting.port,
      greeting=lambda: {'restore': self.checkpoints.found},
      fingerprint=self.fingerprint,
      security=self.security,
      timeout_s=self.timeout_s,
    )
    return DistributedCluster(
      lead=lead,
      reception=reception,
      shard=lambda report, greeting: self._shard(0, report, greeting),
      num_servers=self.num_servers,
      announce=self.meeting.announce,
      timeout_s=self.timeout_s,
      local=local,
    )

  def __call__(self) -> None:
    """Takes part in a run that another process leads.

    The first SIGTERM is not heeded: where all processes get it, the lead saves
    a checkpoint and then ends the others.

    Raises:
      SystemExit: With LOST if the cluster is lost: starting again may help.
    """
    if not self.meeting.joined:
      logging.info('The run has finished before.')
      return
    signal.signal(signal.SIGTERM, _wait_for_the_lead)
    if self.meeting.role.kind == 'server':
      self._host()
      return
    threads = []
    if not self.dedicated and self.meeting.role.index < self.num_servers:
      threads.append(threading.Thread(target=self._host, daemon=True))
    for thread in threads:
      thread.start()
    try:
      self._worker(leaving=self.meeting.leave)()
    except SystemExit as end:
      if end.code == LOST:
        self.meeting.abandon()
      raise
    for thread in threads:
      thread.join(START * self.timeout_s)

  def _worker(self, *, leaving: Callable[[], None]) -> Worker:
    return Worker(
      self.meeting.role.index,
      gradient=self.learning.gradient,
      layout=self.layout,
      params=self.learning.params,
      batching=self.batching,
      speed=self.speed,
      faults=self.faults,
      lead=self.meeting.lead,
      fingerprint=self.fingerprint,
      security=self.security,
      timeout_s=self.timeout_s,
      leaving=leaving,
    )

  def _host(self) -> None:
    index = self.meeting.role.index
    try:
      host(
        index,
        lambda report, greeting: self._shard(index, report, greeting),
        lead=self.meeting.lead,
        address=self.meeting.address,
        fingerprint=self.fingerprint,
        security=self.security,
        timeout_s=self.timeout_s,
      )
    except Unmendable as error:
      logging.error('%s', error)
      sys.exit(LOST)
    except Refused as error:
      sys.exit(f'Refused: {error}')

  def _shard(
    self, index: int, report: Report, greeting: Mapping[str, Any]
  ) -> Shard:
    initial = self.layout.initial(index)
    make = self.learning.server
    if self.pipelined:
      make = functools.partial(Pipeline, make, dtype=self.layout.dtype)
    server = make(initial.gradient, initial.stats)
    if greeting['restore'] is not None:
      states = sharded.read_servers(self.directory, *greeting['restore'])
      server.restore(share(states, self.layout.sizes, index))
    return Shard(
      index,
      server=server,
      layout=self.layout,
      checkpoints=sharded.of_server(self.directory, index, **self.checkpoint),
      report=report,
    )


def _wait_for_the_lead(number: int, frame: object) -> None:
  del frame
  logging.info('SIGTERM: it is for the lead to end the run.')
  signal.signal(number, signal.SIG_DFL)
