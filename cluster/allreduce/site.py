"""Processes of an allreduce run: a replica each, one with the coordinator."""

import faulthandler
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from absl import logging
from ml_collections import ConfigDict

from cluster import multi_round
from cluster.allreduce.admission import AllreduceReception
from cluster.allreduce.local_steps import FragmentReplicaSteps, ReplicaSteps
from cluster.allreduce.planning import DEADLINE_S, ForestPlanner
from cluster.allreduce.rendezvous import Rendezvous
from cluster.allreduce.replica import Replica
from cluster.allreduce.replication import Standby
from cluster.allreduce.runtime import AllreduceRuntime
from cluster.allreduce.step_statistics import StatisticsLayout
from cluster.allreduce.store import ReplicaStore
from cluster.allreduce.sums.fragments import FragmentReducer
from cluster.allreduce.sums.host import HostReducer
from cluster.allreduce.sums.multi_round import MultiRoundReducer
from cluster.allreduce.sums.multi_round_native import NativeMultiRoundReducer
from cluster.allreduce.sums.native import NativeReducer
from cluster.allreduce.sums.reducer import Reducer
from cluster.coordinator import Coordinator
from cluster.membership.process import Meeting, RealSite
from cluster.membership.succession import Succession, limit_join
from cluster.membership.terms import Terms
from cluster.membership.worker_states import (
  NoCodec,
  ResidualHistory,
  workers_in_checkpoint,
)
from cluster.probing.cache import LinkCache
from cluster.probing.events import ForestPlanned
from cluster.probing.failed_links import FailedLinks
from cluster.probing.follower import LinkFollower
from cluster.probing.link_manager import LinkManager
from cluster.probing.surveyor import Surveyor
from cluster.process.exits import LOST, STOPPED, Reason, end
from cluster.runtime import Parts
from cluster.speed import layers
from configs.sections import error_prefix
from learning.fragments import Fragments
from learning.layout import FLOAT32
from learning.learning import Computation, Gradient, Learner, Overlap
from outputs.checkpoints import Checkpoints
from route.route import Allreduce
from system import processes, threads
from wire.codec import Payload

if TYPE_CHECKING:  # Runs without a model start without Flax.
  from learning.fragment_steps import FragmentSteps


