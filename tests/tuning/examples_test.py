"""Tests for tuning/examples.py, with runs that are written by hand."""

import json
import math
import pathlib
import tempfile

from absl.testing import absltest

from configs import default
from outputs import atomic, formats, manifests
from tuning import combinations, examples
from tuning.combinations import BSP, Combination
from tuning.examples import ExamplesRatio, Learning


def _run(folder, to_examples, *, staleness=0.0, **changed):
  """Writes a run that has reached the level after these examples."""
  config = default.get_config()
  fields = {name.replace('__', '.'): value for name, value in changed.items()}
  config.update_from_flattened_dict(fields)
  run = folder / f'run{len([*folder.iterdir()])}'
  run.mkdir()
  manifest = {
    'format': formats.RUN_FOLDER,
    **manifests.described(config.to_dict(), {}),
  }
  atomic.write_object(run / 'manifest.json', manifest)
  summary = {'ended': 'finished', 'staleness': {}, 'worker_seconds': {}}
  summary |= {'staleness_mean': staleness}
  summary |= {'to_accuracy': {'0.9': {'examples': to_examples}}}
  (run / 'summary.json').write_text(json.dumps(summary))


class RatiosTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp())

  def test_runs_are_compared_on_one_cluster_with_one_seed(self):
    for seed, base in ((0, 100), (1, 400)):
      _run(self.folder, base, seed=seed)
      _run(self.folder, base * 2, seed=seed, sync__name='asp', staleness=seed)
    # On another cluster there is no run of BSP to compare with.
    _run(self.folder, 1, sync__name='asp', cluster__workers=2)
    found = examples.read_ratios(self.folder, '0.9')
    self.assertEqual(found[Learning('asp')], ExamplesRatio(2, 2, 2, 2, 1.0))
    self.assertEqual(found[Learning()].median, 1.0)

  def test_the_best_of_several_learning_rates_counts(self):
    for rate, needed in ((0.1, 150), (0.2, 120)):
      _run(self.folder, 100, optimizer__learning_rate=rate)
      _run(self.folder, needed, sync__name='ssp', optimizer__learning_rate=rate)
    found = examples.read_ratios(self.folder, '0.9')
    self.assertEqual(found[Learning('ssp')].median, 1.2)

  def test_a_run_that_never_reached_the_level_needs_infinitely_many(self):
    _run(self.folder, 100)
    _run(self.folder, None, batching__local_steps=8)
    found = examples.read_ratios(self.folder, '0.9')
    self.assertEqual(found[Learning(local_steps=8)].median, math.inf)

  def test_a_folder_without_comparable_runs_is_refused(self):
    _run(self.folder, 100)
    for level in ('0.9', '0.5'):
      with self.assertRaisesRegex(ValueError, f'expected .* {level},'):
        examples.read_ratios(self.folder, level)

  def test_what_keeps_learning_needs_as_many_and_others_are_unknown(self):
    for each in combinations.ALL:
      found = examples.find({}, each)
      is_same = each.sync == 'bsp'
      expected = examples.SAME if is_same else examples.UNKNOWN
      self.assertEqual(found, expected, each)
    self.assertEqual(examples.find({}, BSP, 8), examples.UNKNOWN)
    ratio = ExamplesRatio(1.5, 1.0, 2.0, 3, 7.0)
    ratios = {Learning('asp'): ratio}
    for route in ('server', 'ring'):
      asp = Combination('asp', route=route)
      self.assertEqual(examples.find(ratios, asp), ratio)


if __name__ == '__main__':
  absltest.main()
