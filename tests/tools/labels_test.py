"""Tests for the labels of tools.report, which name differences of runs."""

import json
import pathlib

from absl.testing import absltest, parameterized

from analysis import records
from outputs.manifests import manifest
from tests.support import small
from tools import report


def _record(seed=0, **changed):
  config = json.loads(
    json.dumps(
      manifest(
        small.config(seed=seed, **changed).to_dict(),
        {},
        measures={},
        prefetched_iterations=2,
      )['config']
    )
  )
  return records.RunRecord(
    path=pathlib.Path('run'),
    config=config,
    rows=(),
    ended='finished',
    staleness={},
    seconds={},
    window=(0.0, 0.0),
    workers=(),
    spans=(),
  )


class LabelTest(parameterized.TestCase):
  def _labels(self, *runs):
    return {key: len(value) for key, value in report.label_runs(runs).items()}

  def test_seeds_are_one_group(self):
    runs = [_record(0), _record(1), _record(0, sync__name='asp')]
    runs[1].config['checkpoint']['every_s'] = 1.0  # Changes nothing in a run.
    self.assertEqual(self._labels(*runs), {'bsp': 2, 'asp': 1})

  def test_labels_have_fields_that_few_runs_share(self):
    runs = [
      _record(),
      _record(sync__name='asp'),
      _record(optimizer__reduction='mean'),
      _record(cluster__workers=8, cluster__speed__slowdown=(1.0,)),
    ]
    self.assertEqual(
      list(self._labels(*runs)),
      ['bsp', 'asp', 'bsp, reduction=mean', 'bsp, slowdown=(1), workers=8'],
    )

  def test_without_a_majority_every_run_tells(self):
    runs = [_record(optimizer__learning_rate=rate) for rate in (0.1, 0.25)]
    labels = ['bsp, learning_rate=0.1', 'bsp, learning_rate=0.25']
    self.assertEqual(list(self._labels(*runs)), labels)

  def test_settings_of_a_scheme_are_in_labels_of_its_runs(self):
    runs = [
      _record(),
      _record(sync__name='ssp', sync__ssp__bound=1),
      _record(sync__name='ssp', sync__ssp__bound=5),
    ]
    labels = ['bsp', 'ssp, bound=1', 'ssp, bound=5']
    self.assertEqual(list(self._labels(*runs)), labels)

  def test_long_labels_are_cut_and_stay_apart(self):
    def run(last):
      slowdown = (*[1.125] * 99, last)
      return _record(cluster__workers=100, cluster__speed__slowdown=slowdown)

    labels = list(self._labels(*map(run, (1.0, 2.0, 2.0, 3.0, 3.0))))
    cut = 'bsp, slowdown=(1.125,1.125,1.1...'
    self.assertEqual(labels, [cut, f'{cut} (2)', f'{cut} (3)'])

  def test_names_of_two_sections_stay_apart(self):
    runs = [
      _record(model__name='mlp', data__name='digits'),
      _record(model__name='mlp', data__name='synthetic'),
      _record(sync__name='asp'),
    ]
    self.assertIn('bsp, data=digits', self._labels(*runs))


if __name__ == '__main__':
  absltest.main()
