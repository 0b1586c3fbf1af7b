"""Predictions of the virtual cluster for the steps that others measured.

Four numbers are fitted, and one choice is made:
  - seconds of a local step: the mean, over H, of the medians of DiLoCo's
    unshaped local steps;
  - the rate of links shaped to 1 Gbit/s, so that the virtual cluster takes the
    measured time of LocalSGD's steps with H = 1;
  - seconds of DiLoCo's outer optimizer: what its steps with H = 1 take longer
    than LocalSGD's at 1 Gbit/s;
  - the rate of unshaped links, from DiLoCo's steps with H = 1;
  - DDP's algorithm, a ring or a double tree: the nearer one at 1 Gbit/s.  Its
    computing and its optimizer are those of its unshaped steps.

Links of other rates carry the share of their nominal rate that those of 1
Gbit/s do.  The first allreduce of a run also takes the time of its set-up,
which is measured with H = 1, for each algorithm.  The virtual cluster does not
model this time: it is added.

Displacements travel as one vector once the iteration is computed; DDP's buckets
of 25 MiB travel during its backward pass.
"""

import functools
import math
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import analysis
from configs import timing
from configs.checks import require
from papers.measures import steps_of_others
from papers.measures.steps_of_others import (
  UNSHAPED,
  Medians,
  Setting,
  nominal_Bps,
)
from sweeps import scratch

WORKERS = 4
SIZE_BYTES = 4 * 30_846_720  # Float32 parameters.
SHAPED = '1g'  # Shaped links of the calibration.
FILE = 'diloco_measured/steps_1gbit_unshaped.csv'
BANDWIDTHS = '50m', '200m', SHAPED, '5g', UNSHAPED
LOCAL_STEPS = 1, 8, 32, 128
_DDP_ROUTES = 'ring', 'double_tree'
_DDP_BUCKET_BYTES = 25.0 * 2**20  # Default of DDP.
_ITERATIONS = 4
_FITS, _NEAR = 12, 1e-6  # Most steps of a fit, and its relative tolerance.


class Calibration(NamedTuple):
  """Fitted numbers; see the module.

  Attributes:
    step_s: Seconds of a local step.
    outer_s: Seconds of DiLoCo's outer optimizer.
    shaped_share: Rate of shaped links over the nominal one.
    unshaped_Bps: Rate of unshaped links, bytes per second.
    ddp_compute_s: Seconds of a forward and backward pass of DDP.
    ddp_optimizer_s: Seconds of its optimizer.
    ddp_route: Route of the virtual cluster that stands for its allreduce.
    setup_s: Seconds of the set-up of a run's first allreduce, by algorithm and
      bandwidth.
  """

  step_s: float
  outer_s: float
  shaped_share: float
  unshaped_Bps: float
  ddp_compute_s: float
  ddp_optimizer_s: float
  ddp_route: str
  setup_s: Mapping[tuple[str, str], float]


class Prediction(NamedTuple):
  """Predicted times of a setting.

  Attributes:
    outer_s: Seconds of an outer step.
    iteration_s: Seconds of an iteration: H - 1 local steps and an outer one.
    setup_s: Seconds that the first outer step of a run takes longer.
  """

  outer_s: float
  iteration_s: float
  setup_s: float


def measure(*, seed: int, scale: str) -> list[Mapping[str, object]]:
  """Returns predictions for all links, and then the fitted numbers.

  The measured steps to which these are fitted are those of FILE in the folder
  SYNCOPATE_DATA.
  """
  del seed, scale  # Nothing is random.
  path = pathlib.Path(os.environ.get('SYNCOPATE_DATA', ''), FILE)
  fitted = calibrate(steps_of_others.read(path))
  records: list[Mapping[str, object]] = []
  for bandwidth in BANDWIDTHS:
    settings = [(Setting('ddp', 1, bandwidth), each) for each in _DDP_ROUTES]
    settings += [
      (Setting(algorithm, local_steps, bandwidth), 'ring')
      for algorithm in ('localsgd', 'diloco')
      for local_steps in LOCAL_STEPS
    ]
    for setting, route in settings:
      predicted = predict(fitted, setting, route)
      records.append(
        {
          **setting._asdict(),
          'route': route,
          'outer_s': predicted.outer_s,
          'first_outer_s': predicted.outer_s + predicted.setup_s,
          'iteration_s': predicted.iteration_s,
        }
      )
  numbers = {k: v for k, v in fitted._asdict().items() if k != 'setup_s'}
  return [*records, {'part': 'fitted', **numbers}]


