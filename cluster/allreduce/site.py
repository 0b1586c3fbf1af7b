"""A process's part of a reduced run: a replica, and with the first the coordinator."""

import faulthandler
import functools
from collections.abc import Callable, Sequence

from absl import logging
from ml_collections import ConfigDict

from cluster import talks
from cluster.allreduce.admission import (
  AllreduceReception,
  IterationCompleted,
  ResidualsCollected,
)
from cluster.allreduce.formation import Formation
from cluster.allreduce.replica import Replica
from cluster.allreduce.runtime import AllreduceRuntime
from cluster.allreduce.step_statistics import Books
from cluster.allreduce.store import ReplicaStore
from cluster.allreduce.sums.native import NativeSumming
from cluster.allreduce.sums.summing import HostSumming, Summing
from cluster.allreduce.sums.talking import TalkingSumming
from cluster.allreduce.sums.talking_native import TalkingNative
from cluster.coordinator import Coordinator
from cluster.membership.process import Meeting, Process
from cluster.probing.cache import Kept
from cluster.probing.failed_links import FailedLinks
from cluster.probing.follower import Adaptation
from cluster.probing.link_manager import Linking
from cluster.probing.surveyor import Surveyor
from cluster.process.exits import LOST, STOPPED, end
from cluster.runtime import Parts
from cluster.speed import driving, layers
from configs.sections import named
from learning.learning import Overlap
from learning.pool import FLOAT32
from outputs.checkpoints import Checkpoints
from route.route import Allreduce
from wire.codec import Payload


