"""Tests for allreduce routes in the virtual runtime, by config and train."""

import itertools
import json
import math
import pathlib
import tempfile

import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from analysis import runs
from sync import bsp, record
from tests.models import batch_norm_test
from tests.support import small, sums

_MB = 1e6


class SameTest(parameterized.TestCase):
  """Parameters do not depend on the route, to the last bit."""

  @parameterized.parameters('native', 'ring', 'forest')
  def test_every_route_learns_the_parameters_of_one_server(self, route):
    run, summary = small.execute(route__name=route, **sums.links(1e5))
    np.testing.assert_array_equal(sums.params(run), sums.server_params())
    self.assertEqual(summary['ended'], 'finished')
    self.assertEqual(summary['compilations'], 0)
    self.assertEqual(summary['staleness_max'], 0)

  @parameterized.parameters(
    {'optimizer__sgd__momentum': 0.9, 'optimizer__clip_norm': 0.1},
    {'optimizer__name': 'lars', 'optimizer__reduction': 'mean'},
  )
  def test_optimizers_of_whole_trees_learn_the_parameters_of_one_server(
    self, **changed
  ):
    self._assert_same(**changed)

  @parameterized.parameters(
    {'optimizer__name': 'adamw'},
    {'batching__name': 'lb_bsp', 'batching__lb_bsp__predictor__name': 'last'},
    {'batching__micro_batch': 4},
  )
  @pytest.mark.soak
  def test_other_batches_learn_the_parameters_of_one_server(self, **changed):
    self._assert_same(**changed)

  def _assert_same(self, **changed):
    run, _ = small.execute(route__name='ring', **changed, **sums.links(1e5))
    np.testing.assert_array_equal(
      sums.params(run), sums.server_params(**changed)
    )

  @parameterized.parameters(0.0, 600.0, float('inf'))
  def test_ranges_and_overlap_change_times_only(self, bucket_bytes):
    runs = [
      small.execute(
        route__name='forest',
        route__bucket_bytes=bucket_bytes,
        route__overlap=overlap,
        **sums.links(1e4),
      )
      for overlap in (False, True)
    ]
    for run, _ in runs:
      np.testing.assert_array_equal(sums.params(run), sums.server_params())
    apart, over = (summary['virtual_s'] for _, summary in runs)
    self.assertLessEqual(over, apart)
    self.assertEqual(over < apart, bucket_bytes < float('inf'))

  def test_running_statistics_travel_too(self):
    (one, _), (other, _) = (
      batch_norm_test._built('bsp', route__name=name)
      for name in ('server', 'ring')
    )
    summaries = one(), other()
    for name in ('params', 'stats'):
      leaves = [
        jax.tree.leaves(getattr(run.runtime.coordinator.store.learner, name))
        for run in (one, other)
      ]
      for mine, its in zip(*leaves, strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-6, atol=1e-7)
    self.assertEqual(summaries[0]['updates'], summaries[1]['updates'])

  def test_recorded_events_give_the_recorded_decisions(self):
    run, _ = small.execute(route__name='forest', **sums.links(1e5))
    rows = runs.read_events(run.files.workdir)
    for recorded, replayed in record.replay(bsp.make(num_workers=3), rows):
      self.assertEqual(recorded, replayed)


