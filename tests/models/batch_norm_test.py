"""Tests for running statistics: pushed, averaged and read as promised."""

import collections
import tempfile

import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from flax import nnx

import train
from analysis import runs
from configs import default
from data import synthetic
from data.stream import Stream
from learning.iteration import Iteration
from models import norm
from models import task as tasks
from tests.support import small, stopping


class _Model(nnx.Module):
  """Normalises its very inputs, so that their statistics need no model."""

  def __init__(self):
    rngs = nnx.Rngs(0)
    self.norm = norm.make('batch', 3, rngs)
    self.dense = nnx.Linear(4 * 4 * 3, 10, rngs=rngs)

  def __call__(self, inputs, *, rngs=None):
    normal = self.norm(inputs, train=rngs is not None)
    return self.dense(normal.reshape(len(normal), -1))


def _built(scheme, worker_batch=8, workdir=None, **changed):
  dataset = synthetic.make(
    directory=None,
    num_train=192,
    num_test=64,
    pixels=4,
    channels=3,
    num_classes=10,
  )
  task = tasks.classification(
    _Model(), dataset.prepare, lambda inputs, key: inputs
  )
  config = small.config(
    sync__name=scheme,
    cluster__speed__name='lognormal',
    batching__worker_batch=worker_batch,
    **changed,
  )
  config.model = default.get_config().model
  config.data = default.get_config().data
  workdir = workdir or f'{tempfile.mkdtemp()}/run'
  own = {'task': task, 'dataset': dataset}
  return train.build(config, workdir=workdir, **own), dataset


class StatisticsTest(parameterized.TestCase):
  @parameterized.parameters('bsp', 'asp', 'elastic')
  def test_statistics_follow_those_of_the_pushed_batches(self, scheme):
    self._assert_follow(scheme)

  @parameterized.parameters('ssp', 'dssp', 'r2sp')
  @pytest.mark.soak
  def test_statistics_follow_with_the_other_schemes(self, scheme):
    self._assert_follow(scheme)

  def _assert_follow(self, scheme):
    run, dataset = _built(scheme)
    run()

    inputs = np.asarray(dataset.prepare(dataset.train.inputs), np.float64)
    mean, var = np.zeros(3), np.ones(3)
    stream, taken = Stream(num_examples=192, seed=0, ahead=2), {}
    sums = collections.defaultdict(list)
    for row in runs.read_events(run.files.workdir):
      said = row['decision']
      if row['event'] == 'push':
        stream.done(row['worker'])
        batch = inputs[stream.indices(taken[row['worker']])]
        sums[said['into']].append(
          (batch.mean(axis=(0, 1, 2)), batch.var(axis=(0, 1, 2)))
        )
      for update in said.get('commit', ()):
        means, variances = zip(*sums.pop(update), strict=True)
        kept = 0.9 ** len(means)
        mean = kept * mean + (1 - kept) * np.mean(means, axis=0)
        var = kept * var + (1 - kept) * np.mean(variances, axis=0)
      for worker in said.get('release', ()):
        taken[worker] = stream.take(worker, 8)

    stats = run.runtime.coordinator.store.learner.stats['norm']
    np.testing.assert_allclose(stats['mean'], mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(stats['var'], var, rtol=1e-4)

  def test_evaluation_reads_them(self):
    run, dataset = _built('bsp')
    summary = run()

    server = run.runtime.coordinator.store.learner
    params, stats = jax.device_get((server.params, server.stats['norm']))
    inputs = np.asarray(dataset.prepare(dataset.test.inputs))
    normal = (inputs - stats['mean']) / np.sqrt(stats['var'] + 1e-5)
    normal = normal * params['norm']['scale'] + params['norm']['bias']
    dense = params['dense']
    logits = normal.reshape(64, -1) @ dense['kernel'] + dense['bias']
    right = np.argmax(logits, axis=1) == dataset.test.targets
    self.assertAlmostEqual(summary['final_accuracy'], np.mean(right))

  def test_statistics_are_in_checkpoints(self):
    never = {'checkpoint__every_examples': 10**9, 'epochs': 1.0}
    straight, _ = _built('elastic', **never)
    straight()
    run, _ = _built('elastic', **never)
    with self.assertRaises(stopping.Killed):
      stopping.stop(run, saved_at=[20], killed_at=25)
    run, _ = _built('elastic', workdir=str(run.files.workdir), **never)
    self.assertIsNotNone(run.sizes)
    run()

    jax.tree.map(
      np.testing.assert_array_equal,
      run.runtime.coordinator.store.learner.state()['stats'],
      straight.runtime.coordinator.store.learner.state()['stats'],
    )
    np.testing.assert_equal(stopping.results(run), stopping.results(straight))

  def test_padding_repeats_examples_of_the_batch(self):
    run, dataset = _built('bsp', worker_batch=7)
    payload, _ = run.runtime.pushes(
      run.runtime.coordinator.store.learner.params,
      Iteration(((0, 7),), worker=0, number=0),
    )

    rows = Stream(num_examples=192, seed=0, ahead=2).indices(((0, 7),))
    rows = np.append(rows, rows[0])  # A batch of 7 is computed as 8.
    batch = np.asarray(dataset.prepare(dataset.train.inputs[rows]))
    np.testing.assert_allclose(
      payload.stats['norm']['mean'], 7 * batch.mean(axis=(0, 1, 2)), rtol=1e-4
    )

  def test_a_model_must_not_average_by_itself(self):
    model = nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    with self.assertRaisesRegex(ValueError, 'momentum=0.0.*, .* got 0.99'):
      tasks.supervised(model, loss=None, correct=None)

  def test_statistics_travel_with_parameters(self):
    run, _ = _built('bsp')
    self.assertEqual(small.size_bytes(run), 4 * (48 * 10 + 10 + 2 * 3 + 2 * 3))


if __name__ == '__main__':
  absltest.main()
