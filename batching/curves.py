"""Curves of the time of a batch on a device: flat, then linear.

An accelerator takes the same time for all batches that do not fill it; beyond
that, time grows with the batch.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from configs import checks

VERSION = 1  # Version of the profiles that `parse` reads.
_GROWTH = 0.01  # Share of the largest batch's time that must be its growth.


class Curve(NamedTuple):
  """Time of a batch: max(flat_s, intercept_s + slope_s * examples) seconds.

  Attributes:
    flat_s: Time of the smallest batches, seconds; 0: no flat part.
    intercept_s: Intercept of the linear part, seconds; may be negative.
    slope_s: Slope of the linear part, seconds per example.
    most: Largest batch, examples; None for no bound.
  """

  flat_s: float
  intercept_s: float
  slope_s: float
  most: int | None = None

  def seconds(self, examples: float) -> float:
    """Returns the time of a batch of `examples`, seconds."""
    return max(self.flat_s, self.intercept_s + self.slope_s * examples)

  def scaled(self, factor: float) -> 'Curve':
    """Returns the curve with all times multiplied by `factor`.

    The largest batch stays.
    """
    flat_s, intercept_s, slope_s = (factor * each for each in self[:3])
    return Curve(flat_s, intercept_s, slope_s, self.most)


def check_curve(curve: Curve) -> None:
  """Raises ValueError unless the curve gives a positive time to every batch."""
  flat_s, intercept_s, slope_s, most = curve
  if not 0 <= flat_s < math.inf:
    raise ValueError(f'flat_s: expected at least 0 seconds, got {flat_s!r}.')
  if not 0 < slope_s < math.inf:
    raise ValueError(f'slope_s: expected more than 0, got {slope_s!r}.')
  if not math.isfinite(intercept_s) or curve.seconds(1) <= 0:
    raise ValueError(
      'intercept_s: expected a number that makes the time of one example '
      f'positive, got {intercept_s!r}.'
    )
  if most is not None:
    checks.check_integer('most', most, at_least=1)


def parse(content: Any) -> Curve:
  """Returns the curve of a profile, as tools.profile writes it.

  Args:
    content: Decoded content of the profile's JSON file.

  Raises:
    ValueError: If the content is no profile, or one of another version.
  """
  profile = content if isinstance(content, Mapping) else {}
  if profile.get('version') != VERSION:
    raise ValueError(
      f'version: expected {VERSION}, the version of a profile of batches, got '
      f'{profile.get("version")!r}.'
    )
  fields = profile.get('curve')
  if not isinstance(fields, Mapping) or set(fields) != set(Curve._fields):
    raise ValueError(f'curve: expected {Curve._fields}, got {fields!r}.')
  for name, value in fields.items():
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number and (name != 'most' or value is not None):
      raise ValueError(f'{name}: expected a number, got {value!r}.')
  curve = Curve(**fields)
  check_curve(curve)
  return curve


def fit(batches: Sequence[int], seconds: Sequence[float]) -> Curve:
  """Returns the curve with the smallest sum of squared relative errors.

  The search tries every number of batches on the flat part, with the bend
  between two batches or at one, so that the result is the best of all curves
  whose linear part has at least two batches.

  Args:
    batches: Examples of each batch, ascending, at least three.
    seconds: Time of each batch, seconds, more than 0.

  Raises:
    ValueError: If an argument is out of range, or if times do not grow.
  """
  x, t = np.asarray(batches, np.float64), np.asarray(seconds, np.float64)
  if len(x) < 3 or len(x) != len(t) or x[0] < 1 or (np.diff(x) <= 0).any():
    raise ValueError(
      f'batches: expected at least three, ascending, with a time each, got '
      f'{list(batches)} with {len(t)} times.'
    )
  if not (np.isfinite(t) & (t > 0)).all():
    raise ValueError(f'seconds: expected more than 0, got {list(seconds)}.')
  grows = [
    curve
    for curve in _candidates(x, t)
    if curve.slope_s * x[-1] > _GROWTH * t[-1] and curve.seconds(1) > 0
  ]
  if not grows:
    raise ValueError(
      f'seconds: expected times that grow with the batch, got {list(seconds)}; '
      'larger batches are needed.'
    )
  return min(grows, key=lambda curve: np.square(errors(curve, x, t)).sum())


def errors(curve: Curve, batches: Any, seconds: Any) -> np.ndarray:
  """Returns the relative errors of a curve against measured times.

  Args:
    batches: Examples of each batch, [n].
    seconds: Measured time of each batch, [n].

  Returns:
    Float64 [n], time of the curve over measured time, minus 1.
  """
  predicted = np.array([curve.seconds(batch) for batch in batches])
  relative: np.ndarray = predicted / np.asarray(seconds) - 1
  return relative


def _candidates(x: np.ndarray, t: np.ndarray) -> Iterator[Curve]:
  for flat in range(len(x) - 1):
    level_s = (1 / t[:flat]).sum() / (1 / t[:flat] ** 2).sum() if flat else 0.0
    yield Curve(float(level_s), *_squares(x[flat:], t[flat:]))
    level_s, slope_s = _squares(np.maximum(x - x[flat], 0), t)
    yield Curve(level_s, level_s - slope_s * float(x[flat]), slope_s)


def _squares(x: np.ndarray, t: np.ndarray) -> tuple[float, float]:
  """Returns a, b of the line a + b * x of least squared relative errors."""
  columns = np.stack([1 / t, x / t], axis=1)
  (a, b), *_ = np.linalg.lstsq(columns, np.ones(len(t)))
  return float(a), float(b)
