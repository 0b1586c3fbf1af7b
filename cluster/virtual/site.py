"""Site of the virtual runtime, which builds a whole run in one process."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
from ml_collections import ConfigDict

from cluster import multi_round
from cluster.coordinator import Coordinator
from cluster.runtime import Parts
from cluster.speed import build
from cluster.speed.layers import Bucket
from cluster.speed.speed import Speed
from cluster.traffic import Traffic
from cluster.virtual import (
  allreduce,
  applying,
  contributions,
  script,
  transfers,
  worker_costs,
)
from cluster.virtual.multi_round_store import MultiRoundStore
from cluster.virtual.network import Network
from cluster.virtual.runtime import VirtualRuntime
from cluster.virtual.shares import Shares
from cluster.virtual.store import LocalParameterStore
from configs import default, sections
from configs.checks import require
from configs.sections import Choose, error_prefix
from learning.layout import check_servers, split_evenly
from learning.learning import Learner, Learning
from learning.local_codec import LocalCodec
from outputs.checkpoints import Checkpoints
from outputs.files import RunFiles
from route import links, ring
from route.route import Allreduce, ParameterServer, Plan
from wire.multi_round import MultiRoundAllreduce

_OF_SERVERS = (
  *('cluster.network.server*', 'cluster.server.*'),
  *('cluster.network.share_sigma', 'cluster.network.burst_bytes'),
)


class SingleProcess(NamedTuple):
  """The only process of a run.

  Attributes:
    devices: Number of devices on which it computes gradients.
    island: None, as it is not part of an island.
    followers: None likewise.
  """

  devices: int
  island: None = None
  followers: None = None


def meet(
  config: ConfigDict,
  plan: Plan,
  *,
  files: RunFiles,
  process: Mapping[str, str],
) -> SingleProcess:
  """Returns this process, once no other process is named.

  Raises:
    ValueError: If a role or a coordinator is given.
  """
  del plan, files
  require(not process, 'process', 'nothing in the virtual runtime', process)
  return SingleProcess(config.cluster.devices_per_worker)


def speed(config: ConfigDict, choose: Choose, learned: Learning) -> Speed:
  """Returns the model of the workers' compute times."""
  return build.make(config, choose, learned)


