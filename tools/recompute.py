"""Computes runs on real hosts again, in one process, from what happened.

  python -m tools.recompute RUN_DIR [RUN_DIR ...]

The coordinator of today is told what the run's was told, in that order: it deals the
same examples, and every push is computed from the version that its worker had.
The parameters must be those of the newest checkpoint, to the last bit on the
same kind of processor; to rounding, where XLA has summed (route.name=native).
The exit code is 1 if they are not.

Gradients are computed on as many devices as a worker had, of the same kind, and
with the run's XLA flags and precision; updates where the run made them, which
is the CPU for parameter servers.  A run of CPUs needs JAX_PLATFORMS=cpu, and
JAX_NUM_CPU_DEVICES if its workers had several.  Refused are runs on devices
that this process does not have, whose workers had unlike ones, or on GPUs
without config.deterministic.

Batches must be of a fixed size, and a run that was started again must have had
as many workers and servers as before.
"""

import functools
import importlib
import operator
import pathlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import app
from ml_collections import ConfigDict

from batching import fixed
from cluster.coordinator import Coordinator
from cluster.parameter_server.checkpoints import read_servers
from configs import default
from configs.checks import require
from learning import build as learning
from learning import compilations, placement
from learning.learning import Learning
from learning.scaling import factor, of
from outputs import checkpoints
from outputs.files import counted
from tools import replay
from tools.reading import manifests, records
from tools.recomputing import allreduce
from tools.recomputing.allreduce import Comparison
from wire import kept
from wire.codec import Payload, Wire
from wire.flat import Flat

_WHERE = ('cluster', 'route', 'checkpoint')  # Sections.


def main(argv: list[str]) -> None:
  """Computes the runs again that the command line names."""
  if len(argv) < 2:
    raise app.UsageError('Expected at least one folder of a run, got none.')
  try:
    apart = [_shown(pathlib.Path(path)) for path in argv[1:]]
  except (OSError, ValueError) as error:
    sys.exit(f'Refused: {error}')
  sys.exit(1 if any(apart) else 0)


def difference(path: pathlib.Path) -> float:
  """Returns by how much parameters of a run differ at most from the same again.

  Args:
    path: Folder of the run.

  Raises:
    ValueError: If there is no such run; names what was expected.
    OSError: If the run cannot be read.
  """
  return compared(path).apart


def compared(path: pathlib.Path) -> Comparison:
  """Returns the same, and by how much they may differ.

  Arguments and errors are those of `difference`.
  """
  manifest = records.manifest(path)
  recorded = manifest['config']
  config = _config(path, recorded)
  _set_devices(path, manifest, config)
  route = recorded['route']['name']
  if route != 'server':
    config.route = manifests.section(recorded, 'route')
    wire = _wire(recorded)
    if route == 'native':
      expected = 'of float32, as XLA may round halves and choose otherwise'
      require(wire.plain, f'{path}: wire', expected, recorded['wire']['name'])
      dtype = recorded['precision']['dtype']
      field = f'{path}: precision.dtype'
      require(dtype == 'float32', field, 'float32, for the same reason', dtype)
    expected = 'none, as it is not recorded which iterations had which'
    stages = len(wire.pushes) - 1
    require(not stages, f'{path}: stages of the wire before', expected, stages)
    return allreduce.compared(path, config, learning.of_config(config), wire)
  again = _again(path, config, recorded)
  saved = _saved(path, len(again.learners))
  pairs = zip(again.learners, saved, strict=True)
  apart = max(
    float(np.abs(learner.params - params).max()) for learner, params in pairs
  )
  return Comparison(apart, 0.0, 'sums are in the order of events')


def _set_devices(
  path: pathlib.Path, manifest: Mapping[str, Any], config: ConfigDict
) -> None:
  """Makes this process compute as each worker of the run did.

  Args:
    path: Folder of the run.
    manifest: Manifest of the run.
    config: Config of the run; gets the number of devices.

  Raises:
    ValueError: If this process cannot; says what was expected.
  """
  of_workers = [
    devices
    for start in manifest['starts']
    for devices in start.get('workers', {}).values()
  ]
  own, *others = _unique(of_workers) or [['cpu']]
  expected = 'workers with devices of one kind and number, at all starts'
  got = ' and '.join(map(counted, [own, *others]))
  require(not others, f'{path}: devices', expected, got)
  config.cluster.devices_per_worker = len(own)
  compilations.configure(config)
  here = jax.local_devices()
  found = [device.device_kind for device in here][: len(own)]
  hint = f' (JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES={len(own)})'
  expected = f'{counted(own)} in this process, as each worker had'
  expected += hint if set(own) == {'cpu'} else ''
  require(found == own, f'{path}: devices', expected, counted(found))
  repeats = here[0].platform == 'cpu' or config.deterministic
  expected = 'True, as kernels of GPUs do not repeat bit for bit without'
  field = f'{path}: config.deterministic'
  require(repeats, field, expected, config.deterministic)


