"""Tests for recompute."""

import functools
import json
import pathlib
import tempfile

import numpy as np
import pytest
from absl.testing import absltest, parameterized

import analysis
from analysis import traffic
from analysis.traffic import MembershipEpoch, SumPlan
from tests.support import (
  accounts,
  executors,
  groups,
  processes,
  small,
  together,
)
from tests.support.recomputing import recompute
from tests.support.recomputing.sums import Sums


class SumsTest(executors.TestCase):
  def test_sums_equal_those_of_executors_to_the_last_bit(self):
    chunk, different = 256, 0
    for name, forest, workers in groups.forests(3):
      count = len(workers)
      size = 41 * chunk // 4 + 3
      ranges = [(0, 700), (700, 701), (701, size)]
      made, group = self.connect_executors(
        count, (forest, workers), chunk_bytes=chunk
      )
      rng = np.random.default_rng(0)
      pools = [
        (rng.normal(size=size) * 10.0 ** rng.integers(-3, 4, size)).astype(
          np.float32
        )
        for _ in range(count)
      ]
      vectors = dict(enumerate(pool.copy() for pool in pools))
      self.assertEqual(self.allreduce(made, 0, pools, ranges), [None] * count)
      planned = SumPlan(None, forest, group.names, 4 * size, chunk, True)
      epoch = MembershipEpoch(0, '', range(count), 0, planned, ())

      found = Sums(epoch, chunk)(vectors, ranges)

      np.testing.assert_array_equal(found, pools[0], err_msg=name)
      in_order = functools.reduce(np.add, vectors.values())
      different += int((found != in_order).sum())
    self.assertGreater(different, 0)  # The order matters.

  def test_pushes_of_others_are_refused(self):
    sums, one = Sums(MembershipEpoch(0, '', (0, 2), 0, None, ())), np.ones(1)
    np.testing.assert_array_equal(sums({0: one, 2: one}, [(0, 1)]), [2])
    with self.assertRaisesRegex(
      ValueError, r'pushes: .* workers \(0, 2\), got'
    ):
      sums({0: one, 1: one}, [(0, 1)])


