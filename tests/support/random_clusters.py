"""Small random clusters with and without symmetry and switches, for tests."""

import itertools
import random
from collections.abc import Iterator
from fractions import Fraction

from topology.clusters import randomized
from topology.clusters.cluster import Cluster, Link


def alike(seed: int, most: int = 9, switches: int = 6) -> Iterator[Cluster]:
  """Yields two symmetric clusters of 2 to `most` workers."""
  yield from _both(random.Random(seed), seed, most, switches, symmetric=True)


def every(seed: int, most: int = 5, switches: int = 3) -> Iterator[Cluster]:
  """Yields five clusters of 2 to `most` workers, symmetric or not."""
  rng = random.Random(seed)
  yield from _both(rng, seed, most, switches, symmetric=False)
  yield from _both(rng, seed, most, switches, symmetric=True)
  yield one_way(rng, rng.randint(2, most), rng.randint(0, switches))


def one_way(
  rng: random.Random, workers: int, switches: int, density: float = 0.3
) -> Cluster:
  """Returns random links, few in both directions, and nodes in any order."""
  nodes = [f'n{i}' for i in range(workers + switches)]
  rng.shuffle(nodes)
  links = [(nodes[i - 1], nodes[i]) for i in range(len(nodes))]
  pairs = itertools.permutations(nodes, 2)
  links += [pair for pair in pairs if rng.random() < density]
  return Cluster(
    tuple(nodes),
    tuple(rng.sample(nodes, workers)),
    tuple(Link(*ends, Fraction(rng.randint(1, 20), 4)) for ends in links),
  )


def _both(
  rng: random.Random, seed: int, most: int, switches: int, symmetric: bool
) -> Iterator[Cluster]:
  yield randomized.random_mesh(
    rng.randint(2, most), seed, density=0.4, symmetric=symmetric
  )
  yield randomized.random_switched(
    rng.randint(2, most),
    rng.randint(1, switches),
    seed,
    symmetric=symmetric,
  )
