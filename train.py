"""Builds a run from a config: the only place that reads one.

`build` checks the whole config and makes the scheme, the data, the model, the
optimiser and the cluster; calling what it returns trains.
"""

import copy
import dataclasses
import functools
import importlib
import math
import os
import pathlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
from ml_collections import ConfigDict

from cluster import compilations, roles, transport
from cluster import optimizer as optimizers
from cluster import schedule as schedules
from cluster import speed as speeds
from cluster.checkpoints import Checkpoints
from cluster.checks import require
from cluster.console import Console
from cluster.faults import Faults
from cluster.files import RunFiles, fingerprint, manifest
from cluster.gradient import Evaluation, Gradient
from cluster.heart import START
from cluster.journal import Journal, Plan
from cluster.layout import Layout
from cluster.lead import Lead
from cluster.network import Network
from cluster.processes import Processes
from cluster.rendezvous import Rendezvous
from cluster.run import Run
from cluster.server import Server
from cluster.timing import (
  TimingGradient,
  TimingLayout,
  TimingServer,
  TimingWire,
)
from cluster.virtual import VirtualCluster
from cluster.wire import Wire
from configs import default, sections
from configs.sections import named
from data import augment as augmentation
from data.dataset import Dataset
from data.stream import Stream
from models.task import Task, classification
from sync.scheme import Scheme

Choose = Callable[[str], tuple[str, dict[str, Any]]]


@dataclasses.dataclass
class _Learning:
  """What is learned, whoever learns it: in one process or in many."""

  plan: Plan
  stream: Stream
  gradient: Gradient | TimingGradient
  evaluate: Evaluation | None
  wire: Wire | TimingWire
  layout: Callable[..., Layout | TimingLayout]  # Of a number of servers.
  server: Callable[..., Server | TimingServer]  # Of parameters, statistics.
  schedule: schedules.Schedule | None
  params: Any = None
  stats: Any = None


def build(
  config: ConfigDict,
  *,
  workdir: str | None = None,
  scheme: Scheme | None = None,
  task: Task | None = None,
  dataset: Dataset | None = None,
  process: Mapping[str, str] | None = None,
) -> Run | Processes:
  """Returns the run that a config describes, or this process's part in it.

  Args:
    config: As made by a file of configs/; every field is checked first.
    workdir: Folder for the outputs; None makes a new one under runs/.  If it
      holds a run of the same config, that run goes on from its checkpoint.
    scheme: Replaces the one that config.sync names.
    task: Replaces the one of the model that config.model names.
    dataset: Replaces the one that config.data names.
    process: Which one of a distributed run this is: what `roles.find` takes as
      role, coordinator and lead, as far as the environment does not say it.

  Raises:
    ValueError: If anything about the config is wrong; names the field, what
      was expected and what came.  If `workdir` holds another run.
    OSError: If the folder cannot be made.
  """
  compilations.make_repeatable()
  own = {
    'scheme': scheme,
    'task': task and (task.params, task.stats),
    'dataset': dataset,
  }
  choose = _checked(config, own)
  real = config.cluster.runtime == 'distributed'
  files = RunFiles(workdir)
  meeting = _meeting(config, workdir, process or {}) if real else None
  if meeting and files.finished() is None:
    meeting.join()
  scheme = copy.deepcopy(scheme) or _make(
    'sync', choose, num_workers=config.cluster.workers
  )
  if config.model.name == 'none':
    learning = _timing(config, choose)
  else:
    learning = _learning(config, choose, task, dataset)
  console = Console(
    target=learning.plan.target, clock='real' if real else 'virtual'
  )
  described = manifest(config.to_dict(), own)
  pipelined = getattr(scheme, 'pipelined', False)
  if meeting:
    processes = _processes(
      config, choose, meeting, learning, files, described, pipelined
    )
    if not processes.leads:
      return processes
    server = processes.servers
  else:
    require(not process, 'process', 'nothing in the virtual runtime', process)
    server = learning.server(learning.params, learning.stats)
  journal = Journal(
    plan=learning.plan,
    server=server,
    evaluate=learning.evaluate,
    files=files,
    console=console,
    later=ThreadPoolExecutor(1).submit if real else None,
  )
  lead = Lead(
    scheme=scheme,
    server=server,
    stream=learning.stream,
    journal=journal,
    num_workers=config.cluster.workers,
    worker_batch=config.batching.worker_batch,
  )
  with named('config.checkpoint'):
    if meeting:
      cluster, checkpoints = processes.cluster(lead), processes.checkpoints
    else:
      cluster = _virtual(config, choose, lead, learning, pipelined)
      checkpoints = Checkpoints(
        files.workdir / 'checkpoints', **config.checkpoint.to_dict()
      )
  checkpoints.check('scheme, task', cluster.state())
  files.claim(described)
  run = Run(
    name=type(scheme).__name__.lower(),
    cluster=cluster,
    journal=journal,
    files=files,
    checkpoints=checkpoints,
    console=console,
  )
  run.restore()
  return run