def calibrate(measured: Mapping[Setting, Medians]) -> Calibration:
  """Returns the numbers that are fitted to measured steps.

  Args:
    measured: Medians by setting.

  Raises:
    ValueError: If a needed setting is missing, or if no rate fits.
  """
  find = functools.partial(_find, measured)
  local_s = [
    medians.local_s
    for setting, medians in sorted(measured.items())
    if (setting.algorithm, setting.bandwidth) == ('diloco', UNSHAPED)
    and medians.local_s is not None
  ]
  expected = f"rows of 'diloco', {UNSHAPED}, with local steps"
  require(bool(local_s), '--data', expected, 'none')
  step_s = sum(local_s) / len(local_s)
  local_sgd_s = find('localsgd', 1, SHAPED, 'outer_s')
  diloco_s = find('diloco', 1, SHAPED, 'outer_s')
  unshaped_s = find('diloco', 1, UNSHAPED, 'outer_s')
  outer_s = max(diloco_s - local_sgd_s, 0.0)

  def take(Bps: float) -> float:
    return simulate('ring', Bps, compute_s=step_s)

  shaped_Bps = _fit_rate(local_sgd_s, step_s, take)
  nominal = nominal_Bps(SHAPED) or math.inf
  found = Calibration(
    step_s=step_s,
    outer_s=outer_s,
    shaped_share=shaped_Bps / nominal,
    unshaped_Bps=_fit_rate(unshaped_s - outer_s, step_s, take),
    ddp_compute_s=find('ddp', 1, UNSHAPED, 'compute_s'),
    ddp_optimizer_s=find('ddp', 1, UNSHAPED, 'optimizer_s'),
    ddp_route='',
    setup_s={
      (setting.algorithm, setting.bandwidth): medians.first_sync_s
      - medians.sync_s
      for setting, medians in measured.items()
      if setting.local_steps == 1
      and setting.algorithm != 'ddp'
      and medians.first_sync_s is not None
      and medians.sync_s is not None
    },
  )
  ddp = Setting('ddp', 1, SHAPED)
  ddp_s = find(*ddp, 'outer_s')
  routes_by_error = sorted(
    _DDP_ROUTES,
    key=lambda route: abs(predict(found, ddp, route).outer_s - ddp_s),
  )
  return found._replace(ddp_route=routes_by_error[0])


def predict(
  calibration: Calibration, setting: Setting, route: str = ''
) -> Prediction:
  """Returns the predicted times of a setting.

  Args:
    calibration: Fitted numbers.
    setting: Algorithm, local steps and bandwidth.
    route: Route of the virtual cluster; '' for that of the algorithm.
  """
  Bps = _rate(calibration, setting.bandwidth)
  if setting.algorithm == 'ddp':
    iteration_s = calibration.ddp_optimizer_s + simulate(
      route or calibration.ddp_route,
      Bps,
      compute_s=calibration.ddp_compute_s,
      bucket_bytes=_DDP_BUCKET_BYTES,
    )
    return Prediction(iteration_s, iteration_s, 0.0)
  local_steps = setting.local_steps
  iteration_s = simulate(
    route or 'ring',
    Bps,
    compute_s=local_steps * calibration.step_s,
    local_steps=local_steps,
  )
  if setting.algorithm == 'diloco':
    iteration_s += calibration.outer_s
  setup_s = calibration.setup_s
  own = setting.algorithm, setting.bandwidth
  return Prediction(
    iteration_s - (local_steps - 1) * calibration.step_s,
    iteration_s,
    setup_s.get(own, setup_s.get((setting.algorithm, SHAPED), 0.0)),
  )


@functools.cache
def simulate(
  route: str,
  Bps: float,
  *,
  compute_s: float,
  local_steps: int = 1,
  bucket_bytes: float = math.inf,
) -> float:
  """Returns the seconds of an iteration in the virtual cluster.

  Args:
    route: Route among the workers.
    Bps: Rate of each host's link in each direction, bytes per second.
    compute_s: Seconds of an iteration's computing.
    local_steps: Steps of an iteration.
    bucket_bytes: Least bytes of a bucket, which travels during the backward
      pass; inf to send all bytes after it.
  """
  config = timing.config(
    timing.fields(
      workers=WORKERS,
      iterations=_ITERATIONS,
      size_bytes=SIZE_BYTES,
      local_steps=local_steps,
      compute_s=compute_s,
    ),
    timing.links(Bps),
    timing.FEW_OUTPUTS,
    {
      'outputs.events': True,
      'route.name': route,
      'route.bucket_bytes': bucket_bytes,
      'route.overlap': bucket_bytes < math.inf,
      'cluster.network.worker_latency_s': (0.0,),
    },
  )
  with scratch.execute(config) as run:
    return analysis.pace(analysis.read(run.folder)).median_s


def _find(
  measured: Mapping[Setting, Medians],
  algorithm: str,
  local_steps: int,
  bandwidth: str,
  field: str,
) -> float:
  """Returns a median that the calibration needs."""
  setting = Setting(algorithm, local_steps, bandwidth)
  found = getattr(measured.get(setting), field, None)
  expected = (
    f'two or more counted outer steps of {algorithm!r}, H = {local_steps}, '
    f'{bandwidth}'
  )
  if found is None:
    raise ValueError(f'--data: expected {expected}, got none.')
  return float(found)


def _rate(calibration: Calibration, bandwidth: str) -> float:
  """Returns the rate of links, bytes per second."""
  nominal = nominal_Bps(bandwidth)
  if nominal is None:
    return calibration.unshaped_Bps
  return min(calibration.shaped_share * nominal, calibration.unshaped_Bps)


def _fit_rate(
  target_s: float, compute_s: float, take: Callable[[float], float]
) -> float:
  """Returns the rate, bytes/s, at which an iteration takes `target_s`."""
  expected = f'outer steps longer than the {compute_s:.4g} s of a local step'
  require(target_s > compute_s, '--data', expected, target_s)
  sent_bytes = 2 * (WORKERS - 1) / WORKERS * SIZE_BYTES
  Bps = sent_bytes / (target_s - compute_s)
  for _ in range(_FITS):
    took_s = take(Bps)
    if abs(took_s / target_s - 1) < _NEAR:
      return Bps
    Bps *= (took_s - compute_s) / (target_s - compute_s)
  raise ValueError(
    f'--data: expected a rate at which a step takes {target_s:.6g} s, got '
    f'{took_s:.6g} s at {Bps:.6g} bytes per second.'
  )
