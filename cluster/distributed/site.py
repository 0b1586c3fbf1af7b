"""A process's part of a run on real hosts: a worker, a server, or the lead.

Servers are threads of the workers' processes, server k in that of worker k, or
dedicated processes.  The lead is with server 0.
"""

import faulthandler
import functools
import itertools
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, NamedTuple, NoReturn

import jax
from absl import logging
from ml_collections import ConfigDict

from cluster.distributed import devices, faults, roles
from cluster.distributed.faults import Phase
from cluster.distributed.pace import Deadlines, Jobs
from cluster.distributed.reception import Reception
from cluster.distributed.runtime import DistributedRuntime
from cluster.distributed.served import checkpoints as sharded
from cluster.distributed.served.hosting import host
from cluster.distributed.served.keeping import Keeping
from cluster.distributed.served.orders import Orders
from cluster.distributed.served.pieces import Pieces
from cluster.distributed.served.server import Report, Server
from cluster.distributed.worker import Worker
from cluster.lead import Lead
from cluster.runtime import Parts
from cluster.speed import build
from cluster.speed.speed import Speed
from cluster.transport import memory, pauses, streams, trust
from cluster.transport.heart import LOST, STOPPED, Unmendable
from cluster.transport.streams import Refused
from configs.checks import require
from configs.sections import Choose, named
from outputs.files import RunFiles, fingerprint
from route.route import Served
from wire.flat import pieces, share


class Meeting(NamedTuple):
  """Where a process meets the others.

  Attributes:
    role: Of this process.
    address: Of its host, to listen on.
    finished: Whether the run is over already, so that nobody is to be met.
    devices: How many it computes gradients on.
  """

  role: roles.Role
  address: str
  finished: bool
  devices: int


def meet(
  config: ConfigDict,
  plan: Served,
  *,
  files: RunFiles,
  process: Mapping[str, str],
) -> Meeting:
  """Returns which process this is, and where the others are.

  Processes are no part of jax.distributed: nobody runs a collective, and its
  coordination service would end processes whose run can go on.  So each names
  its own devices, before XLA starts.

  Raises:
    ValueError: If a setting is wrong; names the field.
  """
  workers, count = config.cluster.workers, config.cluster.devices_per_worker
  the_same = 'the folder that all processes of the run share'
  require(files.named, 'workdir', the_same, None)
  with named('config.cluster'):
    address = streams.interface_address(config.cluster.interface)
  role = roles.find(
    os.environ,
    workers=workers,
    dedicated=plan.servers if plan.dedicated else 0,
    here=address,
    **process,
  )
  finished = files.finished() is not None
  if not finished:
    memory.advise()
  if role.kind == 'server':
    jax.config.update('jax_platforms', 'cpu')
    return Meeting(role, address, finished, devices=0)
  if seen := len(devices.gpus(os.environ)):
    own = devices.own(os.environ, seen, count=count)
    if len(own) < seen:
      jax.config.update('jax_cuda_visible_devices', ','.join(map(str, own)))
  return Meeting(role, address, finished, devices=count)


def speed(config: ConfigDict, choose: Choose) -> Speed | None:
  """Returns how long workers compute at least; None for as long as they do."""
  injected = config.cluster.speed.injected
  return build.make(config, choose) if injected else None


