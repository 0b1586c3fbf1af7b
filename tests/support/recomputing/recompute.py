"""Recomputes runs on real hosts in one process, from their recorded events.

A coordinator receives the recorded events in their order.  It assigns the same
examples, and every push is computed from the version that its worker had.  The
parameters must equal those of the newest checkpoint: to the last bit on the
same kind of processor, and to rounding if XLA computed the sums
(route.name=native).

Gradients are computed on the number and kind of devices that a worker had, with
the run's XLA flags and precision; updates on the device of the run, which is
the CPU for parameter servers.  A run on CPUs needs JAX_PLATFORMS=cpu, and
JAX_NUM_CPU_DEVICES if its workers had several.  A run is refused if this
process lacks its devices, if its workers had unlike devices, or if it used GPUs
without config.deterministic.

Batches must have a fixed size.  A run may have resumed with other numbers of
workers and servers if workers keep no states (residuals, inner optimizers).
"""

import functools
import operator
import pathlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np
from ml_collections import ConfigDict

import analysis
from analysis import recorded_configs, runs
from batching import fixed
from cluster.coordinator import Coordinator
from cluster.membership.worker_states import WorkerState
from cluster.parameter_server.checkpoints import read_servers
from configs import default, sections
from configs.checks import require
from learning import build as learning
from learning import compilations, placement, staleness
from learning.iteration import Iteration
from learning.layout import reshard
from learning.learning import Learning, ParameterStore
from learning.scaling import factor, worker_scaling
from learning.shard_codec import ShardCodec
from outputs import checkpoints
from outputs.starts import describe_kinds
from tests.support.recomputing import allreduce, states
from tests.support.recomputing.allreduce import Comparison
from tests.support.recomputing.silent_recorder import (
  silent_milestones,
  silent_recorder,
)
from wire.codec import Payload

# Sections of the config that recomputing does not use.
_UNUSED = ('cluster', 'route', 'checkpoint')


def difference(path: pathlib.Path) -> float:
  """Returns the largest difference of a run's parameters from recomputed ones.

  Args:
    path: Folder of the run.

  Raises:
    ValueError: If the run cannot be recomputed; names the expectation.
    OSError: If the run cannot be read.
  """
  return compare(path).difference


def compare(path: pathlib.Path) -> Comparison:
  """Returns the largest difference, and the largest one that is allowed.

  Arguments and errors are those of `difference`.
  """
  manifest = analysis.read(path).manifest
  recorded = manifest['config']
  config = _training_config(path, recorded)
  _set_devices(path, manifest, config)
  route = recorded['route']['name']
  if route != 'server':
    config.route = recorded_configs.restore_section(recorded, 'route')
    wire = recorded_configs.make_wire(
      recorded_configs.restore_section(recorded, 'wire')
    )
    if route == 'native':
      expected = 'of float32, as XLA may round halves and choose otherwise'
      require(wire.plain, f'{path}: wire', expected, recorded['wire']['name'])
      dtype = recorded['precision']['dtype']
      field = f'{path}: precision.dtype'
      require(dtype == 'float32', field, 'float32, for the same reason', dtype)
    expected = 'none, as it is not recorded which iterations had which'
    stages = len(wire.pushes) - 1
    require(not stages, f'{path}: stages of the wire before', expected, stages)
    return allreduce.compare(path, config, learning.from_config(config), wire)
  recomputed = _recompute(path, config, recorded)
  saved = _read_params(path, len(recomputed.learners))
  pairs = zip(recomputed.learners, saved, strict=True)
  difference = max(
    float(np.abs(np.asarray(learner.params) - params).max())
    for learner, params in pairs
  )
  return Comparison(difference, 0.0, 'sums are in the order of events')