def _unique(workers: Iterable[Sequence[str]]) -> list[list[str]]:
  return [list(kinds) for kinds in sorted(set(map(tuple, workers)))]


def _shown(path: pathlib.Path) -> bool:
  """Prints how much a run differs; returns whether it does by too much."""
  apart, tolerance, why = compared(path)
  within = f'; {tolerance:.3g} may be, as {why}' if tolerance else ''
  print(f'{path}: parameters differ by {apart:.3g} at most{within}.')
  return apart > tolerance


def _again(
  path: pathlib.Path, config: ConfigDict, recorded: Mapping[str, Any]
) -> '_Again':
  """Returns who has gone through a run again."""
  learned = learning.of_config(config)
  wire, route = _wire(recorded), recorded['route']['server']
  flat = learned.flat(servers=route['servers'], wire=wire)
  own = jax.tree.leaves([state.own for state in flat.init(0)])
  wanted = 'a run whose wire remembers nothing but what it has not sent'
  require(not own, f'{path}', wanted, 'another one')
  again = None
  for row in records.events(path, kept=True):
    if row['event'] == 'start':
      again = _Again(config, learned, route, flat, again)
    again.tell(row)
  require(again is not None, f'{path}', 'a run that has started', 'no event')
  return again


def _wire(recorded: Mapping[str, Any]) -> Wire:
  """Returns what travelled."""
  name = recorded['wire']['name']
  own = manifests.section(recorded, 'wire')[name]
  return importlib.import_module(f'wire.{name}').make(**own.to_dict())


def _saved(path: pathlib.Path, servers: int) -> list[np.ndarray]:
  """Returns the parameters of the newest checkpoint, by server."""
  directory = path / 'checkpoints'
  steps = checkpoints.steps(directory)
  require(bool(steps), f'{directory}', 'the checkpoint of a run', 'none')
  states = read_servers(directory, steps[-1], servers)
  return [state['params'] for state in states]


