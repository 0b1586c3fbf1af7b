"""Makes a virtual cluster of the measurements of a real run.

  python -m tools.calibrate RUN_DIR --out=FILE.py
  python -m tools.calibrate RUN_DIR --out=FILE.py --check RUN_DIR [RUN_DIR ...]

FILE.py is a config for main.py: the workload of the run, on the virtual clock,
with the links and the compute times that were measured; FILE.csv beside it has
the compute times, and each worker goes through its own again and again.
--config.sync.name=ssp on the command line of main.py then says what the same
cluster would do with another scheme; after a run whose workers have summed,
--config.route.name=ring what another such route would.  Its links are in
FILE.json if they are more than those of hosts, up and down.

--check says how well that works: it predicts other runs of the same workload
on the same cluster and prints what they were predicted and measured to be.
"""

import csv
import io
import json
import math
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

from absl import app, flags
from ml_collections import ConfigDict

from configs.checks import require
from learning import placement
from outputs import atomic
from sweeps import scratch
from tools.calibrating import (
  allreduce,
  links,
  parameter_server,
  tables,
  timeline,
)
from tools.reading import manifests, records

# What two runs must share so that one can predict the other.
_SHARED = ('cluster.workers', 'batching', 'wire', 'model')
_COLUMNS = ('worker', 'iteration', 'compute_s')
_FILE = '''"""The cluster of a run, as tools.calibrate has measured it.

The run: {path}

python main.py --config={name}
"""

import pathlib
from math import inf  # noqa: F401

import ml_collections

from configs import default

# Everything that is not the default.
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
  """A cluster and a workload, as measured in a run.

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
  links: parameter_server.Found | allreduce.Found

  @property
  def size_bytes(self) -> int:
    """Bytes of a push and of a pull, or of the vector that is allreduced."""
    return self.links.size_bytes


class Check(NamedTuple):
  """A run beside what was predicted of it.

  Attributes:
    path: The run's folder.
    scheme: Its scheme.
    predicted: How fast it should be.
    measured: How fast it was.
  """

  path: pathlib.Path
  scheme: str
  predicted: timeline.Pace
  measured: timeline.Pace


def main(argv: list[str]) -> None:
  """Calibrates, writes and checks as the command line says."""
  given = flags.FLAGS
  if len(argv) < 2 or given.check != (len(argv) > 2):
    raise app.UsageError(
      f'Expected one folder of a run, and others with --check, got {argv[1:]}.'
    )
  placement.use_cpu_only()
  try:
    calibration = measure(argv[1])
    write(calibration, given.out)
    print(describe(calibration))
    if given.check:
      print(compared(check(calibration, argv[2:])))
  except (OSError, ValueError) as error:
    sys.exit(f'Refused: {error}')


def measure(path: str | pathlib.Path) -> Calibration:
  """Returns the cluster and the workload of a run.

  Args:
    path: Folder of a run that has ended, however it did.

  Raises:
    ValueError: If there is no such run, if a file of it is broken, or if it is
      too short; names the file or field.
    OSError: If a file cannot be read.
  """
  path = pathlib.Path(path)
  recorded = timeline.read(path)
  config = manifests.restore_config(path)
  batching, one = config.batching.name, "'fixed': its times are of one batch"
  require(batching == 'fixed', f'{path}: config.batching.name', one, batching)
  times = timeline.compute_times(recorded)
  for worker, own in enumerate(times):
    expected = f'at least {links.LEAST} iterations'
    field = f'{path}: compute times of worker {worker}'
    require(len(own) >= links.LEAST, field, expected, len(own))
  _put(config, times)
  found = _kind(config).measure(
    recorded, config, records.read_config(path), times
  )
  return Calibration(
    path=path,
    config=config,
    num_train=manifests.num_train(path),
    compute_s=times,
    links=found,
  )


def write(calibration: Calibration, path: str | pathlib.Path) -> None:
  """Writes a config for main.py, and the compute times beside it.

  Args:
    calibration: From `measure`.
    path: Of the config; ends with '.py'.

  Raises:
    ValueError: If the path has another end.
    OSError: If a file cannot be written.
  """
  path = pathlib.Path(path)
  require(path.suffix == '.py', 'out', 'the path of a .py file', str(path))
  fields = ''.join(
    f'  {field!r}: {value!r},\n'
    for field, value in manifests.changed_fields(calibration.config)
  )
  text = _FILE.format(
    path=calibration.path,
    name=path.name,
    fields=fields,
    links=_LINKS if calibration.links.cluster else '',
  )
  atomic.write(path, text)
  _write_times(calibration, path.with_suffix('.csv'))
  _write_links(calibration, path.with_suffix('.json'))


def predict(
  calibration: Calibration, source: ConfigDict | str | pathlib.Path
) -> dict[str, Any]:
  """Returns how a run would go on a cluster, by a simulation of its times.

  Args:
    calibration: Of the cluster.
    source: Folder of a run, for as many examples as it processed; or a config,
      for as many epochs as it says.

  Returns:
    What summary.json of the simulated run holds and `iteration_s`; this and
    `waiting_share` are as `timeline.Pace` defines them.

  Raises:
    ValueError: If the run has another workload or number of workers than the
      calibration, which are not the same cluster then.
    OSError: If a file cannot be read.
  """
  if isinstance(source, ConfigDict):
    where, config, num_train = '', source, calibration.num_train
    epochs = config.epochs
  else:
    path = pathlib.Path(source)
    where = f'{path}: '
    config, num_train = (
      manifests.restore_config(path),
      manifests.num_train(path),
    )
    epochs = timeline.read(path).summary['examples'] / num_train
  own = _kind(calibration.config)
  same = _kind(config) is own
  name = f'{where}config.route.name'
  require(same, name, 'servers in both runs, or none', config.route.name)
  for field in (*_SHARED, *own.SHARED):
    measured = manifests.field_value(calibration.config, field)
    got = manifests.field_value(config, field)
    expected = f'{measured!r}, as in the run that was measured'
    require(got == measured, f'{where}config.{field}', expected, got)
  timed = manifests.timing_config(
    config,
    cluster=calibration.config.cluster,
    size_bytes=calibration.size_bytes,
    num_train=num_train,
    epochs=epochs,
  )
  with tempfile.TemporaryDirectory() as folder:
    times = pathlib.Path(folder, 'times.csv')
    _write_times(calibration, times)
    timed.cluster.speed.trace.path = str(times)
    links = pathlib.Path(folder, 'links.json')
    if _write_links(calibration, links):
      timed.cluster.links = str(links)
    with scratch.trained(timed) as run:
      pace = timeline.pace(timeline.read(run.folder))
  return dict(run.summary) | pace._asdict()


def check(
  calibration: Calibration, paths: Sequence[str | pathlib.Path]
) -> list[Check]:
  """Returns runs of a cluster beside what is predicted of them.

  Args:
    calibration: Of the cluster.
    paths: Folders of runs.

  Raises:
    ValueError: If one is no run that has ended, or another workload.
    OSError: If a file cannot be read.
  """
  found = []
  for path in map(pathlib.Path, paths):
    measured = timeline.pace(timeline.read(path))
    summary = predict(calibration, path)
    predicted = timeline.Pace(*map(summary.get, timeline.Pace._fields))
    scheme = records.read_config(path)['sync']['name']
    found.append(Check(path, scheme, predicted, measured))
  return found


def describe(calibration: Calibration) -> str:
  """Returns a table of what was measured, and what could not be."""
  config = calibration.config
  return _kind(config).describe(
    calibration.links, config, calibration.compute_s
  )


def compared(checks: Sequence[Check]) -> str:
  """Returns a table of runs beside what was predicted of them."""
  head = ('run', 'scheme', 'iteration s', 'measured', 'ratio')
  rows = [(*head, 'waiting', 'measured', 'difference')]
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
    f'{tables.table(rows)}\nMedians: |ratio - 1| {missed:.1%} of iteration '
    f'times, |difference| {100 * apart:.1f} points of waiting shares.'
  )


def _kind(config: ConfigDict) -> ModuleType:
  """Returns what measures links of such runs."""
  if config.route.name == 'server':
    return parameter_server
  expected = "'dense' where workers sum among themselves"
  name = config.wire.name
  require(name == 'dense', 'config.wire.name', expected, name)
  return allreduce


def _put(config: ConfigDict, times: Sequence[Sequence[float]]) -> None:
  """Changes a config's cluster to one with these times."""
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
  # Worker by worker: the model takes them in the order of their rows.
  for worker, times in enumerate(calibration.compute_s):
    writer.writerows((worker, i, repr(s)) for i, s in enumerate(times))
  atomic.write(path, text.getvalue())


def _write_links(calibration: Calibration, path: pathlib.Path) -> bool:
  """Writes links that are more than those of hosts; returns whether."""
  cluster = calibration.links.cluster
  if cluster:
    atomic.write(path, json.dumps(cluster, indent=1) + '\n')
  return bool(cluster)


if __name__ == '__main__':
  flags.DEFINE_string('out', None, 'Config to write, FILE.py.', required=True)
  flags.DEFINE_bool('check', False, 'Whether to predict the runs that follow.')
  app.run(main)
