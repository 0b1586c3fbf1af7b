"""Runs whose gradients overflow as in float16, and what must come of them.

The loss is linear, so that gradients do not depend on versions and sums are
exact; what an example adds passes through float16 while it is scaled.
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
_OVERFLOWS = 65520.0  # From here on, float16 is infinite.
_PLANTED = (3, 70, 130)  # Examples with one gradient of 8.


def data() -> Dataset:
  """Returns examples whose gradients are known, some of them large."""
  rng = np.random.default_rng(0)
  inputs = rng.integers(-9, 10, (EXAMPLES, _SIZE)).astype(np.float32) / 16
  inputs[_PLANTED, 1] = 8.0
  split = Split(inputs, np.zeros(EXAMPLES, np.int32))
  return Dataset(split, split)


def task() -> Task:
  """Returns the task: an example's gradient is its input."""

  def loss(params, inputs, targets, key):
    seen = jnp.broadcast_to(params, inputs.shape)
    # Its derivative is rounded, too: 5 bits of exponent and 10 of mantissa.
    halves = jax.lax.reduce_precision(seen, 5, 10)
    return jnp.sum(halves * inputs, axis=1), ()

  def correct(params, stats, inputs, targets):
    return jnp.zeros(len(inputs))

  return Task(jnp.zeros(_SIZE), loss, correct)


def config(**changed):
  """Returns the config of a run of it, changed as in small.config."""
  fields = {
    'batching__worker_batch': BATCH,
    'optimizer__learning_rate': RATE,
    'precision__loss_scaling': 'dynamic',
    'precision__grow_after': GROW_AFTER,
  }
  made = small.config(**fields | changed)
  made.model = default.get_config().model
  made.data = default.get_config().data
  return made


def own(dataset=None):
  """Returns what train.build takes in the place of model and data."""
  return {'task': task(), 'dataset': dataset or data()}


@dataclasses.dataclass
class Expected:
  """What a run must come to, worked out from what its scheme was told.

  Attributes:
    params: The parameters.
    scales: Loss scales with their counters: of each worker, or of all.
    applied: Examples that were applied.
    skipped: Pushes that were not.
    lowest: After each event, how many pushes there were, the smallest scale,
      and how many were skipped.
    updates: Updates.
  """

  params: np.ndarray
  scales: list[list[float]]
  applied: int = 0
  skipped: int = 0
  updates: int = 0
  lowest: list[tuple[int, float, int]] = dataclasses.field(default_factory=list)


def expected(events, *, summed: bool, ahead: bool = False) -> Expected:
  """Returns what must come of these events.

  Args:
    events: Rows of events.jsonl.
    summed: Whether workers sum among themselves, and have one scale.
    ahead: Whether iterations are dealt one ahead.
  """
  inputs = data().train.inputs
  stream = Stream(num_examples=EXAMPLES, seed=0, ahead=2)
  want = Expected(np.zeros(_SIZE, np.float32), [])
  using, pending, pushed = {}, {}, 0
  for row in events:
    if row['event'] == 'links':
      continue
    said = row['decision']
    if row['event'] == 'start':  # Perhaps again.
      for worker in sorted(using):
        stream.leave(worker)
      using.clear()
      count = 1 if summed else len(said['release'])
      new = [[_FIRST, 0] for _ in range(count)]
      want.scales = want.scales[:count] + new[len(want.scales) :]
    if row['event'] == 'push':
      worker = row['worker']
      own = want.scales[worker % len(want.scales)]
      each = inputs[stream.indices(using.pop(worker))]
      stream.done(worker)
      finite = bool((np.abs(each) * own[0] < _OVERFLOWS).all())
      pushes = pending.setdefault(said['into'], [])
      if not summed:
        _next(own, finite)
      want.skipped += not finite
      if finite or summed:
        pushes.append((each.sum(0), finite))
    for update in said.get('commit', ()):
      pushes = pending.pop(update)
      want.updates += 1
      finite = all(fine for _, fine in pushes)
      if summed:
        _next(want.scales[0], finite)
        want.skipped += 0 if finite else sum(fine for _, fine in pushes)
      if finite and pushes:
        many = BATCH * len(pushes)
        total = sum(each for each, _ in pushes)
        step = np.float32(RATE * many / BATCH)
        want.params = want.params - total / np.float32(many) * step
        want.applied += many
    pushed += row['event'] == 'push'
    low = min(value for value, _ in want.scales)
    want.lowest.append((pushed, low, want.skipped))
    for worker in said.get('release', ()):
      using[worker] = stream.take(worker, BATCH)
      if ahead:
        stream.reserve(worker, BATCH)
  return want


def _next(own: list[float], finite: bool) -> None:
  own[0], own[1] = (own[0], own[1] + 1) if finite else (own[0] / 2, 0)
  if own[1] == GROW_AFTER:
    own[:] = own[0] * 2, 0


def fell_and_grew(want: Expected) -> bool:
  """Whether some scale has fallen, and some has grown."""
  low = [value for _, value, _ in want.lowest]
  pairs = list(itertools.pairwise(low))
  return any(a > b for a, b in pairs) and any(a < b for a, b in pairs)
