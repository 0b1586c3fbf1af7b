"""Learning of a model and its data: gradient, optimizer, schedule."""

import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import optax
from absl import logging
from flax import nnx
from ml_collections import ConfigDict

from configs import declared
from configs.checks import require
from configs.sections import (
  Choose,
  build_section,
  check_default,
  chosen_path,
  error_prefix,
  has_fragments,
  iteration_steps,
)
from data import augment as augmentation
from data.dataset import Dataset
from data.stream import Stream
from learning import compilations, exported, outer, placement
from learning import optimizer as optimizers
from learning import scaling as scalings
from learning import schedule as schedules
from learning.evaluation import MOST_EXAMPLES, TaskEvaluation
from learning.fragment_steps import FragmentSteps
from learning.fragments import Fragments, divide
from learning.gradient import TaskGradient
from learning.island import Followers, IslandMesh, IslandPushes, find_devices
from learning.layout import Layout
from learning.learner import TaskLearner
from learning.learning import Learning
from learning.local_steps import LocalSteps, unchanged
from learning.shard_codec import ShardCodec
from learning.streaming import StreamingGradient, find_overlap
from models.task import Task, classification, next_token

# Fields that a model's own Task replaces.
_UNUSED_BY_TASKS = (
  *('data.crop_padding', 'data.crop_area', 'data.flip'),
  *('eval_top', 'eval_loss'),
)


def make(
  config: ConfigDict,
  choose: Choose,
  task: Task | None,
  dataset: Dataset,
  stream: Stream,
  devices: int,
  *,
  followers: Followers | None = None,
  is_island: bool = False,
) -> Learning:
  """Returns the learning of a config's model, or of a task in its place.

  Args:
    config: Checked config.
    choose: Function that chooses a section of it.
    task: Task that replaces the model of the config; None for the model.
    dataset: Checked data set.
    stream: Assignment of its examples to iterations.
    devices: Number of this process's devices that compute gradients; 0 if none
      does.
    followers: Announcements to followers, in the leader of an island.
    is_island: Whether this process is part of an island.

  Raises:
    ValueError: If a setting is wrong; names the field.
  """
  num_train = len(dataset.train.targets)
  scaling = scalings.make(config, own_task=task is not None)
  task = task or _task(config, choose, dataset)
  if config.model.init:
    task = _initialized(task, config.model.init)
  _check_thresholds(config, task)
  schedule = _schedule(config, choose, num_train)
  scaled = scaling is not None
  mesh = _island_mesh(config, devices) if is_island else None
  gradient: TaskGradient | IslandPushes
  pushes: TaskGradient | LocalSteps | IslandPushes
  gradient = base = _gradient(
    config, devices, task, dataset, stream, scaled, mesh
  )
  fragments = _fragments(config, task, base)
  pushes = steps = _pushes(config, choose, base, fragments, mesh)
  kinds = [device.device_kind for device in jax.local_devices()[:devices]]
  if mesh:
    gradient = pushes = IslandPushes(steps, base, mesh, task.params, followers)
    kinds = mesh.kinds
  return Learning(
    num_train=num_train,
    stream=stream,
    gradient=gradient,
    pushes=pushes,
    make_learner=functools.partial(_learner, config, choose, schedule),
    shard_codec=functools.partial(ShardCodec, task.params, task.stats),
    find_overlap=functools.partial(find_overlap, gradient),
    streaming=functools.partial(_streaming, gradient),
    find_order=functools.partial(base.order, task.params),
    evaluate=_evaluation(config, task, dataset),
    schedule=schedule,
    scaling=scaling,
    params=task.params,
    stats=task.stats,
    devices=kinds,
    dataset=dataset,
    fragments=fragments,
  )


def check(config: ConfigDict, choose: Choose) -> None:
  """Checks the settings of optimizer and schedule, for any model and data.

  Raises:
    ValueError: If a setting is wrong; names the field.
  """
  scalings.make(config, own_task=False)
  schedule = _schedule(config, choose, 1)
  _learner(config, choose, schedule, (), ())


def _streaming(
  gradient: TaskGradient | IslandPushes, layout: Layout, *, overlap: bool
) -> StreamingGradient:
  """Returns the computation of gradients bucket by bucket."""
  groups = [bucket.leaves for bucket in layout.buckets]
  return StreamingGradient(gradient, groups, overlap=overlap)