def _checked(config: ConfigDict, own: Mapping[str, Any]) -> Choose:
  """Returns what chooses a section of the config, all of which is checked."""
  defaults = default.get_config()
  sections.check_fields(config, defaults)
  sections.check_values(config)
  sections.check_used(config, defaults, own)
  for section in ('batching', 'wire', 'route'):
    sections.chosen(config, defaults, section)
  return functools.partial(sections.chosen, config, defaults)


def _make(section: str, choose: Choose, **shared: Any) -> Any:
  """Calls `make` of the module that a section names."""
  name, own = choose(section)
  package = {'sync': 'sync', 'data': 'data', 'model': 'models'}[section]
  module = importlib.import_module(f'{package}.{name}')
  with named(f'config.{section}.{name}'):
    return module.make(**shared, **own)


def _timing(config: ConfigDict, choose: Choose) -> _Learning:
  """Returns that nothing is learned."""
  _, sizes = choose('model')
  size_bytes = sizes['size_bytes']
  plan = _plan(config, sizes['num_train'])
  return _Learning(
    plan=plan,
    stream=_stream(config, plan),
    gradient=TimingGradient(),
    evaluate=None,
    wire=TimingWire(size_bytes=size_bytes),
    layout=functools.partial(TimingLayout, size_bytes),
    server=lambda params, stats: TimingServer(),
    schedule=None,
  )


def _learning(
  config: ConfigDict, choose: Choose, task: Task | None, dataset: Dataset | None
) -> _Learning:
  directory = config.data.dir or os.environ.get('SYNCOPATE_DATA')
  dataset = dataset or _make('data', choose, directory=directory)
  dataset.check()
  plan = _plan(config, len(dataset.train.targets))
  stream = _stream(config, plan)
  task = task or _task(config, choose, dataset)
  schedule = _schedule(config, choose, plan.epoch)
  with named('config.wire.dense'):
    wire = Wire(**config.wire.dense)
  return _Learning(
    plan=plan,
    stream=stream,
    gradient=_gradient(config, task, dataset, stream),
    evaluate=Evaluation(task, dataset.test),
    wire=wire,
    layout=functools.partial(Layout, task.params, task.stats, dtype=wire.dtype),
    server=functools.partial(_server, config, choose, schedule),
    schedule=schedule,
    params=task.params,
    stats=task.stats,
  )


def _task(config: ConfigDict, choose: Choose, dataset: Dataset) -> Task:
  with named('config.data'):
    augment = augmentation.make(
      crop_padding=config.data.crop_padding,
      flip=config.data.flip,
      input_shape=dataset.input_shape,
    )
  model = _make(
    'model',
    choose,
    input_shape=dataset.input_shape,
    num_classes=dataset.num_classes,
    seed=config.seed,
  )
  with named(f'config.model.{config.model.name}'):
    return classification(model, dataset.prepare, augment)


def _gradient(
  config: ConfigDict, task: Task, dataset: Dataset, stream: Stream
) -> Gradient:
  devices, count = jax.local_devices(), config.cluster.devices_per_worker
  most = f'at most {len(devices)}, the devices of this process'
  field = 'config.cluster.devices_per_worker'
  require(count <= len(devices), field, most, count)
  with named('config.batching'):
    return Gradient(
      task,
      dataset.train,
      stream.indices,
      micro_batch=config.batching.micro_batch,
      seed=config.seed,
      devices=devices[:count],
    )


def _server(
  config: ConfigDict,
  choose: Choose,
  schedule: schedules.Schedule,
  params: Any,
  stats: Any,
) -> Server:
  name, own = choose('optimizer')
  with named(f'config.optimizer.{name}'):
    tx = getattr(optimizers, name)(**own)
  with named('config.optimizer'):
    return Server(
      params=params,
      stats=stats,
      tx=optimizers.clipped(tx, clip_norm=config.optimizer.clip_norm),
      schedule=schedule,
      reduction=config.optimizer.reduction,
      num_workers=config.cluster.workers,
      worker_batch=config.batching.worker_batch,
    )


def _schedule(
  config: ConfigDict, choose: Choose, epoch: int
) -> schedules.Schedule:
  name, own = choose('schedule')
  with named(f'config.schedule.{name}'):
    shape = getattr(schedules, name)(total_epochs=config.epochs, **own)
  with named('config.schedule'):
    return schedules.schedule(
      rate=config.optimizer.learning_rate,
      warmup_epochs=config.schedule.warmup_epochs,
      counts=config.schedule.counts,
      shape=shape,
      epoch=epoch,
      update=config.cluster.workers * config.batching.worker_batch,
    )


def _plan(config: ConfigDict, epoch: int) -> Plan:
  batch, epochs = config.batching.worker_batch, config.epochs
  most, least = f'at most the {epoch} training examples', 'at least one example'
  require(batch <= epoch, 'config.batching.worker_batch', most, batch)
  target = round(epochs * epoch)
  require(target > 0, 'config.epochs', least, epochs)
  return Plan(
    target=target,
    epoch=epoch,
    eval_every=max(round(config.eval_every * epoch), 1),
    log_every=config.log_every,
    accuracies=config.time_to,
  )


