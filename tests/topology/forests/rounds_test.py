"""Tests for topology.rounds: replayed with NumPy, and by JAX on 8 devices.

The devices are those of a process of its own.
"""

import functools
import itertools
import json
import random
import sys
from collections import Counter
from fractions import Fraction

import jax
import numpy as np
from absl.testing import absltest, parameterized

import topology
from tests.support import ppermute, small
from topology.clusters import machines, randomized, shapes
from topology.clusters.cluster import Cluster
from topology.forests import rounds, trees, verify

COLLECTIVES = trees.COLLECTIVES
_CHUNKS = 3
_GRAPHS = {
  'mesh': shapes.full_mesh(4, 25),
  'unequal star': shapes.star([10, 10, 10, 40, 40, 100]),
  'random mesh': randomized.random_mesh(5, 3, symmetric=True),
}


_ON_DEVICES = (
  ('random mesh', 'allreduce'),
  ('unequal star', 'allgather'),
  ('mesh', 'reduce_scatter'),
)


def _plan(name, collective):
  graph = _GRAPHS[name]
  packed = topology.pack(graph, collective=collective)
  if name == 'random mesh':  # Of hundreds of units: a tree of each root, alike.
    heaviest = {}
    for tree in sorted(packed.trees, key=lambda tree: tree.weight_Bps):
      heaviest[tree.root] = trees.Column(tree.root, 1, tree.up, tree.down)
    packed = trees.fitted(graph, list(heaviest.values()), packed)
  return rounds.plan(graph, packed)


def _held(plan):
  """What workers hold in the beginning, Int32 [N, U, C, 5]."""
  shape = len(plan.workers), len(plan.roots), _CHUNKS, 5
  return np.random.default_rng(0).integers(-99, 99, shape, dtype=np.int32)


def _runs():
  """Returns per cluster and collective what JAX gives, and its operations."""
  found = {}
  for name, collective in _ON_DEVICES:
    plan = _plan(name, collective)
    held = _held(plan)
    compiled = ppermute.program(plan, _CHUNKS).lower(held).compile()
    text = compiled.as_text()
    found[f'{name} {collective}'] = {
      'devices': jax.device_count(),
      'numbers': np.asarray(compiled(held)).tolist(),
      'operations': {
        kind: text.count(f' {kind}(') + text.count(f' {kind}-start(')
        for kind in ('collective-permute', 'while', 'all-reduce')
      },
    }
  return found


@functools.cache
def _on_devices():
  done = small.python(
    '-m',
    'tests.topology.forests.rounds_test',
    '_runs',
    XLA_FLAGS='--xla_force_host_platform_device_count=8',
  )
  if done.returncode:
    raise RuntimeError(done.stderr)
  return json.loads(done.stdout.splitlines()[-1])


class DevicesTest(parameterized.TestCase):
  """The tables as a JAX program."""

  @parameterized.parameters(*_ON_DEVICES)
  def test_integers_are_summed_to_the_last_bit(self, name, collective):
    plan = _plan(name, collective)
    held = _held(plan)

    found = _on_devices()[f'{name} {collective}']

    self.assertEqual(found['devices'], 8)
    got = np.array(found['numbers'])
    for slot, root in enumerate(plan.roots):
      want = held[root if collective == 'allgather' else slice(None), slot]
      if collective != 'allgather':
        want = want.sum(axis=0)
      where = [root] if collective == 'reduce_scatter' else range(len(held))
      for worker in where:
        np.testing.assert_array_equal(got[worker, slot], want)

  @parameterized.parameters(*_ON_DEVICES)
  def test_program_has_the_planned_permutes_in_one_loop(self, name, collective):
    plan = _plan(name, collective)

    found = _on_devices()[f'{name} {collective}']

    self.assertEqual(
      found['operations'],
      {'collective-permute': len(plan.pairs), 'while': 1, 'all-reduce': 0},
    )


