"""Tests for bench.gradientflow: closed forms and the virtual clock."""

import tempfile

from absl.testing import absltest, parameterized

import train
from bench import gradientflow
from bench.gradientflow import Assumed, Rung
from cluster.speed.layers import Bucket
from configs import gradientflow as recipes


class LadderTest(parameterized.TestCase):
  @parameterized.product(gpus=[1, 8, 32], route=['ring', 'hierarchy'])
  def test_speedups_are_bounded_and_grow_with_each_rung(self, gpus, route):
    for each in gradientflow.ladder(Assumed(), gpus, route).values():
      *rungs, last, _ = each.values()
      self.assertLessEqual(max(*rungs, last), gpus * (1 + 1e-12))
      self.assertGreater(min(*rungs, last), 0)
      self.assertEqual(rungs, sorted(rungs))

  @parameterized.parameters(2, 8, 16, 64)
  def test_one_allreduce_takes_the_time_of_the_closed_form(self, gpus):
    assumed, size, alone_s = Assumed(), 10**8, 0.5
    rungs = {'alexnet': {'one': Rung([[Bucket(size, 1.0)]], alone_s)}}

    speedups = gradientflow.speedups(assumed, gpus, 'ring', rungs)
    total_s = gpus * gradientflow.compute_s(assumed, 'alexnet')
    allreduce_s = total_s / speedups['alexnet']['one'] - alone_s

    slowest = 1e9 * (assumed.host_GBps if gpus <= 8 else assumed.link_GBps)
    hosts = max(gpus // 8, 1) if gpus > 8 else 0
    ways_s = 2 * gpus * assumed.near_s
    ways_s += 2 * hosts * (assumed.far_s - assumed.near_s)
    bytes_s = 2 * (gpus - 1) / gpus * size / slowest
    # At most one chunk more on each hop.
    chunks_s = 2 * gpus * assumed.chunk_bytes / slowest
    self.assertGreaterEqual(allreduce_s, bytes_s)
    self.assertLessEqual(
      allreduce_s, bytes_s + ways_s + assumed.launch_s + chunks_s
    )

  def test_tensors_one_after_the_other_take_the_sum(self):
    assumed = Assumed()
    parts = [Bucket(10**6, 1.0), Bucket(10**7, 1.0), Bucket(10**6, 1.0)]
    rungs = {'each': Rung([[part] for part in parts], 0.5)}
    rungs |= {str(n): Rung([[part]], 0.5) for n, part in enumerate(parts)}
    speedups = gradientflow.speedups(assumed, 16, 'ring', {'alexnet': rungs})
    total_s = 16 * gradientflow.compute_s(assumed, 'alexnet')
    times = {name: total_s / x - 0.5 for name, x in speedups['alexnet'].items()}
    self.assertAlmostEqual(times['each'], sum(times[str(n)] for n in range(3)))

  def test_times_equal_those_of_the_virtual_clock(self):
    # Each GPU has its own link, as in the recipe.
    config = recipes.get_config('alexnet_64_time')
    config.cluster.workers = 8
    config.epochs /= 8 * 20
    path = f'{tempfile.mkdtemp()}/run'
    expected_s = train.build(config, workdir=path)()['time_s']

    assumed = Assumed(
      host_GBps=config.cluster.network.worker_up_Bps[0] / 1e9,
      near_s=2 * config.cluster.network.worker_latency_s[0],
      launch_s=config.cluster.network.range_s,
      apart=False,
      bucket_bytes=config.route.bucket_bytes,
    )
    rung = gradientflow.overlap_rung(assumed, 'alexnet')
    speedup = gradientflow.speedups(
      assumed, 8, 'ring', {'alexnet': {'': rung}}
    )['alexnet']['']
    self.assertAlmostEqual(
      8 * gradientflow.compute_s(assumed, 'alexnet') / speedup,
      expected_s,
      places=9,
    )


if __name__ == '__main__':
  absltest.main()
