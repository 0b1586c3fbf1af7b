"""A process of a run with parameter servers: worker, server or coordinator.

Servers are threads of the workers' processes, server k in that of worker k, or
have processes of their own.  The coordinator is in the process of server 0.
"""

import faulthandler
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
from absl import logging
from ml_collections import ConfigDict

from cluster.coordinator import Coordinator
from cluster.membership.process import Meeting, RealSite
from cluster.membership.succession import Succession, limit_join
from cluster.membership.terms import Terms
from cluster.membership.worker_states import (
  ResidualHistory,
  workers_in_checkpoint,
)
from cluster.network.errors import InvalidMessage, Refused
from cluster.parameter_server import checkpoints as sharded
from cluster.parameter_server.admission import ParameterServerReception
from cluster.parameter_server.evaluation import Evaluator, RemoteEvaluation
from cluster.parameter_server.hosting import host_server
from cluster.parameter_server.mirroring import Mirroring
from cluster.parameter_server.mirrors import MirrorStore
from cluster.parameter_server.pieces import Pieces
from cluster.parameter_server.runtime import ParameterServerRuntime
from cluster.parameter_server.server import Server
from cluster.parameter_server.standby import MirrorStandby
from cluster.parameter_server.store import ShardedParameterStore
from cluster.parameter_server.versions import Report, ShardVersions
from cluster.parameter_server.worker import Worker
from cluster.pipelining import pieces_per_share
from cluster.process.exits import (
  LOST,
  STOPPED,
  Exit,
  Reason,
  Unmendable,
  end,
)
from cluster.runtime import Parts
from configs.checks import require
from configs.sections import chosen_path, error_prefix
from learning import placement
from learning.layout import check_servers
from learning.learning import Evaluation, Learner
from route.route import ParameterServer
from system import processes, threads


