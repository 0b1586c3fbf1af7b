"""Tests for labels, which name differences of runs."""

import collections
import json

from absl.testing import absltest, parameterized

from analysis import labels
from outputs.manifests import manifest
from tests.support import small


def _config(seed=0, **changed):
  """Returns a config as manifests have it."""
  found = manifest(
    small.config(seed=seed, **changed).to_dict(),
    {},
    measures={},
    prefetched_iterations=2,
  )
  return json.loads(json.dumps(found['config']))


class LabelTest(parameterized.TestCase):
  def _labels(self, *runs):
    return dict(collections.Counter(labels.find(runs)))

  def test_seeds_are_one_group(self):
    runs = [_config(0), _config(1), _config(0, sync__name='asp')]
    runs[1]['checkpoint']['every_s'] = 1.0  # Changes nothing in a run.
    self.assertEqual(self._labels(*runs), {'bsp': 2, 'asp': 1})

  def test_labels_have_fields_that_few_runs_share(self):
    runs = [
      _config(),
      _config(sync__name='asp'),
      _config(optimizer__reduction='mean'),
      _config(cluster__workers=8, cluster__speed__slowdown=(1.0,)),
    ]
    self.assertEqual(
      list(self._labels(*runs)),
      ['bsp', 'asp', 'bsp, reduction=mean', 'bsp, slowdown=(1), workers=8'],
    )

  def test_without_a_majority_every_run_tells(self):
    runs = [_config(optimizer__learning_rate=rate) for rate in (0.1, 0.25)]
    expected = ['bsp, learning_rate=0.1', 'bsp, learning_rate=0.25']
    self.assertEqual(list(self._labels(*runs)), expected)

  def test_settings_of_a_scheme_are_in_labels_of_its_runs(self):
    runs = [
      _config(),
      _config(sync__name='ssp', sync__ssp__bound=1),
      _config(sync__name='ssp', sync__ssp__bound=5),
    ]
    expected = ['bsp', 'ssp, bound=1', 'ssp, bound=5']
    self.assertEqual(list(self._labels(*runs)), expected)

  def test_long_labels_are_cut_and_stay_apart(self):
    def run(last):
      slowdown = (*[1.125] * 99, last)
      return _config(cluster__workers=100, cluster__speed__slowdown=slowdown)

    found = list(self._labels(*map(run, (1.0, 2.0, 2.0, 3.0, 3.0))))
    cut = 'bsp, slowdown=(1.125,1.125,1.1...'
    self.assertEqual(found, [cut, f'{cut} (2)', f'{cut} (3)'])

  def test_names_of_two_sections_stay_apart(self):
    runs = [
      _config(model__name='mlp', data__name='digits'),
      _config(model__name='mlp', data__name='synthetic'),
      _config(sync__name='asp'),
    ]
    self.assertIn('bsp, data=digits', self._labels(*runs))


if __name__ == '__main__':
  absltest.main()
