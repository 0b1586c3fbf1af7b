"""Decision between the present config and measured candidates.

A candidate that keeps learning as it is wins by its seconds per iteration: its
interval must lie below that of the present config.  One that changes learning
wins by the time at which its training loss has fallen to the loss at the end of
the present config's run; these intervals must not overlap either.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from diagnosis.costs import Estimate
from tuning.candidates import Candidate, Rejection
from tuning.measuring import LossPoint, Measurement, RunError

MOST = 3  # Candidates that run.
_BLOCKS = 20  # Parts of a run whose mean losses make a curve.
_WIDTH = 1.96  # Half of a 95 % interval over the standard error.
_WIDE = 1.25  # Upper over lower end from which on a prediction is uncertain.


class Prediction(NamedTuple):
  """Predicted pace of a config.

  Attributes:
    candidate: The candidate.
    iteration_s: Predicted seconds, as `Measurement.iteration_s`.
    time: Predicted time to a loss over that of the present config, with the
      range of the measured examples.
  """

  candidate: Candidate
  iteration_s: float
  time: Estimate

  @property
  def is_uncertain(self) -> bool:
    """True if the range of the predicted time is wide."""
    return not self.time.high <= _WIDE * self.time.low


class Trial(NamedTuple):
  """A candidate that has run, or failed to.

  Attributes:
    prediction: Its prediction.
    measured: What was measured; None if the run failed.
    failure: The reason, if it failed.
  """

  prediction: Prediction
  measured: Measurement | None
  failure: str = ''


class Decision(NamedTuple):
  """Outcome of a comparison with the present config.

  Attributes:
    winner: The winner; None to keep the present config.
    gain: Measured time of the winner over the present config's.
    reason: Reason to keep the present config; '' with a winner.
  """

  winner: Trial | None
  gain: Estimate | None
  reason: str = ''


def predict(
  candidates: Iterable[Candidate],
  present_s: float,
  simulate: Callable[[ConfigDict], float],
) -> tuple[list[Prediction], list[Rejection]]:
  """Returns predictions, and candidates that cannot be predicted.

  Args:
    present_s: Simulated seconds per iteration of the present config.
    simulate: Returns the simulated seconds per iteration of a config.

  Returns:
    Predictions, those with the shortest time to a loss first, and rejections.
  """
  found, rejected = list[Prediction](), list[Rejection]()
  for each in candidates:
    try:
      seconds = simulate(each.config)
    except ValueError as error:
      rejected.append(Rejection(each.name, str(error)))
      continue
    speed, ratio = seconds / present_s, each.ratio
    examples = ratio.median, ratio.least, ratio.most
    # Staleness should gain nothing: see ExamplesRatio.predicted.
    value, low, high = (max(1.0, part) * speed for part in examples)
    found.append(Prediction(each, seconds, Estimate(value, low, high)))
  return sorted(found, key=lambda each: each.time.value), rejected


def try_best(
  predictions: Iterable[Prediction],
  measure: Callable[[Candidate], Measurement],
  most: int = MOST,
) -> list[Trial]:
  """Measures the best candidates that are predicted to gain.

  After a run that fails the next candidate is tried.

  Args:
    predictions: Predictions, the best first.
    measure: Runs a candidate.
    most: Largest number of candidates to measure.
  """
  trials: list[Trial] = []
  for each in predictions:
    complete = sum(trial.measured is not None for trial in trials) >= most
    if complete or each.time.value >= 1:
      break
    try:
      trials.append(Trial(each, measure(each.candidate)))
    except (RunError, ValueError) as error:
      trials.append(Trial(each, None, str(error)))
  return trials


def decide(present: Sequence[Measurement], trials: Iterable[Trial]) -> Decision:
  """Returns the candidate to take, if any is surely faster.

  Args:
    present: Runs of the present config; a winner must beat all of them.
    trials: Runs of candidates; failed ones do not count.
  """
  trials = [*trials]
  if not any(trial.measured for trial in trials):
    failed = 'all candidates failed' if trials else ''
    reason = failed or 'no candidate is predicted to be faster'
    return Decision(None, None, reason)
  gains = [(gain, trial) for trial in trials if (gain := _gain(present, trial))]
  sure = [(gain, trial) for gain, trial in gains if gain.high < 1]
  if sure:
    gain, trial = min(sure, key=lambda pair: pair[0].value)
    return Decision(trial, gain)
  if not gains:
    return Decision(None, None, 'no candidate reached the loss')
  gain, trial = min(gains, key=lambda pair: pair[0].value)
  reason = (
    f'the best candidate, {trial.prediction.candidate.name}, takes '
    f'{gain.text()} of the time, which is within the noise'
    if gain.value < 1
    else 'no candidate was faster'
  )
  return Decision(None, None, reason)


def time_to_loss(losses: Sequence[LossPoint], target: Estimate) -> Estimate:
  """Returns the seconds at which a training loss has fallen to a target.

  Mean losses of 20 parts of the run, which are made to fall (isotonic
  regression), are the curve.  The interval combines that of the target with
  twice the spread of the parts around the curve.

  Args:
    losses: Mean losses of some iterations each, in the order of time.
    target: Training loss to reach, with its interval.

  Returns:
    The seconds; infinite where the run does not reach the target.
  """
  if not losses:
    return Estimate(math.inf, 0.0, math.inf)
  parts = np.array_split(np.array(losses), min(_BLOCKS, len(losses)))
  ends = [float(part[-1, 0]) for part in parts]
  means = [float(part[:, 1].mean()) for part in parts]
  curve = _falling(means)
  spread = _WIDTH * statistics.pstdev(
    mean - fit for mean, fit in zip(means, curve, strict=True)
  )

  def reached(level: float) -> float:
    return next(
      (end for end, fit in zip(ends, curve, strict=True) if fit <= level),
      math.inf,
    )

  return Estimate(
    reached(target.value),
    reached(target.high + spread),
    reached(target.low - spread),
  )


def final_loss(losses: Sequence[LossPoint]) -> Estimate:
  """Returns the mean loss of the last fifth of a run, with its interval."""
  last = [point.loss for point in losses[-max(len(losses) // 5, 1) :]]
  mean = statistics.fmean(last)
  if len(last) < 2:
    return Estimate(mean, -math.inf, math.inf)
  half = _WIDTH * statistics.stdev(last) / math.sqrt(len(last))
  return Estimate(mean, mean - half, mean + half)


def _gain(present: Sequence[Measurement], trial: Trial) -> Estimate | None:
  """Returns a candidate's time over the present config's; None if unknown."""
  # The upper end compares the candidate's upper end with the lowest of the
  # present config, so that below 1 the intervals do not overlap.
  if trial.measured is None:
    return None
  if not trial.prediction.candidate.changes:
    own, others = trial.measured.iteration_s, [p.iteration_s for p in present]
  else:
    first = present[0]
    if not (first.losses and trial.measured.losses):
      return None
    target = final_loss(first.losses)
    own = time_to_loss(trial.measured.losses, target)
    others = [time_to_loss(first.losses, target)]
    if math.isinf(own.value) or math.isinf(others[0].value):
      return None
  value = statistics.fmean(each.value for each in others)
  lowest, highest = min(e.low for e in others), max(e.high for e in others)
  return Estimate(
    own.value / value,
    own.low / highest,
    own.high / lowest if lowest > 0 else math.inf,
  )


def _falling(values: Sequence[float]) -> list[float]:
  """Returns the closest falling sequence, by pooling adjacent violators."""
  pools: list[tuple[float, int]] = []
  for value in values:
    pools.append((value, 1))
    while len(pools) > 1 and pools[-2][0] < pools[-1][0]:
      (second, n), (first, m) = pools.pop(), pools.pop()
      pools.append(((first * m + second * n) / (m + n), m + n))
  return [value for value, count in pools for _ in range(count)]
