"""Every target of an update has the same weight, however a batch is divided."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from data.dataset import PADDING, Dataset, Split
from learning import optimizer, outer
from learning.gradient import TaskGradient
from learning.iteration import Iteration
from learning.learner import TaskLearner
from learning.local_steps import LocalSteps
from learning.schedule import fixed
from models import task
from outputs import serialization
from tests.support import replays, small
from wire.codec import Payload

_LENGTH, _VOCABULARY, _ROWS = 6, 5, 48
_RATE, _WORKER_BATCH = 0.5, 4
_SGD = {'momentum': 0.0, 'nesterov': False, 'weight_decay': 0.0}


class _Net(nnx.Module):
  def __init__(self):
    rngs = nnx.Rngs(0)
    self.embed = nnx.Embed(_VOCABULARY, 4, rngs=rngs)
    self.logits = nnx.Linear(4, _VOCABULARY, rngs=rngs)

  def __call__(self, inputs):
    return self.logits(nnx.tanh(self.embed(inputs)))


def _rows(seed=0, rows=_ROWS) -> Split:
  """Returns rows with 0 to 6 targets each: most have very few or all."""
  rng = np.random.default_rng(seed)
  shape = rows, _LENGTH
  inputs = rng.integers(0, _VOCABULARY, shape, dtype=np.int32)
  targets = rng.integers(0, _VOCABULARY, shape, dtype=np.int32)
  share = rng.choice([0.0, 0.1, 1.0], (rows, 1))
  targets = np.where(rng.random(shape) < share, targets, PADDING)
  return Split(inputs, targets.astype(np.int32))


_TASK, _EXAMPLES = task.next_token(_Net()), _rows()


@jax.jit
def _pooled(params, inputs, targets):
  """Returns the mean cross-entropy of all targets, each weighing the same."""
  hidden = jnp.tanh(params['embed']['embedding'][inputs])
  logits = hidden @ params['logits']['kernel'] + params['logits']['bias']
  logs = jax.nn.log_softmax(logits)
  nats = -jnp.take_along_axis(logs, jnp.maximum(targets, 0)[..., None], -1)
  counts = targets >= 0
  return jnp.sum(jnp.where(counts, nats[..., 0], 0.0)) / jnp.sum(counts)


_pooled_gradient = jax.jit(jax.grad(_pooled))


def _count(rows) -> int:
  return int((_EXAMPLES.targets[rows] >= 0).sum())


def _positions(ranges):
  return np.concatenate([np.arange(*bounds) for bounds in ranges])


@functools.cache
def _gradient(micro_batch, *, scaled=False):
  return TaskGradient(
    _TASK,
    _EXAMPLES,
    _positions,
    micro_batch=micro_batch,
    seed=0,
    scaled=scaled,
  )


def _learner(name='sgd', reduction='sum', workers=1, **fields):
  return TaskLearner(
    params=_TASK.params,
    stats=_TASK.stats,
    tx=getattr(optimizer, name)(**(fields or _SGD)),
    schedule=fixed(_RATE),
    reduction=reduction,
    num_workers=workers,
    worker_batch=_WORKER_BATCH,
  )


def _assert_close(got, expected, rtol=1e-4, atol=1e-6):
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=rtol, atol=atol),
    got,
    expected,
  )


def _moved(scale, gradient):
  """Returns the parameters after a step of SGD from the start."""
  return jax.tree.map(lambda p, g: p - scale * g, _TASK.params, gradient)


def _cut(draw, start, stop):
  """Draws a division of positions into ranges of at least one."""
  cuts = draw(st.lists(st.integers(start + 1, stop - 1), unique=True))
  return [*itertools.pairwise([start, *sorted(cuts), stop])]


class DivisionTest(parameterized.TestCase):
  @settings(deadline=None, max_examples=60)
  @given(st.data())
  def test_an_update_has_the_gradient_of_the_pooled_mean_over_tokens(
    self, data
  ):
    count = data.draw(st.integers(2, _ROWS))
    parts = _cut(data.draw, 0, count)
    scale = data.draw(st.sampled_from([1.0, 2.0**10]))
    learner = _learner()
    total = 0.0
    for bounds in data.draw(st.permutations(parts)):
      gradient = _gradient(
        data.draw(st.sampled_from([1, 2, 4, 8])), scaled=True
      )
      payload, loss = gradient(
        _TASK.params, Iteration((bounds,), worker=0, number=0, scale=scale)
      )
      total += float(loss)
      learner.add(
        7,
        payload,
        bounds[1] - bounds[0],
        weight=gradient.weigh((bounds,)),
        scale=scale,
      )
    learner.commit(7)
    rows = np.arange(count)
    tokens = _count(rows)
    self.assertEqual((learner.version, learner.examples), (1, count))
    if not tokens:
      _assert_close(learner.params, _TASK.params, rtol=0, atol=0)
      return
    batch = _EXAMPLES.inputs[rows], _EXAMPLES.targets[rows]
    mean = _pooled_gradient(_TASK.params, *batch)
    nominal = _WORKER_BATCH * _LENGTH  # Targets of X0 examples.
    _assert_close(learner.params, _moved(_RATE * tokens / nominal, mean))
    loss = float(_pooled(_TASK.params, *batch))
    self.assertAlmostEqual(total * _LENGTH / tokens, loss, places=4)

  @settings(deadline=None, max_examples=30)
  @given(st.data())
  def test_so_have_updates_of_its_parts_in_all(self, data):
    # Gradients at the same version, as under asynchronous schemes.
    count = data.draw(st.integers(2, _ROWS))
    learner, gradient = _learner(), _gradient(4)
    update = 0
    for bounds in _cut(data.draw, 0, count):
      payload, _ = gradient(
        _TASK.params, Iteration((bounds,), worker=0, number=0)
      )
      weight = gradient.weigh((bounds,))
      learner.add(update, payload, bounds[1] - bounds[0], weight=weight)
      if data.draw(st.booleans()):  # A barrier.
        learner.commit(update)
        update += 1
    learner.commit(update)
    rows = np.arange(count)
    if not (tokens := _count(rows)):
      return
    mean = _pooled_gradient(
      _TASK.params, _EXAMPLES.inputs[rows], _EXAMPLES.targets[rows]
    )
    nominal = _WORKER_BATCH * _LENGTH
    _assert_close(learner.params, _moved(_RATE * tokens / nominal, mean))

  def test_a_checkpoint_between_two_pushes_keeps_their_weights(self):
    gradient, learners = _gradient(4), [_learner(), _learner()]
    for number, bounds in enumerate([(0, 9), (9, 30)]):
      payload, _ = gradient(
        _TASK.params, Iteration((bounds,), worker=0, number=0)
      )
      weight = gradient.weigh((bounds,))
      learners[number].add(0, payload, bounds[1] - bounds[0], weight=weight)
      if not number:
        tree = serialization.freeze(learners[0].state())()
        learners[1].restore(serialization.thaw(tree))
    learners[1].commit(0)
    rows = np.arange(30)
    mean = _pooled_gradient(
      _TASK.params, _EXAMPLES.inputs[rows], _EXAMPLES.targets[rows]
    )
    scale = _RATE * _count(rows) / _WORKER_BATCH / _LENGTH
    _assert_close(learners[1].params, _moved(scale, mean))

  def test_examples_whose_targets_all_count_weigh_their_number(self):
    whole = Split(_EXAMPLES.inputs, np.abs(_EXAMPLES.targets))
    gradient = TaskGradient(_TASK, whole, _positions, micro_batch=4, seed=0)
    self.assertEqual(gradient.weigh(((3, 10), (20, 24))), 11)

  def test_a_weight_beyond_the_targets_of_an_example_is_refused(self):
    doubled = _TASK._replace(weigh=lambda targets: 2.0 * _TASK.weigh(targets))
    gradient = TaskGradient(
      doubled, _EXAMPLES, _positions, micro_batch=4, seed=0
    )
    with self.assertRaisesRegex(ValueError, 'task.weigh: expected 0 to 6'):
      gradient.weigh(((0, _ROWS),))


class NothingCountsTest(parameterized.TestCase):
  @parameterized.parameters(
    ('sgd', {'momentum': 0.9, 'nesterov': True, 'weight_decay': 0.1}),
    ('adamw', {'b1': 0.9, 'b2': 0.99, 'eps': 1e-8, 'weight_decay': 0.1}),
  )
  def test_an_update_of_weight_0_changes_no_parameter_and_no_state(
    self, name, fields
  ):
    learner = _learner(name, **fields)
    empty = jax.tree.map(jnp.zeros_like, _TASK.params)
    full = jax.tree.map(jnp.ones_like, _TASK.params)
    learner.add(0, Payload(full, _TASK.stats), 4)
    learner.commit(0)
    before = jax.device_get((learner.params, learner.state()['_state']))
    for update in (1, 2):
      learner.add(update, Payload(empty, _TASK.stats), 4, weight=0.0)
      learner.commit(update)
    after = jax.device_get((learner.params, learner.state()['_state']))
    jax.tree.map(np.testing.assert_array_equal, after, before)
    self.assertEqual((learner.version, learner.examples), (3, 12))

  def test_a_local_step_without_a_target_changes_nothing(self):
    rows = _rows()
    targets = rows.targets.copy()
    targets[4:8] = PADDING
    gradient = TaskGradient(
      _TASK, Split(rows.inputs, targets), _positions, micro_batch=4, seed=0
    )
    tx = optimizer.adamw(b1=0.9, b2=0.99, eps=1e-8, weight_decay=0.1)
    steps = LocalSteps(gradient, tx, worker_batch=4)
    state = steps.init(_TASK.params)

    def push(ranges):
      iteration = Iteration(ranges, worker=0, number=0, rate=0.1)
      return steps.push(_TASK.params, iteration, state)

    with_it, _, after_it = push(((0, 12),))
    without, _, after = push(((0, 4), (8, 12)))
    jax.tree.map(np.testing.assert_array_equal, after_it, after)
    _assert_close(with_it.gradient, without.gradient)
    self.assertEqual(steps.weigh(((4, 8),)), 0)
    alone, _, same = push(((4, 8),))
    jax.tree.map(np.testing.assert_array_equal, same, state)
    for leaf in jax.tree.leaves(alone.gradient):
      self.assertFalse(np.asarray(leaf).any())


class LocalStepsTest(parameterized.TestCase):
  @settings(deadline=None, max_examples=20)
  @given(st.data())
  def test_displacements_weigh_as_the_targets_of_all_their_steps(self, data):
    # Three workers, one to three steps each.
    steps = data.draw(st.lists(st.integers(1, 3), min_size=3, max_size=3))
    gradient = _gradient(data.draw(st.sampled_from([1, 4])))
    local = LocalSteps(gradient, optimizer.sgd(**_SGD), worker_batch=4)
    learner = TaskLearner(
      params=_TASK.params,
      stats=_TASK.stats,
      tx=outer.sgd(),
      schedule=fixed(1.0),
      reduction='sum',
      num_workers=3,
      worker_batch=3 * _WORKER_BATCH,
    )
    total, moved, start = 0, [], data.draw(st.integers(0, 8))
    for worker, count in enumerate(steps):
      ranges = ((start, start + 4 * count),)
      payload, _, _ = local.push(
        _TASK.params,
        Iteration(ranges, worker=worker, number=0, rate=0.1),
        local.init(_TASK.params),
      )
      learner.add(0, payload, 4 * count, weight=local.weigh(ranges))
      params, tokens = _TASK.params, 0
      for first in range(start, start + 4 * count, 4):
        rows = np.arange(first, first + 4)
        if not (counted := _count(rows)):
          continue
        found = _pooled_gradient(
          params, _EXAMPLES.inputs[rows], _EXAMPLES.targets[rows]
        )
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, found)
        tokens += counted
      moved.append((tokens, params))
      total, start = total + tokens, start + 4 * count
    learner.commit(0)
    expected = _TASK.params
    nominal = 3 * _WORKER_BATCH * _LENGTH
    for tokens, params in moved:  # Weights of the displacements.
      expected = jax.tree.map(
        lambda e, p, s, t=tokens: e - t / nominal * (s - p),
        expected,
        params,
        _TASK.params,
      )
    _assert_close(learner.params, expected)


def _dataset(rows=_EXAMPLES) -> Dataset:
  return Dataset(train=rows, test=_rows(seed=1, rows=8))


_PIPELINED = {'route__server__servers': 2, 'route__server__pipelined': True}
_LB = {'batching__name': 'lb_bsp', 'cluster__speed__slowdown': (1.0, 1.2, 3.0)}


class RunTest(parameterized.TestCase):
  def _build(self, rows=_EXAMPLES, **changed):
    config = small.config(
      data__synthetic__num_train=small.default.get_config().data.synthetic.num_train,
      epochs=1.0,
      batching__worker_batch=_WORKER_BATCH,
      optimizer__learning_rate=_RATE,
      time_to=(),
      **changed,
    )
    defaults = small.default.get_config()
    config.data, config.model = defaults.data, defaults.model
    return small.build(config, task=_TASK, dataset=_dataset(rows))

  def _execute(self, run):
    """Executes a run of BSP; returns its summary and each update's rows."""
    pushes, taken = run.runtime.pushes, []
    push = pushes.push

    def take(params, iteration, state):
      taken.append(run.runtime.coordinator._stream.indices(iteration.ranges))
      return push(params, iteration, state)

    with absltest.mock.patch.object(pushes, 'push', take):
      summary = run()
    events = small.rows(run, 'events.jsonl')
    into = [row['decision']['into'] for row in events if row['event'] == 'push']
    pairs = zip(into, taken[-len(into) :], strict=True)
    updates = itertools.groupby(pairs, lambda pair: pair[0])
    return summary, [
      np.concatenate([r for _, r in each]) for _, each in updates
    ]

  @parameterized.parameters(
    {},
    {'batching__micro_batch': 1},
    _LB,
    {
      'wire__name': 'sparse',
      'wire__sparse__sparsity': 0.0,
      'wire__sparse__chunk': 5,
    },
    {'wire__name': 'topk', 'wire__topk__sparsity': 0.0},
    {'route__name': 'ring'},
    {'route__name': 'native'},
    {'route__name': 'native', 'optimizer__reduction': 'mean'},
    _PIPELINED,
    {'precision__loss_scaling': 'dynamic', 'wire__dense__dtype': 'float16'},
  )
  def test_a_run_takes_the_steps_of_pooled_means(self, **changed):
    run = self._build(sync__name='bsp', **changed)
    summary, updates = self._execute(run)
    params, rate = _TASK.params, _RATE / _WORKER_BATCH / _LENGTH
    if changed.get('optimizer__reduction') == 'mean':
      rate /= 3
    for rows in updates:
      gradient = _pooled_gradient(
        params, _EXAMPLES.inputs[rows], _EXAMPLES.targets[rows]
      )
      scale = rate * _count(rows)
      params = jax.tree.map(lambda p, g, s=scale: p - s * g, params, gradient)
    got = run.runtime.coordinator.store.learner.params
    is_half = 'wire__dense__dtype' in changed
    _assert_close(got, params, *((1e-2, 1e-3) if is_half else ()))
    self.assertEqual(summary['examples'], _ROWS)
    self.assertEqual(summary['compilations'], 0)
    replays.check(self, run.files.workdir)
    self.assertFalse(
      jax.tree.all(
        jax.tree.map(lambda a, b: np.allclose(a, b), params, _TASK.params)
      )
    )


if __name__ == '__main__':
  absltest.main()
