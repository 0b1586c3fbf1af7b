"""tools.checkpoint evaluates and exports what a run has learned."""

import json
import pathlib
import tempfile
from unittest import mock

import jax
import numpy as np
from absl import flags
from absl.testing import absltest, flagsaver, parameterized

import train
from learning import exported
from models import mlp
from models.task import classification
from tests.support import small, stopping, together
from tools import checkpoint


def _folder(**fields):
  folder = pathlib.Path(tempfile.mkdtemp(), 'run')
  train.build(stopping.eventful('asp', **fields), workdir=str(folder))()
  return folder


def _last_evaluation(folder):
  lines = (folder / 'metrics.jsonl').read_text().splitlines()
  rows = [json.loads(line) for line in lines]
  return [row for row in rows if row['kind'] == 'evaluation'][-1]


def _main(*argv, **values):
  with flagsaver.flagsaver(**values), mock.patch('builtins.print') as printed:
    checkpoint.main(['checkpoint', *map(str, argv)])
  return '\n'.join(str(call.args[0]) for call in printed.call_args_list)


class CheckpointTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    if not flags.FLAGS.is_parsed():
      flags.FLAGS(['test'])
    cls.folder = _folder()

  def test_the_last_checkpoint_has_the_accuracy_of_the_last_evaluation(self):
    version, learned = checkpoint.read(self.folder)
    found = checkpoint.evaluate(version, learned)
    expected = _last_evaluation(self.folder)
    self.assertEqual(found['accuracy'], expected['accuracy'])
    self.assertEqual(version.examples, expected['examples'])

  @parameterized.parameters(
    {'route__server__servers': 2, 'sync__name': 'asp'},
    {'route__name': 'ring'},
  )
  def test_parameters_of_real_runs_are_put_together(self, **fields):
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    config = small.config(
      cluster__runtime='distributed',
      cluster__workers=2,
      cluster__speed__slowdown=(1.0,),
      checkpoint__every_examples=96,
      **fields,
    )
    together.run(config, folder)
    version, learned = checkpoint.read(folder)
    expected = _last_evaluation(folder)
    self.assertEqual(version.examples, expected['examples'])
    found = checkpoint.evaluate(version, learned)
    self.assertEqual(found['accuracy'], expected['accuracy'])

  @parameterized.parameters(*exported.SUFFIXES)
  def test_another_run_starts_from_an_exported_file(self, suffix):
    file = pathlib.Path(tempfile.mkdtemp(), f'model{suffix}')
    text = _main(self.folder, export=str(file), evaluate=True)
    self.assertIn(str(file), text)
    self.assertIn('accuracy: ', text)
    config = stopping.eventful('bsp', model__init=str(file), seed=3)
    run = small.build(config)
    version, _ = checkpoint.read(self.folder)
    started = run.runtime.coordinator.store.learner.params
    for ours, expected in zip(
      jax.tree.leaves(started), jax.tree.leaves(version.params), strict=True
    ):
      np.testing.assert_array_equal(ours, expected)

  def test_files_of_another_model_or_place_are_refused(self):
    file = pathlib.Path(tempfile.mkdtemp(), 'model.npz')
    _main(self.folder, export=str(file))
    for value, changed, message in (
      (str(file), {'model__mlp__hidden': (8,)}, 'config.model.init: .* to be'),
      (f'{file}.gone.npz', {}, 'config.model.init: expected a file of param'),
      (str(self.folder), {}, 'config.model.init: expected a file that ends'),
    ):
      config = stopping.eventful('bsp', model__init=value, **changed)
      with self.assertRaisesRegex(ValueError, message):
        small.build(config)

  def test_checkpoints_are_listed_and_chosen_by_number(self):
    folder = _folder(checkpoint__every_examples=150)
    listed = _main(folder).splitlines()
    self.assertLen(listed, 2)
    numbers = [int(line.partition(':')[0]) for line in listed]
    first, last = (checkpoint.read(folder, n)[0].examples for n in numbers)
    self.assertLess(first, last)
    with self.assertRaisesRegex(ValueError, f'--number: .*{numbers[0]}'):
      checkpoint.read(folder, 99)

  def test_folders_without_what_is_needed_are_refused(self):
    with self.assertRaisesRegex(SystemExit, 'Refused: .*manifest'):
      _main(tempfile.mkdtemp(), evaluate=True)
    with self.assertRaisesRegex(SystemExit, 'a run with a checkpoint'):
      _main(_folder(checkpoint__every_examples=0), evaluate=True)
    with self.assertRaisesRegex(SystemExit, '--export: .*npz'):
      _main(self.folder, export='model.pt')

  def test_a_run_of_a_task_of_its_own_is_refused(self):
    config = stopping.eventful('asp', data__crop_padding=0)
    config.model = small.default.get_config().model
    model = mlp.make(
      input_shape=(4, 4, 1),
      num_classes=10,
      seed=0,
      dtype=np.dtype('float32'),
      hidden=(4,),
    )
    task = classification(model, lambda x: x, lambda x, _: x)
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    train.build(config, task=task, workdir=str(folder))()
    with self.assertRaisesRegex(ValueError, 'task: expected one that the con'):
      checkpoint.read(folder)


if __name__ == '__main__':
  absltest.main()
