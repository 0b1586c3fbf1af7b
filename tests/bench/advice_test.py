"""Tests for bench.advice: what is run, and what is said of it."""

import contextlib
import io
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest

import train
from bench import advice, conditions
from bench.conditions import Lab
from bench.shaped import Case
from configs import default
from tools.advise import needed
from tools.advise.needed import BSP, Needed

_RING = BSP._replace(route='ring')


class AdviceTest(absltest.TestCase):
  def test_all_that_is_compared_can_be_run(self):
    rates, _ = advice.CLUSTERS['links']
    lab = Lab('links', Case(rates, rates, {}))
    folder = pathlib.Path(tempfile.mkdtemp())
    for each in needed.measured():
      if not each.pipelined:
        condition = advice.condition(advice.described('links'), each)
        self.assertEqual(condition.batch, 32)
        config = default.get_config()
        config.update_from_flattened_dict(
          conditions.fields(lab, condition, 16, folder)
        )
        train.check(config)  # Or it raises.

  def test_the_ratio_is_of_times_to_an_accuracy(self):
    equal = dict.fromkeys((BSP, _RING), Needed(1.0, 1.0, 1.0, 6, 0.0))
    taken_s = {str(BSP): 1.0, str(_RING): 0.8}
    said = io.StringIO()
    with (
      mock.patch.object(needed, 'measured', lambda: equal),
      mock.patch.object(conditions, 'real', lambda *_: taken_s),
      contextlib.redirect_stdout(said),
    ):
      advice.print_cluster('equal', pathlib.Path(tempfile.mkdtemp()), 1.0)
    # Both are predicted to be as fast: nothing is to be changed.
    row = next(x for x in said.getvalue().splitlines() if 'advised |' in x)
    self.assertIn(str(BSP), row)
    self.assertIn('advised/best: 1.250 of 2 combinations', said.getvalue())


if __name__ == '__main__':
  absltest.main()
