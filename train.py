"""Builds a run from a config: the only place that reads one.

`build` checks the whole config and makes the scheme, the data, the model, the
optimiser and the cluster; calling what it returns trains.
"""

import contextlib
import functools
import importlib
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

from ml_collections import ConfigDict

from cluster import optimizer as optimizers
from cluster import schedule as schedules
from cluster import speed as speeds
from cluster.checkpoints import Checkpoints
from cluster.console import Console
from cluster.files import RunFiles, manifest
from cluster.gradient import Evaluation, Gradient
from cluster.journal import Journal, Plan
from cluster.network import Network
from cluster.run import Run
from cluster.server import Server
from cluster.virtual import VirtualCluster
from configs import default, sections
from data import augment as augmentation
from data.dataset import Dataset
from data.stream import Stream
from models import task as tasks

_EVALUATED = 512  # Test examples computed at once, at most.
_REPEATABLE = '--xla_gpu_deterministic_ops=true'

Choose = Callable[[str], tuple[str, dict[str, Any]]]


def build(config: ConfigDict, *, workdir: str | None = None) -> Run:
  """Returns the run that a config describes.

  Args:
    config: As made by a file of configs/; every field is checked first.
    workdir: Folder for the outputs; None makes a new one under runs/.  If it
      holds a run of the same config, that run goes on from its checkpoint.

  Raises:
    ValueError: If anything about the config is wrong; names the field, what
      was expected and what came.  If `workdir` holds another run.
    OSError: If the folder cannot be made.
  """
  _prepare_jax()
  defaults = default.get_config()
  sections.check_fields(config, defaults)
  sections.check_values(config)
  choose = functools.partial(sections.chosen, config, defaults)
  for section in ('batching', 'wire'):
    choose(section)  # They have one choice each, which takes no arguments.
  num_workers, seed = config.cluster.workers, config.seed
  worker_batch = config.batching.worker_batch
  _, route = choose('route')
  scheme = _make('sync', choose, num_workers=num_workers)
  network = _network(config, **route)
  speed = _speed(config, choose)
  files = RunFiles(workdir)
  dataset = _dataset(config, choose)
  plan = _plan(config, len(dataset.train.targets))
  with _named('config.data'):
    stream = Stream(num_examples=plan.epoch, seed=seed, ahead=config.data.ahead)
  task = _task(config, choose, dataset)
  server = _server(config, choose, task, plan.epoch)
  with _named('config.batching'):
    gradient = Gradient(
      task,
      dataset.train,
      stream.indices,
      micro_batch=config.batching.micro_batch,
      seed=seed,
    )
  batch = min(_EVALUATED, len(dataset.test.targets))
  evaluate = Evaluation(task, *dataset.test, batch=batch)
  console = Console(target=plan.target)
  journal = Journal(
    plan=plan, server=server, evaluate=evaluate, files=files, console=console
  )
  with _named('config.cluster'):
    cluster = VirtualCluster(
      scheme=scheme,
      server=server,
      gradient=gradient,
      stream=stream,
      speed=speed,
      network=network,
      num_workers=num_workers,
      num_servers=route['servers'],
      worker_batch=worker_batch,
      script=config.cluster.script,
      journal=journal,
    )
  with _named('config.checkpoint'):
    checkpoints = Checkpoints(
      files.workdir / 'checkpoints', **config.checkpoint.to_dict()
    )
  files.claim(manifest(config.to_dict()))
  run = Run(
    name=config.sync.name,
    cluster=cluster,
    journal=journal,
    files=files,
    checkpoints=checkpoints,
    console=console,
  )
  run.restore()
  return run


def _make(section: str, choose: Choose, **shared: Any) -> Any:
  """Calls `make` of the module that a section names."""
  name, own = choose(section)
  package = {'sync': 'sync', 'data': 'data', 'model': 'models'}[section]
  module = importlib.import_module(f'{package}.{name}')
  with _named(f'config.{section}.{name}'):
    return module.make(**shared, **own)