def _set_devices(
  path: pathlib.Path, manifest: Mapping[str, Any], config: ConfigDict
) -> None:
  """Configures the devices of this process as those of each worker.

  Args:
    path: Folder of the run.
    manifest: Manifest of the run.
    config: Config of the run; gets the number of devices.

  Raises:
    ValueError: If this process lacks the devices; names the expectation.
  """
  of_workers = [
    devices
    for start in manifest['starts']
    for devices in start.get('workers', {}).values()
  ]
  devices, *others = _unique(of_workers) or [['cpu']]
  expected = 'workers with devices of one kind and number, at all starts'
  got = ' and '.join(map(describe_kinds, [devices, *others]))
  require(not others, f'{path}: devices', expected, got)
  config.cluster.devices_per_worker = len(devices)
  # This process has the devices of all processes of an island.
  config.cluster.hosts_per_worker = 1
  config.cluster.island_sharding = 'replicated'
  compilations.configure(config)
  here = jax.local_devices()
  present = [device.device_kind for device in here][: len(devices)]
  hint = f' (JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES={len(devices)})'
  expected = f'{describe_kinds(devices)} in this process, as each worker had'
  expected += hint if set(devices) == {'cpu'} else ''
  require(
    present == devices, f'{path}: devices', expected, describe_kinds(present)
  )
  is_exact = here[0].platform == 'cpu' or config.deterministic
  expected = 'True, because only then kernels of GPUs repeat bit for bit'
  field = f'{path}: config.deterministic'
  require(is_exact, field, expected, config.deterministic)


def _unique(workers: Iterable[Sequence[str]]) -> list[list[str]]:
  return [list(kinds) for kinds in sorted(set(map(tuple, workers)))]


def _recompute(
  path: pathlib.Path, config: ConfigDict, recorded: Mapping[str, Any]
) -> '_RecomputedRun':
  """Returns the state of a run after all its recorded events."""
  learned = learning.from_config(config)
  wire = recorded_configs.make_wire(
    recorded_configs.restore_section(recorded, 'wire')
  )
  route = recorded['route']['server']
  run: _RecomputedRun | None = None
  rows = [*runs.split_absent(runs.read_events(path, with_residuals=True))]
  starts = sum(row['event'] == 'start' for row, _ in rows)
  servers = iter(_count_servers(path, starts))
  for row, absent in rows:
    if row['event'] == 'start':
      workers = len(row['decision']['release'])
      codec = learned.shard_codec(servers=next(servers), wire=wire)
      local_state = jax.tree.leaves([state.local for state in codec.init(0)])
      expected = 'a run whose codec has no local state but residuals'
      require(not local_state, f'{path}', expected, 'another one')
      if run and (workers, len(codec.sizes)) != run.size:
        states.check_droppable(path, config, wire)
      run = _RecomputedRun(config, learned, route, codec, run, workers)
    if run is None:
      raise ValueError(
        f'{path}: expected a start as the first event, got {row}.'
      )
    run.apply(row, absent)
  if run is None:
    raise ValueError(f'{path}: expected a run that has started, got no event.')
  return run


def _count_servers(path: pathlib.Path, starts: int) -> list[int]:
  """Returns the number of servers at each recorded start.

  Args:
    path: Folder of the run.
    starts: Number of starts in events.jsonl.

  Raises:
    ValueError: If the number has changed, and it is not known at which start.
  """
  field = 'config.route.server.servers'
  found = runs.values_at_starts(path, field)
  if len(set(found)) == 1:
    return found[:1] * starts
  expected = f'{len(found)} starts in events.jsonl, as in manifest.json'
  require(len(found) == starts, f'{path}: servers', expected, starts)
  return found


def _read_params(path: pathlib.Path, servers: int) -> list[np.ndarray]:
  """Returns the parameters of the newest checkpoint, by server."""
  directory = path / 'checkpoints'
  steps = checkpoints.steps(directory)
  require(bool(steps), f'{directory}', 'the checkpoint of a run', 'none')
  states = read_servers(directory, steps[-1], servers)
  return [state['params'] for state in states]


