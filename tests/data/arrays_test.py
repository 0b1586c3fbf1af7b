"""Tests for data.arrays, on small new files."""

import pathlib
import tempfile

import numpy as np
from absl.testing import absltest, parameterized

import train
from configs import default
from data import arrays

_RNG = np.random.default_rng(0)
_IMAGES = {
  'train_inputs': _RNG.integers(0, 256, (9, 4, 5, 3), np.uint8),
  'train_targets': np.arange(9) % 3,
  'test_inputs': _RNG.integers(0, 256, (6, 4, 5, 3), np.uint8),
  'test_targets': np.arange(6) % 3,
}
_TOKENS = {
  'train_inputs': np.array([[0, 1, 2], [5, 4, 3]]),
  'train_targets': np.array([[1, 2, 9], [4, 3, -1]]),
  'test_inputs': np.array([[0, 1, 7]]),
  'test_targets': np.array([[1, 7, -1]]),
}


def _write(found) -> str:
  folder = tempfile.mkdtemp()
  np.savez(f'{folder}/mine.npz', **found)
  return folder


def _make(found):
  return arrays.make(directory=_write(found), file='mine.npz')


class ArraysTest(parameterized.TestCase):
  def test_splits_have_the_arrays_of_their_names(self):
    dataset = _make({**_IMAGES, 'notes': np.zeros(2)})
    for split in ('train', 'test'):
      for part in ('inputs', 'targets'):
        np.testing.assert_array_equal(
          getattr(getattr(dataset, split), part), _IMAGES[f'{split}_{part}']
        )
    self.assertEqual(dataset.train.targets.dtype, np.int32)
    self.assertEqual(dataset.num_classes, 3)

  @parameterized.parameters(
    ((4, 5, 3), np.uint8), ((4, 5, 2), float), ((7,), float)
  )
  def test_prepared_training_inputs_are_standard(self, shape, dtype):
    inputs = _RNG.integers(0, 256, (400, *shape)).astype(dtype)
    inputs[..., 0] //= 4
    dataset = _make(
      {
        'train_inputs': inputs,
        'train_targets': np.zeros(400, int),
        'test_inputs': inputs[:1],
        'test_targets': np.ones(1, int),
      }
    )
    prepared = np.asarray(dataset.prepare(dataset.train.inputs))
    axes = tuple(range(prepared.ndim - 1))
    np.testing.assert_allclose(prepared.mean(axes), 0, atol=1e-4)
    np.testing.assert_allclose(prepared.std(axes), 1, atol=1e-4)

  def test_a_constant_channel_becomes_zero(self):
    found = {**_IMAGES, 'train_inputs': np.full((9, 4, 5, 3), 7, np.uint8)}
    dataset = _make(found)
    prepared = np.asarray(dataset.prepare(dataset.train.inputs))
    np.testing.assert_allclose(prepared, 0, atol=1e-6)

  def test_integers_are_tokens_of_which_negative_targets_do_not_count(self):
    dataset = _make(_TOKENS)
    self.assertEqual(dataset.num_classes, 10)
    self.assertEqual(dataset.train.inputs.dtype, np.int32)
    np.testing.assert_array_equal(
      dataset.prepare(dataset.train.inputs), _TOKENS['train_inputs']
    )
    dataset.check()

  def test_of_token_ids_with_a_class_each_only_classes_count(self):
    found = {
      **_TOKENS,
      'train_targets': np.array([0, 1]),
      'test_targets': np.array([1]),
    }
    self.assertEqual(_make(found).num_classes, 2)

  def test_floats_are_targets_without_classes(self):
    found = {
      **_IMAGES,
      'train_targets': np.linspace(0, 1, 9),
      'test_targets': np.linspace(0, 1, 6),
    }
    dataset = _make(found)
    self.assertEqual(dataset.num_classes, 0)
    self.assertEqual(dataset.train.targets.dtype, np.float32)

  @parameterized.named_parameters(
    ('missing', 'test_targets', None, r"without \['test_targets'\]"),
    ('strings', 'train_targets', np.array(['a'] * 9), '<U1'),
    ('objects', 'train_targets', np.array([{}] * 9), 'pickle'),
    ('negative', 'train_targets', np.arange(9) - 1, 'from 0 .* got -1'),
    ('complex', 'train_inputs', np.zeros((9, 2), complex), 'complex128'),
    ('integers', 'test_inputs', np.zeros((6, 4, 5, 3), int), 'int64'),
    ('flat', 'train_inputs', np.zeros(9), r'at least one example .* \(9,\)'),
    ('empty', 'train_inputs', np.zeros((0, 3)), r'example .* \(0, 3\)'),
    ('infinite', 'train_inputs', np.full((9, 2), np.inf), 'finite .* got inf'),
    ('other_shape', 'test_inputs', np.zeros((6, 4, 4, 3), np.uint8), 'as in'),
    ('other_type', 'test_targets', np.zeros(6), 'test_targets, as in'),
  )
  def test_wrong_arrays_are_named(self, name, array, message):
    found = {**_IMAGES, name: array}
    if array is None:
      found.pop(name)
    with self.assertRaisesRegex(ValueError, f'file: .*{message}'):
      _make(found)

  @parameterized.parameters(b'', b'no archive', b'PK\x03\x04 cut')
  def test_other_files_are_refused(self, content):
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / 'mine.npz').write_bytes(content)
    with self.assertRaisesRegex(ValueError, 'file: expected an .npz file'):
      arrays.make(directory=str(folder), file='mine.npz')

  def test_a_single_array_is_refused(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    with (folder / 'mine.npz').open('wb') as file:
      np.save(file, np.zeros(3))
    with self.assertRaisesRegex(ValueError, 'it is no archive'):
      arrays.make(directory=str(folder), file='mine.npz')


class RunTest(parameterized.TestCase):
  def _config(self, found):
    config = default.get_config()
    config.data.name = 'arrays'
    config.data.dir = _write(found)
    config.data.arrays.file = 'mine.npz'
    config.epochs = 4.0
    config.cluster.workers = 2
    config.cluster.speed.slowdown = (1.0,)
    config.model.name = 'mlp'
    return config

  def test_a_perceptron_learns_from_features(self):
    inputs = _RNG.standard_normal((400, 3))
    targets = (inputs[:, 0] > 0).astype(int)
    found = {
      'train_inputs': inputs[:300],
      'train_targets': targets[:300],
      'test_inputs': inputs[300:],
      'test_targets': targets[300:],
    }
    run = train.build(self._config(found), workdir=f'{tempfile.mkdtemp()}/run')
    self.assertGreater(run()['final_accuracy'], 0.8)

  def test_a_classifier_of_data_without_classes_is_refused(self):
    found = {
      'train_inputs': np.zeros((64, 3)),
      'train_targets': np.zeros(64),
      'test_inputs': np.zeros((6, 3)),
      'test_targets': np.zeros(6),
    }
    with self.assertRaisesRegex(ValueError, 'num_classes: .* data that have'):
      train.build(self._config(found), workdir=f'{tempfile.mkdtemp()}/run')


if __name__ == '__main__':
  absltest.main()