class DistributedSite:
  """See `cluster.runtime`; every process has one."""

  clock: Literal['real'] = 'real'

  def __init__(self, config: ConfigDict, meeting: Meeting, parts: Parts):
    """Makes what all processes of a run know.

    Args:
      config: Of the run.
      meeting: Which process this is, and where the others are.
      parts: What the run is made of.

    Raises:
      ValueError: If a setting is wrong; names the field.
    """
    self._meeting, self._parts = meeting, parts
    self._plan, learned = parts.plan, parts.learned
    self._directory = parts.files.workdir / 'checkpoints'
    self._checkpoint = config.checkpoint.to_dict()
    self._fingerprint = fingerprint(parts.described)
    self._security = trust.security(config.cluster, meeting.address)
    self._timeout_s = config.cluster.timeout_s
    self._start_s = config.cluster.start_s
    self._faults = faults.make(
      config, self._plan.servers, parts.files.workdir / 'faults'
    )
    self._deadlines = Deadlines(
      timeout_s=self._timeout_s,
      start_s=self._start_s,
      windows=self._plan.pipelined,
    )
    self._jobs = Jobs(self._deadlines)
    self._evaluations = itertools.count()
    self._stuck = False  # The worker hangs, in a process that is needed.
    with named(f'config.route.{config.route.name}'):
      self._flat = learned.flat(servers=self._plan.servers, wire=parts.wire)
    self.holder = Orders(
      flat=self._flat,
      schedule=learned.schedule,
      num_workers=config.cluster.workers,
    )

  @functools.cached_property
  def later(self) -> Callable[[Callable[[], Any]], Future]:
    """Calls a function in another thread, for the process that leads."""
    pool = ThreadPoolExecutor(1)
    return lambda call: pool.submit(self._evaluated, call)

  @functools.cached_property
  def checkpoints(self) -> sharded.ShardedCheckpoints:
    """Of the run, for the process that leads."""
    with named('config.checkpoint'):
      return sharded.ShardedCheckpoints(
        self._directory,
        orders=self.holder,
        num_servers=self._plan.servers,
        jobs=self._jobs,
        **self._checkpoint,
      )

  @property
  def leads(self) -> bool:
    """Whether this process is the lead."""
    kind = 'server' if self._plan.dedicated else 'worker'
    role = self._meeting.role
    return (role.kind, role.index) == (kind, 0)

  def runtime(self, lead: Lead) -> DistributedRuntime:
    """Returns what runs the events, for the process that leads."""
    reception = Reception(
      orders=self.holder,
      num_workers=len(lead.workers),
      num_servers=self._plan.servers,
      host=self._meeting.address,
      port=int(self._meeting.role.lead.rpartition(':')[2]),
      greeting=lambda: {'restore': self.checkpoints.found},
      fingerprint=self._fingerprint,
      security=self._security,
      timeout_s=self._timeout_s,
      start_s=self._start_s,
      deadlines=self._deadlines,
      jobs=self._jobs,
    )
    return DistributedRuntime(
      lead=lead,
      orders=self.holder,
      reception=reception,
      server=functools.partial(self._server, 0),
      num_servers=self._plan.servers,
      timeout_s=self._timeout_s,
      start_s=self._start_s,
      deadlines=self._deadlines,
      local=None if self._plan.dedicated else self._worker,
    )

  def __call__(self) -> None:
    """Takes part in a run that another process leads.

    The first SIGTERM is not heeded: where all processes get it, the lead saves
    a checkpoint and then ends the others.

    Raises:
      SystemExit: With LOST if the cluster is lost: starting again may help.
        With STOPPED if the lead has ended the run before it has finished.
    """
    if self._meeting.finished:
      logging.info('The run has finished before.')
      return
    signal.signal(signal.SIGTERM, _wait_for_the_lead)
    role, plan = self._meeting.role, self._plan
    if role.kind == 'server':
      if not self._host():
        sys.exit(STOPPED)
      return
    beside = None
    if not plan.dedicated and role.index < plan.servers:
      beside = threading.Thread(target=self._host_beside, daemon=True)
      beside.start()
    finished = self._worker(role.lead)()
    if beside:
      beside.join(self._start_s)
    if not finished:
      sys.exit(STOPPED)

  def _evaluated(self, call: Callable[[], Any]) -> Any:
    """Returns what an evaluation does, in a thread of its own."""
    self._jobs.begin('an evaluation')
    try:
      number = next(self._evaluations)
      due = self._faults.due('server:0', number, Phase.EVALUATION)
      self._faults.happen(due)
      return call()
    finally:
      self._jobs.end('an evaluation')

  def _worker(self, lead: str) -> Worker:
    return Worker(
      self._meeting.role.index,
      gradient=self._parts.learned.gradient,
      flat=self._flat,
      batching=self._parts.batching,
      speed=self._parts.speed,
      faults=self._faults,
      lead=lead,
      fingerprint=self._fingerprint,
      security=self._security,
      timeout_s=self._timeout_s,
      start_s=self._start_s,
      hung=self._hung,
    )

  def _hung(self, end: str) -> None:
    """Ends a process whose worker hangs, unless others need it.

    Args:
      end: What the lead has said to the worker.
    """
    index, plan = self._meeting.role.index, self._plan
    holds = not plan.dedicated and index < plan.servers
    needed = self.leads or (holds and end == 'left')
    self._stuck = needed
    stays = ', and stays away: others need its process' if needed else ''
    logging.error('Worker %d hangs%s.', index, stays)
    faulthandler.dump_traceback()
    if not needed:
      _end(LOST)

  def _host(self) -> bool:
    """Is a server until the end of the run; returns whether it has finished."""
    role = self._meeting.role
    try:
      return host(
        role.index,
        functools.partial(self._server, role.index),
        lead=role.lead,
        address=self._meeting.address,
        fingerprint=self._fingerprint,
        security=self._security,
        timeout_s=self._timeout_s,
        start_s=self._start_s,
      )
    except Unmendable as error:
      logging.error('%s', error)
      sys.exit(LOST)
    except Refused as error:
      sys.exit(f'Refused: {error}')

  def _host_beside(self) -> None:
    """Is a server in a thread, whose end by an error is that of the process.

    The worker would come to the lead again and again, without its server.  One
    that hangs does not end the process, either.
    """
    code = 1
    try:
      finished = self._host()
      if not self._stuck:
        return
      code = 0 if finished else STOPPED
    except SystemExit as end:
      if end.code == LOST:
        code = LOST
      else:
        logging.error('%s', end.code)
    except BaseException:
      logging.exception('The server has failed')
    _end(code)

  def _server(
    self, index: int, report: Report, greeting: Mapping[str, Any]
  ) -> Server:
    params, stats = self._flat.initial(index)
    make = self._parts.learned.learner
    if self._plan.pipelined:
      count = pieces(self._plan.servers)
      learner = Pieces(make, params, wire=self._parts.wire, count=count)
    else:
      learner = make(params, stats)
    held: dict[int, Any] = {}
    if greeting['restore'] is not None:
      states = sharded.read_servers(self._directory, *greeting['restore'])
      state = share(states, self._flat.sizes, index)
      held = state.pop('held')
      learner.restore(state)
    return Server(
      index,
      learner=learner,
      flat=self._flat,
      keeping=Keeping(
        sharded.of_server(self._directory, index),
        held=held,
        report=report,
        before=functools.partial(self._before_save, index),
      ),
      report=report,
    )

  def _before_save(self, index: int, step: int) -> None:
    who = f'server:{index}'
    self._faults.happen(self._faults.due(who, step, Phase.CHECKPOINT))


