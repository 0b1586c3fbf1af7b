"""Tests for cluster.virtual.applying: closed forms of runs without jitter."""

import math
import tempfile

import numpy as np
import optax
from absl.testing import absltest, parameterized

import train
from cluster.virtual import applying
from configs import default
from tests.support import small, stopping

_BYTES = 4_000_000
_B = 1e7
_ONE_S = _BYTES / _B
_COMPUTE_S = 0.5


def _run(scheme, workers, **changed):
  fields = {
    'sync__name': scheme,
    'cluster__workers': workers,
    'cluster__speed__name': 'constant',
    'cluster__speed__slowdown': (1.0,),
    'cluster__speed__fixed_s': _COMPUTE_S,
    'cluster__speed__per_example_s': 0.0,
    'cluster__network__worker_up_Bps': (math.inf,),
    'cluster__network__worker_down_Bps': (math.inf,),
    'cluster__network__worker_latency_s': (0.0,),
    'cluster__network__server_up_Bps': (_B,),
    'cluster__network__server_down_Bps': (_B,),
    'cluster__network__server_latency_s': (0.0,),
  }
  run = small.build(small.timing(size_bytes=_BYTES, **fields | changed))
  return run, run()


class ServersTest(parameterized.TestCase):
  @parameterized.product(
    workers=[1, 3], servers=[1, 2], sum_s=[0.0, 0.25], update_s=[0.0, 0.75]
  )
  def test_a_superstep_has_a_sum_per_worker_and_one_update(
    self, workers, servers, sum_s, update_s
  ):
    run, _ = _run(
      'bsp',
      workers,
      route__server__servers=servers,
      cluster__server__sum_Bps=_BYTES / sum_s if sum_s else math.inf,
      cluster__server__update_Bps=_BYTES / update_s if update_s else math.inf,
    )
    rows = small.rows(run, 'metrics.jsonl')
    ends = [row['time'] for row in rows if row['kind'] == 'barrier']
    work_s = (workers * sum_s + update_s) / servers
    expected = _COMPUTE_S + 2 * workers * _ONE_S / servers + work_s
    np.testing.assert_allclose(np.diff(ends), expected, rtol=1e-9)

  def test_servers_that_are_busy_bound_the_rate_of_asp(self):
    sum_s, update_s, workers = 0.5, 1.5, 4
    _, summary = _run(
      'asp',
      workers,
      cluster__server__sum_Bps=_BYTES / sum_s,
      cluster__server__update_Bps=_BYTES / update_s,
    )
    # Computing and transfers take less than the work for the others.  The run
    # ends with the arrival of its last push.
    done = summary['updates'] - workers
    least_s = done * (sum_s + update_s)
    most_s = summary['updates'] * (sum_s + update_s) + 4
    self.assertBetween(summary['time_s'], least_s, most_s)

  def test_idle_servers_delay_each_iteration_by_their_work(self):
    _, free = _run('asp', 1)
    _, busy = _run('asp', 1, cluster__server__update_Bps=_BYTES / 0.25)
    delays = busy['iterations'] - 1  # None before the first pull.
    self.assertAlmostEqual(busy['time_s'] - free['time_s'], 0.25 * delays)

  def test_slots_of_the_optimizer_are_updated_too(self):
    params = {'w': np.zeros((30, 2), np.float32)}
    config = default.get_config()
    config.cluster.server.update_Bps = 1e3
    for tx, slots in ((optax.sgd(0.1), 0), (optax.sgd(0.1, 0.9), 1)):
      servers = applying.make(
        config,
        servers=2,
        num_bytes=240,
        learner_state={'_state': tx.init(params)},
      )
      self.assertEqual(servers.sum_s, 0.0)
      self.assertAlmostEqual(servers.update_s, 240 * (1 + slots) / 2 / 1e3)

  def test_a_run_resumes_while_servers_are_busy(self):
    config = stopping.eventful('asp', cluster__server__update_Bps=1e4)
    straight = small.build(config)
    straight()
    expected = stopping.results(straight)
    delays = straight.runtime._servers.busy_until - straight.runtime.time
    self.assertGreater(delays, 0)
    workdir = f'{tempfile.mkdtemp()}/run'
    run = train.build(config, workdir=workdir)
    with self.assertRaises(stopping.Killed):
      stopping.stop(run, saved_at=[60], killed_at=69)
    run = train.build(config, workdir=workdir)
    run()
    got = stopping.results(run)
    for one, other in zip(got['params'], expected['params'], strict=True):
      np.testing.assert_array_equal(one, other)
    for name in ('metrics', 'summary', 'events', 'trace'):
      self.assertEqual(got[name], expected[name])

  @parameterized.parameters(
    (
      {'cluster__server__update_Bps': 1e9, 'route__server__pipelined': True},
      'update_Bps: expected inf, because config.route.server.pipelined',
    ),
  )
  def test_rates_that_cannot_be_kept_are_refused(self, changed, message):
    with self.assertRaisesRegex(ValueError, message):
      _run('bsp', 2, **changed)


if __name__ == '__main__':
  absltest.main()
