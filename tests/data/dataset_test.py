"""Tests of the check of data sets before a run."""

import numpy as np
from absl.testing import absltest, parameterized

from configs import default
from data.dataset import PADDING, Dataset, Split
from tests.support import small


class _Lazy:
  """Rows that are read when they are used, and so not checked before."""

  def __init__(self, array):
    self.shape, self.dtype = array.shape, array.dtype
    self._array = array

  def __len__(self):
    return len(self._array)

  def __getitem__(self, rows):
    return self._array[rows]


def _split(count=96):
  rng = np.random.default_rng(0)
  inputs = rng.normal(size=(count, 4, 4, 1)).astype(np.float32)
  return Split(inputs, rng.integers(10, size=count).astype(np.int32))


def _dataset(train, test=None):
  return Dataset(train, test or _split(), 10, mean=(0.0,), std=(1.0,))


def _config():
  """Returns the config of a run on a data set that replaces that of config."""
  config = small.config()
  config.data = default.get_config().data
  return config


class CheckTest(parameterized.TestCase):
  def test_data_in_range_pass(self):
    _dataset(_split()).check()
    tokens = np.array([[5, 9, PADDING], [0, PADDING, PADDING]], np.int32)
    Dataset(Split(tokens, tokens), Split(tokens, tokens), 10).check()

  @parameterized.parameters(10, -1, 255)
  def test_a_target_that_is_no_class_is_named(self, label):
    wrong = _split()
    wrong.targets[7] = label
    message = f'targets: expected classes from 0 to 9, got {label} of example 7'
    with self.assertRaisesRegex(ValueError, f'train.{message}'):
      small.build(_config(), dataset=_dataset(wrong))
    with self.assertRaisesRegex(ValueError, f'test.{message}'):
      _dataset(_split(), wrong).check()

  @parameterized.parameters(np.nan, np.inf, -np.inf)
  def test_an_input_that_is_not_finite_is_named(self, number):
    wrong = _split()
    wrong.inputs[11, 2, 3, 0] = number
    message = f'inputs: expected finite numbers, got {number} in example 11'
    with self.assertRaisesRegex(ValueError, f'train.{message}'):
      small.build(_config(), dataset=_dataset(wrong))
    with self.assertRaisesRegex(ValueError, f'test.{message}'):
      _dataset(_split(), wrong).check()

  def test_a_task_of_the_user_gives_targets_and_nan_its_own_meaning(self):
    wrong = _split()
    wrong.inputs[3], wrong.targets[3] = np.nan, -7
    Dataset(wrong, wrong).check()

  def test_a_first_loss_is_not_blamed_on_the_learning_rate(self):
    wrong = _split()
    wrong.inputs[:] = np.nan
    lazy = Split(_Lazy(wrong.inputs), wrong.targets)
    run = small.build(_config(), dataset=_dataset(lazy))
    with self.assertRaisesRegex(
      FloatingPointError, 'worker 0, iteration 0, is nan: .* inputs, targets or'
    ):
      run()


if __name__ == '__main__':
  absltest.main()
