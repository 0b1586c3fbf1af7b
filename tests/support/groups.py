"""Memberships of executors over forests of all kinds, for tests."""

import random

from cluster.allreduce.executor.membership import Membership
from tests.support import random_clusters
from topology.baselines import schemes
from topology.clusters import parts, shapes
from topology.packing.pack import pack


def make_membership(forest, workers, addresses=None, membership_epoch=1):
  """Returns the membership of a forest's workers, numbered in order."""
  names = {name: i for i, name in enumerate(workers)}
  addresses = addresses or {i: f'127.0.0.1:{i + 1}' for i in names.values()}
  return Membership(membership_epoch, addresses, forest, names)


def forests(seed):
  """Yields names, forests and their workers, for clusters of 2 to 6."""
  rng = random.Random(seed)
  count = rng.randint(2, 5)
  up = [rng.randint(1, 9) for _ in range(count)]
  down = [rng.randint(1, 9) for _ in range(count)]
  star = shapes.star(up, down)
  best = pack(star)
  yield 'packed', best, star.workers
  for name in ('naive_ring', 'best_ring_both_ways', 'double_binary_tree'):
    yield name, getattr(schemes, name)(star, best), star.workers
  yield 'equal_shards', schemes.equal_shards(star, best), star.workers
  for cluster in random_clusters.every(seed):
    if len(cluster.workers) > 1:
      yield 'random', pack(cluster), cluster.workers
      break
  boxes = two_groups(3)
  yield 'hierarchical', schemes.hierarchical(boxes, pack(boxes)), boxes.workers


def two_groups(size):
  """Returns a cluster of two groups of workers, with slow links across."""
  names = parts.make_names('w', 2 * size)
  links = [
    (a, b, 10 if (i < size) == (j < size) else 1)
    for i, a in enumerate(names)
    for j, b in enumerate(names)
    if i != j
  ]
  return parts.make_cluster(names, (), links)
