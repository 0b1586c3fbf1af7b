"""Creates the `Learning` of a config."""

import functools
import os
from typing import TYPE_CHECKING, Any

from ml_collections import ConfigDict

from configs import paths, relations, sections
from configs.checks import require
from configs.sections import Choose, build_section, error_prefix
from data.dataset import Dataset
from data.stream import Stream
from learning import compilations, fragments, placement, timing_only
from learning.learning import Learning

if TYPE_CHECKING:
  from learning.island import Followers
  from models.task import Task

# Examples and bytes of a stand-in for data and model.
_STAND_IN_EXAMPLES = 10**9
_STAND_IN_BYTES = 2**20


def make(
  config: ConfigDict,
  choose: Choose,
  task: 'Task | None',
  dataset: Dataset | None,
  devices: int,
  followers: 'Followers | None' = None,
  is_island: bool = False,
) -> Learning:
  """Returns the learning of a config, or of a task and a data set.

  Args:
    config: Checked config.
    choose: Function that chooses a section of it.
    task: Task that replaces the model of the config; None for the model.
    dataset: Data set that replaces that of the config; None for that one.
    devices: Number of this process's devices that compute gradients; 0 if none
      does.
    followers: Announcements to followers, in the leader of an island.
    is_island: Whether this process is part of an island.

  Raises:
    ValueError: If a setting is wrong; names the field.
  """
  if config.model.name == 'none':
    return _no_model(config, choose)
  from learning import tasks  # Runs without a model start without Flax.

  placement.start()
  directory = config.data.dir or os.environ.get('SYNCOPATE_DATA')
  dataset = dataset or build_section('data', choose, directory=directory)
  dataset.check()
  stream = _stream(config, len(dataset.train.targets))
  return tasks.make(
    config,
    choose,
    task,
    dataset,
    stream,
    devices,
    followers=followers,
    is_island=is_island,
  )


def stand_in(
  config: ConfigDict, choose: Choose, *, devices: int, **island: Any
) -> Learning:
  """Returns a learning without a model in place of that of a config.

  It takes no time to create.  Optimizer and schedule are checked; model and
  data are not.

  Args:
    config: Checked config.
    choose: Function that chooses a section of it.
    devices: Unused, as nothing is computed.
    **island: Unused.

  Raises:
    ValueError: If a setting that is checked is wrong; names the field.
  """
  del devices, island
  if config.model.name == 'none':
    return _no_model(config, choose)
  from learning import tasks

  choose('data')
  tasks.check(config, choose)
  stream = _stream(config, _STAND_IN_EXAMPLES)
  return timing_only.make(
    size_bytes=_STAND_IN_BYTES,
    num_train=_STAND_IN_EXAMPLES,
    stream=stream,
    divide=functools.partial(fragments.divide_evenly, config),
  )


def from_config(config: ConfigDict) -> Learning:
  """Returns the learning of a config, for tools that start no run.

  Raises:
    ValueError: If there is no model, or a setting is wrong; names the field.
  """
  sections.check_fields(config)
  config = sections.resolve_own(paths.expand_home(config))
  relations.check_relations(config)
  model = config.model.name
  require(model != 'none', 'config.model.name', 'a model', model)
  compilations.configure(config)
  choose = functools.partial(sections.choose_section, config)
  return make(config, choose, None, None, config.cluster.devices_per_worker)


def _no_model(config: ConfigDict, choose: Choose) -> Learning:
  _, own = choose('model')
  stream = _stream(config, own['num_train'])
  with error_prefix('config.model.none'):
    return timing_only.make(
      stream=stream,
      divide=functools.partial(fragments.divide_evenly, config),
      **own,
    )


def _stream(config: ConfigDict, num_train: int) -> Stream:
  """Returns the stream; it prefetches less where an epoch is short."""
  batching, workers = config.batching, config.cluster.workers
  batch, steps = batching.worker_batch, sections.iteration_steps(config)
  reason = f'as {workers} workers share the {num_train} examples of an epoch'
  most = num_train // workers
  few = f'at most {num_train}, the examples of an epoch'
  require(most > 0, 'config.cluster.workers', few, workers)
  expected = f'at most {most}, {reason}'
  require(batch <= most, 'config.batching.worker_batch', expected, batch)
  most //= batch
  expected = f'at most {most} with batches of {batch}, {reason}'
  require(steps <= most, 'config.batching.local_steps', expected, steps)
  # Current iterations and those ahead have no more examples than an epoch.
  ahead = min(config.data.ahead, most // steps - 1)
  with error_prefix('config.data'):
    return Stream(num_examples=num_train, seed=config.seed, ahead=ahead)
