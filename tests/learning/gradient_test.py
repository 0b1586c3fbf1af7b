"""Tests for cluster.gradient: sums over micro-batches, and evaluation."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from flax import nnx

from data.dataset import PADDING, Split
from learning import compilations
from learning.evaluation import TaskEvaluation
from learning.gradient import TaskGradient, micro_batches
from learning.iteration import Iteration
from models.task import Task, classification, next_token


def _task():
  """Linear regression; the key must not matter here."""

  def loss(params, inputs, targets, key):
    return (inputs @ params['w'] + params['b'] - targets) ** 2, ()

  def correct(params, stats, inputs, targets):
    return jnp.abs(inputs @ params['w'] + params['b'] - targets) < 1

  rng = np.random.default_rng(0)
  params = {'w': rng.normal(size=4).astype(np.float32), 'b': np.float32(0.5)}
  return Task(jax.tree.map(jnp.asarray, params), loss, correct)


def _examples(count, seed=1):
  rng = np.random.default_rng(seed)
  inputs = rng.normal(size=(count, 4)).astype(np.float32)
  return Split(inputs, rng.normal(size=count).astype(np.float32))


def _gradient(task, examples, micro_batch=32):
  return TaskGradient(
    task,
    examples,
    lambda ranges: np.arange(*ranges[0]),
    micro_batch=micro_batch,
    seed=0,
  )


class MicroBatchTest(parameterized.TestCase):
  @parameterized.parameters(1, 2, 8, 64)
  def test_micro_batches_cover_the_batch_with_little_padding(self, largest):
    for examples in range(1, 300):
      parts = micro_batches(examples, largest=largest)
      computed = [part for part, _ in parts]
      self.assertEqual(sum(real for _, real in parts), examples)
      self.assertTrue(all(0 < real <= part for part, real in parts))
      self.assertTrue(all(part.bit_count() == 1 for part in computed))
      self.assertLessEqual(max(computed), largest)
      padding = sum(computed) - examples
      self.assertLessEqual(padding, sum(computed) / 8)

  @parameterized.parameters(
    (33, [(32, 32), (1, 1)]),
    (63, [(64, 63)]),
    (32, [(32, 32)]),
    (57, [(64, 57)]),
    (56, [(64, 56)]),
    (55, [(32, 32), (16, 16), (8, 7)]),
    (300, [(128, 128), (128, 128), (64, 44)]),
  )
  def test_micro_batches_are_as_few_as_padding_allows(self, examples, expected):
    self.assertEqual(micro_batches(examples, largest=128), expected)


class GradientTest(parameterized.TestCase):
  @parameterized.parameters(1, 7, 32, 33, 50, 63, 100)
  def test_gradient_is_the_sum_over_the_batch(self, count):
    task = _task()
    inputs, targets = _examples(count)
    gradient = _gradient(task, _examples(count))

    push, loss = gradient(
      task.params, Iteration(((0, count),), worker=0, number=0)
    )
    got = push.gradient

    errors = inputs @ np.asarray(task.params['w']) + 0.5 - targets
    np.testing.assert_allclose(loss, np.sum(errors**2), rtol=1e-5)
    np.testing.assert_allclose(got['w'], 2 * errors @ inputs, rtol=1e-4)
    np.testing.assert_allclose(got['b'], 2 * errors.sum(), rtol=1e-4)

  @parameterized.parameters(1, 2, 3, 31, 57, 100)
  def test_no_smaller_batch_compiles_after_the_warm_up(self, largest):
    task = _task()
    gradient = _gradient(task, _examples(100))
    gradient.warm_up(task.params, largest, changing=True)
    before, computed = compilations.count(), gradient.computed

    for count in range(1, largest + 1):
      gradient(task.params, Iteration(((0, count),), worker=1, number=count))

    self.assertEqual(compilations.count(), before)
    real = sum(range(largest + 1))
    self.assertBetween(1 - real / (gradient.computed - computed), 0, 1 / 8)

  def test_a_warm_up_of_one_size_compiles_its_programs(self):
    task = _task()
    gradient = _gradient(task, _examples(100))
    before = compilations.count()
    gradient.warm_up(task.params, 32, changing=False)
    one = compilations.count() - before
    gradient.warm_up(task.params, 32, changing=True)
    self.assertLess(one, compilations.count() - before)

  def test_every_iteration_of_every_worker_has_its_own_key(self):
    def loss(params, inputs, targets, key):
      return params * jax.random.uniform(key, targets.shape), ()

    params = jnp.float32(1)
    gradient = _gradient(Task(params, loss, loss), _examples(6), micro_batch=4)
    got = [
      float(
        gradient(params, Iteration(((0, 6),), worker=w, number=i))[0].gradient
      )
      for w, i in [(0, 0), (0, 1), (1, 0), (0, 0)]
    ]
    self.assertLen(set(got), 3)
    self.assertEqual(got[0], got[3])

  @parameterized.parameters(0, 3, -4)
  def test_micro_batches_must_be_powers_of_two(self, size):
    with self.assertRaisesRegex(ValueError, f'power of two, got {size}'):
      _gradient(_task(), _examples(3), micro_batch=size)

  @parameterized.parameters(((7, 1),), ((),))
  def test_a_loss_has_one_value_for_each_example(self, shape):
    def loss(params, inputs, targets, key):
      return jnp.zeros(shape), ()

    task = Task(jnp.float32(1), loss, lambda *_: jnp.zeros((8, 1)))
    gradient = _gradient(task, _examples(8))
    with self.assertRaisesRegex(ValueError, 'task.loss: expected one value'):
      gradient(task.params, Iteration(((0, 8),), worker=0, number=0))
    evaluate = TaskEvaluation(task, _examples(8))
    with self.assertRaisesRegex(ValueError, r'task.correct: .* \(8, 1\)'):
      evaluate(task.params, ())


class EvaluationTest(parameterized.TestCase):
  @parameterized.parameters(1, 7, 16, 100)
  def test_evaluation_counts_the_whole_split_once(self, batch):
    task = _task()
    inputs, targets = _examples(50)
    errors = inputs @ np.asarray(task.params['w']) + 0.5 - targets

    evaluate = TaskEvaluation(task, _examples(50), batch=batch)
    accuracy = evaluate(task.params, task.stats)['accuracy']

    self.assertEqual(accuracy, np.mean(np.abs(errors) < 1))

  @parameterized.parameters(((), 2), ((3,), 4))
  def test_the_largest_logits_are_those_of_sorting(self, places, top):
    rng = np.random.default_rng(0)
    logits = rng.integers(5, size=(50, *places, 6)).astype(np.float32)  # Ties.
    targets = rng.integers(6, size=(50, *places)).astype(np.int32)
    if places:
      learned = next_token(_IdentityModel(), top=top)
    else:
      learned = classification(
        _IdentityModel(), lambda x: x, lambda x, _: x, top=top
      )
    evaluate = TaskEvaluation(learned, Split(logits, targets), batch=16)
    found = evaluate(learned.params, learned.stats)
    ranked = np.argsort(-logits, axis=-1, kind='stable')
    right = ranked == targets[..., None]
    for number, name in ((1, 'accuracy'), (top, f'top{top}_accuracy')):
      share = found[name]
      want = right[..., :number].any(axis=-1).mean()
      self.assertAlmostEqual(share, want, places=6)

  @parameterized.parameters(4, 9)
  def test_the_test_loss_of_classes_is_their_mean_cross_entropy(self, batch):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(9, 6)).astype(np.float32)
    targets = rng.integers(6, size=9).astype(np.int32)
    learned = classification(
      _IdentityModel(), lambda x: x, lambda x, _: x, has_loss=True
    )
    evaluate = TaskEvaluation(learned, Split(logits, targets), batch=batch)
    found = evaluate(learned.params, learned.stats)
    wide = logits.astype(np.float64)
    shares = np.exp(wide) / np.exp(wide).sum(-1, keepdims=True)
    want = -np.log(shares[np.arange(9), targets]).mean()
    self.assertEqual(
      evaluate.measures, {'accuracy': 'rises', 'test_loss': 'falls'}
    )
    self.assertAlmostEqual(found['test_loss'], want, places=5)

  @parameterized.parameters(1, 7, 16)
  def test_figures_of_tokens_are_those_of_all_tokens_alike(self, batch):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(9, 5, 6)).astype(np.float32)
    targets = rng.integers(6, size=(9, 5)).astype(np.int32)
    targets[rng.random(size=(9, 5)) < 0.4] = PADDING
    targets[3] = PADDING
    learned = next_token(_IdentityModel(), bytes_per_token=3.5)
    evaluate = TaskEvaluation(learned, Split(logits, targets), batch=batch)
    found = evaluate(learned.params, learned.stats)

    real = targets >= 0
    wide = logits[real].astype(np.float64)
    likelihood = np.exp(wide) / np.exp(wide).sum(-1, keepdims=True)
    loss = -np.log(likelihood[np.arange(len(wide)), targets[real]]).mean()
    want = {
      'accuracy': (wide.argmax(-1) == targets[real]).mean(),
      'test_loss': loss,
      'perplexity': math.exp(loss),
      'bits_per_byte': math.log2(math.exp(loss)) / 3.5,
    }
    self.assertEqual(evaluate.measures.keys(), want.keys())
    self.assertEqual(next(iter(evaluate.measures)), 'bits_per_byte')
    self.assertEqual([*found], [*want])
    for name, value in want.items():
      self.assertAlmostEqual(found[name], value, places=5)

  def test_padding_has_no_gradient(self):
    logits = np.zeros((2, 3, 4), np.float32)
    targets = np.array([[1, 2, PADDING], [PADDING] * 3], np.int32)
    loss = next_token(_ShiftModel()).loss
    shift = {'shift': jnp.zeros(4)}
    key = jax.random.key(0)

    def total(params):
      each, _ = loss(params, logits, targets, key)
      return each.sum(), each

    gradient, each = jax.grad(total, has_aux=True)(shift)
    np.testing.assert_allclose(each, [math.log(4), 0], rtol=1e-6)
    np.testing.assert_allclose(
      gradient['shift'], [0.25, -0.25, -0.25, 0.25], rtol=1e-6
    )


class _ShiftModel(nnx.Module):
  """Model whose logits are its inputs plus a parameter."""

  def __init__(self):
    self.shift = nnx.Param(jnp.zeros(4))

  def __call__(self, inputs, *, rngs=None):
    return inputs + self.shift[...]


class _IdentityModel(nnx.Module):
  """Model whose logits are its inputs."""

  def __call__(self, inputs, *, rngs=None):
    return inputs


if __name__ == '__main__':
  absltest.main()