class TimeTest(parameterized.TestCase):
  """Closed forms, with links of 1 MB/s each way and n equal workers."""

  @parameterized.product(n=[2, 4, 8], latency_s=[0.0, 0.003, 0.1])
  def test_a_ring_sends_twice_nearly_all_and_fills_once(self, n, latency_s):
    size = 4 * n * 2 * sums.CHUNK
    run, summary = sums.execute_timing(
      size,
      route__name='ring',
      route__overlap=False,
      route__bucket_bytes=np.inf,
      cluster__speed__slowdown=(1.0,),
      cluster__network__worker_latency_s=(latency_s,),
      epochs=1.0,
      **sums.constant(0.5, n),
      **sums.links(_MB),
    )

    # The links are full until the first hop of all is through; then the last
    # chunk takes its hops by itself.  Each hop has the latency of two hosts.
    # But workers run ahead: 5 chunks, or 2 for each of n trees, or as many as
    # the ring carries while the first sum is on its way.
    hops = 2 * (n - 1)
    least_s, trip_s = 0.0125 + 0.00625 * hops, hops * 2 * latency_s
    seconds = least_s + 1.5 * max(trip_s - least_s / 2, 0)
    ahead = math.ceil(_MB * n / hops * seconds / sums.CHUNK)
    fluid_s = hops / n * size / _MB
    fill_s = (hops - 1) * sums.CHUNK / _MB + hops * 2 * latency_s
    ahead_s = max(5, 2 * n, ahead) * hops / n * sums.CHUNK / _MB
    expected = 0.5 + fluid_s + max(fill_s - ahead_s, 0)
    np.testing.assert_allclose(np.diff(sums.barriers(run)), expected, rtol=1e-9)
    self.assertEqual(summary['bytes'], summary['updates'] * hops * size)

  @parameterized.parameters('bfloat16', 'float16')
  def test_16_bit_numbers_take_half_as_long(self, dtype):
    size, n = 4 * 4 * 16 * sums.CHUNK, 4
    summaries = [
      sums.execute_timing(
        size,
        route__name='ring',
        route__overlap=False,
        route__bucket_bytes=np.inf,
        cluster__speed__slowdown=(1.0,),
        wire__dense__dtype=each,
        epochs=1.0,
        **sums.constant(0.5, n),
        **sums.links(_MB),
      )[1]
      for each in ('float32', dtype)
    ]
    full_s, half_s = (
      each['virtual_s'] / each['updates'] - 0.5 for each in summaries
    )
    self.assertAlmostEqual(full_s, 2 * (n - 1) / n * size / _MB, places=6)
    self.assertAlmostEqual(half_s, full_s / 2, places=6)
    self.assertEqual(summaries[0]['bytes'], 2 * summaries[1]['bytes'])

  def test_shards_on_equal_links_take_as_long_as_all_bytes(self):
    size, n = 8 * 4 * sums.CHUNK, 4
    run, _ = sums.execute_timing(
      size,
      route__name='forest',
      route__overlap=False,
      cluster__speed__slowdown=(1.0,),
      epochs=1.0,
      **sums.constant(0.5, n),
      **sums.links(_MB),
    )

    # That the last chunk goes down is hidden: workers run ahead.
    expected = 0.5 + 2 * (n - 1) / n * size / _MB
    np.testing.assert_allclose(np.diff(sums.barriers(run)), expected, rtol=1e-9)

  def test_one_worker_only_computes(self):
    _, summary = sums.execute_timing(
      4000,
      route__name='ring',
      cluster__speed__slowdown=(1.0,),
      epochs=1.0,
      **sums.constant(0.5, 1),
    )
    self.assertAlmostEqual(summary['virtual_s'], 0.5 * 192 / 8)
    self.assertEqual(summary['bytes'], 0)

  def test_times_follow_the_true_links_not_the_assumed_ones(self):
    times = {}
    for links, believed in itertools.product(
      ('star([1, 1, 1])', 'star([1, 1, "0.1"])'), ('probe', 'star([1, 1, 1])')
    ):
      _, summary = sums.execute_timing(
        40_000_000,
        route__name='forest',
        route__forest__cluster=believed,
        cluster__links=links,
        cluster__network__worker_up_Bps=(125e6,),
        cluster__network__worker_down_Bps=(125e6,),
        epochs=1.0,
      )
      times[links, believed] = summary['virtual_s']
    equal, unequal = (list(times.values())[i : i + 2] for i in (0, 2))
    self.assertAlmostEqual(*equal, places=3)
    self.assertGreater(unequal[0], equal[0])
    self.assertGreater(unequal[1], 1.2 * unequal[0])

  def test_overlap_hides_the_transfer_of_early_buckets(self):
    # As long as the backward pass, which is two thirds of the time.
    size, n = 64 * sums.CHUNK, 4
    backward_s = 2 * (n - 1) / n * size / _MB
    fields = {
      'route__name': 'forest',
      'route__bucket_bytes': float(sums.CHUNK),
      'cluster__speed__slowdown': (1.0,),
      'epochs': 1.0,
      **sums.constant(1.5 * backward_s, n),
      **sums.links(_MB),
    }
    over, apart = (
      np.diff(
        sums.barriers(
          sums.execute_timing(size, route__overlap=overlap, **fields)[0]
        )
      )
      for overlap in (True, False)
    )
    # A chunk becomes ready when the one before has had its turn: the last one
    # goes up and down by itself, which takes longer than its turn.
    expected = 1.5 * backward_s + 2 * sums.CHUNK / _MB
    np.testing.assert_allclose(over, expected, rtol=1e-9)
    np.testing.assert_allclose(apart, 2.5 * backward_s, rtol=1e-9)

  def test_a_profile_sets_the_times_at_which_gradients_are_ready(self):
    size, n = 64 * sums.CHUNK, 4
    path = pathlib.Path(tempfile.mkdtemp(), 'layers.json')
    times = []
    for ready in (0.0, 1.0):
      rows = [
        {'name': 'a', 'bytes': 30, 'ready': ready},
        {'name': 'b', 'bytes': 10, 'ready': 1.0},
      ]
      path.write_text(json.dumps({'version': 1, 'layers': rows}))
      _, summary = sums.execute_timing(
        size,
        route__name='forest',
        route__bucket_bytes=0.0,
        cluster__speed__layers=str(path),
        cluster__speed__slowdown=(1.0,),
        epochs=1.0,
        **sums.constant(10.0, n),
        **sums.links(_MB),
      )
      times.append(summary['virtual_s'] / summary['updates'])
    whole_s = 2 * (n - 1) / n * size / _MB
    self.assertAlmostEqual(times[0], 10 + whole_s / 4, delta=0.1)
    self.assertAlmostEqual(times[1], 10 + whole_s, delta=0.1)

  def test_a_profile_of_another_model_is_refused(self):
    path = pathlib.Path(tempfile.mkdtemp(), 'layers.json')
    row = {'name': 'a', 'bytes': 30, 'ready': 0.5}
    for rows, message in (
      ([row], r'config.cluster.speed.layers: expected .*1768 bytes.* got 30'),
      ([row | {'ready': 1.5}], r'speed.layers: .*layers\[0\].ready: .* 1.5'),
      ([{'bytes': 1}], r'speed.layers: .*layers\[0\]: expected the fields'),
      ([], r'speed.layers: .*layers: expected layers'),
    ):
      path.write_text(json.dumps({'version': 1, 'layers': rows}))
      with self.assertRaisesRegex(ValueError, message):
        small.build(
          small.config(
            route__name='ring',
            cluster__speed__layers=str(path),
            **sums.links(_MB),
          )
        )