class ParameterServerSite(RealSite):
  """Site of a run with parameter servers: see `Site` of `cluster.runtime`.

  In the coordinator's process, `checkpoints.restore` is called before the
  runtime warms up: servers and workers resume from the one that it has found
  (`checkpoints.found`).
  """

  # Injected faults replace it: see `cluster.parameter_server.faults`.
  _worker_type: Callable[..., Worker] = Worker

  def __init__(
    self,
    config: ConfigDict,
    meeting: Meeting,
    parts: Parts,
    plan: ParameterServer,
  ):
    """Creates the parts that every process of a run has.

    Args:
      config: Config of the run.
      meeting: Role of this process, and how to connect to the others.
      parts: Components of the run.
      plan: Number and place of the servers.

    Raises:
      ValueError: If a setting is wrong; names the field.
    """
    _check_divisible(config, parts, plan)
    self._plan, learned = plan, parts.learned
    self._workers = config.cluster.workers
    super().__init__(config, meeting, parts, windows=plan.pipelined)
    self._directory = parts.files.workdir / 'checkpoints'
    self._keep = config.checkpoint.keep
    self._has_hung = False  # Whether the worker hangs in a process that stays.
    self._is_over = threads.Event()  # Whether the run has ended here.
    self._mirrors: MirrorStore | None = None
    if plan.mirror_s:
      self._mirrors = MirrorStore(self.settings.port, self.settings.timeout_s)
    self._succession: Succession[MirrorStandby] | None = None
    if self._mirrors:
      standby = MirrorStandby(self._mirrors)
      self._succession = Succession(
        self._member,
        settings=self.settings,
        terms=Terms(parts.files.workdir),
        standby=standby,
        version=lambda: standby.version,
      )
    self._others: set[int] = set()  # Servers of other processes that are here.
    self._hosting = threads.Lock()
    with error_prefix(chosen_path(config, 'route')):
      check_servers(learned.elements, plan.servers)
    with error_prefix(chosen_path(config, 'wire')):
      self._codec = learned.shard_codec(servers=plan.servers, wire=parts.wire)
    self.store = ShardedParameterStore(
      codec=self._codec,
      schedule=learned.schedule,
      num_workers=config.cluster.workers,
      scaling=learned.scaling,
      has_inner_optimizer=learned.has_inner_optimizer,
    )
    if self.is_coordinator:
      where = 'processes of their own' if plan.dedicated else 'workers'
      reason = ''
      if _needs_whole_updates(config):
        reason = ', as config.optimizer.clip_norm needs whole updates'
      logging.info('Servers: %d, in %s%s.', plan.servers, where, reason)

  @processes.CachedProperty
  def checkpoints(self) -> sharded.ShardedCheckpoints:
    """Checkpoints of the run, for the coordinator's process."""
    with error_prefix('config.checkpoint'):
      return sharded.ShardedCheckpoints(
        self._directory,
        store=self.store,
        num_servers=self._plan.servers,
        jobs=self.jobs,
        keep=self._keep,
      )

  @processes.CachedProperty
  def evaluate(self) -> Evaluation | None:
    """Evaluation of versions, in the coordinator's process."""
    local = self.parts.learned.evaluate
    if local is None or not self._plan.dedicated:
      return local
    return RemoteEvaluation(
      local, settings=self.settings, deadlines=self.deadlines
    )

  @property
  def is_coordinator(self) -> bool:
    """True if the coordinator is in this process."""
    kind = 'server' if self._plan.dedicated else 'worker'
    role = self.meeting.role
    return (role.kind, role.index) == (kind, 0) and not self.meeting.follows

  @property
  def _member(self) -> int:
    """Rank of this process among the members of elections."""
    role = self.meeting.role
    is_worker = role.kind == 'worker'
    return role.index if is_worker else self._workers + role.index

  @property
  def can_drain(self) -> bool:
    """True if this process has no server, or if that can move to another."""
    role, plan = self.meeting.role, self._plan
    has_place = plan.dedicated or role.index >= plan.servers
    has_place |= bool(plan.mirror_s) and not self.is_coordinator
    return role.kind == 'worker' and has_place

  def runtime(self, coordinator: Coordinator) -> ParameterServerRuntime:
    """Returns the runtime with the event loop, for the coordinator."""
    role = self.meeting.role
    is_worker = role.kind == 'worker'
    reserved = {role.index: self.settings.process} if is_worker else {}
    reception = ParameterServerReception(
      store=self.store,
      num_workers=len(coordinator.workers),
      num_servers=self._plan.servers,
      dedicated=self._plan.dedicated,
      reserved=reserved,
      restore=lambda: self.checkpoints.found,
      restored_bytes=lambda: self.checkpoints.restored_bytes,
      deadlines=self.deadlines,
      settings=self.settings,
      jobs=self.jobs,
      has_first=self.is_coordinator,
    )
    if isinstance(self.evaluate, RemoteEvaluation):
      self.evaluate.attach(reception)
    return ParameterServerRuntime(
      coordinator=coordinator,
      store=self.store,
      reception=reception,
      make_server=(
        functools.partial(self._make_server, 0) if self.is_coordinator else None
      ),
      num_servers=self._plan.servers,
      num_factors=(
        self.num_factors
        if self.parts.speed or coordinator.batching.is_adaptive
        else 0
      ),
      find_residuals=self._find_residuals,
      make_local_worker=(
        (lambda at: functools.partial(self._worker, at, is_local=True))
        if is_worker
        else None
      ),
      settings=self.settings,
      deadlines=self.deadlines,
      mirroring=Mirroring(
        every_s=self._plan.mirror_s, limit_s=self.settings.start_s
      ),
      mirrors=self._mirrors,
      newest_checkpoint=lambda: self.checkpoints.newest,
      drop_checkpoints=lambda newest: self.checkpoints.take_over(newest),
      succession=self._succession,
      index=self._member,
      is_superseded=lambda: self.parts.files.is_superseded,
    )

  def _take_part(self) -> bool:
    role, plan = self.meeting.role, self._plan
    if role.kind == 'server':
      return self._host()
    server = None
    if not plan.dedicated and role.index < plan.servers:
      server = threads.Thread(target=self._host_in_thread, daemon=True)
      server.start()
    try:
      finished = self._worker(role.coordinator)
      if finished is None:
        succession = self._succession
        self._coordinate(succession.inheritance if succession else None)
        finished = True
    finally:
      self._is_over.set()
    if server:
      server.join(self.settings.start_s)
    for each in (self._succession, self._mirrors):
      if each:
        each.close()
    return finished

  def _locate(self) -> str:
    """Returns the address of the coordinator, for a server to join it."""
    given = self.meeting.role.coordinator
    return self._succession.locate(given) if self._succession else given

  def _find_residuals(self) -> tuple[int, list[int]] | None:
    """Returns the residuals to resume from; None to start from scratch.

    Returns:
      Number of the checkpoint, and the workers whose residuals are in it.
    """
    if self.checkpoints.found is None:
      return None
    step, _ = self.checkpoints.found
    return step, workers_in_checkpoint(self._directory, step)

  @processes.CachedProperty
  def _worker(self) -> Worker:
    """The worker of this process, in all of its sessions."""
    learned = self.parts.learned
    return self._worker_type(
      self.meeting.role.index,
      pushes=learned.pushes,
      codec=self._codec,
      batching=self.parts.batching,
      residuals=ResidualHistory(
        self._codec,
        self.meeting.role.index,
        self._directory,
        init_optimizer=lambda: learned.pushes.init(learned.params),
      ),
      speed=self.parts.speed,
      settings=limit_join(self.settings, follows=self.meeting.follows),
      on_hang=self._handle_hang,
      evaluator=self._make_evaluator(),
      mirrors=self._mirrors,
      host=self._host_other,
      succession=self._succession,
    )

  def _make_evaluator(self) -> Evaluator | None:
    """Returns an evaluator if only this process has an accelerator.

    The coordinator has none where servers have processes of their own.
    """
    learned = self.parts.learned
    if not self._plan.dedicated or learned.evaluate is None:
      return None
    if not placement.has_accelerator():
      return None
    like = learned.params, learned.stats
    return Evaluator(learned.evaluate, like, self.settings)

  def _handle_hang(self, reason: str) -> None:
    """Exits the process of a worker that hangs, unless others need it.

    Args:
      reason: Why the worker's session has ended: 'left', 'over' or 'lost'.
    """
    index, plan = self.meeting.role.index, self._plan
    holds = not plan.dedicated and index < plan.servers
    needed = self.is_coordinator or (holds and reason == 'left')
    self._has_hung = needed
    stays = ', and stays away: others need its process' if needed else ''
    logging.error('Worker %d hangs%s.', index, stays)
    faulthandler.dump_traceback()
    if not needed:
      end(LOST, Reason.HUNG, f'Worker {index} hangs.')

  def _host(self) -> bool:
    """Serves parameters until the coordinator ends the run.

    Returns:
      Whether the run is complete; if not, it can be resumed from a checkpoint.

    Raises:
      Exit: With LOST if the coordinator is lost, or another process holds
        the rank, for too long; with 1 if the coordinator refuses the server, or
        sends what cannot be true.
    """
    role = self.meeting.role
    try:
      return host_server(
        role.index,
        functools.partial(self._make_server, role.index),
        self._locate,
        limit_join(self.settings, follows=self.meeting.follows),
        mirrors=self._mirrors,
        is_over=self._is_over.is_set,
      )
    except Unmendable as error:
      logging.error('%s', error)
      raise Exit(LOST, Reason.LOST, str(error)) from error
    except Refused as error:
      raise Exit(1, Reason.REFUSED, f'Refused: {error}') from error
    except InvalidMessage as error:
      text = f'The coordinator has sent an invalid message: {error}'
      raise Exit(1, Reason.FAILED, text) from error

  def _host_in_thread(self) -> None:
    """Serves parameters in a thread beside a worker; an error ends the process.

    Without this, the worker would rejoin again and again without its server.
    The process also ends with the server if the worker hangs, as the worker
    cannot end it then.
    """
    code, reason, message = 1, Reason.FAILED, 'The server has failed.'
    cause: BaseException | None = None
    try:
      finished = self._host()
      if not self._has_hung:
        return
      code = 0 if finished else STOPPED
      reason = Reason.FINISHED if finished else Reason.STOPPED
      message = 'The run has ended, and the worker hangs.'
    except Exit as ended:
      reason, message, cause = ended.reason, ended.message, ended
      if ended.code == LOST:
        code = LOST
      else:
        logging.error('%s', ended.code)
    except BaseException as error:
      cause = error
      logging.exception('The server has failed')
    end(code, reason, message, cause)

  def _host_other(self, server: int) -> None:
    """Hosts a server whose own process is lost, in a thread.

    Args:
      server: Rank of the server.
    """
    role, plan = self.meeting.role, self._plan
    with self._hosting:
      is_own = not plan.dedicated and role.index == server
      if is_own or server in self._others:  # It joins without being asked.
        return
      self._others.add(server)
    threads.Thread(target=self._run_other, args=[server], daemon=True).start()

  def _run_other(self, server: int) -> None:
    """Hosts a server of another process until all continue from a mirror."""
    try:
      host_server(
        server,
        functools.partial(self._make_server, server),
        self._locate,
        self.settings,
        mirrors=self._mirrors,
        is_own=False,
        is_over=self._is_over.is_set,
      )
    except (Unmendable, Refused, InvalidMessage) as error:
      logging.warning('Server %d is not hosted here: %s', server, error)
    finally:
      with self._hosting:
        self._others.discard(server)

  def _make_server(
    self, index: int, report: Report, restore: tuple[int, int] | None
  ) -> Server:
    with placement.on_cpu():
      learner, held = self._make_share(index, restore)
    return Server(
      index,
      learner=learner,
      codec=self._codec,
      versions=self._make_versions(index, held, report),
      report=report,
      mirrors=self._mirrors,
    )

  def _make_versions(
    self, index: int, held: Mapping[int, Any], report: Report
  ) -> ShardVersions:
    part = sharded.server_part(index)
    return ShardVersions(self._directory, part, held=held, report=report)

  def _make_share(
    self, index: int, restore: tuple[int, int] | None
  ) -> tuple[Learner | Pieces, dict[int, Any]]:
    """Returns the learner of a server's share, and the versions it holds.

    Args:
      index: Rank of the server.
      restore: Number of a checkpoint and of the servers in it, to resume from;
        None to start from scratch.
    """
    params, stats = self._codec.initial_shard(index)
    make = self.parts.learned.make_learner
    learner: Learner | Pieces
    if self._plan.pipelined:
      servers = self._plan.servers
      push_bytes = sum(map(self._codec.push_bytes, range(servers)))
      count = pieces_per_share(servers, push_bytes)
      learner = Pieces(make, params, wire=self.parts.wire, count=count)
    else:
      learner = make(params, stats)
    if restore is None:
      return learner, {}
    state = sharded.read_share(
      self._directory, *restore, self._codec.sizes, index
    )
    held = state.pop('held')
    learner.restore(state)
    return learner, held


