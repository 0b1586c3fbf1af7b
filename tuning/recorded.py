"""Clusters as runs measured them: speeds, and the links of a run.

Times of iterations are assumed proportional to their examples.  Each worker
repeats its recorded times in a cycle.
"""

import pathlib
import statistics
from collections.abc import Mapping
from typing import Any

from analysis import recorded_configs
from cluster.speed import traces
from configs.checks import require
from tuning import calibration, clusters
from tuning.clusters import ClusterDescription
from tuning.simulating import Workload

_COLUMNS = {
  'worker_column': 'worker',
  'order_column': 'iteration',
  'value_column': 'compute_s',
}
_WORKER = ('worker_up_Bps', 'worker_down_Bps')
_SERVER = ('server_up_Bps', 'server_down_Bps')


def read_run(
  path: str, folder: pathlib.Path
) -> tuple[ClusterDescription, Workload]:
  """Returns cluster and workload of a run, by `calibration.measure`.

  Args:
    path: Folder of the run.
    folder: Folder for measurements, needed as long as the cluster.

  Raises:
    ValueError: If there is no such run, or if it is too short.
    OSError: If a file cannot be read.
  """
  exists = pathlib.Path(path, 'manifest.json').exists()
  expected = 'the folder of a run, with its manifest.json'
  require(exists, '--from_run', expected, path)
  measured = calibration.measure(path)
  file = folder / 'measured.py'
  calibration.write(measured, file)
  config = measured.config
  batch = config.batching.worker_batch
  links = file.with_suffix('.json')
  network = {
    field: [*value] if isinstance(value, tuple) else value
    for field, value in config.cluster.network.items()
    if field != 'servers_in_workers'
  }
  route = config.route
  apart = (
    route.name == 'server' and not config.cluster.network.servers_in_workers
  )
  for field in _SERVER:
    rates = network.pop(field)
    if apart:
      network[field] = rates * (route.server.servers if len(rates) == 1 else 1)
  network.pop('server_latency_s')
  if links.exists():  # Then rates of hosts were not measured.
    for field in _WORKER:
      network.pop(field)
  description = ClusterDescription(
    path,
    config.cluster.workers,
    _read_speed(file.with_suffix('.csv'), batch),
    network,
    str(links) if links.exists() else '',
  )
  size_bytes = recorded_configs.float32_bytes(config.wire, measured.size_bytes)
  return clusters.check(description), Workload(size_bytes, batch)


def read_trace(path: str, file: str, batch: int) -> ClusterDescription:
  """Returns the cluster of a file, with the speeds of a trace.

  Args:
    path: CSV with the columns worker, iteration and compute_s, seconds, as
      a calibration writes it.
    file: File of the cluster, without `speed`.
    batch: Examples of a recorded iteration.

  Raises:
    ValueError: If a file is wrong; names file and field.
    OSError: If the cluster's file cannot be read.
  """
  try:
    speed, workers = _read_speed(pathlib.Path(path), batch), _workers(path)
  except ValueError as error:
    raise ValueError(f'--from_trace: {error}') from error
  description = clusters.read(file, speed)
  expected = f'{workers}, as {path} has'
  is_same = description.workers == workers
  require(is_same, f'{file}: workers', expected, description.workers)
  return description


def _read_speed(path: pathlib.Path, batch: int) -> Mapping[str, Any]:
  times = [row.value for row in traces.rows(str(path), (), **_COLUMNS)]
  return {
    'name': 'trace',
    'fixed_s': 0.0,
    'per_example_s': statistics.fmean(times) / batch,
    'slowdown': [1.0],
    'trace': {'path': str(path), **_COLUMNS},
  }


def _workers(path: str) -> int:
  return len({row.worker for row in traces.rows(path, (), **_COLUMNS)})