class AllreduceSite(Process):
  """See `cluster.runtime`; every process has one."""

  def __init__(
    self, config: ConfigDict, meeting: Meeting, parts: Parts, plan: Allreduce
  ):
    """Makes what all processes of a run know.

    Args:
      config: Of the run.
      meeting: Which process this is, and where the others are.
      parts: What the run is made of.
      plan: Where everything travels.

    Raises:
      ValueError: If a setting is wrong; names the field.
    """
    super().__init__(config, meeting, parts, servers=1, windows=True)
    self._plan, self._workers = plan, config.cluster.workers
    learned = parts.learned
    speed = parts.speed
    factors = speed.model.num_driving if speed else len(driving.NAMES)
    self._books = Books(self._workers, factors)
    self._pool = learned.pool(
      bucket_bytes=plan.bucket_bytes,
      books=self._books.size,
      dtype=parts.wire.push.dtype or FLOAT32,
      multiple=parts.wire.push.multiple,
    )
    self._talks = talks.of_run(config, plan, parts.wire, learned)
    self._sizes = [self._pool.size_bytes]
    if self._talks:
      rest = talks.ITEM * (self._pool.size - self._pool.gradient)
      stages = range(len(self._talks.said))
      self._sizes = [sum(self._talks.size_bytes(n)) + rest for n in stages]
    self._pace: Sequence[layers.Range] = ()
    early = self._talks is None or any(self._talks.early)
    if early and speed and learned.schedule is None:
      self._pace = layers.of_run(
        config, learned, plan.bucket_bytes, self._pool.dtypes[0]
      )
      if not plan.overlap:
        self._pace = [part._replace(ready=1.0) for part in self._pace]
    self._combine_bytes = config.route.native.combine_bytes
    self._overlap = self._find_overlap(config.wire.name)
    self._completed: (
      Callable[[IterationCompleted | ResidualsCollected], None] | None
    ) = None
    self._replica = self._made()
    self.store = ReplicaStore(self._replica, learned.schedule, learned.scaling)
    self._checkpoint = config.checkpoint.to_dict()

  @functools.cached_property
  def checkpoints(self) -> Checkpoints:
    """Checkpoints of the run, in the coordinator's process."""
    with named('config.checkpoint'):
      folder = self.parts.files.workdir / 'checkpoints'
      return Checkpoints(folder, **self._checkpoint)

  @property
  def is_coordinator(self) -> bool:
    """True in the coordinator's (coordinator's) process."""
    return self.meeting.role.index == 0

  def runtime(self, coordinator: Coordinator) -> AllreduceRuntime:
    """Returns what runs the events, for the process that is the coordinator."""
    reception = AllreduceReception(
      num_workers=self._workers,
      reserved={0: self.settings.process},
      settings=self.settings,
      port=self._port,
      jobs=self.jobs,
    )
    self._completed = reception.events.put
    formation = Formation(
      self._plan.cluster,
      self._plan.forest,
      size_bytes=self._sizes[-1],
      failed=FailedLinks(timeout_s=self.settings.timeout_s),
    )
    kept = Kept(self.parts.files.workdir)
    adaptation = Adaptation(
      formation,
      size_bytes=self._sizes[-1],
      tell=reception.events.put,
      record=coordinator.recorder.links,
    )
    return AllreduceRuntime(
      coordinator=coordinator,
      store=self.store,
      reception=reception,
      formation=formation,
      linking=lambda say: Linking(
        formation,
        Surveyor(
          kept=kept,
          send=say,
          tell=reception.events.put,
          timeout_s=self.settings.timeout_s,
        ),
        adaptation if self._plan.adapt else None,
        workers=self._workers,
      ),
      books=self._books,
      overlap=self._overlap,
      local=lambda coordinator: functools.partial(self._replica, coordinator),
      iteration_bytes=lambda n, stage: 2 * (n - 1) * self._sizes[stage],
      settings=self.settings,
      deadlines=self.deadlines,
    )

  def _find_overlap(self, wire: str) -> Overlap:
    """Returns what sending gradients overlaps with here, and logs it."""
    plan = self._plan
    if plan.forest is None:
      overlap = Overlap.NONE
      why = 'XLA sums gradients after the backward pass (native).'
    elif self._talks and not any(self._talks.early):
      overlap = Overlap.NONE
      why = (
        f'Gradients are sent after the backward pass: {wire} sends nothing '
        'before all is computed, as it is set.'
      )
    else:
      learned = self.parts.learned
      overlap, why = learned.find_overlap(wanted=plan.overlap)
    logging.info('%s', why)
    return overlap

  def _take_part(self) -> bool:
    finished = self._replica(self.meeting.role.coordinator)
    if not finished and self._plan.forest is None:
      end(STOPPED)  # XLA would wait for all others, of whom some are lost.
    return finished

  def _made(self) -> Replica:
    learned, gradient = self.parts.learned, self.parts.learned.gradient
    summing: Summing
    if self._plan.forest is None:
      like = Payload(learned.params, learned.stats)
      native: Callable[..., NativeSumming] = NativeSumming
      if self._talks:
        native = functools.partial(
          TalkingNative, talks=self._talks, index=self.meeting.role.index
        )
      summing = native(
        gradient,
        self._pool,
        like,
        books=self._books.size,
        workers=self._workers,
        combine_bytes=self._combine_bytes,
      )
    else:
      gradient = learned.streaming(self._pool, overlap=self._plan.overlap)
      host = HostSumming
      if self._talks:
        host = functools.partial(
          TalkingSumming,
          talks=self._talks,
          bucket_bytes=self._plan.bucket_bytes,
          overlap=self._plan.overlap,
        )
      summing = host(
        self.meeting.role.index,
        workers=self._workers,
        gradient=gradient,
        pool=self._pool,
        host=self.meeting.address,
        security=self.settings.security,
        timeout_s=self.settings.timeout_s,
        faults=self.faults,
        pace=self._pace,
      )
    learner = learned.learner(learned.params, learned.stats)
    learner.scaling = learned.scaling
    return Replica(
      self.meeting.role.index,
      gradient=gradient,
      learner=learner,
      summing=summing,
      books=self._books,
      batching=self.parts.batching,
      speed=self.parts.speed,
      faults=self.faults,
      settings=self.settings._replace(adapt=self._plan.adapt),
      hung=self._hung,
      completed=self._tell,
    )

  def _tell(self, event: IterationCompleted | ResidualsCollected) -> None:
    if self._completed:
      self._completed(event)

  def _hung(self, said: str) -> None:
    """Ends a process whose worker hangs: all begin again if it is the coordinator."""
    if (
      self.is_coordinator
      and self._plan.forest is None
      and said in ('over', 'left')
    ):
      return  # XLA waits for ever; the coordinator has accounts to write, and ends.
    logging.error('Worker %d hangs.', self.meeting.role.index)
    faulthandler.dump_traceback()
    end(LOST)
