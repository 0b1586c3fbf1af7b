"""Virtual clusters with the speeds and links that a run measured.

A calibration is the workload of the run under the virtual clock, with the
measured links and compute times, which each worker repeats in a cycle.
"""

import csv
import io
import json
import math
import pathlib
import statistics
import tempfile
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

from ml_collections import ConfigDict

import analysis
from analysis import printing, recorded_configs
from configs.checks import require
from outputs import atomic
from sweeps import scratch
from tuning.calibrating import (
  allreduce,
  links,
  parameter_server,
  timeline,
)

# Fields that two runs must share so that one can predict the other.
_SHARED = ('cluster.workers', 'batching', 'wire', 'model')
_COLUMNS = ('worker', 'iteration', 'compute_s')
_FILE = '''"""The cluster of a run, as measured by tools.tune.

The run: {path}

python main.py --config={name}
"""

import pathlib
from math import inf  # noqa: F401

import ml_collections

from configs import default

# All fields that differ from their defaults.
_FIELDS = {{
{fields}}}


def get_config() -> ml_collections.ConfigDict:
  """Returns the workload of the run on a virtual cluster."""
  config = default.get_config()
  config.update_from_flattened_dict(_FIELDS)
  times = pathlib.Path(__file__).resolve().with_suffix('.csv')
  config.cluster.speed.trace.path = str(times)
{links}  return config
'''
_LINKS = "  config.cluster.links = str(times.with_suffix('.json'))\n"


class Calibration(NamedTuple):
  """Cluster and workload of a run.

  Attributes:
    path: Folder of the run.
    config: Config of the run, for this cluster as a virtual one; without the
      paths of the compute times and links.
    num_train: Examples of an epoch.
    compute_s: Compute times of each worker by iteration, seconds.
    links: Measured links.
  """

  path: pathlib.Path
  config: ConfigDict
  num_train: int
  compute_s: Sequence[Sequence[float]]
  links: parameter_server.ServerLinks | allreduce.AllreduceLinks

  @property
  def size_bytes(self) -> int:
    """Bytes of a push and of a pull, or of the vector that is allreduced."""
    return self.links.size_bytes


class Check(NamedTuple):
  """Predicted and measured pace of a run.

  Attributes:
    path: Folder of the run.
    scheme: Name of its scheme.
    predicted: Predicted pace.
    measured: Measured pace.
  """

  path: pathlib.Path
  scheme: str
  predicted: timeline.Pace
  measured: timeline.Pace


def measure(path: str | pathlib.Path) -> Calibration:
  """Returns the cluster and the workload of a run.

  Args:
    path: Folder of a run that has ended, also by an error.

  Raises:
    ValueError: If there is no such run, if it is too short, or if a file is
      broken; names the file or field.
    OSError: If a file cannot be read.
  """
  path = pathlib.Path(path)
  recorded = timeline.read(path)
  config = recorded_configs.restore_config(path)
  batching = config.batching.name
  expected = "'fixed', as times depend on the batch"
  field = f'{path}: config.batching.name'
  require(batching == 'fixed', field, expected, batching)
  times = timeline.compute_times(recorded)
  for worker, own in enumerate(times):
    expected = f'at least {links.LEAST} iterations'
    field = f'{path}: compute times of worker {worker}'
    require(len(own) >= links.LEAST, field, expected, len(own))
  _set_times(config, times)
  found = _kind(config).measure(recorded, config, recorded.run.config, times)
  return Calibration(
    path=path,
    config=config,
    num_train=recorded_configs.num_train(path),
    compute_s=times,
    links=found,
  )


def write(calibration: Calibration, path: str | pathlib.Path) -> None:
  """Writes a config for main.py, and the compute times beside it.

  Args:
    path: Path of the config, which ends in '.py'.

  Raises:
    ValueError: If the path has another suffix.
    OSError: If a file cannot be written.
  """
  path = pathlib.Path(path)
  require(path.suffix == '.py', 'out', 'the path of a .py file', str(path))
  text = _FILE.format(
    path=calibration.path,
    name=path.name,
    fields=recorded_configs.fields_text(calibration.config),
    links=_LINKS if calibration.links.cluster else '',
  )
  atomic.write(path, text)
  _write_times(calibration, path.with_suffix('.csv'))
  _write_links(calibration, path.with_suffix('.json'))


