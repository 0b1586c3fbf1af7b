"""Builds a run from a config: the only place that reads one.

`build` checks the whole config and makes the scheme, the data, the model, the
optimiser and the cluster; calling what it returns trains.
"""

import copy
import functools
import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict

from cluster import compilations
from cluster import optimizer as optimizers
from cluster import schedule as schedules
from cluster import speed as speeds
from cluster.checkpoints import Checkpoints
from cluster.checks import require
from cluster.console import Console
from cluster.files import RunFiles, manifest
from cluster.gradient import Evaluation, Gradient
from cluster.journal import Journal, Plan
from cluster.lead import Lead
from cluster.network import Network
from cluster.run import Run
from cluster.server import Server
from cluster.timing import TimingGradient, TimingServer
from cluster.virtual import VirtualCluster
from configs import default, sections
from configs.sections import named
from data import augment as augmentation
from data.dataset import Dataset
from data.stream import Stream
from models.task import Task, classification
from sync.scheme import Scheme

Choose = Callable[[str], tuple[str, dict[str, Any]]]


def build(
  config: ConfigDict,
  *,
  workdir: str | None = None,
  scheme: Scheme | None = None,
  task: Task | None = None,
  dataset: Dataset | None = None,
) -> Run:
  """Returns the run that a config describes.

  Args:
    config: As made by a file of configs/; every field is checked first.
    workdir: Folder for the outputs; None makes a new one under runs/.  If it
      holds a run of the same config, that run goes on from its checkpoint.
    scheme: Replaces the one that config.sync names.
    task: Replaces the one of the model that config.model names.
    dataset: Replaces the one that config.data names.

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
  scheme = copy.deepcopy(scheme) or _make(
    'sync', choose, num_workers=config.cluster.workers
  )
  network, speed = _network(config), _speed(config, choose)
  files = RunFiles(workdir)
  if config.model.name == 'none':
    _, sizes = choose('model')
    plan = _plan(config, sizes['num_train'])
    stream = _stream(config, plan)
    server = TimingServer(size_bytes=sizes['size_bytes'])
    gradient, evaluate = TimingGradient(), None
  else:
    directory = config.data.dir or os.environ.get('SYNCOPATE_DATA')
    dataset = dataset or _make('data', choose, directory=directory)
    dataset.check()
    plan = _plan(config, len(dataset.train.targets))
    stream = _stream(config, plan)
    task = task or _task(config, choose, dataset)
    server = _server(config, choose, task, plan.epoch)
    gradient = _gradient(config, task, dataset, stream)
    evaluate = Evaluation(task, dataset.test)
  console = Console(target=plan.target)
  journal = Journal(
    plan=plan, server=server, evaluate=evaluate, files=files, console=console
  )
  lead = Lead(
    scheme=scheme,
    server=server,
    stream=stream,
    journal=journal,
    num_workers=config.cluster.workers,
    worker_batch=config.batching.worker_batch,
  )
  with named('config.cluster'):
    cluster = VirtualCluster(
      lead=lead,
      gradient=gradient,
      speed=speed,
      network=network,
      num_servers=config.route.server.servers,
      script=config.cluster.script,
    )
  with named('config.checkpoint'):
    checkpoints = Checkpoints(
      files.workdir / 'checkpoints', **config.checkpoint.to_dict()
    )
  checkpoints.check('scheme, task', cluster.state())
  files.claim(manifest(config.to_dict(), own))
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
  with named('config.batching'):
    return Gradient(
      task,
      dataset.train,
      stream.indices,
      micro_batch=config.batching.micro_batch,
      seed=config.seed,
    )


def _server(
  config: ConfigDict, choose: Choose, task: Task, epoch: int
) -> Server:
  name, own = choose('optimizer')
  with named(f'config.optimizer.{name}'):
    tx = getattr(optimizers, name)(**own)
  schedule = _schedule(config, choose, epoch)
  with named('config.optimizer'):
    return Server(
      params=task.params,
      stats=task.stats,
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


def _network(config: ConfigDict) -> Network:
  links = sections.links(
    config.cluster.network,
    worker=config.cluster.workers,
    server=config.route.server.servers,
  )
  with named('config.cluster.network'):
    return Network(**links)
