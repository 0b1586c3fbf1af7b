"""Tests of the virtual network and of packed forests beside SimGrid.

SimGrid (Casanova et al., 2014) is a simulator that is not ours.  Its model CM02
shares links max-min fairly as well.
"""

import collections
import itertools
import json
import math
import pathlib
import random
import subprocess
import tempfile

import numpy as np
import pytest
from absl.testing import absltest

import topology
from tests.support import networks, requires
from topology.baselines import schemes
from topology.clusters import builders, shapes
from topology.forests import timing

pytestmark = pytest.mark.simgrid

_REPLAY = pathlib.Path(__file__).parents[2] / 'support' / 'simgrid_replay.py'
_LIMIT_S = 240.0
_SCHEDULES = 60
_CLUSTERS = (
  'star([4, 4, 4, 1])',
  'star([1, 3, 5, 8], [4, 2, 9, 1])',
  'full_mesh(5, 3)',
  'ring(6, 2)',
  'line(4, 5)',
  'tree([2, 3], [4, 3])',
  'torus([3, 3], 2)',
  'hypercube(3, 1)',
  'random_mesh(6, 3, density=0.5, high_GBps=9)',
  'random_switched(6, 2, seed=4)',
  "dgx_1('v100')",
  'dgx_a100(1)',
)
_CHUNKS = 12
_RING_WORKERS = (2, 4, 6)


def _replay(schedules):
  """Returns the ends of the transfers of schedules in SimGrid, seconds."""
  with tempfile.TemporaryDirectory() as folder:
    given, found = (pathlib.Path(folder, name) for name in ('given', 'found'))
    given.write_text(json.dumps(schedules))
    subprocess.run(
      [requires.simgrid(), _REPLAY, given, found],
      check=True,
      timeout=_LIMIT_S,
    )
    return json.loads(found.read_text())


def _draw_schedule(seed):
  """Returns links of hosts, and flows (start, sender, receiver, bytes)."""
  rng = random.Random(seed)
  hosts = rng.randint(3, 12)
  up, down = (
    [
      rng.choice([10e6, 25e6, 125e6]) * rng.uniform(0.8, 1.2)
      for _ in [0] * hosts
    ]
    for _ in range(2)
  )
  flows, start = [], 0.0
  for _ in range(rng.randint(2, 40)):
    if rng.random() < 0.6:
      start += rng.expovariate(20.0)
    ends = rng.sample(range(hosts), 2)
    flows.append((start, *ends, rng.randint(10**5, 2 * 10**7)))
  return up, down, flows


def _arrivals(up, down, flows):
  """Returns the arrivals in the virtual network, seconds."""
  net, found = networks.make(up=up, down=down), {}
  numbers = []
  for start, src, dst, size in flows:
    while net.next_time() <= start:
      time = net.next_time()
      found |= dict.fromkeys(net.advance(time), time)
    numbers.append(net.start(start, src, dst, size))
  found |= networks.arrivals(net)
  return [found[number] for number in numbers]


class NetworkTest(absltest.TestCase):
  def test_arrivals_are_those_of_simgrid(self):
    drawn = [_draw_schedule(seed) for seed in range(_SCHEDULES)]
    schedules = [
      {
        'links': [*up, *down],
        'transfers': [
          {'links': [src, len(up) + dst], 'bytes': size, 'at': at, 'after': []}
          for at, src, dst, size in flows
        ],
      }
      for up, down, flows in drawn
    ]
    for seed, (ends, each) in enumerate(
      zip(_replay(schedules), drawn, strict=True)
    ):
      np.testing.assert_allclose(
        _arrivals(*each), ends, rtol=1e-12, err_msg=f'seed {seed}'
      )


def _make_ring(workers):
  """Returns equal links through a switch, a ring, and its bytes."""
  star = shapes.star(['0.01'] * workers)
  ring = schemes.naive_ring(star, topology.pack(star))
  return star, ring, 49152 * workers * _CHUNKS