def predict(
  calibration: Calibration, source: ConfigDict | str | pathlib.Path
) -> dict[str, Any]:
  """Predicts a run on a cluster by a simulation of its times.

  Args:
    source: Folder of a run, to predict the time of its examples; or a config,
      to predict its epochs.

  Returns:
    The summary of the simulated run, and `iteration_s`; this and
    `waiting_share` are as `timeline.Pace` defines them.

  Raises:
    ValueError: If the run has another workload or number of workers than the
      calibration.
    OSError: If a file cannot be read.
  """
  if isinstance(source, ConfigDict):
    where, config, num_train = '', source, calibration.num_train
    epochs = config.epochs
  else:
    path = pathlib.Path(source)
    where = f'{path}: '
    config, num_train = (
      recorded_configs.restore_config(path),
      recorded_configs.num_train(path),
    )
    epochs = timeline.read(path).summary['examples'] / num_train
  own = _kind(calibration.config)
  same = _kind(config) is own
  name = f'{where}config.route.name'
  require(same, name, 'servers in both runs, or none', config.route.name)
  for field in (*_SHARED, *own.SHARED):
    measured = recorded_configs.field_value(calibration.config, field)
    got = recorded_configs.field_value(config, field)
    expected = f'{measured!r}, as in the run that was measured'
    require(got == measured, f'{where}config.{field}', expected, got)
  timed = recorded_configs.timing_config(
    config,
    cluster=calibration.config.cluster,
    size_bytes=calibration.size_bytes,
    num_train=num_train,
    epochs=epochs,
  )
  if (
    work := calibration.links.server_work
  ):  # A run without a model has no slots.
    section = timed.cluster.server
    section.update_Bps = work['share_bytes'] / work['update_s']
  with tempfile.TemporaryDirectory() as folder:
    times = pathlib.Path(folder, 'times.csv')
    _write_times(calibration, times)
    timed.cluster.speed.trace.path = str(times)
    links = pathlib.Path(folder, 'links.json')
    if _write_links(calibration, links):
      timed.cluster.links = str(links)
    with scratch.execute(timed) as run:
      pace = timeline.pace(analysis.read(run.folder))
  return dict(run.summary) | pace._asdict()


def check(
  calibration: Calibration, paths: Sequence[str | pathlib.Path]
) -> list[Check]:
  """Returns the predicted and measured paces of the runs in folders.

  Raises:
    ValueError: If a run has not ended, or has another workload.
    OSError: If a file cannot be read.
  """
  found = []
  for path in map(pathlib.Path, paths):
    run = analysis.read(path)
    measured = timeline.pace(run)
    summary = predict(calibration, path)
    predicted = timeline.Pace(*(summary[f] for f in timeline.Pace._fields))
    scheme = run.config['sync']['name']
    found.append(Check(path, scheme, predicted, measured))
  return found


def describe(calibration: Calibration) -> str:
  """Returns a table of the measurements, and warnings on missing ones."""
  config = calibration.config
  description: str = _kind(config).describe(
    calibration.links, config, calibration.compute_s
  )
  return description


def compare(checks: Sequence[Check]) -> str:
  """Returns a table of predicted and measured paces."""
  head = ('run', 'scheme', 'iteration s', 'measured', 'ratio')
  rows: list[tuple[str, ...]] = [(*head, 'waiting', 'measured', 'difference')]
  ratios, differences = [], []
  for path, scheme, predicted, measured in checks:
    ratios.append(predicted.iteration_s / measured.iteration_s)
    differences.append(predicted.waiting_share - measured.waiting_share)
    times = (f'{pace.iteration_s:.4g}' for pace in (predicted, measured))
    shares = (f'{pace.waiting_share:.1%}' for pace in (predicted, measured))
    ratio, difference = f'{ratios[-1]:.3f}', f'{differences[-1]:+.1%}'
    rows.append((str(path), scheme, *times, ratio, *shares, difference))
  missed = statistics.median(abs(ratio - 1) for ratio in ratios)
  apart = statistics.median(map(abs, differences))
  return (
    printing.text(rows, align='r')
    + f'\nMedians: |ratio - 1| {missed:.1%} of iteration '
    f'times, |difference| {100 * apart:.1f} points of waiting shares.'
  )


def _kind(config: ConfigDict) -> ModuleType:
  """Returns the module that measures the links of runs on this route."""
  if config.route.name == 'server':
    return parameter_server
  expected = "'dense' on allreduce routes"
  name = config.wire.name
  require(name == 'dense', 'config.wire.name', expected, name)
  return allreduce


def _set_times(config: ConfigDict, times: Sequence[Sequence[float]]) -> None:
  """Sets the speeds of a config to a trace of these times."""
  every = [seconds for own in times for seconds in own]
  config.cluster.speed.update(
    {
      'name': 'trace',
      'fixed_s': math.fsum(every) / len(every),  # As the model divides.
      'per_example_s': 0.0,
      'slowdown': (1.0,),
    }
  )
  config.cluster.speed.trace.update(
    {
      'worker_column': _COLUMNS[0],
      'order_column': _COLUMNS[1],
      'value_column': _COLUMNS[2],
    }
  )


def _write_times(calibration: Calibration, path: pathlib.Path) -> None:
  text = io.StringIO()
  writer = csv.writer(text)
  writer.writerow(_COLUMNS)
  # Sorted by worker: the model uses them in the order of the rows.
  for worker, times in enumerate(calibration.compute_s):
    writer.writerows((worker, i, repr(s)) for i, s in enumerate(times))
  atomic.write(path, text.getvalue())


def _write_links(calibration: Calibration, path: pathlib.Path) -> bool:
  """Writes links beyond those of hosts; returns True if there are any."""
  cluster = calibration.links.cluster
  if cluster:
    atomic.write(path, json.dumps(cluster, indent=1) + '\n')
  return bool(cluster)
