"""Makes a virtual cluster of the measurements of a real run.

  python -m tools.calibrate RUN_DIR --out=FILE.py
  python -m tools.calibrate RUN_DIR --out=FILE.py --check RUN_DIR [RUN_DIR ...]

FILE.py is a config for main.py: the workload of the run, on the virtual clock,
with the links and the compute times that were measured; FILE.csv beside it has
the compute times, and each worker goes through its own again and again.
--config.sync.name=ssp on the command line of main.py then says what the same
cluster would do with another scheme.

--check says how well that works: it predicts other runs of the same workload
on the same cluster and prints what they were predicted and measured to be.
"""

import contextlib
import csv
import io
import math
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from absl import app, flags, logging
from ml_collections import ConfigDict

import train
from configs.checks import require
from tools.calibrating import links, placement, timeline
from tools.calibrating.links import Links
from tools.reading import manifests, records

# What two runs must share so that one can predict the other.
_SHARED = ('cluster.workers', 'batching', 'wire', 'route', 'model')
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
  return config
'''


class Calibration(NamedTuple):
  """A cluster and a workload, as measured in a run.

  Attributes:
    path: The run's folder.
    config: The run's, for this cluster as a virtual one; without the path of
      the compute times.
    size_bytes: Of a push and of a pull.
    num_train: Examples of an epoch.
    compute_s: Seconds that each worker computed, by iteration.
    down: The links that pulls used.
    up: The links that pushes used.
  """

  path: pathlib.Path
  config: ConfigDict
  size_bytes: int
  num_train: int
  compute_s: Sequence[Sequence[float]]
  down: Links
  up: Links


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
  config = manifests.config(path)
  batching, one = config.batching.name, "'fixed': its times are of one batch"
  require(batching == 'fixed', f'{path}: config.batching.name', one, batching)
  times = timeline.compute_times(recorded)
  for worker, own in enumerate(times):
    expected = f'at least {links.LEAST} iterations'
    field = f'{path}: compute times of worker {worker}'
    require(len(own) >= links.LEAST, field, expected, len(own))
  size_bytes = timeline.size_bytes(recorded)
  pulls, pushes = (
    timeline.transfers(recorded, phase) for phase in ('pull', 'push')
  )
  try:
    down, up = links.fit(
      pulls,
      pushes,
      num_workers=config.cluster.workers,
      size_bytes=size_bytes,
    )
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error
  _put(config, times, down, up)
  if placement.in_workers(records.config(path)):
    placement.put(config, down, up)
  return Calibration(
    path=path,
    config=config,
    size_bytes=size_bytes,
    num_train=manifests.num_train(path),
    compute_s=times,
    down=down,
    up=up,
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
    for field, value in manifests.changed(calibration.config)
  )
  text = _FILE.format(path=calibration.path, name=path.name, fields=fields)
  path.write_text(text, encoding='utf-8')
  _write_times(calibration, path.with_suffix('.csv'))


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
    config, num_train = manifests.config(path), manifests.num_train(path)
    epochs = timeline.read(path).summary['examples'] / num_train
  for field in _SHARED:
    measured = manifests.value(calibration.config, field)
    got = manifests.value(config, field)
    expected = f'{measured!r}, as in the run that was measured'
    require(got == measured, f'{where}config.{field}', expected, got)
  timed = manifests.timed(
    config,
    cluster=calibration.config.cluster,
    size_bytes=calibration.size_bytes,
    num_train=num_train,
    epochs=epochs,
  )
  with tempfile.TemporaryDirectory() as folder, _quiet():
    times = pathlib.Path(folder, 'times.csv')
    _write_times(calibration, times)
    timed.cluster.speed.trace.path = str(times)
    summary = train.build(timed, workdir=f'{folder}/run')()
    pace = timeline.pace(timeline.read(f'{folder}/run'))
  return dict(summary) | pace._asdict()


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
    scheme = records.config(path)['sync']['name']
    found.append(Check(path, scheme, predicted, measured))
  return found


def describe(calibration: Calibration) -> str:
  """Returns a table of what was measured, and what could not be."""
  up, down = calibration.up, calibration.down
  servers = calibration.config.route.server.servers
  head = ('host', 'up MB/s', 'down MB/s', 'compute s', 'error', 'transfers')
  rows = [head]
  for worker, times in enumerate(calibration.compute_s):
    rates = [
      _rate(each.worker_Bps[worker], each.worker_bound[worker])
      for each in (up, down)
    ]
    errors = [f'{each.error[worker]:.1%}' for each in (up, down)]
    used = [f'{each.used[worker]}' for each in (up, down)]
    mean = f'{statistics.fmean(times):.4g}'
    row = (f'worker {worker}', *rates, mean, ' '.join(errors), ' '.join(used))
    rows.append(row)
  # What comes up from the workers goes down to the servers.
  rates = [
    _rate(each.servers_Bps / servers, each.servers_bound) for each in (down, up)
  ]
  errors = ' '.join(f'{each.errors:.1%}' for each in (up, down))
  used = ' '.join(f'{each.used.sum()}' for each in (up, down))
  name = 'server' if servers == 1 else f'each of {servers} servers'
  rows.append((name, *rates, '', errors, used))
  lines = [
    f'A transfer has {calibration.size_bytes / 1e6:.4g} MB and takes, beside '
    f'its time on the links, {1e3 * up.latency_s:.1f} ms (push)\nor '
    f'{1e3 * down.latency_s:.1f} ms (pull); stalls add '
    f'{1e3 * up.excess_s:z.1f} and {1e3 * down.excess_s:z.1f} ms in the mean.  '
    'Error: median,\nrelative, of durations; push and pull.',
    _table(rows),
  ]
  bound = (
    bound
    for each in (up, down)
    for bound in (*each.worker_bound, each.servers_bound)
  )
  if not all(bound):
    lines.append(
      'WARNING: >= marks links that never held a transfer back: they may be '
      'faster, and\nschemes that would use them more may be faster than '
      'predicted.'
    )
  return '\n'.join(lines)


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
    f'{_table(rows)}\nMedians: |ratio - 1| {missed:.1%} of iteration times, '
    f'|difference| {100 * apart:.1f} points of waiting shares.'
  )


def _put(
  config: ConfigDict, times: Sequence[Sequence[float]], down: Links, up: Links
) -> None:
  """Changes a config's cluster to one with these times and links."""
  servers = config.route.server.servers
  # One latency counts both ways, so an iteration has the sum of the two; with
  # the stalls, or it would be shorter in the mean than it was.
  beside_s = (each.latency_s + each.excess_s for each in (down, up))
  latency_s = max(sum(beside_s) / 2, 0.0)
  every = [seconds for own in times for seconds in own]
  config.cluster.update_from_flattened_dict(
    {
      'speed.name': 'trace',
      'speed.fixed_s': math.fsum(every) / len(every),  # As the model divides.
      'speed.per_example_s': 0.0,
      'speed.slowdown': (1.0,),
      'speed.trace.worker_column': _COLUMNS[0],
      'speed.trace.order_column': _COLUMNS[1],
      'speed.trace.value_column': _COLUMNS[2],
      'network.worker_up_Bps': placement.rounded(up.worker_Bps),
      'network.worker_down_Bps': placement.rounded(down.worker_Bps),
      'network.worker_latency_s': placement.rounded([latency_s]),
      'network.server_up_Bps': placement.rounded([down.servers_Bps / servers]),
      'network.server_down_Bps': placement.rounded([up.servers_Bps / servers]),
      'network.server_latency_s': (0.0,),
    }
  )


def _write_times(calibration: Calibration, path: pathlib.Path) -> None:
  with path.open('w', newline='', encoding='utf-8') as file:
    writer = csv.writer(file)
    writer.writerow(_COLUMNS)
    # Worker by worker: the model takes them in the order of their rows.
    for worker, times in enumerate(calibration.compute_s):
      writer.writerows((worker, i, repr(s)) for i, s in enumerate(times))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Hides what a run shows."""
  before = logging.get_verbosity()
  logging.set_verbosity(logging.WARNING)
  try:
    with contextlib.redirect_stdout(io.StringIO()):
      yield
  finally:
    logging.set_verbosity(before)


def _rate(rate_Bps: float, bound: bool) -> str:
  return f'{"" if bound else ">= "}{rate_Bps / 1e6:.3g}'


def _table(rows: Sequence[Sequence[str]]) -> str:
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return '\n'.join(
    '  '.join(map(str.rjust, row, widths)).rstrip() for row in rows
  )


if __name__ == '__main__':
  flags.DEFINE_string('out', None, 'Config to write, FILE.py.', required=True)
  flags.DEFINE_bool('check', False, 'Whether to predict the runs that follow.')
  app.run(main)