class _RecomputedRun:
  """Coordinator of recorded events, with the parameter store and its servers.

  Servers hold vectors, as those of the run do: pytrees may round differently.

  Attributes:
    version: Number of committed updates.
    learners: Learner of each server.
    scalings: Loss scaling of each worker; empty without loss scaling.
    size: Numbers of workers and of servers.
  """

  def __init__(
    self,
    config: ConfigDict,
    learned: Learning,
    route: Mapping[str, Any],
    codec: ShardCodec,
    before: '_RecomputedRun | None',
    workers: int,
  ):
    self.version = 0
    self.size = workers, len(codec.sizes)
    self._learned = learned
    with placement.on_cpu():
      self.learners = [
        learned.make_learner(*codec.initial_shard(server))
        for server in range(len(codec.sizes))
      ]
    first = learned.scaling
    self.scalings = [first] * workers if first else []
    self._codec = codec
    # State of workers, and of workers that have left.
    self._states: dict[int, WorkerState | None] = {}
    self._left: dict[int, WorkerState | None] = {}
    self._pushed: dict[int, list[Payload]] = {}
    self._pipelined = route['pipelined']
    # Pushes by update and worker, with examples and weights; pipelined servers
    # sum them in that order.
    self._pieces: dict[int, dict[int, tuple[list[Payload], int, float]]] = {}
    self._released: dict[int, tuple[Any, Any, int, float | None]] = {}
    self._before = before
    choose = functools.partial(sections.choose_section, config)
    self._coordinator = Coordinator(
      scheme=recorded_configs.make_scheme(config.to_dict(), workers),
      batching=fixed.make(
        num_workers=workers,
        worker_batch=config.batching.worker_batch
        * sections.iteration_steps(config),
      ),
      store=cast(ParameterStore, self),  # Is never evaluated or saved.
      stream=learned.stream,
      recorder=silent_recorder(),
      milestones=silent_milestones(),
      num_workers=workers,
      find_stage=self._stage,
      weigh=staleness.make(choose),
    )
    self._coordinator.attach(release=self._release, wake_at=lambda at: None)

  def apply(self, row: Mapping[str, Any], absent: Collection[int]) -> None:
    """Applies a recorded event.

    Args:
      row: Row of the event.
      absent: Workers that were not there at a start.
    """
    event, time = row['event'], row['time']
    if event == 'start' and self._before:
      self._take_learners(self._before)
      self.version = self._before.version
      given = self._before.scalings
      self.scalings = [*given, *self.scalings[len(given) :]]
      self.scalings = self.scalings[: self.size[0]] if given else []
      self._pieces = self._before._pieces
      for worker, state in self._before._states.items():
        if state is not None:
          others = [self._codec.residuals(state.codec)]
          fresh = self._codec.init(worker)
          inherited = self._codec.inherit(fresh, others)
          self._states[worker] = WorkerState(inherited, state.optimizer)
      self._coordinator.rejoin(self._before._coordinator.state(), time)
      sums = self._pieces or self.learners[0].state()['_sums']
      for update in sorted(sums):
        self.commit(update)
    if event == 'push':
      self._push(row)
    elif event == 'forgot':
      self._left[row['worker']] = self._states.pop(row['worker'], None)
    elif event == 'recalled':
      if row['worker'] in self._left:
        self._states[row['worker']] = self._left.pop(row['worker'])
    elif event == 'start':
      self._coordinator.start(time, absent)
    elif event == 'wake':
      self._coordinator.wake(time)
    elif event == 'join':
      self._coordinator.join(row['worker'], time)
    else:
      self._coordinator.leave(row['worker'], time, '')

  def _take_learners(self, before: '_RecomputedRun') -> None:
    """Takes over the learners of the start before, of any number of servers."""
    count, sizes = before.size[1], self._codec.sizes
    if count == len(sizes):
      self.learners = before.learners
      return
    given = {k: each.state() for k, each in enumerate(before.learners)}
    with placement.on_cpu():
      for server, learner in enumerate(self.learners):
        learner.restore(reshard(given, count, sizes, server))

  def _push(self, row: Mapping[str, Any]) -> None:
    worker = row['worker']
    params, ranges, iteration, rate = self._released.pop(worker)
    scale, pushes = (
      factor(worker_scaling(self.scalings, worker)),
      self._learned.pushes,
    )
    before = self._states.get(worker) or WorkerState(
      self._codec.init(worker), pushes.init(self._learned.params)
    )
    payload, loss, optimizer = pushes.push(
      params,
      Iteration(
        ranges, worker=worker, number=iteration, scale=scale, rate=rate
      ),
      before.optimizer,
    )
    stage = self._coordinator.workers[worker].stage
    messages, codec, finite = self._codec.encode(
      before.codec, payload, stage, scale
    )
    after = WorkerState(codec, optimizer)
    self._states[worker] = after if finite else before
    messages = jax.device_get(messages)  # As on the wire.
    with placement.on_cpu():
      self._pushed[worker] = [
        self._codec.decode(message, server, stage)
        for server, message in enumerate(messages)
      ]
    self._coordinator.push(
      worker,
      row['time'],
      compute_s=row['compute_s'],
      factors=(),
      loss=loss,
      finite=bool(finite and np.isfinite(np.asarray(loss))),
      computed=0,
      weight=pushes.weigh(ranges),
    )

  def _stage(self) -> int:
    examples = self.learners[0].examples
    done = self._learned.epochs(examples=examples, updates=self.version)
    return self._codec.wire.stage(done)

  def add(
    self,
    update: int,
    worker: int,
    examples: int,
    *,
    weight: float | None = None,
    staleness_weight: float = 1.0,
    finite: bool = True,
  ) -> None:
    """Sums the push of a worker into an update."""
    shares, own = (
      self._pushed.pop(worker),
      worker_scaling(self.scalings, worker),
    )
    if own:
      self.scalings[worker] = own.after(finite=finite)
    pieces = self._pieces.setdefault(update, {}) if self._pipelined else None
    if not finite:
      return
    with placement.on_cpu():
      if pieces is not None:
        divided = [_divide(share, factor(own)) for share in shares]
        pieces[worker] = (
          *(divided, examples),
          examples if weight is None else weight,
        )
        return
      scale = factor(own) / staleness_weight
      for learner, share in zip(self.learners, shares, strict=True):
        learner.add(update, share, examples, weight=weight, scale=scale)

  def discard(self, worker: int) -> None:
    """Drops the push of a worker."""
    del self._pushed[worker]

  def commit(self, update: int) -> bool:
    """Applies an update."""
    self.version += 1
    with placement.on_cpu():
      if self._pipelined:
        self._sum(update)
      for learner in self.learners:
        learner.commit(update)
    return True

  def _sum(self, update: int) -> None:
    """Sums the pushes of an update by worker, as pipelined servers do."""
    pushed = sorted(self._pieces.pop(update).items())
    if not pushed:
      return
    for server, learner in enumerate(self.learners):
      gradients = [shares[server].gradient for _, (shares, *_) in pushed]
      learner.add(
        update,
        Payload(functools.reduce(operator.add, gradients), ()),
        sum(examples for _, (_, examples, _) in pushed),
        weight=sum(weight for _, (*_, weight) in pushed),
        pushes=len(pushed),
      )

  def _release(self, index: int) -> None:
    worker = self._coordinator.workers[index]
    with placement.on_cpu():
      sent = [self._codec.encode_pull(x.params, x.stats) for x in self.learners]
    params, _ = self._codec.decode_pulls(jax.device_get(sent))
    rate = None
    if schedule := self._learned.schedule:
      examples = self.learners[0].examples
      rate = schedule(examples=examples, updates=self.version)
    self._released[index] = params, worker.ranges, worker.iteration, rate


def _divide(payload: Payload, scale: float) -> Payload:
  return payload._replace(gradient=payload.gradient / np.float32(scale))


def _training_config(
  path: pathlib.Path, recorded: Mapping[str, Any]
) -> ConfigDict:
  """Returns the config of model, data and training, without the cluster."""
  runtime = recorded['cluster']['runtime']
  require(runtime == 'distributed', f'{path}', 'a run on real hosts', runtime)
  batching = recorded['batching']['name']
  require(
    batching == 'fixed', f'{path}', "a run with 'fixed' batches", batching
  )
  model = recorded['model']['name']
  require(model != 'none', f'{path}', 'a run with a model', model)
  config = default.get_config()
  for name, value in config.items():
    if name in _UNUSED or name not in recorded:
      continue
    is_section = isinstance(value, ConfigDict)
    config[name] = (
      recorded_configs.restore_section(recorded, name)
      if is_section
      else recorded[name]
    )
  config.cluster.workers = recorded['cluster']['workers']
  return config