def _check_divisible(
  config: ConfigDict, parts: Parts, plan: ParameterServer
) -> None:
  """Checks that servers can apply updates to their shares independently.

  Shares cut through layers, so norms of layers or of whole updates are not
  known to a server.  With local steps workers apply the optimizer, to whole
  gradients.  Pipelined servers hold no running statistics of the model.

  Raises:
    ValueError: If the config needs one of these; names the field.
  """
  optimizer = config.optimizer
  whole = 'an optimizer of single numbers, as servers hold parts of layers'
  needs_layers = optimizer.name in ('lars', 'muon')
  valid = not needs_layers or config.batching.local_steps > 1
  require(valid, 'config.optimizer.name', whole, optimizer.name)
  expected = 'False for models with running statistics'
  valid = not (plan.pipelined and jax.tree.leaves(parts.learned.stats))
  require(valid, 'config.route.server.pipelined', expected, plan.pipelined)
  one = 'inf unless one server applies updates as a whole'
  parted = plan.servers > 1 or plan.pipelined
  valid = not parted or not _needs_whole_updates(config)
  require(valid, 'config.optimizer.clip_norm', one, optimizer.clip_norm)


def _needs_whole_updates(config: ConfigDict) -> bool:
  """Returns whether servers need the norms of whole updates."""
  is_clipped: bool = config.optimizer.clip_norm < math.inf
  has_local_steps: bool = config.batching.local_steps > 1
  return is_clipped and not has_local_steps
