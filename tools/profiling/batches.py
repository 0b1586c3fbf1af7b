"""Compute times of batches on this device, and a curve through them.

A batch of the config's model and data is computed as workers do it, in
micro-batches of compiled shapes.
"""

import itertools
import json
import pathlib
import platform
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib import ticker
from matplotlib.figure import Figure
from ml_collections import ConfigDict

from analysis.figures import look
from batching import curves
from batching.curves import Curve
from configs import user_parts
from configs.checks import require
from learning import build as learning
from learning.iteration import Iteration
from outputs import atomic

_CPU = pathlib.Path('/proc/cpuinfo')  # The only place that names it, on Linux.


class Profile(NamedTuple):
  """Measured times of batches on a device.

  Attributes:
    device: Name of the device.
    model: Name of the model, its fields and the data.
    micro_batch: Largest batch that is computed at once, examples.
    batches: Sizes of the batches, examples, ascending.
    seconds: Median time of each batch, seconds.
    curve: Curve that is fitted to the times.
  """

  device: str
  model: str
  micro_batch: int
  batches: Sequence[int]
  seconds: Sequence[float]
  curve: Curve


def measure(
  config: ConfigDict, *, batches: Sequence[int], rounds: int
) -> Profile:
  """Returns the compute times of batches on the device of this process.

  Every round measures each batch once, so temporary load slows all batches.

  Args:
    config: Config with the model and the data; every field is checked.
    batches: Examples, ascending, at least three; () for a default, up to twice
      the largest micro-batch.
    rounds: Times that each batch is measured, at least 1; the median counts.

  Raises:
    ValueError: If an argument is wrong, or if times do not grow.
  """
  learned = learning.from_config(config)
  largest = config.batching.micro_batch
  batches = batches or _default(2 * largest)
  ascending = all(a < b for a, b in itertools.pairwise(batches))
  valid = len(batches) >= 3 and batches[0] > 0 and ascending
  require(valid, 'batches', 'at least three, ascending', list(batches))
  require(rounds > 0, 'rounds', 'at least 1', rounds)
  params = learned.gradient.place(learned.params)
  for batch in batches:
    learned.gradient.warm_up(params, batch, changing=False)
  times = [
    [_seconds(learned.gradient, params, batch) for batch in batches]
    for _ in range(rounds)
  ]
  seconds = [statistics.median(each) for each in zip(*times, strict=True)]
  return Profile(
    device=_device(),
    model=_model(config),
    micro_batch=largest,
    batches=batches,
    seconds=seconds,
    curve=curves.fit(batches, seconds),
  )


def write(profile: Profile, path: str | pathlib.Path) -> None:
  """Writes a profile for `curves.parse`.

  Raises:
    OSError: If the file cannot be written.
  """
  content = {
    'version': curves.VERSION,
    **profile._asdict(),
    'curve': profile.curve._asdict(),
  }
  text = json.dumps(content, indent=2)
  atomic.write(path, f'{text}\n')


def describe(profile: Profile) -> str:
  """Returns a table of measured and fitted times."""
  curve, errors = profile.curve, _errors(profile)
  lines = [
    f'{profile.model} on {profile.device}, micro-batches up to '
    f'{profile.micro_batch}',
    'examples  measured ms  fitted ms   error',
  ]
  lines += [
    f'{batch:8}  {1e3 * seconds:11.2f}  {1e3 * curve.seconds(batch):9.2f}  '
    f'{error:+6.1%}'
    for batch, seconds, error in zip(
      profile.batches, profile.seconds, errors, strict=True
    )
  ]
  lines.append(
    f'max({1e3 * curve.flat_s:.4g}, {1e3 * curve.intercept_s:.4g} + '
    f'{1e3 * curve.slope_s:.4g} x) ms; error {np.abs(errors).mean():.1%} '
    f'in the mean, {np.abs(errors).max():.1%} at most'
  )
  return '\n'.join(lines)


@look.styled
def draw(profile: Profile, path: str | pathlib.Path) -> None:
  """Draws measured and fitted times.

  Raises:
    OSError: If the file cannot be written.
  """
  figure = Figure((look.COLUMN, 2.2))
  axes = figure.subplots()
  x = np.geomspace(profile.batches[0], profile.batches[-1], 300)
  fitted = [1e3 * profile.curve.seconds(each) for each in x]
  axes.plot(x, fitted, color=look.COLORS[1], label='fitted')
  measured = [1e3 * seconds for seconds in profile.seconds]
  axes.plot(
    profile.batches, measured, 'o', color=look.COLORS[0], label='measured'
  )
  axes.set_xscale('log', base=2)
  axes.set_yscale('log')
  for axis in (axes.xaxis, axes.yaxis):
    axis.set_major_formatter('{x:g}')
  axes.yaxis.set_minor_formatter(ticker.LogFormatter())
  axes.set_xlabel('batch, examples')
  axes.set_ylabel('time of a gradient, ms')
  look.add_legend(figure, f'{profile.model} on {profile.device}')
  look.save(figure, pathlib.Path(path))


def _model(config: ConfigDict) -> str:
  name = config.model.name
  fields = config.model['own' if user_parts.is_own(name) else name].items()
  text = ', '.join(f'{field}={value}' for field, value in fields)
  return f'{config.model.name}({text}) of {config.data.name}'


def _default(most: int) -> list[int]:
  """Returns powers of two and, halfway, the sum of two."""
  powers = [1 << bit for bit in range(most.bit_length())]
  return sorted({*powers, *(3 * p // 2 for p in powers[1:-1])})


def _seconds(gradient: Any, params: Any, batch: int) -> float:
  """Returns the time of one gradient, with its input prepared as by workers."""
  ranges = ((0, batch),)
  gradient.prepare(ranges)
  start = time.perf_counter()
  payload = gradient(params, Iteration(ranges, worker=0, number=0))
  jax.block_until_ready(payload)
  return time.perf_counter() - start


def _device() -> str:
  device = jax.local_devices()[0]
  if device.platform != 'cpu':
    return str(device.device_kind)
  lines = _CPU.read_text().splitlines() if _CPU.exists() else []
  names = [line.split(':')[1] for line in lines if 'model name' in line]
  name = names[0].strip() if names else platform.machine()
  return f'{name}, {len(names) or "some"} CPUs'


def _errors(profile: Profile) -> np.ndarray:
  return curves.errors(profile.curve, profile.batches, profile.seconds)