class PhaseTest(parameterized.TestCase):
  def test_fast_workers_wait_and_then_all_push(self):
    size = 4 * 6 * sums.CHUNK
    run, summary = sums.execute_timing(
      size,
      route__name='ring',
      route__overlap=False,
      cluster__speed__slowdown=(1.0, 2.0, 4.0),
      epochs=1.0,
      **sums.constant(1.0, 3),
      **sums.links(_MB),
    )

    updates = summary['updates']
    step_s = sums.barriers(run)[1]
    spent = summary['worker_seconds']
    self.assertAlmostEqual(spent['compute'], updates * 7.0)
    self.assertAlmostEqual(spent['wait'], updates * (3.0 + 2.0))
    self.assertAlmostEqual(spent['push'], updates * 3 * (step_s - 4.0))
    self.assertEqual(spent['pull'], 0)
    self.assertAlmostEqual(sum(spent.values()), 3 * summary['virtual_s'])

  @parameterized.parameters(float('inf'), float(sums.CHUNK))
  def test_early_buckets_of_a_slow_worker_are_sent_while_it_computes(
    self, bucket_bytes
  ):
    size, step_s = 24 * sums.CHUNK, {}
    for slowest in (1.0, 3.0):
      run, _ = sums.execute_timing(
        size,
        route__name='ring',
        route__bucket_bytes=bucket_bytes,
        cluster__speed__slowdown=(1.0, 1.0, slowest),
        epochs=1.0,
        **sums.constant(1.0, 3),
        **sums.links(_MB),
      )
      step_s[slowest] = sums.barriers(run)[1]

    # On a ring of three everyone sends 4 / 3 of all, in 1.05 s, and what others
    # have sent before spares it nothing.
    whole_s = 4 / 3 * size / _MB
    expected = {each: each + whole_s for each in step_s}
    if bucket_bytes < float('inf'):
      # The backward pass takes 2 / 3 and 2 s: links are behind in the one, and
      # done with those before in the other when the last but one is ready,
      # which takes four hops.  The last has the slow worker for its root.
      expected[1.0] = 1 / 3 + 2 / 3 / 24 + whole_s
      expected[3.0] = 3.0 - 2 / 24 + 4 * sums.CHUNK / _MB
    for each, seconds in expected.items():
      self.assertAlmostEqual(step_s[each], seconds, places=9)


if __name__ == '__main__':
  absltest.main()
