"""Runs whose gradients overflow as in float16, and their expected results.

The loss is linear, so gradients do not depend on versions and sums are exact;
the scaled gradient of an example passes through float16.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from configs import default
from data.dataset import Dataset, Split
from data.stream import Stream
from models.task import Task
from tests.support import small

EXAMPLES, BATCH = 192, 8
RATE = 2.0**-6
GROW_AFTER = 3
_SIZE = 5
_FIRST = 2.0**15
_OVERFLOWS = 65520.0  # Least number that is infinite in float16.
_LARGE = (3, 70, 130)  # Examples with one gradient of 8.


def data() -> Dataset:
  """Returns examples with known gradients, some of them large."""
  rng = np.random.default_rng(0)
  inputs = rng.integers(-9, 10, (EXAMPLES, _SIZE)).astype(np.float32) / 16
  inputs[_LARGE, 1] = 8.0
  split = Split(inputs, np.zeros(EXAMPLES, np.int32))
  return Dataset(split, split)


def task() -> Task:
  """Returns a task in which the gradient of an example is its input."""

  def loss(params, inputs, targets, key):
    weights = jnp.broadcast_to(params, inputs.shape)
    # Rounds the derivative, too: 5 bits of exponent and 10 of mantissa.
    half_weights = jax.lax.reduce_precision(weights, 5, 10)
    return jnp.sum(half_weights * inputs, axis=1), ()

  def correct(params, stats, inputs, targets):
    return jnp.zeros(len(inputs))

  return Task(jnp.zeros(_SIZE), loss, correct)


def config(**changed):
  """Returns the config of a run of `task`, changed as in small.config."""
  fields = {
    'batching__worker_batch': BATCH,
    'optimizer__learning_rate': RATE,
    'precision__loss_scaling': 'dynamic',
    'precision__grow_after': GROW_AFTER,
  }
  built = small.config(**fields | changed)
  built.model = default.get_config().model
  built.data = default.get_config().data
  return built


def build_arguments(dataset=None):
  """Returns arguments of train.build that replace model and data."""
  return {'task': task(), 'dataset': dataset or data()}


@dataclasses.dataclass
class Expected:
  """Expected result of a run, computed from the events of its scheme.

  Attributes:
    params: Final parameters.
    scales: Loss scale and its counter, for each worker or once for all.
    applied: Number of applied examples.
    skipped: Number of skipped pushes.
    updates: Number of updates.
    lowest: After each event: number of pushes, smallest scale, number of
      skipped pushes.
  """

  params: np.ndarray
  scales: list[list[float]]
  applied: int = 0
  skipped: int = 0
  updates: int = 0
  lowest: list[tuple[int, float, int]] = dataclasses.field(default_factory=list)


def compute_expected(
  events, *, is_allreduce: bool, ahead: bool = False
) -> Expected:
  """Returns the result that follows from the events of a run.

  Args:
    events: Rows of events.jsonl.
    is_allreduce: True for an allreduce, with one scale for all workers.
    ahead: True if iterations are assigned one ahead.
  """
  inputs = data().train.inputs
  stream = Stream(num_examples=EXAMPLES, seed=0, ahead=2)
  result = Expected(np.zeros(_SIZE, np.float32), [])
  using, pending, pushed = {}, {}, 0
  for row in events:
    if 'decision' not in row:
      continue
    decision = row['decision']
    if row['event'] == 'start':  # First start or restart.
      for worker in sorted(using):
        stream.leave(worker)
      using.clear()
      count = 1 if is_allreduce else len(decision['release'])
      new = [[_FIRST, 0] for _ in range(count)]
      result.scales = result.scales[:count] + new[len(result.scales) :]
    if row['event'] == 'push':
      worker = row['worker']
      scale = result.scales[worker % len(result.scales)]
      each = inputs[stream.indices(using.pop(worker))]
      stream.done(worker)
      finite = bool((np.abs(each) * scale[0] < _OVERFLOWS).all())
      pushes = pending.setdefault(decision['into'], [])
      if not is_allreduce:
        _update_scale(scale, finite)
      result.skipped += not finite
      if finite or is_allreduce:
        pushes.append((each.sum(0), finite))
    for update in decision.get('commit', ()):
      pushes = pending.pop(update)
      result.updates += 1
      finite = all(fine for _, fine in pushes)
      if is_allreduce:
        _update_scale(result.scales[0], finite)
        result.skipped += 0 if finite else sum(fine for _, fine in pushes)
      if finite and pushes:
        many = BATCH * len(pushes)
        total = sum(each for each, _ in pushes)
        step = np.float32(RATE * many / BATCH)
        result.params = result.params - total / np.float32(many) * step
        result.applied += many
    pushed += row['event'] == 'push'
    low = min(value for value, _ in result.scales)
    result.lowest.append((pushed, low, result.skipped))
    for worker in decision.get('release', ()):
      using[worker] = stream.take(worker, BATCH)
      if ahead:
        stream.reserve(worker, BATCH)
  return result


def _update_scale(scale: list[float], finite: bool) -> None:
  value, count = scale
  scale[:] = (value, count + 1) if finite else (value / 2, 0)
  if scale[1] == GROW_AFTER:
    scale[:] = scale[0] * 2, 0


def has_fallen_and_grown(result: Expected) -> bool:
  """Returns whether a scale has fallen and a scale has grown."""
  low = [value for _, value, _ in result.lowest]
  pairs = list(itertools.pairwise(low))
  return any(a > b for a, b in pairs) and any(a < b for a, b in pairs)