def make(config: ConfigDict, meeting: Meeting, parts: Parts) -> DistributedSite:
  """Returns the site.

  Raises:
    ValueError: If a setting is wrong; names the field.
  """
  _check_divisible(config, parts)
  if config.cluster.interface != 'lo':
    pauses.tell()
  site = DistributedSite(config, meeting, parts)
  if site.leads:
    if not config.cluster.speed.injected:
      logging.info('Not used by real hosts: config.cluster.speed.')
    where = 'processes of their own' if parts.plan.dedicated else 'workers'
    whole = ', as config.optimizer.clip_norm needs whole updates'
    why = whole if config.optimizer.clip_norm < math.inf else ''
    logging.info('Servers: %d, in %s%s.', parts.plan.servers, where, why)
    logging.info('Not used by real hosts: config.cluster.network.')
  return site


def _check_divisible(config: ConfigDict, parts: Parts) -> None:
  """Checks that servers which hold parts of layers can apply updates."""
  optimizer, plan = config.optimizer, parts.plan
  whole = 'an optimizer without norms of layers, as servers hold parts of them'
  require(optimizer.name != 'lars', 'config.optimizer.name', whole, 'lars')
  expected = 'False for models with running statistics'
  valid = not (plan.pipelined and jax.tree.leaves(parts.learned.stats))
  require(valid, 'config.route.server.pipelined', expected, plan.pipelined)
  one = 'inf unless one server applies updates as a whole'
  parted = plan.servers > 1 or plan.pipelined
  valid = not parted or optimizer.clip_norm == math.inf
  require(valid, 'config.optimizer.clip_norm', one, optimizer.clip_norm)


def _end(code: int) -> NoReturn:
  """Ends this process, whatever its other threads do."""
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code)


def _wait_for_the_lead(number: int, frame: object) -> None:
  del frame
  logging.info('SIGTERM: it is for the lead to end the run.')
  signal.signal(number, signal.SIG_DFL)
