"""Tests for the clusters of the cookbook."""

import copy
import json

import numpy as np
from absl.testing import absltest, parameterized

from bench import cookbook
from tools.launching import hosts
from tools.tune import candidates

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
    'a': {'s': 1.0, 'low': 0.9, 'high': 1.1},
    'b': {'s': 0.4, 'low': 0.3, 'high': 0.5},
  },
  'tuned': _TUNED,
  'ddp_s': 2.0,
}


class CookbookTest(parameterized.TestCase):
  @parameterized.parameters(*cookbook.RECIPES)
  def test_all_configs_of_a_cluster_can_run_on_its_links(self, name):
    recipe = cookbook.RECIPES[name]
    count = len(recipe.hosts.up)
    for config in cookbook.list_configs(recipe).values():
      candidates.check_present(config, count)
    fast = f'{max(recipe.hosts.up)}mbit'
    links = hosts.parse_links(count, fast, json.dumps(recipe.hosts.links))
    self.assertLen(links.groups, len(recipe.hosts.groups))

  def test_the_list_has_each_route_with_both_batchings(self):
    names = [*cookbook.list_configs(cookbook.RECIPES['nic'])]
    self.assertLen({*names}, 6)
    self.assertIn('bsp, lb_bsp, float32, forest', names)

  def test_the_slowest_worker_of_each_iteration_counts(self):
    compute_s = np.array([1.0, 2.0, 5.0, 3.0, 9.0])
    workers = np.array([0, 1, 0, 1, 0])
    self.assertEqual(cookbook.slowest_s(compute_s, workers), (2.0 + 5.0) / 2)

  def test_the_chosen_config_is_compared_with_the_best_and_with_ddp(self):
    text = cookbook.describe(_FOUND)
    self.assertIn('0.500 of the time, predicted 0.500 (+0.0%)', text)
    self.assertIn('Over the best of the list: 1.250', text)
    self.assertIn('Over DDP: 0.250', text)

  def test_bsp_is_compared_if_nothing_is_faster(self):
    found = copy.deepcopy(_FOUND)
    found['tuned'] |= {'winner': None, 'reason': 'noise', 'gain': None}
    text = cookbook.describe(found)
    self.assertIn('tools.tune keeps BSP: noise', text)
    self.assertIn('Over the best of the list: 2.500', text)

  def test_the_picture_has_a_bar_of_each_kind_for_each_cluster(self):
    axes = cookbook.draw({'nic': _FOUND, 'gpus': _FOUND}).axes[0]
    self.assertLen(axes.patches, 8)
    heights = sorted({round(bar.get_height(), 3) for bar in axes.patches})
    self.assertEqual(heights, [0.4, 0.45, 0.5, 2.0])


if __name__ == '__main__':
  absltest.main()