class VirtualSite:
  """Site of a virtual run: see `Site` of `cluster.runtime`."""

  is_coordinator = True
  make_run: Callable[[], Any]
  clock: Literal['virtual'] = 'virtual'
  run_in_thread = None

  def __init__(self, config: ConfigDict, parts: Parts):
    """Creates the parameter store and the checkpoints of a run.

    Args:
      config: Config of the run.
      parts: Components of the run.

    Raises:
      ValueError: If a setting is wrong; names the field.
    """
    learned, plan = parts.learned, parts.plan
    params, stats = learned.params, learned.stats
    learner, scaling = learned.make_learner(params, stats), learned.scaling
    workers, self._multi_round = config.cluster.workers, None
    if isinstance(plan, ParameterServer):
      codec, self._sizes = _server_codec(config, parts, plan.servers)
      each = [scaling] * workers if scaling else []
      self.store = LocalParameterStore(
        learner,
        codec,
        schedule=learned.schedule,
        scalings=each,
        summed=False,
      )
    else:
      learner.scaling = scaling
      self._multi_round = multi_round.build(config, plan, parts.wire, learned)
      self.store = _allreduce_store(parts, learner, self._multi_round, workers)
    with error_prefix('config.checkpoint'):
      self.checkpoints = Checkpoints(
        parts.files.workdir / 'checkpoints', keep=config.checkpoint.keep
      )
    self._config, self._parts = config, parts
    self._costs = worker_costs.make(config, plan, self._num_bytes)
    self.evaluate = parts.learned.evaluate

  def runtime(self, coordinator: Coordinator) -> VirtualRuntime:
    """Returns the runtime, with its transfers and its script."""
    config, parts = self._config, self._parts
    with error_prefix('config.cluster'):
      events = script.parse(config.cluster.script, config.cluster.workers)
    if parts.speed is None:
      raise RuntimeError('A virtual run has a speed model.')
    carrier, record_evaluation = self._make_transfers(coordinator)
    return VirtualRuntime(
      coordinator=coordinator,
      store=self.store,
      pushes=parts.learned.pushes,
      speed=parts.speed,
      transfers=carrier,
      servers=self._make_servers(),
      costs=self._costs,
      script=events,
      record_evaluation=record_evaluation,
    )

  @property
  def _num_bytes(self) -> int:
    """Bytes of all parameters and running statistics, in float32."""
    learned = self._parts.learned
    return 4 * sum(learned.elements) + learned.other_bytes

  def _make_servers(self) -> applying.Servers:
    """Returns the servers' work, which takes no time without servers."""
    plan = self._parts.plan
    if not isinstance(plan, ParameterServer):
      return applying.Servers(sum_s=0.0, update_s=0.0)
    return applying.make(
      self._config,
      servers=plan.servers,
      num_bytes=self._num_bytes,
      learner_state=self.store.learner.state(),
    )

  def __call__(self) -> None:
    """Returns at once, as the coordinator is always in this process."""

  def _make_transfers(
    self, coordinator: Coordinator
  ) -> tuple[
    transfers.Whole | transfers.Pipelined | allreduce.AllreduceTransfers,
    Callable[[float], None],
  ]:
    """Returns the transfers, and a function to call at each evaluation."""
    config, parts = self._config, self._parts
    plan = parts.plan
    if isinstance(plan, ParameterServer):
      return _server_transfers(config, plan, self._sizes), lambda time: None
    fragments = parts.learned.fragments
    if fragments:
      stages = contributions.of_fragments(
        parts.learned,
        fragments,
        parts.wire,
        bucket_bytes=plan.chosen_bucket_bytes,
      )
    else:
      stages = contributions.of_run(
        config,
        parts.learned,
        parts.wire,
        self._multi_round,
        bucket_bytes=plan.chosen_bucket_bytes,
        overlap=plan.overlap,
      )
    sums = allreduce.AllreduceTransfers(
      _sums(
        config,
        plan,
        stages,
        overlap=plan.overlap or bool(fragments),
        sum_Bps=self._costs.sum_Bps,
      ),
      Traffic(coordinator.recorder),
      fragments=fragments.count if fragments else 1,
    )
    return sums, sums.record_evaluation


def make(
  config: ConfigDict, meeting: SingleProcess, parts: Parts
) -> VirtualSite:
  """Returns the site of a run.

  Raises:
    ValueError: If a setting is out of range; names the field.
  """
  del meeting
  return VirtualSite(config, parts)


def _server_codec(
  config: ConfigDict, parts: Parts, servers: int
) -> tuple[LocalCodec, transfers.Sizes]:
  """Returns the encoding of pushes and pulls, and their sizes."""
  learned = parts.learned
  if not parts.wire.elementwise:
    with error_prefix(sections.chosen_path(config, 'route')):
      check_servers(learned.elements, servers)
  with error_prefix(sections.chosen_path(config, 'wire')):
    codec = LocalCodec(
      parts.wire, learned.params, learned.stats, servers=servers
    )
    return codec, _sizes(parts, codec, servers)


