"""Makes what a run learns of its config: of a model and data, or nothing."""

import functools
import os
from typing import TYPE_CHECKING

from ml_collections import ConfigDict

from configs import default, sections
from configs.checks import require
from configs.sections import Choose, build_section, error_prefix
from data.dataset import Dataset
from data.stream import Stream
from learning import compilations
from learning.learning import Learning
from learning.nothing import Nothing

if TYPE_CHECKING:
  from models.task import Task

# Examples and bytes of what stands for data and a model.
_MANY = 10**9
_STANDS_FOR = 2**20


def make(
  config: ConfigDict,
  choose: Choose,
  task: 'Task | None',
  dataset: Dataset | None,
  devices: int,
) -> Learning:
  """Returns what a config says, or a task and a dataset in its place.

  Args:
    config: Checked.
    choose: Chooses a section of it.
    task: Replaces the one of the model that config.model names.
    dataset: Replaces the one that config.data names.
    devices: How many of this process's compute gradients; 0 if none will be
      computed here.

  Raises:
    ValueError: If anything is wrong; names the field.
  """
  if config.model.name == 'none':
    return _nothing(config, choose)
  from learning import tasks  # Who learns nothing starts without Flax.

  directory = config.data.dir or os.environ.get('SYNCOPATE_DATA')
  dataset = dataset or build_section('data', choose, directory=directory)
  dataset.check()
  stream = _stream(config, len(dataset.train.targets))
  return tasks.make(config, choose, task, dataset, stream, devices)


def stand_in(config: ConfigDict, choose: Choose, *, devices: int) -> Learning:
  """Returns what learns nothing in the place of what a config says.

  It takes no time to make.  Optimiser and schedule are checked; model and data
  are not.

  Args:
    config: As of `make`, and so are the others.
    choose: The same.
    devices: The same.

  Raises:
    ValueError: If anything that is checked is wrong; names the field.
  """
  if config.model.name == 'none':
    return _nothing(config, choose)
  from learning import tasks

  choose('data')
  tasks.check(config, choose)
  stream = _stream(config, _MANY)
  return Nothing(size_bytes=_STANDS_FOR, num_train=_MANY, stream=stream)


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
  compilations.configure(config)
  choose = functools.partial(sections.choose_section, config, defaults)
  return make(config, choose, None, None, config.cluster.devices_per_worker)


def _nothing(config: ConfigDict, choose: Choose) -> Nothing:
  _, own = choose('model')
  stream = _stream(config, own['num_train'])
  with error_prefix('config.model.none'):
    return Nothing(stream=stream, **own)


def _stream(config: ConfigDict, num_train: int) -> Stream:
  batch, ahead = config.batching.worker_batch, config.data.ahead
  most = f'at most the {num_train} training examples'
  require(batch <= num_train, 'config.batching.worker_batch', most, batch)
  held = config.cluster.workers * batch * (ahead + 1)
  least = f'no more examples held ahead ({held}) than an epoch has'
  require(held <= num_train, 'config.data.ahead', least, ahead)
  with error_prefix('config.data'):
    return Stream(num_examples=num_train, seed=config.seed, ahead=ahead)
