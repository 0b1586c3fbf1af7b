"""Tests for what a run returns: parameters, running statistics, summary."""

import pathlib
import tempfile

import jax
import numpy as np
from absl.testing import absltest, parameterized
from flax import nnx

import train
from configs import default
from data import synthetic
from learning import build
from learning.evaluation import TaskEvaluation
from models import norm
from models import task as tasks
from tests.support import small, together

_REAL = {
  'cluster__runtime': 'distributed',
  'cluster__workers': 2,
  'cluster__speed__slowdown': (1.0,),
}


def _folder():
  return str(pathlib.Path(tempfile.mkdtemp(), 'run'))


class _Normalised(nnx.Module):
  """A layer after batch normalisation."""

  def __init__(self):
    rngs = nnx.Rngs(0)
    self.norm = norm.make('batch', 3, rngs)
    self.dense = nnx.Linear(4 * 4 * 3, 10, rngs=rngs)

  def __call__(self, inputs, *, rngs=None):
    normal = self.norm(inputs, train=rngs is not None)
    return self.dense(normal.reshape(len(normal), -1))


class RunTest(parameterized.TestCase):
  def _check(self, trained, learned, evaluate):
    """Checks that an evaluation of the version gives the last accuracy."""
    found = evaluate(trained.params, trained.stats)
    accuracy = trained.summary['final_accuracy']
    self.assertAlmostEqual(found['accuracy'], accuracy)
    changed = jax.tree.map(
      lambda one, other: bool((np.asarray(one) != np.asarray(other)).any()),
      (trained.params, trained.stats),
      (learned.params, learned.stats),
    )
    self.assertTrue(all(jax.tree.leaves(changed)))

  @parameterized.parameters(
    {},
    {'sync__name': 'asp'},
    {'route__name': 'ring'},
    {'route__name': 'ring', 'wire__name': 'lowrank', 'wire__lowrank__rank': 1},
  )
  def test_a_virtual_run_returns_the_version_of_its_last_evaluation(
    self, **fields
  ):
    config = small.config(epochs=1.0, **fields)
    learned = build.from_config(config)
    trained = train.run(config, workdir=_folder())
    self._check(trained, learned, learned.evaluate)

  def test_running_statistics_are_returned(self):
    config, defaults = small.config(epochs=1.0), default.get_config()
    config.model, config.data = defaults.model, defaults.data
    sizes = {'pixels': 4, 'channels': 3, 'num_classes': 10}
    dataset = synthetic.make(
      directory=None, num_train=192, num_test=64, **sizes
    )
    task = tasks.classification(_Normalised(), dataset.prepare)
    trained = train.run(config, workdir=_folder(), task=task, dataset=dataset)
    self.assertNotEmpty(jax.tree.leaves(trained.stats))
    self._check(trained, task, TaskEvaluation(task, dataset.test))

  def test_a_run_without_a_model_returns_no_parameters(self):
    trained = train.run(small.timing(epochs=1.0), workdir=_folder())
    self.assertEqual(trained[:2], ((), ()))
    self.assertEqual(trained.summary['ended'], 'finished')

  def test_a_finished_run_returns_the_version_of_its_checkpoint(self):
    config, folder = small.config(checkpoint__every_s=3600.0), _folder()
    first = train.run(config, workdir=folder)
    second = train.run(config, workdir=folder)
    jax.tree.map(np.testing.assert_array_equal, first[:2], second[:2])
    for name in ('examples', 'updates', 'final_accuracy', 'wall_s'):
      self.assertEqual(first.summary[name], second.summary[name])

  def test_a_finished_run_without_checkpoints_has_no_parameters(self):
    config, folder = small.config(epochs=1.0), _folder()
    train.run(config, workdir=folder)
    with self.assertRaisesRegex(RuntimeError, 'without checkpoints'):
      train.run(config, workdir=folder)

  @parameterized.parameters('server', 'ring')
  def test_a_run_of_real_processes_returns_its_last_version(self, route):
    config = small.config(epochs=1.0, route__name=route, **_REAL)
    found = []
    together.run(
      config,
      pathlib.Path(_folder()),
      call=lambda part: found.append(part.train()),
    )
    (trained,) = found
    learned = build.from_config(config)
    self._check(trained, learned, learned.evaluate)


if __name__ == '__main__':
  absltest.main()