def _forest_schedule(cluster, forest, size_bytes, *, is_paced):
  """Returns the transfers of an allreduce, chunk by chunk.

  A worker passes a chunk on once it has the sums of all workers behind it, and
  the chunk before has left.

  Args:
    cluster: Links.
    forest: Forest of an allreduce.
    size_bytes: Bytes of the message, `_CHUNKS` whole ones for each tree.
    is_paced: Whether the trees keep to their weights; else they share links as
      flows do.
  """
  places = {ends: n for n, ends in enumerate(cluster.capacity_Bps)}
  links, transfers = [float(Bps) for Bps in cluster.capacity_Bps.values()], []
  for tree in forest.trees:
    chunk = tree.share * size_bytes / _CHUNKS
    before = collections.defaultdict(list)  # Transfers into a worker.
    ways = [(hop, False) for hop in tree.up] + [
      (hop, True) for hop in tree.down
    ]
    for hop, is_down in ways:
      crossed = [places[ends] for ends in itertools.pairwise(hop)]
      if is_paced:
        crossed.append(len(links))
        links.append(float(tree.weight_Bps))
      own = []
      for number in range(_CHUNKS):
        after = [them[number] for them in before[hop[0], is_down]]
        after += own[-1:]
        own.append(len(transfers))
        transfers.append(
          {'links': crossed, 'bytes': int(chunk), 'at': 0.0, 'after': after}
        )
      before[hop[-1], is_down].append(own)
      if (
        not is_down and hop[-1] == tree.root
      ):  # The root's sums are complete then.
        before[hop[-1], True].append(own)
  return {'links': links, 'transfers': transfers}


class RingTest(absltest.TestCase):
  def test_rings_take_the_seconds_of_their_bytes(self):
    rings = [_make_ring(workers) for workers in _RING_WORKERS]
    replayed = _replay(
      [_forest_schedule(*each, is_paced=False) for each in rings]
    )
    for (star, ring, size_bytes), ends in zip(rings, replayed, strict=True):
      chunks = len(ring.trees) * _CHUNKS
      virtual = timing.AllreduceTiming(
        star,
        ring,
        [size_bytes // chunks] * chunks,
        latency_s=dict.fromkeys(star.capacity_Bps, 0.0),
        ahead_bytes=size_bytes,
      )
      virtual_s = virtual(np.zeros((len(star.workers), chunks)))
      bytes_s = size_bytes / float(ring.rate_Bps)
      np.testing.assert_allclose((virtual_s, max(ends)), bytes_s, rtol=1e-6)


class ForestTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.cases = []
    for spec in _CLUSTERS:
      cluster = builders.build_cluster(spec)
      forest = topology.pack(cluster)
      parts = math.lcm(*(tree.share.denominator for tree in forest.trees))
      size_bytes = _CHUNKS * parts * math.ceil(10**8 / (_CHUNKS * parts))
      cls.cases.append((spec, cluster, forest, size_bytes))
    schedules = [
      _forest_schedule(*case[1:], is_paced=is_paced)
      for case in cls.cases
      for is_paced in (True, False)
    ]
    ends = [max(each) for each in _replay(schedules)]
    cls.paced_s, cls.fair_s = ends[::2], ends[1::2]

  def test_links_carry_the_rate_of_a_packed_forest(self):
    for (spec, _, forest, size_bytes), ends_s in zip(
      self.cases, self.paced_s, strict=True
    ):
      hops = max(
        sum(max(depth.values()) for depth in tree.depths())
        for tree in forest.trees
      )
      # All chunks of a tree pass its hops one after the other.
      chunk_s = size_bytes / _CHUNKS / float(forest.rate_Bps)
      expected = (_CHUNKS + hops - 1) * chunk_s
      self.assertAlmostEqual(ends_s / expected, 1, places=5, msg=spec)

  def test_no_order_of_chunks_beats_the_bound_and_fair_links_are_near_it(self):
    for (spec, cluster, forest, size_bytes), ends_s in zip(
      self.cases, self.fair_s, strict=True
    ):
      bound_s = size_bytes / float(forest.bound_Bps)
      chunk = max(tree.share for tree in forest.trees) * size_bytes / _CHUNKS
      predicted_s = timing.all_ready_s(
        cluster, forest, size_bytes, latency_s=0.0, chunk_bytes=int(chunk)
      )
      self.assertGreater(ends_s, (1 - 1e-6) * bound_s, spec)
      # The prediction lets the lowest chunks pass first.
      self.assertLess(ends_s, 1.2 * predicted_s, spec)


if __name__ == '__main__':
  absltest.main()