class ReplayTest(parameterized.TestCase):
  """The tables as an oracle reads them, on forests of all kinds."""

  @parameterized.product(seed=[*range(8)], collective=COLLECTIVES)
  def test_each_contribution_arrives_once(self, seed, collective):
    graph, made = _random_forest(seed, collective)
    plan = rounds.plan(graph, made, max_permutes=1000)
    rng = random.Random(seed)

    for chunks in (1, 2, 5):
      at_once = ppermute.replayed(plan, chunks)
      in_turn = ppermute.replayed(plan, chunks, rng)

      np.testing.assert_array_equal(at_once, in_turn)
      everywhere = collective != 'reduce_scatter'
      for slot, root in enumerate(plan.roots):
        want = np.ones(len(plan.workers), int)
        if collective == 'allgather':
          want = np.eye(len(plan.workers), dtype=int)[root]
        for worker in range(len(plan.workers)) if everywhere else [root]:
          for counts in at_once[worker, slot]:
            np.testing.assert_array_equal(counts, want)

  @parameterized.product(seed=[*range(6)], collective=COLLECTIVES)
  def test_one_step_less_is_too_few(self, seed, collective):
    graph, made = _random_forest(seed, collective)
    plan = rounds.plan(graph, made, max_permutes=1000)

    before = ppermute.replayed(plan, 2, steps=plan.steps(2) - 1)

    self.assertFalse(np.array_equal(before, ppermute.replayed(plan, 2)))

  @parameterized.product(seed=[*range(6)], collective=COLLECTIVES)
  def test_permutes_are_partial_permutations_of_all_hops(
    self, seed, collective
  ):
    graph, made = _random_forest(seed, collective)
    plan = rounds.plan(graph, made, max_permutes=1000)
    units = [tree.weight_Bps / plan.unit_Bps for tree in made.trees]
    place = {worker: n for n, worker in enumerate(graph.workers)}

    want, slot = [], 0
    for tree, count in zip(made.trees, units, strict=True):
      for _ in range(int(count)):
        self.assertEqual(plan.roots[slot], place[tree.root])
        for hops, operation in (
          (tree.up, rounds.ADD),
          (tree.down, rounds.STORE),
        ):
          want += [(place[h[0]], place[h[-1]], slot, operation) for h in hops]
        slot += 1
    got = []
    for p, pairs in enumerate(plan.pairs):
      sources, targets = zip(*pairs, strict=True)
      self.assertLen({*sources}, len(pairs))
      self.assertLen({*targets}, len(pairs))
      for src, dst in pairs:
        self.assertEqual(plan.send_slot[p, src], plan.receive_slot[p, dst])
        self.assertEqual(plan.send_delay[p, src], plan.receive_delay[p, dst])
        operation = plan.operation[p, dst]
        got.append((src, dst, plan.receive_slot[p, dst], operation))
      self.assertEqual(np.count_nonzero(plan.operation[p]), len(pairs))

    self.assertLen(plan.roots, slot)
    self.assertCountEqual(got, want)
    degree = Counter(('src', src) for src, *_ in want)
    degree.update(('dst', dst) for _, dst, *_ in want)
    self.assertLen(plan.pairs, max(degree.values()))


class RateTest(parameterized.TestCase):
  @parameterized.product(seed=[*range(6)], collective=COLLECTIVES)
  def test_it_is_that_of_the_slowest_links_in_turn(self, seed, collective):
    graph, made = _random_forest(seed, collective)
    plan = rounds.plan(graph, made, max_permutes=1000)
    capacity = {(a, b): GBps * 10**9 for a, b, GBps in graph.links}
    hop_of = {}
    for tree, (start, end) in zip(
      made.trees, made.byte_ranges(len(plan.roots)), strict=True
    ):
      for slot in range(start, end):
        for hops, operation in (
          (tree.up, rounds.ADD),
          (tree.down, rounds.STORE),
        ):
          for hop in hops:
            hop_of[hop[0], hop[-1], slot, operation] = hop

    for p, pairs in enumerate(plan.pairs):
      load = Counter()
      for src, dst in pairs:
        slot, operation = plan.receive_slot[p, dst], plan.operation[p, dst]
        ends = plan.workers[src], plan.workers[dst]
        load.update(itertools.pairwise(hop_of[*ends, slot, operation]))
      time = max(count / capacity[link] for link, count in load.items())
      self.assertEqual(plan.seconds_per_byte[p], time)
    self.assertEqual(
      plan.rate_Bps, len(plan.roots) / sum(plan.seconds_per_byte)
    )
    self.assertEqual(plan.overlapped_rate_Bps, made.rate_Bps)
    self.assertEqual(plan.loss, 1 - plan.rate_Bps / made.rate_Bps)
    self.assertGreaterEqual(plan.loss, 0)

  @parameterized.named_parameters(
    ('star', shapes.star([10] * 6), 0),
    ('box', machines.dgx_a100(1), 0),
    ('line', shapes.line(5, 10), Fraction(1, 2)),
    ('ring', shapes.ring(8, 10), Fraction(1, 2)),
    ('ring_one_way', shapes.ring(6, 10, both_ways=False), 0),
    ('mesh', shapes.full_mesh(5, 10), Fraction(3, 4)),
    ('torus', shapes.torus([3, 3], 10), Fraction(3, 4)),
    ('bcube', shapes.bcube(3, 2, 10), Fraction(1, 2)),
  )
  def test_as_many_ports_as_a_worker_has_as_much_is_lost(self, graph, loss):
    plan = rounds.plan(graph, topology.pack(graph))

    self.assertEqual(plan.loss, loss)

  def test_hops_that_crowd_on_a_link_are_parted(self):
    graph = shapes.fat_tree(4, 10)
    plan = rounds.plan(graph, topology.pack(graph))

    self.assertLessEqual(plan.loss, Fraction(1, 6))

  def test_slow_hops_share_permutes(self):
    graph = shapes.line(3, 1)
    graph = Cluster(
      graph.nodes,
      graph.workers,
      (*graph.links, ('w0', 'w1', 9), ('w1', 'w0', 9)),
    )
    plan = rounds.plan(graph, topology.pack(graph))

    # Either link in both directions: 1.1 s for a GB, not 1 s twice.
    times = [time * 10**9 for time in plan.seconds_per_byte]
    self.assertEqual(times, [1, Fraction(1, 10)])