def _allreduce_store(
  parts: Parts,
  learner: Learner,
  own: MultiRoundAllreduce | None,
  workers: int,
) -> LocalParameterStore:
  """Returns the parameter store of workers that allreduce gradients."""
  learned, wire = parts.learned, parts.wire
  if own and jax.tree.leaves(learned.params):
    layout = learned.layout(
      bucket_bytes=math.inf, step_statistics=0, multiple=wire.push.padding
    )
    return MultiRoundStore(
      learner, own, layout, workers, schedule=learned.schedule
    )
  codec = LocalCodec()
  if own is None:
    codec = LocalCodec(wire, learned.params, learned.stats, servers=1)
  fragments, masks = learned.fragments, []
  if fragments and jax.tree.leaves(learned.params) and fragments.count > 1:
    masks = [
      fragments.mask(learned.params, number)
      for number in range(fragments.count)
    ]
  return LocalParameterStore(
    learner,
    codec,
    schedule=learned.schedule,
    scalings=[],
    summed=True,
    masks=masks,
  )


def _sums(
  config: ConfigDict,
  plan: Allreduce,
  stages: Sequence[Sequence[Sequence[Bucket]]],
  *,
  overlap: bool,
  sum_Bps: float,
) -> allreduce.Sums:
  """Returns the durations of the run's allreduces.

  Raises:
    ValueError: If a setting is wrong, or concerns servers; names the field.
  """
  true = links.read_virtual(config)
  range_s = config.cluster.network.range_s
  reason = f'config.route.name is {plan.name!r}, which has no servers'
  sections.check_default(config, _OF_SERVERS, reason)
  with error_prefix(f'config.route.{plan.name}'):
    return allreduce.Sums(
      true,
      assumed=plan.cluster,
      forest=plan.forest or ring.build_in_order,
      stages=stages,
      overlap=overlap,
      range_s=range_s,
      sum_Bps=sum_Bps,
    )


def _server_transfers(
  config: ConfigDict, plan: ParameterServer, sizes: transfers.Sizes
) -> transfers.Whole | transfers.Pipelined:
  """Returns the transfers between workers and servers."""
  kind = transfers.Pipelined if plan.pipelined else transfers.Whole
  network, servers = _network(config, plan.servers)
  with error_prefix('config.cluster.network'):
    sigma = config.cluster.network.share_sigma
    shares = Shares(sigma=sigma, seed=config.seed)
  return kind(
    network,
    num_workers=config.cluster.workers,
    servers=servers,
    sizes=sizes,
    shares=shares,
  )


def _network(config: ConfigDict, count: int) -> tuple[Network, list[int]]:
  """Returns the network, and the indices of the servers' hosts."""
  network, workers = config.cluster.network, config.cluster.workers
  kinds = {'worker': workers, 'server': count}
  servers = list(range(workers, workers + count))
  if network.servers_in_workers:
    field = 'config.cluster.network.servers_in_workers'
    few = f'at most {workers} servers, the number of workers'
    require(count <= workers, field, few, count)
    unused = default.get_config().cluster.network
    for name, value in unused.items():
      same = not name.startswith('server_') or network[name] == value
      expected = f'the default {value!r}, because {field} is True'
      require(same, f'config.cluster.network.{name}', expected, network[name])
    del kinds['server']
    servers = list(range(count))
  links = sections.host_links(network, **kinds)
  with error_prefix('config.cluster.network'):
    return Network(**links, burst_bytes=network.burst_bytes), servers


def _sizes(parts: Parts, codec: LocalCodec, servers: int) -> transfers.Sizes:
  wire = parts.wire
  pushes = [
    codec.push_bytes(stage)
    or _shares(parts, servers, functools.partial(wire.push_bytes, stage=stage))
    for stage in range(len(wire.pushes))
  ]
  return transfers.Sizes(pushes, _shares(parts, servers, wire.pull_bytes))


def _shares(
  parts: Parts, servers: int, size_bytes: Callable[[int, int], int]
) -> list[int]:
  """Returns the bytes that travel to or from each server."""
  elements = parts.learned.elements
  if parts.wire.elementwise:  # Messages can be cut anywhere.
    return split_evenly(
      size_bytes(*elements) + parts.learned.other_bytes, servers
    )
  params, stats = (split_evenly(count, servers) for count in elements)
  return [size_bytes(*share) for share in zip(params, stats, strict=True)]
