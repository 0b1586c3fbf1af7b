"""Tests of sums under the virtual clock when workers die and runs resume."""

import tempfile

import numpy as np
from absl.testing import absltest, parameterized

import train
from tests.support import small, stopping, sums

_MB = 1e6


class DeathTest(parameterized.TestCase):
  def _fields(self, *script, **changed):
    return {
      'route__name': 'ring',
      'route__overlap': False,
      'cluster__speed__slowdown': (1.0, 2.0, 4.0),
      'cluster__script': script,
      'epochs': 1.0,
      **sums.constant(1.0, 3),
      **sums.links(_MB),
      **changed,
    }

  @parameterized.parameters(0.5, 3.0, 4.05)
  def test_the_others_repeat_the_iteration_over_a_forest_of_their_own(
    self, died
  ):
    size = 4 * 6 * sums.CHUNK
    run, summary = sums.execute_timing(size, **self._fields((died, 'leave', 0)))
    _, alone = sums.execute_timing(
      size,
      **self._fields()
      | sums.constant(1.0, 2)
      | {'cluster__speed__slowdown': (2.0, 4.0)},
    )

    barriers = sums.barriers(run)
    two_s = alone['virtual_s'] / alone['updates']
    np.testing.assert_allclose(np.diff(barriers)[1:], two_s, rtol=1e-9)
    self.assertAlmostEqual(barriers[1], died + two_s)
    lost = summary['lost']
    self.assertEqual([(x['worker'], x['examples']) for x in lost], [(0, 8)])
    self.assertEqual(summary['examples'], 192)
    self.assertEqual(summary['bytes'], summary['updates'] * 2 * size)
    # Who waited when it died has not pushed: its time is accounted for.
    spent = summary['worker_seconds']
    total_s = died + 2 * summary['virtual_s']
    self.assertAlmostEqual(sum(spent.values()), total_s)
    waited_s = {0.5: 0.0, 3.0: 2.0 + 1.0, 4.05: 3.0 + 2.0}[died]
    extra_s = summary['updates'] * 2.0
    self.assertAlmostEqual(spent['wait'], waited_s + extra_s)

  def test_a_worker_that_rejoins_takes_part_from_the_next_barrier(self):
    size = 4 * 6 * sums.CHUNK
    script = (3.0, 'leave', 2), (3.5, 'join', 2)
    run, summary = sums.execute_timing(size, **self._fields(*script))

    pushes = [
      r for r in small.rows(run, 'events.jsonl') if r['event'] == 'push'
    ]
    self.assertEqual([r['worker'] for r in pushes[:5]], [0, 1, 0, 1, 2])
    self.assertEqual(summary['examples'], summary['iterations'] * 8)

  def test_gradients_are_those_of_a_run_with_servers(self):
    script = ((0.05, 'leave', 1), (0.2, 'join', 1))
    run, _ = small.execute(
      route__name='forest', cluster__script=script, **sums.links(1e6)
    )
    pushes = [
      r for r in small.rows(run, 'events.jsonl') if r['event'] == 'push'
    ]
    self.assertEqual([r['worker'] for r in pushes[:5]], [0, 2, 0, 2, 0])
    self.assertTrue(np.isfinite(sums.params(run)).all())

  def test_all_workers_may_leave_but_not_for_ever(self):
    script = tuple((0.5, 'leave', worker) for worker in range(3))
    with self.assertRaisesRegex(RuntimeError, 'Nothing can happen after 0.5'):
      sums.execute_timing(4000, **self._fields(*script))
    _, summary = sums.execute_timing(
      4000, **self._fields(*script, (0.7, 'join', 1))
    )
    self.assertEqual(summary['ended'], 'finished')


class ResumeTest(parameterized.TestCase):
  def test_a_killed_run_equals_an_uninterrupted_one_after_it_resumes(self):
    own = {
      'route__name': 'forest',
      'cluster__script': ((0.15, 'leave', 1), (0.4, 'join', 1)),
      **sums.links(1e5),
    }
    expected, steps = stopping.straight('bsp', **own)
    workdir = f'{tempfile.mkdtemp()}/run'
    for cut in (steps // 2,):
      run = train.build(stopping.eventful('bsp', **own), workdir=workdir)
      with self.assertRaises(stopping.Killed):
        stopping.stop(run, saved_at=[cut], killed_at=cut + 3)
    run = train.build(stopping.eventful('bsp', **own), workdir=workdir)
    self.assertEqual(run()['compilations'], 0)
    found = stopping.results(run)
    for name in expected:
      np.testing.assert_equal(found[name], expected[name])


if __name__ == '__main__':
  absltest.main()