class PlanTest(absltest.TestCase):
  def test_too_many_permutes_are_an_error_that_says_how_many(self):
    graph = randomized.random_mesh(5, 3, symmetric=True)
    packed = topology.pack(graph)
    with self.assertRaisesRegex(
      ValueError,
      'max_permutes: expected at least [0-9]{3} for [0-9]{3} units of weight, '
      'got 128: a forest of fewer equal units is needed',
    ):
      rounds.plan(graph, packed)

  def test_limit_is_what_is_needed(self):
    graph = shapes.full_mesh(4, 25)
    packed = topology.pack(graph)

    self.assertLen(rounds.plan(graph, packed, max_permutes=3).pairs, 3)
    with self.assertRaisesRegex(ValueError, 'at least 3 for 2 units.*got 2'):
      rounds.plan(graph, packed, max_permutes=2)
    with self.assertRaisesRegex(ValueError, 'max_permutes: .*got 0'):
      rounds.plan(graph, packed, max_permutes=0)

  def test_pipeline_fills_with_twice_the_height(self):
    graph = shapes.line(5, 10)

    for collective, fill in (('allreduce', 3), ('allgather', 3)):
      plan = rounds.plan(graph, topology.pack(graph, collective=collective))
      self.assertEqual(plan.steps(1), 1 + fill)
      self.assertEqual(plan.steps(64), 64 + fill)
    with self.assertRaisesRegex(ValueError, 'chunks: .*got 0'):
      plan.steps(0)

  def test_single_worker_needs_no_permutes(self):
    graph = shapes.line(1, 1)
    plan = rounds.plan(graph, topology.pack(graph))

    self.assertEqual(plan.pairs, ())
    self.assertEqual(plan.operation.shape, (0, 1))
    self.assertEqual(plan.roots.shape, (0,))
    self.assertIsNone(plan.rate_Bps)
    self.assertEqual(plan.loss, 0)


def _random_forest(seed, collective):
  """Random trees, up and down, of 1 to 3 units, on a mesh or a star."""
  rng = random.Random(seed)
  count = rng.randint(2, 6)
  if rng.random() < 0.5:
    graph = randomized.random_mesh(count, seed)
    middle = ()
  else:
    up, down = (
      [rng.choice((10, 20, Fraction(25, 3))) for _ in range(count)]
      for _ in range(2)
    )
    graph = shapes.star(up, down)
    middle = ('s0',)
  roots = graph.workers
  if collective == 'allreduce':
    roots = [rng.choice(graph.workers) for _ in range(rng.randint(1, 4))]
  columns = []
  for root in roots:
    down, up = (
      _random_hops(rng, graph.workers, root, middle) for _ in range(2)
    )
    up = [hop[::-1] for hop in reversed(up)]
    columns.append(
      trees.Column(
        root,
        rng.randint(1, 3) if collective == 'allreduce' else 2,
        up if collective != 'allgather' else [],
        down if collective != 'reduce_scatter' else [],
      )
    )
  packed = topology.pack(graph, collective=collective)
  made = trees.fitted(graph, columns, packed)
  verify.check(graph, made)
  return graph, made


def _random_hops(rng, workers, root, middle):
  """Hops from the root to all, each from a random worker that has been got."""
  reached = [root]
  others = [worker for worker in workers if worker != root]
  rng.shuffle(others)
  hops = []
  for worker in others:
    hops.append((rng.choice(reached), *middle, worker))
    reached.append(worker)
  return hops


if __name__ == '__main__':
  if sys.argv[-1] == '_runs':
    print(json.dumps(_runs()))
  else:
    absltest.main()
