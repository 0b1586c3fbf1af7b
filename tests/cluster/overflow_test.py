"""Tests for runs in which some gradients overflow: updates that are skipped."""

import json
import pathlib
import shutil
import tempfile

import numpy as np
from absl.testing import absltest, parameterized

import train
from data.dataset import Dataset
from learning.digest import digest
from outputs import checkpoints
from tests.support import overflows, processes, small, sums, together

_RING = {'route__name': 'ring', **sums.links(1e6)}


class TestCase(parameterized.TestCase):
  def check(self, run, **fields):
    """Compares a run with what must come of its events; returns that."""
    want = overflows.compute_expected(small.rows(run, 'events.jsonl'), **fields)
    self.assertTrue(overflows.has_fallen_and_grown(want))
    store, summary = run.runtime.coordinator.store, _summary(run)
    got = [[each.value, each.good] for each in store.scalings]
    self.assertEqual(got, want.scales)
    skipped = overflows.BATCH * want.skipped
    pushed = overflows.BATCH * summary['iterations']
    self.assertEqual(pushed, want.applied + skipped)
    fields = ('updates', 'examples', 'skipped', 'skipped_examples')
    self.assertEqual(
      [summary[field] for field in fields],
      [want.updates, want.applied, want.skipped, skipped],
    )
    self.assertEqual(
      (store.version, store.examples), (want.updates, want.applied)
    )
    rows = small.rows(run, 'metrics.jsonl')
    for row in rows:
      low = row['iterations'], row['loss_scale'], row['skipped']
      self.assertIn(low, want.lowest)
    self.assertGreater(len(rows), 5)
    return want

  def check_params(self, got, want):
    np.testing.assert_allclose(got, want.params, rtol=1e-6, atol=1e-6)


class VirtualTest(TestCase):
  @parameterized.parameters(('bsp', {}), ('asp', {}), ('bsp', _RING))
  def test_overflowing_updates_are_skipped_and_scales_follow(
    self, scheme, fields
  ):
    config = overflows.config(sync__name=scheme, log_every=1, **fields)
    run = small.build(config, **overflows.build_arguments())
    self.assertEqual(run()['compilations'], 0)
    want = self.check(run, is_allreduce=bool(fields))
    self.check_params(run.runtime.coordinator.store.learner.params, want)

  @parameterized.parameters(('asp', {}), ('bsp', _RING))
  def test_a_resumed_run_equals_an_uninterrupted_one(self, scheme, fields):
    config = overflows.config(
      sync__name=scheme, checkpoint__every_examples=100, **fields
    )
    straight = small.build(config, **overflows.build_arguments())
    summary = straight()
    folder = straight.files.workdir
    _back(folder)
    run = train.build(
      config, workdir=str(folder), **overflows.build_arguments()
    )
    middle = [each.value for each in run.runtime.coordinator.store.scalings]
    self.assertNotEqual({*middle}, {2.0**15})
    self.assertLess(run.recorder.accounting.examples, summary['examples'])
    self.assertEqual(small.timeless(run()), small.timeless(summary))
    mine, its = (each.runtime.coordinator.store for each in (run, straight))
    self.assertEqual(mine.scalings, its.scalings)
    self.assertEqual(digest(mine.learner.state()), digest(its.learner.state()))

  @parameterized.parameters({}, _RING)
  def test_the_least_scale_ends_the_run(self, **fields):
    full = overflows.data()
    inputs = full.train.inputs.copy()
    inputs[:, 0] = 1e30  # More than float16 holds, at any scale.
    split = full.train._replace(inputs=inputs)
    run = small.build(
      overflows.config(**fields),
      **overflows.build_arguments(Dataset(split, split)),
    )
    with self.assertRaisesRegex(
      FloatingPointError,
      r'gradient of worker 0, iteration 23, is not finite, with losses '
      r'multiplied by 0\.00390625\.',
    ):
      run()
    summary = _summary(run)
    self.assertIn('FloatingPointError: The loss', summary['ended'])
    self.assertEqual(summary['examples'], 0)


class RealTest(TestCase):
  """Real hosts, in threads, and again with another number of them."""

  def test_replicas_decide_alike(self):
    for parts in self._runs('bsp', (2, 3), route__name='ring'):
      run, *others = parts
      want = self.check(run, is_allreduce=True, ahead=True)
      learners = [run.runtime.coordinator.store._replica.learner]
      learners += [each._replica.learner for each in others]
      self.check_params(learners[0].params, want)
      self.assertLen({digest(each.state()) for each in learners}, 1)
      self.assertLen({each.scaling for each in learners}, 1)

  def test_servers_follow_each_worker(self):
    for run, *_ in self._runs('asp', (3, 2), route__server__servers=1):
      want = self.check(run, is_allreduce=False)
      _, servers = processes.newest(run.files.workdir)
      shares = [server['params'] for server in servers]
      self.check_params(np.concatenate(shares), want)

  def _runs(self, scheme, numbers, **fields):
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    for workers in numbers:
      if folder.exists():
        _back(folder)
      config = overflows.config(
        sync__name=scheme,
        cluster__runtime='distributed',
        cluster__workers=workers,
        cluster__speed__slowdown=(1.0,),
        cluster__timeout_s=5.0,
        checkpoint__every_examples=64,
        log_every=1,
        **fields,
      )
      yield together.run(config, folder, **overflows.build_arguments())


def _summary(run):
  return json.loads((run.files.workdir / 'summary.json').read_text())


def _back(folder):
  """Lets a run that has ended resume from its last checkpoint but one."""
  (folder / 'summary.json').unlink()
  directory = folder / 'checkpoints'
  shutil.rmtree(directory / str(checkpoints.steps(directory)[-1]))


if __name__ == '__main__':
  absltest.main()
