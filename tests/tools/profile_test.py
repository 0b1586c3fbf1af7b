"""Tests for tools.profile and profiles of batches, on a small model."""

import json
import pathlib
import tempfile
import time

import numpy as np
import pytest
from absl.testing import absltest, parameterized
from matplotlib import image

from batching import curves
from tests.support import small
from tools.profiling import batches
from tools.profiling.batches import Profile

_KNOWN = curves.Curve(0.02, 0.0, 0.001)
_BATCHES = (1, 4, 16, 64, 128)


def _profile():
  return Profile(
    device='a device',
    model='a model',
    micro_batch=64,
    batches=_BATCHES,
    seconds=[_KNOWN.seconds(batch) for batch in _BATCHES],
    curve=_KNOWN,
  )


class ProfileTest(parameterized.TestCase):
  def test_times_are_those_of_the_model(self):
    config = small.config(
      model__mlp__hidden=(512, 512), batching__micro_batch=8
    )
    start = time.perf_counter()
    profile = batches.measure(config, batches=(), rounds=1)
    took_s = time.perf_counter() - start
    self.assertEqual(profile.batches, [1, 2, 3, 4, 6, 8, 12, 16])
    self.assertGreater(min(profile.seconds), 0)
    self.assertLess(sum(profile.seconds), took_s)
    self.assertEqual(profile.model, 'mlp(hidden=(512, 512)) of synthetic')
    self.assertEqual(profile.micro_batch, 8)
    self.assertEqual(
      profile.curve, curves.fit(profile.batches, profile.seconds)
    )
    self.assertTrue(profile.device)

  def test_a_curve_is_read_as_written(self):
    path = pathlib.Path(tempfile.mkdtemp()) / 'profile.json'
    batches.write(_profile(), path)
    content = json.loads(path.read_text())
    self.assertEqual(curves.parse(content), _KNOWN)
    self.assertEqual(content['device'], 'a device')
    self.assertEqual(content['batches'], list(_BATCHES))
    np.testing.assert_allclose(content['seconds'], [0.02] * 3 + [0.064, 0.128])

  def test_the_table_has_measured_and_fitted_values(self):
    profile = _profile()._replace(seconds=[0.02, 0.02, 0.02, 0.08, 0.128])
    lines = batches.describe(profile).splitlines()
    self.assertIn('a model on a device', lines[0])
    self.assertEqual(lines[5].split(), ['64', '80.00', '64.00', '-20.0%'])
    self.assertEqual(
      lines[7], 'max(20, 0 + 1 x) ms; error 4.0% in the mean, 20.0% at most'
    )

  def test_a_picture_is_written(self):
    path = pathlib.Path(tempfile.mkdtemp()) / 'profile.png'
    batches.draw(_profile(), path)
    self.assertGreater(np.std(image.imread(path)), 0.05)

  @parameterized.parameters(
    ({'batches': [4, 2, 8]}, r'batches: expected .* ascending, got \[4, 2, 8'),
    ({'batches': [1, 2]}, 'batches: expected at least three'),
    ({'batches': [0, 1, 2]}, 'batches: expected'),
    ({'rounds': 0}, 'rounds: expected at least 1, got 0'),
  )
  def test_bad_arguments_are_named(self, changed, message):
    arguments = {'batches': [1, 2, 4], 'rounds': 1} | changed
    with self.assertRaisesRegex(ValueError, message):
      batches.measure(small.config(), **arguments)

  def test_there_must_be_a_model(self):
    config = small.config()
    config.model.name = 'none'
    with self.assertRaisesRegex(
      ValueError, 'config.model.name: expected a mod'
    ):
      batches.measure(config, batches=[1, 2, 4], rounds=1)

  def test_the_command_writes_its_measurements(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    argv = [
      '-m',
      'tools.profile',
      '--of=batches',
      '--config=configs/vgg16_bsp.py',
    ]
    argv += ['--config.model.name=mlp', '--config.model.mlp.hidden=(64,)']
    argv += ['--config.data.name=synthetic', f'--out={folder}/profile.json']
    argv += ['--rounds=1', f'--plot={folder}/profile.png']
    done = small.python(*argv, '--batches=1,16,64')
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertIn('examples  measured ms', done.stdout)
    curves.parse(json.loads((folder / 'profile.json').read_text()))
    self.assertTrue((folder / 'profile.png').exists())

  @pytest.mark.soak
  def test_an_invalid_batch_is_refused(self):
    argv = [
      '-m',
      'tools.profile',
      '--of=batches',
      '--config=configs/vgg16_bsp.py',
    ]
    done = small.python(*argv, '--batches=1,many', '--out=/no/file')
    self.assertEqual(done.returncode, 1)
    self.assertIn(
      "Refused: batches: expected integers, got ['1', 'many']", done.stderr
    )

  def test_a_flag_of_the_other_kind_is_refused(self):
    argv = ['-m', 'tools.profile', '--of=layers', '--out=/no/file']
    done = small.python(
      *argv, '--config=configs/vgg16_bsp.py', '--batches=1,2,4'
    )
    self.assertEqual(done.returncode, 1)
    self.assertIn('Refused: batches: expected no value', done.stderr)


if __name__ == '__main__':
  absltest.main()
