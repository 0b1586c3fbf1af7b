"""Replays LB-BSP on recorded speeds, and measures errors of predictors there.

The traces are bench/recorded.csv and the jobs of the PAI trace in the folder
SYNCOPATE_DATA.  Each seed begins a trace at another sixth of it, continues from
its end with its start, and has other parameters of networks.
"""

import os
import pathlib
from collections.abc import Mapping

import numpy as np

from batching import fixed
from bench.predictors import batches, errors

PAI_JOBS = 'job1', 'job3'
_BATCHINGS = 'last', 'ema', 'lstm', 'narx'
_PREDICTORS = 'last', 'ema', 'arima', 'lstm', 'narx'
_PARTS = 6


def find_pai(job: str) -> pathlib.Path:
  """Returns the file of a PAI job, which may be missing."""
  return pathlib.Path(os.environ.get('SYNCOPATE_DATA', ''), f'pai/{job}.csv')


def measure(*, seed: int, scale: str) -> list[Mapping[str, object]]:
  """Returns efficiencies of LB-BSP and errors of predictors by trace.

  An efficiency is the rate of all workers over the sum of their solo rates, and
  `of_oracle` the gain over equal batches as a share of that of an oracle.
  """
  del scale  # A trace has one length.
  files = {'recorded': (errors.RECORDED, 'compute_s', 'iteration')}
  files |= {
    f'PAI {job}': (find_pai(job), 'batch_time_norm', 'time') for job in PAI_JOBS
  }
  records: list[Mapping[str, object]] = []
  for name, (path, value, order) in files.items():
    driving = 'cpu,memory' if name == 'recorded' else ''
    for by_name in (
      _replay(path, value, order, driving, seed),
      _errors(name, path, seed),
    ):
      records += [{'trace': name, **record} for record in by_name]
  return records


def _replay(
  path: pathlib.Path, value: str, order: str, driving: str, seed: int
) -> list[dict[str, object]]:
  speed, supersteps = batches.read_speeds(path, value, order, driving)
  workers, total = speed.model.num_workers, batches.BATCH
  start = seed % _PARTS * supersteps // _PARTS
  rules: dict[str, batches.Rule] = {
    'fixed': fixed.make(num_workers=workers, worker_batch=total),
    'oracle': batches.Oracle(speed, workers * total, start),
    **{
      name: batches.make_lb_bsp(name, speed, seed=seed) for name in _BATCHINGS
    },
  }
  alone = batches.solo_rate(speed, supersteps)
  reached = {
    name: batches.simulate(rule, speed, supersteps, start) / alone
    for name, rule in rules.items()
  }
  equal = reached['fixed']
  gain = reached['oracle'] - equal
  return [
    {'batching': name, 'efficiency': each, 'of_oracle': (each - equal) / gain}
    for name, each in reached.items()
  ]


def _errors(
  name: str, path: pathlib.Path, seed: int
) -> list[dict[str, object]]:
  read = errors.read_recording if name == 'recorded' else errors.read_pai
  trace = read(path)
  steps = int(np.isfinite(trace.values).sum(axis=0).min())
  shift = seed % _PARTS * steps // _PARTS
  turned = errors.Trace(
    *(np.roll(part[:steps], -shift, axis=0) for part in trace)
  )
  return [
    {'predictor': each, 'rmse': errors.error_of(each, turned, seed)}
    for each in _PREDICTORS
  ]
