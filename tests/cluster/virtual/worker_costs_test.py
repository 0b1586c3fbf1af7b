"""Tests for costs of codecs, sums and evaluations: closed forms, no jitter."""

import tempfile

import numpy as np
from absl.testing import absltest, parameterized

import train
from tests.cluster.virtual import applying_test
from tests.support import small, stopping, sums

_BYTES, _ONE_S, _COMPUTE_S = 4_000_000, 0.4, 0.5


def _ring(workers, **changed):
  """Iterations of BSP over a ring whose links carry the model in .4 s."""
  return applying_test._run(
    'bsp',
    workers,
    **{
      'route__name': 'ring',
      'route__overlap': False,
      'cluster__network__server_up_Bps': (125e6,),
      'cluster__network__server_down_Bps': (125e6,),
      'cluster__network__server_latency_s': (1e-4,),
      **sums.links(_BYTES / _ONE_S),
      **changed,
    },
  )


def _iteration_s(run):
  rows = small.rows(run, 'metrics.jsonl')
  ends = [row['time'] for row in rows if row['kind'] == 'barrier']
  return np.diff(ends)


class CodecTest(parameterized.TestCase):
  @parameterized.product(workers=[1, 3], codec_s=[0.25, 2.0])
  def test_an_iteration_has_the_codecs_of_one_worker(self, workers, codec_s):
    run, _ = applying_test._run(
      'bsp', workers, cluster__worker__codec_Bps=_BYTES / codec_s
    )
    expected = _COMPUTE_S + 2 * workers * _ONE_S + codec_s
    np.testing.assert_allclose(_iteration_s(run), expected, rtol=1e-9)

  def test_codecs_of_an_allreduce_take_as_long(self):
    free, _ = _ring(4)
    busy, _ = _ring(4, cluster__worker__codec_Bps=_BYTES / 0.3)
    delays = _iteration_s(busy) - _iteration_s(free)
    np.testing.assert_allclose(delays, 0.3, rtol=1e-6)


class SumTest(parameterized.TestCase):
  @parameterized.parameters(2, 4, 8)
  def test_slow_sums_set_the_pace_of_a_ring(self, workers):
    """Each worker adds all but its own part once."""
    slow_s = 20.0
    run, _ = _ring(workers, cluster__worker__sum_Bps=_BYTES / slow_s)
    least_s = _COMPUTE_S + (1 - 1 / workers) * slow_s
    got = _iteration_s(run)
    self.assertTrue(np.all(got >= least_s * (1 - 1e-9)))
    # And the last chunk at each worker of a chain.
    self.assertTrue(np.all(got <= least_s + 0.35 * slow_s))

  def test_fast_sums_hide_behind_the_transfer(self):
    free, _ = _ring(4)
    busy, _ = _ring(4, cluster__worker__sum_Bps=100 * _BYTES / _ONE_S)
    delays = _iteration_s(busy) - _iteration_s(free)
    self.assertTrue(np.all(delays >= 0))
    self.assertLess(delays.max(), 0.01)

  def test_one_worker_adds_nothing(self):
    free, _ = _ring(1)
    busy, _ = _ring(1, cluster__worker__sum_Bps=1.0)
    np.testing.assert_array_equal(_iteration_s(busy), _iteration_s(free))


class EvaluationTest(parameterized.TestCase):
  @parameterized.parameters('ring', 'server')
  def test_worker_0_waits_for_its_evaluations(self, route):
    def run(seconds):
      changed = {'cluster__worker__evaluation_s': seconds, 'eval_every': 0.25}
      if route == 'ring':
        return _ring(3, **changed)
      return applying_test._run(
        'bsp',
        3,
        cluster__network__servers_in_workers=True,
        cluster__network__server_up_Bps=(125e6,),
        cluster__network__server_down_Bps=(125e6,),
        cluster__network__server_latency_s=(1e-4,),
        route__server__servers=3,
        **changed,
      )

    free, before = run(0.0)
    busy, after = run(3.0)
    rows = small.rows(busy, 'metrics.jsonl')
    inside = sum(
      row['kind'] == 'evaluation' and row['time'] < after['time_s']
      for row in rows
    )
    self.assertGreater(inside, 1)
    took_s = after['time_s'] - before['time_s']
    self.assertAlmostEqual(took_s, 3.0 * inside, places=5)
    del free

  def test_servers_of_their_own_evaluate(self):
    changed = {'eval_every': 0.25}
    _, before = applying_test._run('asp', 1, **changed)
    busy, after = applying_test._run(
      'asp', 1, cluster__worker__evaluation_s=3.0, **changed
    )
    rows = small.rows(busy, 'metrics.jsonl')
    count = sum(row['kind'] == 'evaluation' for row in rows)
    self.assertGreater(count, 2)
    # The worker has pulled meanwhile: its next pull waits for the rest.
    iteration_s = _COMPUTE_S + 2 * _ONE_S
    took_s = after['time_s'] - before['time_s']
    self.assertAlmostEqual(took_s, (3.0 - iteration_s) * (count - 1))


class RunTest(parameterized.TestCase):
  def test_a_run_resumes_amid_its_costs(self):
    config = stopping.eventful(
      'asp',
      cluster__worker__codec_Bps=1e5,
      cluster__worker__evaluation_s=0.5,
    )
    straight = small.build(config)
    straight()
    expected = stopping.results(straight)
    workdir = f'{tempfile.mkdtemp()}/run'
    run = train.build(config, workdir=workdir)
    with self.assertRaises(stopping.Killed):
      stopping.stop(run, saved_at=[60], killed_at=69)
    run = train.build(config, workdir=workdir)
    run()
    got = stopping.results(run)
    for name in ('metrics', 'summary', 'events', 'trace'):
      self.assertEqual(got[name], expected[name])

  @parameterized.parameters(
    ({'sum_Bps': 1e9}, "sum_Bps: .* is ignored because .*'server'"),
  )
  def test_wrong_costs_are_refused(self, changed, message):
    fields = {f'cluster__worker__{k}': v for k, v in changed.items()}
    with self.assertRaisesRegex(ValueError, message):
      applying_test._run('bsp', 2, **fields)

  def test_pieces_of_sums_leave_no_time_for_evaluations(self):
    with self.assertRaisesRegex(
      ValueError, 'evaluation_s: expected 0, because'
    ):
      applying_test._run(
        'bsp',
        2,
        route__server__pipelined=True,
        cluster__worker__evaluation_s=1.0,
      )


if __name__ == '__main__':
  absltest.main()