class AllreduceSite(RealSite):
  """A `Site` (see `cluster.runtime`): the parts of one process of a run."""

  # Injected faults replace these parts: see `cluster.allreduce.faults`.
  _replica_type: Callable[..., Replica] = Replica
  _rendezvous_type: Callable[..., Rendezvous] = Rendezvous
  _host_type: Callable[..., HostReducer] = HostReducer
  _fragment_type: Callable[..., HostReducer] = FragmentReducer
  _multi_round_type: Callable[..., HostReducer] = MultiRoundReducer
  _native_type: Callable[..., NativeReducer] = NativeReducer
  _native_multi_round_type: Callable[..., NativeReducer] = (
    NativeMultiRoundReducer
  )

  def __init__(
    self, config: ConfigDict, meeting: Meeting, parts: Parts, plan: Allreduce
  ):
    """Creates the replica of this process.

    Args:
      config: Config of the run.
      meeting: Role of this process, and how to connect to the others.
      parts: Components of the run.
      plan: Route of gradients.

    Raises:
      ValueError: If a setting is wrong; names the field.
    """
    super().__init__(config, meeting, parts, windows=True)
    self._plan, self._workers = plan, config.cluster.workers
    self._directory = parts.files.workdir / 'checkpoints'
    self._has_local_steps = config.batching.local_steps > 1
    learned = parts.learned
    self._statistics = StatisticsLayout(self._workers, self.num_factors)
    lay = functools.partial(
      learned.layout,
      bucket_bytes=plan.chosen_bucket_bytes,
      step_statistics=self._statistics.size,
      dtype=parts.wire.push.dtype or FLOAT32,
      multiple=parts.wire.push.padding,
    )
    self._layout = lay()
    rounds = multi_round.build(config, plan, parts.wire, learned)
    self._multi_round = rounds
    self._sizes = [self._layout.size_bytes]
    if rounds:
      others_bytes = FLOAT32.itemsize * (
        self._layout.size - self._layout.gradient_size
      )
      stages = range(len(rounds.codecs))
      self._sizes = [sum(rounds.size_bytes(n)) + others_bytes for n in stages]
    self._fragments, self._layouts = learned.fragments, [self._layout]
    if self._fragments:
      numbers = range(self._fragments.count)
      self._layouts = [lay(fragment=number) for number in numbers]
      self._sizes = [layout.size_bytes for layout in self._layouts]
    # All stages use one forest, that of the last one, and all fragments that
    # of the largest one.
    sizes = self._sizes if self._fragments else self._sizes[-1:]
    self._planned_bytes = max(sizes)
    self._simulated_parts: Sequence[layers.Bucket] = ()
    streams = rounds is None or any(rounds.streamable)
    if streams and parts.speed and learned.schedule is None:
      self._simulated_parts = layers.of_run(
        config, learned, plan.chosen_bucket_bytes, self._layout.buckets[0].dtype
      )
      if not plan.overlap:
        self._simulated_parts = [
          part._replace(ready=1.0) for part in self._simulated_parts
        ]
    self._combine_bytes = config.route.native.combine_bytes
    self._overlap = self._find_overlap(config.wire.name)
    learner = learned.make_learner(learned.params, learned.stats)
    learner.scaling = learned.scaling
    self._succession: Succession[Standby] | None = None
    if plan.forest is not None:
      self._succession = Succession(
        meeting.role.index,
        settings=self.settings,
        terms=Terms(parts.files.workdir),
        standby=Standby(),
        version=lambda: learner.version,
      )
    self._replica = self._make_replica(learner)
    self.store = ReplicaStore(
      self._replica,
      learned.schedule,
      learned.scaling,
      has_inner_optimizer=learned.has_inner_optimizer,
    )
    self._save_states: Callable[[int], Sequence[threads.Future[bool]]] = (
      lambda step: ()
    )
    self._keep = config.checkpoint.keep
    self._lanes = config.route.lanes

  @processes.CachedProperty
  def checkpoints(self) -> Checkpoints:
    """Checkpoints of the run, in the coordinator's process."""
    with error_prefix('config.checkpoint'):
      folder, files = self._directory, self.parts.files
      return Checkpoints(
        folder,
        keep=self._keep,
        save_others=lambda step: self._save_states(step),
        may_write=lambda: not files.is_superseded,
      )

  @property
  def is_coordinator(self) -> bool:
    """True in the process of the coordinator."""
    return self.meeting.role.index == 0 and not self.meeting.follows

  @property
  def can_drain(self) -> bool:
    """True if the others can sum without this process, and continue."""
    return self._plan.forest is not None and not self.is_coordinator

  def runtime(self, coordinator: Coordinator) -> AllreduceRuntime:
    """Returns the runtime, in the process of the coordinator."""
    own = self.meeting.role.index
    reception = AllreduceReception(
      num_workers=self._workers,
      reserved={own: self.settings.process},
      settings=self.settings,
      jobs=self.jobs,
    )
    rendezvous = self._rendezvous_type(
      self._plan.cluster,
      self._plan.forest,
      size_bytes=self._planned_bytes,
      failed=FailedLinks(timeout_s=self.settings.timeout_s),
      local=own,
      lanes=self._lanes,
      planner=ForestPlanner(
        lambda key, forest, problem: reception.events.put(
          ForestPlanned(key=key, forest=forest, problem=problem)
        ),
        deadline_s=min(DEADLINE_S, self.settings.start_s / 2),
      ),
    )
    cache = LinkCache(self.parts.files.workdir)
    follower = LinkFollower(
      rendezvous,
      size_bytes=self._planned_bytes,
      put_event=reception.events.put,
      record=coordinator.recorder.record_links,
    )
    runtime = AllreduceRuntime(
      coordinator=coordinator,
      store=self.store,
      reception=reception,
      rendezvous=rendezvous,
      links=LinkManager(
        rendezvous,
        Surveyor(
          cache=cache,
          send=reception.send_to_worker,
          put_event=reception.events.put,
          timeout_s=self.settings.timeout_s,
        ),
        follower if self._plan.adapt else None,
        workers=self._workers,
      ),
      layout=self._statistics,
      overlap=self._overlap,
      make_local_worker=lambda address: functools.partial(
        self._replica, address, completed=reception.events.put
      ),
      iteration_bytes=functools.partial(self._iteration_bytes, coordinator),
      settings=self.settings,
      deadlines=self.deadlines,
      succession=self._succession,
      newest_checkpoint=lambda: self.checkpoints.newest,
      find_states=self._find_states,
    )
    self._save_states = runtime.save_states
    return runtime

  def _iteration_bytes(
    self, coordinator: Coordinator, workers: int, stage: int
  ) -> int:
    """Returns the bytes that cross the network in the current iteration."""
    if self._fragments:
      stage = self._fragments.at(coordinator.store.version)
    return 2 * (workers - 1) * self._sizes[stage]

  def _find_states(self) -> tuple[int, list[int]] | None:
    """Returns the number of the checkpoint, and the workers with states in it.

    None to start from scratch.
    """
    if self.checkpoints.restored is None:
      return None
    step, _ = self.checkpoints.restored
    return step, workers_in_checkpoint(self._directory, step)

  def _find_overlap(self, wire: str) -> Overlap:
    """Returns the kind of overlap in this process, and logs it."""
    plan = self._plan
    if plan.forest is None:
      overlap = Overlap.NONE
      reason = 'XLA sums gradients after the backward pass (native).'
    elif self._multi_round and not any(self._multi_round.streamable):
      overlap = Overlap.NONE
      reason = (
        f'Gradients are sent after the backward pass: {wire} sends nothing '
        'before all is computed, as it is set.'
      )
    elif self._fragments and self._fragments.ready < 1:
      overlap = Overlap.STEPS
      reason = 'Fragments are sent while the last local steps run.'
    elif self._has_local_steps:
      overlap = Overlap.NONE
      reason = 'Displacements are sent after the last local step.'
    else:
      learned = self.parts.learned
      overlap, reason = learned.find_overlap(wanted=plan.overlap)
    logging.info('%s', reason)
    return overlap

  def _take_part(self) -> bool:
    finished = self._replica(self.meeting.role.coordinator)
    if finished is None:
      succession = self._succession
      self._coordinate(succession.inheritance if succession else None)
      return True
    if self._succession:
      self._succession.close()
    if not finished and self._plan.forest is None:
      # XLA would wait for all workers, also lost ones.
      end(STOPPED, Reason.STOPPED, 'The coordinator has ended the run.')
    return finished

  def _make_replica(self, learner: Learner) -> Replica:
    """Returns the replica of this process, with its way to sum gradients."""
    learned, index = self.parts.learned, self.meeting.role.index
    gradient: Gradient = learned.gradient
    reducer: Reducer
    steps = states = None
    if self._has_local_steps:
      has_model = learned.schedule is not None
      steps = (
        FragmentReplicaSteps(cast('FragmentSteps', learned.pushes))
        if self._fragments and has_model
        else ReplicaSteps(learned.pushes)
      )
      gradient = steps
      states = ResidualHistory(
        NoCodec(),
        index,
        self._directory,
        init_optimizer=lambda: learned.pushes.init(learned.params),
      )
    computation: Computation = gradient
    if self._plan.forest is None:
      like = Payload(learned.params, learned.stats)
      native = self._native_type
      if self._multi_round:
        native = functools.partial(
          self._native_multi_round_type,
          multi_round=self._multi_round,
          index=self.meeting.role.index,
        )
      reducer = native(
        gradient,
        self._layout,
        like,
        step_statistics=self._statistics.size,
        workers=self._workers,
        combine_bytes=self._combine_bytes,
      )
    else:
      streaming = steps or learned.streaming(
        self._layout, overlap=self._plan.overlap
      )
      computation = streaming
      host = self._host_type
      if self._multi_round:
        host = functools.partial(
          self._multi_round_type,
          multi_round=self._multi_round,
          bucket_bytes=self._plan.chosen_bucket_bytes,
          overlap=self._plan.overlap,
        )
      own: dict[str, Any] = {
        'layout': self._layout,
        'simulated_parts': self._simulated_parts,
      }
      if self._fragments:
        host = self._fragment_type
        own = self._fragment_arguments(self._fragments)
      reducer = host(
        self.meeting.role.index,
        workers=self._workers,
        gradient=streaming,
        port=self.settings.port,
        timeout_s=self.settings.timeout_s,
        **own,
      )
    settings = limit_join(
      self.settings._replace(adapt=self._plan.adapt),
      follows=self.meeting.follows,
    )
    return self._replica_type(
      self.meeting.role.index,
      gradient=computation,
      learner=learner,
      reducer=reducer,
      layout=self._statistics,
      stages=len(self.parts.wire.pushes),
      batching=self.parts.batching,
      speed=self.parts.speed,
      settings=settings,
      on_hang=self._handle_hang,
      succession=self._succession,
      local_steps=steps,
      states=states,
      schedule=learned.schedule,
    )

  def _fragment_arguments(self, fragments: Fragments) -> dict[str, Any]:
    """Returns the arguments that only a reducer of fragments has."""
    parts, item = [], self._layouts[0].buckets[0].dtype.itemsize
    if self._simulated_parts:  # Statistics alone follow the fragment.
      parts = [
        [layers.Bucket(numbers * item, fragments.ready), layers.Bucket(0, 1.0)]
        for numbers in fragments.numbers
      ]
    params = self.parts.learned.params
    return {
      'layouts': self._layouts,
      'masks': [fragments.mask(params, k) for k in range(fragments.count)],
      'simulated_parts': parts,
    }

  def _handle_hang(self, end_kind: str) -> None:
    """Ends a process whose worker hangs; with the coordinator's, all restart.

    Args:
      end_kind: How the session has ended; 'executor' if the executor hangs.
    """
    if (
      self.is_coordinator
      and self._plan.forest is None
      and end_kind in ('over', 'left')
    ):
      return  # XLA waits forever; the coordinator writes its files and ends.
    logging.error('Worker %d hangs.', self.meeting.role.index)
    faulthandler.dump_traceback()
    end(LOST, Reason.HUNG, f'Worker {self.meeting.role.index} hangs.')
