"""What a run learns, made from its config: data, model, optimiser, accounts.

The other half of train.py, which decides where it is learned.
"""

import dataclasses
import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

import jax
from ml_collections import ConfigDict

from configs import default, sections
from configs.checks import require
from configs.sections import named
from data import augment as augmentation
from data.dataset import Dataset
from data.stream import Stream
from learning import optimizer as optimizers
from learning import schedule as schedules
from learning.gradient import Evaluation, Gradient
from learning.learner import Server
from learning.nothing import (
  TimingGradient,
  TimingLayout,
  TimingServer,
  TimingWire,
)
from models.task import Task, classification
from outputs.journal import Plan
from wire.dense import Wire
from wire.flat import Layout

# Where the modules are that a section names.
_PACKAGES = {
  'sync': 'sync',
  'data': 'data',
  'model': 'models',
  'batching': 'batching',
  'batching.lb_bsp.predictor': 'predict',
}
Choose = Callable[[str], tuple[str, dict[str, Any]]]


@dataclasses.dataclass
class Learning:
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


def made(section: str, choose: Choose, **shared: Any) -> Any:
  """Calls `make` of the module that a section names.

  Args:
    section: Of the config.
    choose: Chooses a section of it.
    **shared: Arguments beside the section's own or in their place.
  """
  name, own = choose(section)
  module = importlib.import_module(f'{_PACKAGES[section]}.{name}')
  with named(f'config.{section}.{name}'):
    return module.make(**own | shared)


def nothing(config: ConfigDict, choose: Choose) -> Learning:
  """Returns that nothing is learned: config.model.name is 'none'."""
  _, sizes = choose('model')
  size_bytes = sizes['size_bytes']
  plan = _plan(config, sizes['num_train'])
  return Learning(
    plan=plan,
    stream=_stream(config, plan),
    gradient=TimingGradient(),
    evaluate=None,
    wire=TimingWire(size_bytes=size_bytes),
    layout=functools.partial(TimingLayout, size_bytes),
    server=lambda params, stats: TimingServer(),
    schedule=None,
  )


def learning(
  config: ConfigDict, choose: Choose, task: Task | None, dataset: Dataset | None
) -> Learning:
  """Returns what a config says, or a task and a dataset in its place.

  Args:
    config: A checked one.
    choose: Chooses a section of it.
    task: Replaces the one of the model that config.model names.
    dataset: Replaces the one that config.data names.

  Raises:
    ValueError: If anything is wrong; names the field.
  """
  directory = config.data.dir or os.environ.get('SYNCOPATE_DATA')
  dataset = dataset or made('data', choose, directory=directory)
  dataset.check()
  plan = _plan(config, len(dataset.train.targets))
  stream = _stream(config, plan)
  task = task or _task(config, choose, dataset)
  schedule = _schedule(config, choose, plan.epoch)
  with named('config.wire.dense'):
    wire = Wire(**config.wire.dense)
  return Learning(
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


def of_config(config: ConfigDict) -> Learning:
  """Returns what a config says to learn, for tools that make no run.

  Raises:
    ValueError: If there is no model, or if anything is wrong; names the field.
  """
  defaults = default.get_config()
  sections.check_fields(config, defaults)
  sections.check_values(config)
  model = config.model.name
  require(model != 'none', 'config.model.name', 'a model', model)
  choose = functools.partial(sections.chosen, config, defaults)
  return learning(config, choose, None, None)


def _task(config: ConfigDict, choose: Choose, dataset: Dataset) -> Task:
  with named('config.data'):
    augment = augmentation.make(
      crop_padding=config.data.crop_padding,
      flip=config.data.flip,
      input_shape=dataset.input_shape,
    )
  model = made(
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