class RunTest(processes.TestCase, parameterized.TestCase):
  def test_a_run_is_the_same_to_the_last_bit(self):
    folder = _run(3)
    self.assertEqual(recompute.difference(folder), 0.0)

    def other(manifest):
      manifest['config']['seed'] = 1

    changed = small.copy_with_change(folder, 'manifest.json', other)
    self.assertGreater(recompute.difference(changed), 1e-3)
    path = folder / 'events.jsonl'
    rows = list(map(json.loads, path.read_text().splitlines()))
    rows = [row for row in rows if row['event'] != 'links']
    path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
    with self.assertRaisesRegex(ValueError, 'a row on links before the start'):
      recompute.difference(folder)

  def test_a_sparse_run_is_the_same_to_the_last_bit(self):
    self._check_wire(
      wire__name='sparse',
      wire__sparse__dtype='float16',
      wire__sparse__chunk=256,
    )

  @parameterized.parameters(
    {'wire__dense__dtype': 'bfloat16'},
    {
      'wire__name': 'sparse',
      'wire__sparse__chunk': 256,
      'wire__sparse__correction': 'local',
      'wire__sparse__momentum': 0.9,
      'wire__sparse__select_lag': 1,
      'optimizer__sgd__momentum': 0.0,
    },
    {'wire__name': 'lowrank'},
    {
      'wire__dense__dtype': 'float16',
      'precision__dtype': 'float16',
      'precision__loss_scaling': 'dynamic',
      'precision__grow_after': 4,
    },
  )
  @pytest.mark.soak
  def test_runs_of_other_codecs_are_the_same_to_the_last_bit(self, **fields):
    self._check_wire(**fields)

  def _check_wire(self, **fields):
    self.assertEqual(recompute.difference(_run(3, **fields)), 0.0)

  def test_runs_that_cannot_be_recomputed_are_refused(self):
    folder = _run(1, model__mlp__hidden=())
    for expected, section, own in (
      ('wire: .* of float32, as XLA', 'route', {'name': 'native'}),
      ('stages of the wire before: .* none', 'wire', _STAGES),
    ):

      def other(manifest, section=section, own=own):
        config = manifest['config']
        config['wire'] = {'name': 'dense', 'dense': {'dtype': 'bfloat16'}}
        config[section] = config[section] | own

      changed = small.copy_with_change(folder, 'manifest.json', other)
      with self.assertRaisesRegex(ValueError, expected):
        recompute.difference(changed)

  def test_a_float16_run_with_skipped_pushes_is_the_same(self):
    self._check_skipped(sync__name='asp')

  def test_a_run_with_dropped_pushes_is_the_same(self):
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    config = small.config(
      cluster__runtime='distributed',
      cluster__workers=3,
      cluster__speed__injected=True,
      cluster__speed__fixed_s=0.02,
      cluster__speed__per_example_s=0.0,
      cluster__speed__slowdown=(1.0, 1.0, 5.0),
      sync__name='quorum',
      sync__quorum__late='drop',
      checkpoint__every_examples=96,
      route__server__servers=2,
    )
    together.run(config, folder)
    summary = json.loads((folder / 'summary.json').read_text())
    dropped = {push['worker'] for push in summary['dropped']}
    self.assertContainsSubset({2}, dropped)
    for check in accounts.accounts(folder):
      self.assertTrue(check.holds, check)
    self.assertEqual(recompute.difference(folder), 0.0)

  @pytest.mark.soak
  def test_a_pipelined_float16_run_is_the_same(self):
    self._check_skipped(sync__name='bsp', route__server__pipelined=True)

  def _check_skipped(self, **fields):
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    config = small.config(
      cluster__runtime='distributed',
      cluster__workers=2,
      cluster__speed__slowdown=(1.0,),
      checkpoint__every_examples=96,
      route__server__servers=1,
      wire__dense__dtype='float16',
      precision__dtype='float16',
      precision__loss_scaling='dynamic',
      precision__grow_after=4,
      **fields,
    )
    together.run(config, folder)
    summary = json.loads((folder / 'summary.json').read_text())
    self.assertGreater(summary['skipped'], 3)
    self.assertEqual(recompute.difference(folder), 0.0)

  @parameterized.parameters(
    {'cluster__faults': ((1, 10, 'die', 'last'), (2, 25, 'die', 'compute'))},
    {
      'wire__name': 'sparse',
      'wire__sparse__chunk': 256,
      'cluster__faults': (
        (1, 10, 'die', 'last'),
        (2, 25, 'die', 'compute'),
        (0, 40, 'die', 'compute'),  # All are started again.
      ),
    },
  )
  @pytest.mark.soak
  def test_a_run_with_deaths_and_restarts_is_the_same(self, **fields):
    with processes.launch(
      workers=3,
      servers=0,
      route__name='ring',
      cluster__timeout_s=2.0,
      cluster__speed__injected=True,
      cluster__speed__fixed_s=0.02,
      cluster__speed__per_example_s=0.0,
      model__mlp__hidden=(512,),
      epochs=80.0,
      log_every=10**6,
      **fields,
    ) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    epochs = traffic.read_epochs(analysis.read(launch.folder))
    self.assertGreater(len(epochs), 3)
    self.assertEqual(recompute.difference(launch.folder), 0.0)


_STAGES = {
  'name': 'sparse',
  'sparse': {
    'dtype': 'float32',
    'sparsity': 0.9,
    'chunk': 16,
    'correction': 'none',
    'momentum': 0.0,
    'select_lag': 0,
    'warmup': (0.5,),
    'warmup_epochs': 1.0,
  },
}


def _run(workers, **fields):
  """Returns the folder of a run over many chunks, all in this process."""
  folder = pathlib.Path(tempfile.mkdtemp(), 'run')
  config = small.config(
    cluster__runtime='distributed',
    cluster__workers=workers,
    cluster__speed__slowdown=(1.0,),
    checkpoint__every_examples=96,
    route__name='forest',
    route__forest__cluster=f'full_mesh({workers}, 1)',
    route__bucket_bytes=20_000.0,
    epochs=1.0,
    **{'model__mlp__hidden': (512,), 'optimizer__sgd__momentum': 0.9} | fields,
  )
  together.run(config, folder)
  return folder


if __name__ == '__main__':
  absltest.main()
