"""Tests for profiles of layers, on a small model."""

import itertools
import json
import pathlib
import tempfile
import time

from absl.testing import absltest, parameterized

from cluster.speed import layers as ready_layers
from tests.support import accelerators, small
from tools.profiling import layers
from tools.profiling.layers import Leaf, Profile

_PROFILE = Profile('a model', 8, 0.1, [Leaf('b', 30, 0.5), Leaf('a', 10, 0.75)])


class ProfileTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    accelerators.skip_if_fake('the tool measures CPUs.')

  def test_the_last_layer_is_there_first_and_the_first_one_last(self):
    config = small.config(
      model__mlp__hidden=(2048, 2048, 2048), batching__micro_batch=8
    )
    start = time.perf_counter()
    profile = layers.measure(config, batch=12, rounds=3)
    took_s = time.perf_counter() - start

    self.assertBetween(profile.seconds, 0, took_s)
    ready = {leaf.name: leaf.ready for leaf in profile.layers}
    self.assertEqual(sorted(ready.values()), [*ready.values()])
    self.assertBetween(min(ready.values()), 0, 1)
    self.assertBetween(max(ready.values()), 0, 1)
    if not _in_order(ready):  # The machine may have been busy at a time.
      profile = layers.measure(config, batch=12, rounds=7)
      ready = {leaf.name: leaf.ready for leaf in profile.layers}
      self.assertTrue(_in_order(ready), ready)
    params = small.build(config).runtime.coordinator.store.learner.params
    sizes = [each.nbytes for each in _leaves(params)]
    self.assertCountEqual(sizes, [leaf.bytes for leaf in profile.layers])

  def test_layers_are_read_as_written(self):
    path = pathlib.Path(tempfile.mkdtemp()) / 'profile.json'
    layers.write(_PROFILE, path)
    found = ready_layers.read('field', str(path))
    self.assertEqual([each[:2] for each in found], [(30, 0.5), (10, 0.75)])
    self.assertEqual(json.loads(path.read_text())['batch'], 8)

  def test_the_table_has_the_measurements(self):
    lines = layers.describe(_PROFILE).splitlines()
    self.assertIn('a model, 8 examples in 100 ms, 2 leaves of 4e-05', lines[0])
    self.assertEqual(lines[2].split(), ['50.0%', '50', '75.0%', 'b'])
    self.assertEqual(lines[3].split(), ['75.0%', '75', '100.0%', 'a'])

  @parameterized.parameters(
    ({'batch': 0}, 'batch: expected at least 1, got 0'),
    ({'rounds': 0}, 'rounds: expected at least 1, got 0'),
  )
  def test_bad_arguments_are_named(self, changed, message):
    with self.assertRaisesRegex(ValueError, message):
      layers.measure(small.config(), **{'batch': 8, 'rounds': 1} | changed)


def _leaves(params):
  import jax

  return jax.tree.leaves(params)


def _in_order(ready):
  kernels = [ready[f"['layers'][{n}]['kernel']"] for n in (3, 2, 1, 0)]
  return (
    kernels[0] > 0.4  # After the first micro-batch.
    and kernels[0] < kernels[3]
    # Two gradients that wait for the same numbers may change places.
    and all(one < other + 0.05 for one, other in itertools.pairwise(kernels))
  )


if __name__ == '__main__':
  absltest.main()