class _Again:
  """A coordinator whose events come from a record, its servers, and its recorder.

  Servers hold vectors, as those of the run: trees may be rounded otherwise.
  """

  finished = False

  def __init__(
    self,
    config: ConfigDict,
    learned: Learning,
    route: Mapping[str, Any],
    flat: Flat,
    before: '_Again | None',
  ):
    self.version, workers = 0, config.cluster.workers
    self._learned = learned
    with placement.on_cpu():
      self.learners = [
        learned.learner(*flat.initial(server))
        for server in range(len(flat.sizes))
      ]
    first = learned.scaling
    self.scalings = [first] * workers if first else []
    self._flat = flat
    # What workers remember, and what those do who are gone.
    self._states: dict[int, Any] = {}
    self._gone: dict[int, Any] = {}
    self._pushed: dict[int, list[Payload]] = {}
    self._pipelined = route['pipelined']
    # Of updates, by worker: what pipelined servers sum in that order.
    self._pieces: dict[int, dict[int, tuple[list[Payload], int]]] = {}
    self._gradient = learned.gradient
    self._released: dict[int, tuple[Any, Any, int]] = {}
    self._before = before
    self._coordinator = Coordinator(
      scheme=replay.scheme(config.to_dict(), workers),
      batching=fixed.make(
        num_workers=workers, worker_batch=config.batching.worker_batch
      ),
      store=self,
      stream=learned.stream,
      recorder=self,
      milestones=self,
      num_workers=workers,
      stage=self._stage,
    )
    self._coordinator.attach(release=self._release, wake_at=lambda at: None)

  def __getattr__(self, name: str) -> Any:
    """Returns what a recorder does, which is nothing."""
    return lambda *args, **named: None

  def tell(self, row: Mapping[str, Any]) -> None:
    """Lets happen what a row says."""
    told, time = row['event'], row['time']
    if told == 'start' and self._before:
      self.learners = self._before.learners
      self.version = self._before.version
      self.scalings = self._before.scalings
      self._pieces = self._before._pieces
      for worker, states in self._before._states.items():
        others = [kept.named(self._flat, states)]
        fresh = self._flat.init(worker)
        self._states[worker] = kept.given(self._flat, fresh, others)
      self._coordinator.rejoin(self._before._coordinator.state(), time)
      sums = self._pieces or self.learners[0].state()['_sums']
      for update in sorted(sums):
        self.commit(update)
    if told == 'push':
      self._push(row)
    elif told == 'forgot':
      self._gone[row['worker']] = self._states.pop(row['worker'], None)
    elif told == 'recalled':
      if row['worker'] in self._gone:
        self._states[row['worker']] = self._gone.pop(row['worker'])
    elif told in ('start', 'wake'):
      getattr(self._coordinator, told)(time)
    elif told == 'join':
      self._coordinator.join(row['worker'], time)
    else:
      self._coordinator.leave(row['worker'], time, '')

  def _push(self, row: Mapping[str, Any]) -> None:
    worker = row['worker']
    params, ranges, iteration = self._released.pop(worker)
    scale = factor(of(self.scalings, worker))
    payload, loss = self._gradient(
      params, ranges, worker=worker, iteration=iteration, scale=scale
    )
    stage = self._coordinator.workers[worker].stage
    before = self._states.get(worker) or self._flat.init(worker)
    messages, after, finite = self._flat.encode(before, payload, stage, scale)
    self._states[worker] = after if finite else before
    messages = jax.device_get(messages)  # They travel.
    with placement.on_cpu():
      self._pushed[worker] = [
        self._flat.taken(message, server, stage)
        for server, message in enumerate(messages)
      ]
    self._coordinator.push(
      worker,
      row['time'],
      compute_s=row['compute_s'],
      factors=(),
      loss=loss,
      finite=bool(finite and np.isfinite(loss)),
      computed=0,
    )

  def _stage(self) -> int:
    examples = self.learners[0].examples
    done = self._learned.epochs(examples=examples, updates=self.version)
    return self._flat.wire.stage(done)

  def add(
    self, update: int, worker: int, examples: int, *, finite: bool = True
  ) -> None:
    """Sums the push of a worker into an update."""
    shares, own = self._pushed.pop(worker), of(self.scalings, worker)
    if own:
      self.scalings[worker] = own.after(finite=finite)
    pieces = self._pieces.setdefault(update, {}) if self._pipelined else None
    if not finite:
      return
    with placement.on_cpu():
      if pieces is not None:
        divided = [_divided(share, factor(own)) for share in shares]
        pieces[worker] = divided, examples
        return
      for learner, share in zip(self.learners, shares, strict=True):
        learner.add(update, share, examples, scale=factor(own))

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
    """Sums the pushes of an update as pipelined servers do, by worker."""
    pushed = sorted(self._pieces.pop(update).items())
    if not pushed:
      return
    for server, learner in enumerate(self.learners):
      gradients = [shares[server].gradient for _, (shares, _) in pushed]
      learner.add(
        update,
        Payload(functools.reduce(operator.add, gradients), ()),
        sum(examples for _, (_, examples) in pushed),
        pushes=len(pushed),
      )

  def _release(self, index: int) -> None:
    worker = self._coordinator.workers[index]
    with placement.on_cpu():
      sent = [self._flat.sent(x.params, x.stats) for x in self.learners]
    params, _ = self._flat.pulled(jax.device_get(sent))
    self._released[index] = params, worker.ranges, worker.iteration


def _divided(payload: Payload, scale: float) -> Payload:
  return payload._replace(gradient=payload.gradient / np.float32(scale))


def _config(path: pathlib.Path, recorded: Mapping[str, Any]) -> ConfigDict:
  """Returns what was learned."""
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
    if name in _WHERE or name not in recorded:
      continue
    known = isinstance(value, ConfigDict)
    config[name] = (
      manifests.section(recorded, name) if known else recorded[name]
    )
  config.cluster.workers = recorded['cluster']['workers']
  return config


if __name__ == '__main__':
  app.run(main)
