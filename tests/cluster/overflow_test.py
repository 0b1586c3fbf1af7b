"""Tests for runs of which some gradients overflow: who skips what, and when."""

import json
import pathlib
import shutil
import tempfile

import numpy as np
from absl.testing import absltest, parameterized

import train
from data.dataset import Dataset
from learning.digest import digest
from tests.support import overflows, small, sums, together

_RING = {'route__name': 'ring', **sums.links(1e6)}


class TestCase(parameterized.TestCase):
  def check(self, run, summary, learner, **told):
    """Compares a run with what must come of its events; returns that."""
    want = overflows.expected(small.rows(run, 'events.jsonl'), **told)
    np.testing.assert_allclose(
      learner.params, want.params, rtol=1e-6, atol=1e-6
    )
    got = [[each.value, each.good] for each in run.runtime.lead.holder.scalings]
    self.assertEqual(got, want.scales)
    self.assertTrue(overflows.fell_and_grew(want))
    self.assertEqual(summary['updates'], want.updates)
    self.assertEqual(summary['examples'], want.applied)
    self.assertEqual(summary['skipped'], want.skipped)
    skipped = overflows.BATCH * want.skipped
    self.assertEqual(summary['skipped_examples'], skipped)
    pushed = overflows.BATCH * summary['iterations']
    self.assertEqual(pushed, want.applied + skipped)
    self.assertEqual(learner.examples, want.applied)
    self.assertEqual(learner.version, want.updates)
    rows = small.rows(run, 'metrics.jsonl')
    for row in rows:
      if row['iterations']:
        low = row['loss_scale'], row['skipped']
        self.assertEqual(low, want.lowest[row['iterations'] - 1])
    self.assertGreater(len(rows), 5)
    return want


class VirtualTest(TestCase):
  @parameterized.parameters(
    ('bsp', 3, {}), ('asp', 3, {}), ('bsp', 1, _RING)
  )
  def test_what_overflows_is_skipped_and_scales_follow(
    self, scheme, scales, fields
  ):
    config = overflows.config(sync__name=scheme, log_every=1, **fields)
    run = small.build(config, **overflows.own())
    summary = run()
    learner = run.runtime.lead.holder.learner
    self.check(run, summary, learner, scales=scales)
    self.assertEqual(summary['compilations'], 0)

  @parameterized.parameters(('asp', {}), ('bsp', _RING))
  def test_a_run_that_goes_on_gives_what_a_straight_one_does(
    self, scheme, fields
  ):
    config = overflows.config(
      sync__name=scheme, checkpoint__every_examples=100, **fields
    )
    straight = small.build(config, **overflows.own())
    summary = straight()
    folder = straight.files.workdir
    (folder / 'summary.json').unlink()
    _newest(folder, 1)
    run = train.build(config, workdir=str(folder), **overflows.own())
    middle = [each.value for each in run.runtime.lead.holder.scalings]
    self.assertNotEqual({*middle}, {2.0**15})
    self.assertLess(run.journal.ledger.examples, summary['examples'])
    self.assertEqual(small.timeless(run()), small.timeless(summary))
    mine, its = (each.runtime.lead.holder for each in (run, straight))
    self.assertEqual(mine.scalings, its.scalings)
    self.assertEqual(
      digest(mine.learner.state()), digest(its.learner.state())
    )

  @parameterized.parameters({}, _RING)
  def test_the_least_scale_ends_the_run(self, **fields):
    full = overflows.data()
    inputs = full.train.inputs.copy()
    inputs[:, 0] = 1e30  # More than float16 holds, at any scale.
    split = full.train._replace(inputs=inputs)
    run = small.build(
      overflows.config(**fields), **overflows.own(Dataset(split, split))
    )
    with self.assertRaisesRegex(
      FloatingPointError,
      r'gradient of worker 0, iteration 23, is not finite, with losses '
      r'multiplied by 0\.00390625\.',
    ):
      run()
    summary = json.loads((run.files.workdir / 'summary.json').read_text())
    self.assertIn('FloatingPointError: The loss', summary['ended'])
    self.assertEqual(summary['examples'], 0)


class ReplicasTest(TestCase):
  """Real ones, in threads."""

  def test_all_decide_alike_and_go_on_with_another_number(self):
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    self._check_run(folder, 2)
    (folder / 'summary.json').unlink()
    _newest(folder, 1)
    self._check_run(folder, 3)

  def _check_run(self, folder, workers):
    config = overflows.config(
      cluster__runtime='distributed',
      cluster__workers=workers,
      cluster__speed__slowdown=(1.0,),
      cluster__timeout_s=5.0,
      checkpoint__every_examples=64,
      route__name='ring',
      log_every=1,
    )
    run, *others = together.run(config, folder, **overflows.own())
    learners = [run.runtime.lead.holder._replica.learner]
    learners += [each._replica.learner for each in others]
    summary = json.loads((folder / 'summary.json').read_text())
    self.check(run, summary, learners[0], scales=1, ahead=True)
    hashes = {digest(learner.state()) for learner in learners}
    self.assertLen(hashes, 1)
    self.assertLen({learner.scaling for learner in learners}, 1)


def _newest(folder, number):
  """Removes checkpoints but the n-th newest, and older ones."""
  steps = sorted(int(path.name) for path in (folder / 'checkpoints').iterdir())
  for step in steps[len(steps) - number :]:
    shutil.rmtree(folder / 'checkpoints' / str(step))


if __name__ == '__main__':
  absltest.main()