def _task(config: ConfigDict, choose: Choose, dataset: Dataset) -> Task:
  top, classes = config.eval_top, dataset.num_classes
  field, expected = 'config.eval_top', f'0, or 2 to {classes - 1}'
  require(not top or 1 < top < classes, field, expected, top)
  with error_prefix('config.data'):
    augment = augmentation.make(
      crop_padding=config.data.crop_padding,
      crop_area=config.data.crop_area,
      flip=config.data.flip,
      input_shape=dataset.input_shape,
    )
  # On the CPU, a seed gives the same parameters whatever device is used, as
  # nearly as processors agree, and no copy stays in an accelerator's memory.
  with placement.on_cpu():
    model = build_section(
      'model',
      choose,
      input_shape=dataset.input_shape,
      num_classes=dataset.num_classes,
      seed=config.seed,
      dtype=jnp.dtype(config.precision.dtype),
    )
  if isinstance(model, Task):
    reason = f'{config.model.name} returns a Task'
    check_default(config, _UNUSED_BY_TASKS, reason)
    return model
  if not isinstance(model, nnx.Module):
    expected = 'a module whose make returns an nnx.Module or a Task'
    got = f'{type(model).__module__}.{type(model).__qualname__}'
    require(False, 'config.model.name', expected, got)
  with error_prefix(chosen_path(config, 'model')):
    if _is_of_tokens(dataset):
      expected = 'False, as language models have a test loss anyway'
      require(
        not config.eval_loss, 'config.eval_loss', expected, config.eval_loss
      )
      task = next_token(
        model,
        dataset.prepare,
        top=top,
        bytes_per_token=dataset.bytes_per_token,
      )
      first = dataset.test.inputs[:1], dataset.test.targets[:1]
      # A model of images refuses tokens where it is called.
      jax.eval_shape(
        task.evaluated['accuracy'], task.params, task.stats, *first
      )
      return task
    return classification(
      model, dataset.prepare, augment, top=top, has_loss=config.eval_loss
    )


def _check_thresholds(config: ConfigDict, task: Task) -> None:
  """Checks that a task has the measures for which the config has thresholds."""
  names = list(task.measures)
  if 'accuracy' not in names:
    field = 'config.time_to'
    expected = (
      f'the default, as the task measures {names}, but no accuracy; set '
      f'config.time_to_measure.{task.primary}'
    )
    usual = declared.find_field('time_to').default
    is_default = config.time_to == usual
    require(is_default, field, expected, config.time_to)
  for name, values in config.time_to_measure.items():
    field = f'config.time_to_measure.{name}'
    expected = f'one of the measures of the task, {names}'
    if name == 'accuracy':
      expected = 'config.time_to, which has the accuracies'
    require(name in names and name != 'accuracy', field, expected, values)


def _initialized(task: Task, file: str) -> Task:
  """Returns a task that starts from the parameters of a file."""
  field, path = 'config.model.init', pathlib.Path(file)
  exported.check_suffix(path, field)
  try:
    params, stats = exported.load(path, task.params, task.stats)
  except OSError as error:
    reason = error.strerror or error
    raise ValueError(
      f'{field}: expected a file of parameters, got {file!r}: {reason}.'
    ) from error
  except ValueError as error:
    raise ValueError(f'{field}: {error}') from error
  return task._replace(params=params, stats=stats)


def _is_of_tokens(dataset: Dataset) -> bool:
  """Returns whether an example has a target at each of several positions."""
  return len(dataset.train.targets.shape) == 2


def _evaluation(
  config: ConfigDict, task: Task, dataset: Dataset
) -> TaskEvaluation:
  batch = MOST_EXAMPLES
  if _is_of_tokens(dataset):  # Logits of a row may be large.
    batch = min(batch, config.batching.micro_batch)
  return TaskEvaluation(
    task, dataset.test, batch=batch, matmul=compilations.matmul(config)
  )