def _stream(config: ConfigDict, plan: Plan) -> Stream:
  ahead = config.data.ahead
  held = config.cluster.workers * config.batching.worker_batch * (ahead + 1)
  least = f'no more examples held ahead ({held}) than an epoch has'
  require(held <= plan.epoch, 'config.data.ahead', least, ahead)
  with named('config.data'):
    return Stream(num_examples=plan.epoch, seed=config.seed, ahead=ahead)


def _speed(config: ConfigDict, choose: Choose) -> speeds.Speed:
  name, own = choose('cluster.speed')
  workers, section = config.cluster.workers, config.cluster.speed
  with named(f'config.cluster.speed.{name}'):
    model = getattr(speeds, name)(num_workers=workers, seed=config.seed, **own)
  with named('config.cluster.speed'):
    return speeds.Speed(
      fixed_s=section.fixed_s,
      per_example_s=section.per_example_s,
      slowdown=sections.each('slowdown', section.slowdown, workers),
      model=model,
    )


def _virtual(
  config: ConfigDict,
  choose: Choose,
  lead: Lead,
  learning: _Learning,
  pipelined: bool,
) -> VirtualCluster:
  with named('config.cluster'):
    return VirtualCluster(
      lead=lead,
      gradient=learning.gradient,
      wire=learning.wire,
      speed=_speed(config, choose),
      network=_network(config),
      num_servers=config.route.server.servers,
      pipelined=pipelined,
      script=config.cluster.script,
    )


def _meeting(
  config: ConfigDict, workdir: str | None, process: Mapping[str, str]
) -> Rendezvous:
  """Returns where the other processes of a distributed run are met."""
  workers, servers = config.cluster.workers, config.route.server.servers
  dedicated, wait_s = config.route.server.dedicated, config.cluster.timeout_s
  the_same = 'the folder that all processes of the run share'
  require(bool(workdir), 'workdir', the_same, workdir)
  most = f'at most config.cluster.workers, {workers}, unless they are dedicated'
  fits = dedicated or servers <= workers
  require(fits, 'config.route.server.servers', most, servers)
  role = roles.find(
    os.environ,
    workers=workers,
    dedicated=servers if dedicated else 0,
    **process,
  )
  with named('config.cluster'):
    address = transport.interface_address(config.cluster.interface)
  return Rendezvous(
    role, workers=workers, address=address, wait_s=START * wait_s
  )


def _processes(
  config: ConfigDict,
  choose: Choose,
  meeting: Rendezvous,
  learning: _Learning,
  files: RunFiles,
  described: Mapping[str, Any],
  pipelined: bool,
) -> Processes:
  servers, optimizer = config.route.server.servers, config.optimizer
  if config.model.name != 'none':
    whole = (
      'an optimizer without norms of layers, as servers hold parts of them'
    )
    require(optimizer.name != 'lars', 'config.optimizer.name', whole, 'lars')
    one = 'inf unless one server applies updates as a whole'
    clips = (servers > 1 or pipelined) and optimizer.clip_norm < math.inf
    whole = 'False for models with running statistics'
    valid = not (pipelined and jax.tree.leaves(learning.stats))
    require(valid, 'config.sync.bsp.pipelined', whole, pipelined)
    field = 'config.optimizer.clip_norm'
    require(not clips, field, one, optimizer.clip_norm)
  speed = _speed(config, choose) if config.cluster.speed.injected else None
  with named('config.cluster'):
    faults = Faults(
      config.cluster.faults,
      num_workers=config.cluster.workers,
      directory=files.workdir / 'faults',
      interface=config.cluster.interface,
      timeout_s=config.cluster.timeout_s,
    )
  with named('config.route.server'):
    layout = learning.layout(num_servers=servers)
  with named('config.checkpoint'):
    return Processes(
      meeting=meeting,
      num_servers=servers,
      dedicated=config.route.server.dedicated,
      layout=layout,
      learning=learning,
      worker_batch=config.batching.worker_batch,
      pipelined=pipelined,
      speed=speed,
      faults=faults,
      directory=files.workdir / 'checkpoints',
      checkpoint=config.checkpoint.to_dict(),
      fingerprint=fingerprint(described),
      security=_security(config),
      timeout_s=config.cluster.timeout_s,
    )


def _security(config: ConfigDict) -> transport.Security:
  found = {}
  for part in transport.Security._fields:
    path = config.cluster[f'{part}_file']
    try:
      found[part] = pathlib.Path(path).read_bytes() if path else b''
    except OSError as error:
      raise ValueError(
        f'config.cluster.{part}_file: expected a file, got {error}.'
      ) from error
  token = found['token'].decode().strip()
  return transport.Security(**found | {'token': token})


def _network(config: ConfigDict) -> Network:
  links = sections.links(
    config.cluster.network,
    worker=config.cluster.workers,
    server=config.route.server.servers,
  )
  with named('config.cluster.network'):
    return Network(**links)