def _dataset(config: ConfigDict, choose: Choose) -> Dataset:
  directory = config.data.dir or os.environ.get('SYNCOPATE_DATA')
  return _make('data', choose, directory=directory)


def _task(config: ConfigDict, choose: Choose, dataset: Dataset) -> tasks.Task:
  with _named('config.data'):
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
  with _named(f'config.model.{config.model.name}'):
    return tasks.classification(model, dataset.prepare, augment)


def _server(
  config: ConfigDict, choose: Choose, task: tasks.Task, epoch: int
) -> Server:
  name, own = choose('optimizer')
  with _named(f'config.optimizer.{name}'):
    tx = getattr(optimizers, name)(**own)
  schedule = _schedule(config, choose, epoch)
  with _named('config.optimizer'):
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
  with _named(f'config.schedule.{name}'):
    shape = getattr(schedules, name)(total_epochs=config.epochs, **own)
  with _named('config.schedule'):
    return schedules.schedule(
      rate=config.optimizer.learning_rate,
      warmup_epochs=config.schedule.warmup_epochs,
      counts=config.schedule.counts,
      shape=shape,
      epoch=epoch,
      update=config.cluster.workers * config.batching.worker_batch,
    )


def _plan(config: ConfigDict, epoch: int) -> Plan:
  if config.batching.worker_batch > epoch:
    raise ValueError(
      f'config.batching.worker_batch: expected at most the {epoch} training '
      f'examples, got {config.batching.worker_batch}.'
    )
  held = config.cluster.workers * config.batching.worker_batch
  if held * (config.data.ahead + 1) > epoch:
    raise ValueError(
      'config.data.ahead: expected workers to hold at most one epoch of '
      f'{epoch} examples, got {config.data.ahead} iterations ahead of '
      f'{held} examples.'
    )
  target = round(config.epochs * epoch)
  if not target:
    raise ValueError(
      f'config.epochs: expected at least one example of {epoch}, got '
      f'{config.epochs}.'
    )
  return Plan(
    target=target,
    epoch=epoch,
    eval_every=max(round(config.eval_every * epoch), 1),
    log_every=config.log_every,
    accuracies=config.time_to,
  )


def _speed(config: ConfigDict, choose: Choose) -> speeds.Speed:
  name, own = choose('cluster.speed')
  workers, section = config.cluster.workers, config.cluster.speed
  with _named(f'config.cluster.speed.{name}'):
    model = getattr(speeds, name)(num_workers=workers, seed=config.seed, **own)
  with _named('config.cluster.speed'):
    return speeds.Speed(
      fixed_s=section.fixed_s,
      per_example_s=section.per_example_s,
      slowdown=sections.each('slowdown', section.slowdown, workers),
      model=model,
    )


def _network(config: ConfigDict, *, servers: int) -> Network:
  section = config.cluster.network
  links: dict[str, tuple[float, ...]] = {}
  for link in ('up_Bps', 'down_Bps', 'latency_s'):
    links[link] = ()
    for host, count in ('worker', config.cluster.workers), ('server', servers):
      path = f'config.cluster.network.{host}_{link}'
      values = section[f'{host}_{link}']
      least = 'at least 0' if link == 'latency_s' else 'more than 0'
      if not all(v > 0 or (v == 0 and link == 'latency_s') for v in values):
        raise ValueError(f'{path}: expected {least}, got {values!r}.')
      links[link] += sections.each(path, values, count)
  with _named('config.cluster.network'):
    return Network(**links)


def _prepare_jax() -> None:
  """Asks for repeatable GPU kernels, unless XLA has started, and for quiet."""
  flags = os.environ.get('XLA_FLAGS', '')
  if _REPEATABLE.split('=')[0] not in flags:
    os.environ['XLA_FLAGS'] = f'{flags} {_REPEATABLE}'.strip()
  # JAX logs each kind of accelerator that is not there.
  logging.getLogger('jax').setLevel(logging.WARNING)


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
  """Puts the path of a field in front of what is said about it."""
  try:
    yield
  except ValueError as error:
    raise ValueError(f'{path}.{error}') from error
