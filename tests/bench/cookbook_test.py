"""Tests for the clusters of the cookbook."""

import copy
import json
import pathlib
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from bench import cookbook
from launch import hosts
from tuning import candidates, measuring

_ESTIMATE = {'value': 0.5, 'low': 0.4, 'high': 0.6}
_TUNED = {
  'winner': 'bsp, lb_bsp, float32, ring',
  'reason': '',
  'gain': {'value': 0.5, 'low': 0.4, 'high': 0.6},
  'present': {
    'predicted_s': 0.9,
    'measured': [{'iteration_s': {**_ESTIMATE, 'value': 1.0}}],
  },
  'candidates': [
    {
      'name': 'bsp, lb_bsp, float32, ring',
      'predicted_s': 0.45,
      'predicted_time': _ESTIMATE,
      'measured': {'iteration_s': _ESTIMATE},
    }
  ],
}
_FOUND = {
  'title': 'two hosts',
  'diagnosis': ['worker 1 is slow'],
  'class': {
    'a': {'s': 1.0, 'low': 0.9, 'high': 1.1, 'changes': False, 'examples': 1.0},
    'b': {'s': 0.4, 'low': 0.3, 'high': 0.5, 'changes': False, 'examples': 1.0},
    'c': {'s': 0.3, 'low': 0.2, 'high': 0.4, 'changes': True, 'examples': 2.0},
  },
  'tuned': _TUNED,
  'ddp_s': 2.0,
}


class CookbookTest(parameterized.TestCase):
  @parameterized.parameters(*cookbook.RECIPES)
  def test_all_configs_of_a_cluster_can_run_on_its_links(self, name):
    recipe = cookbook.RECIPES[name]
    count = len(recipe.hosts.up)
    for each in cookbook.list_configs(recipe).values():
      candidates.check_present(each.config, count)
    fast = f'{max(recipe.hosts.up)}mbit'
    links = hosts.parse_links(count, fast, json.dumps(recipe.hosts.links))
    self.assertLen(links.groups, len(recipe.hosts.groups))

  def test_the_list_has_all_schemes_routes_and_local_steps(self):
    members = cookbook.list_configs(cookbook.RECIPES['nic'])
    alike = {name for name, each in members.items() if not each.changes}
    self.assertLen(alike, 6)
    self.assertIn('bsp, lb_bsp, float32, forest', alike)
    self.assertEqual(
      {each.config.sync.name for each in members.values()},
      {'bsp', 'ssp', 'asp', 'dssp', 'elastic', 'r2sp'},
    )
    steps = [
      (each.config.route.name, each.config.batching.local_steps)
      for each in members.values()
      if each.config.batching.local_steps > 1
    ]
    self.assertEqual(steps, [('server', 8), ('ring', 8), ('forest', 8)])
    for each in members.values():
      self.assertGreaterEqual(each.examples, 1.0)
      self.assertTrue(each.changes or each.examples == 1.0)

  def test_the_slowest_worker_of_each_iteration_counts(self):
    compute_s = np.array([1.0, 2.0, 5.0, 3.0, 9.0])
    workers = np.array([0, 1, 0, 1, 0])
    self.assertEqual(cookbook.slowest_s(compute_s, workers), (2.0 + 5.0) / 2)

  def test_a_run_that_fails_is_repeated_in_another_folder(self):
    runs = []

    def run(launcher, config, folder, run_s):
      runs.append(folder.name)
      if len(runs) < 3:
        raise measuring.RunError('killed')
      return 'measured'

    with mock.patch.object(measuring, 'run', run):
      found = cookbook._measure(None, None, pathlib.Path('4'), 1.0)
      self.assertEqual((found, runs), ('measured', ['4', '4-1', '4-2']))
      runs.clear()
      with (
        mock.patch.object(cookbook, '_ATTEMPTS', 2),
        self.assertRaises(measuring.RunError),
      ):
        cookbook._measure(None, None, pathlib.Path('4'), 1.0)

  def test_the_chosen_config_is_compared_with_the_best_and_with_ddp(self):
    text = cookbook.describe(_FOUND)
    self.assertIn('0.500 of the time, predicted 0.500 (+0.0%)', text)
    self.assertIn('Over the best of the list that learns alike: 1.250', text)
    self.assertIn('Over the best with other learning: 0.833', text)
    self.assertIn('Over DDP: 0.250', text)

  def test_bsp_is_compared_if_nothing_is_faster(self):
    found = copy.deepcopy(_FOUND)
    found['tuned'] |= {'winner': None, 'reason': 'noise', 'gain': None}
    text = cookbook.describe(found)
    self.assertIn('tools.tune keeps BSP: noise', text)
    self.assertIn('Over the best of the list that learns alike: 2.500', text)

  def test_the_picture_has_a_bar_of_each_kind_for_each_cluster(self):
    axes = cookbook.draw({'nic': _FOUND, 'gpus': _FOUND}).axes[0]
    self.assertLen(axes.patches, 10)
    heights = sorted({round(bar.get_height(), 3) for bar in axes.patches})
    self.assertEqual(heights, [0.4, 0.45, 0.5, 0.6, 2.0])


if __name__ == '__main__':
  absltest.main()