def _gradient(
  config: ConfigDict,
  count: int,
  task: Task,
  dataset: Dataset,
  stream: Stream,
  scaled: bool,
  mesh: IslandMesh | None,
) -> TaskGradient:
  devices = jax.local_devices()
  most = f'at most {len(devices)}, the devices of this process'
  field = 'config.cluster.devices_per_worker'
  require(count <= len(devices), field, most, count)
  _warn_of_precision(config, devices[0])
  with error_prefix('config.batching'):
    return TaskGradient(
      task,
      dataset.train,
      stream.indices,
      micro_batch=config.batching.micro_batch,
      seed=config.seed,
      devices=mesh.devices if mesh else devices[:count],
      scaled=scaled,
      matmul=compilations.matmul(config),
      spread=mesh.spread(task.params) if mesh else None,
    )


def _island_mesh(config: ConfigDict, count: int) -> IslandMesh:
  cluster = config.cluster
  devices = find_devices(cluster.hosts_per_worker, count)
  return IslandMesh(devices, cluster.island_sharding)


def _warn_of_precision(config: ConfigDict, device: jax.Device) -> None:
  """Logs a warning if the device does not have the configured precision."""
  wanted = compilations.matmul(config)
  found = compilations.numerics(config, device)['matmul']
  if wanted != found:
    logging.warning(
      'config.precision.matmul is %r, but %s multiplies in %s.',
      wanted,
      device.device_kind,
      found,
    )


def _fragments(
  config: ConfigDict, task: Task, gradient: TaskGradient
) -> Fragments | None:
  """Returns the fragments, in the order of the backward pass, or None."""
  if not has_fragments(config):
    return None
  sizes = [leaf.size for leaf in jax.tree.leaves(task.params)]
  return divide(config, sizes, gradient.order(task.params))


def _pushes(
  config: ConfigDict,
  choose: Choose,
  gradient: TaskGradient,
  fragments: Fragments | None,
  mesh: IslandMesh | None,
) -> TaskGradient | LocalSteps:
  """Returns the computation of pushes: of gradients without local steps."""
  if config.batching.local_steps == 1:
    return gradient
  tx, worker_batch = _optimizer(config, choose), config.batching.worker_batch
  if fragments is None:
    return LocalSteps(
      gradient,
      tx,
      worker_batch=worker_batch,
      constrain=mesh.constrain if mesh else unchanged,
    )
  return FragmentSteps(
    gradient,
    tx,
    fragments,
    worker_batch=worker_batch,
    overlap_steps=config.route.overlap_steps,
    blend=config.route.blend,
  )


def _optimizer(
  config: ConfigDict, choose: Choose
) -> optax.GradientTransformation:
  """Returns the optimizer that config.optimizer names."""
  name, own = choose('optimizer')
  with error_prefix(f'config.optimizer.{name}'):
    tx = getattr(optimizers, name)(**own)
  with error_prefix('config.optimizer'):
    return optimizers.clipped(tx, clip_norm=config.optimizer.clip_norm)


def _learner(
  config: ConfigDict,
  choose: Choose,
  schedule: schedules.Schedule,
  params: Any,
  stats: Any,
) -> TaskLearner:
  tx, steps = _optimizer(config, choose), config.batching.local_steps
  section, reduction = 'optimizer', config.optimizer.reduction
  if steps > 1:
    section, reduction = 'outer', config.outer.reduction
    name, own = choose('outer')
    with error_prefix(f'config.outer.{name}'):
      tx = getattr(outer, name)(**own)
    with error_prefix('config.outer'):
      schedule = schedules.fixed(config.outer.learning_rate)
  with error_prefix(f'config.{section}'):
    return TaskLearner(
      params=params,
      stats=stats,
      tx=tx,
      schedule=schedule,
      reduction=reduction,
      num_workers=config.cluster.workers,
      worker_batch=config.batching.worker_batch * iteration_steps(config),
    )


def _schedule(
  config: ConfigDict, choose: Choose, epoch: int
) -> schedules.Schedule:
  name, own = choose('schedule')
  with error_prefix(f'config.schedule.{name}'):
    shape = getattr(schedules, name)(total_epochs=config.epochs, **own)
  rate = config.optimizer.learning_rate
  with error_prefix('config.schedule'):
    return schedules.schedule(
      rate=rate,
      warmup_epochs=config.schedule.warmup_epochs,
      counts=config.schedule.counts,
      shape=shape,
      epoch=epoch,
      update=(
        config.cluster.workers
        * config.batching.worker_batch
        * iteration_steps(config)
      ),
    )
