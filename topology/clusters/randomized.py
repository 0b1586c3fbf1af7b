"""Clusters drawn at random, and clusters made unequal at random.

All functions raise ValueError, with the name of the argument, if an argument is
out of its range.
"""

import decimal
import numbers
import random
from fractions import Fraction

from topology.clusters import parts
from topology.clusters.cluster import Cluster, Link
from topology.clusters.parts import Capacity


def random_mesh(
  workers: int,
  seed: int,
  *,
  density: float = 1.0,
  symmetric: bool = False,
  low_GBps: int = 1,
  high_GBps: int = 50,
) -> Cluster:
  """Returns workers with links of random capacity, without switches.

  Each pair is linked with probability `density`; neighbors on the ring of all
  workers always are, so that the cluster is connected.

  Args:
    workers: Number of workers, at least 1.
    seed: An integer of at least 0, which chooses the cluster.
    density: Probability of a link, 0 to 1.
    symmetric: Whether both directions of a pair are the same.
    low_GBps: Smallest capacity, an integer of at least 1.
    high_GBps: Largest capacity; all integers between are equally likely.
  """
  rng = _rng(seed, density, low_GBps, high_GBps)
  names = parts.make_names('w', parts.check_integer(workers, 'workers'))
  links = []
  for i in range(workers):
    for j in range(i + 1, workers):
      beside = j - i in (1, workers - 1)
      there, back = (
        rng.randint(low_GBps, high_GBps)
        if rng.random() < density or beside
        else 0
        for _ in range(2)
      )
      back = there if symmetric else back
      links += [(names[i], names[j], there), (names[j], names[i], back)]
  return parts.make_cluster(names, (), links)


def random_switched(
  workers: int,
  switches: int,
  seed: int,
  *,
  density: float = 0.5,
  symmetric: bool = False,
  low_GBps: int = 1,
  high_GBps: int = 50,
) -> Cluster:
  """Returns workers, each behind a random one of randomly linked switches.

  Links go both ways.  Each switch is linked to one of the switches before it,
  and to each other one with probability `density`.  Switches may be without
  workers, and unless `symmetric`, their capacities in and out may differ.
  Arguments are as in `random_mesh`.
  """
  rng = _rng(seed, density, low_GBps, high_GBps)
  names = parts.make_names('w', parts.check_integer(workers, 'workers'))
  inner = parts.make_names('s', parts.check_integer(switches, 'switches'))
  pairs = [(name, rng.choice(inner)) for name in names]
  for i in range(1, switches):
    before = rng.randrange(i)
    pairs += [
      (inner[j], inner[i])
      for j in range(i)
      if rng.random() < density or j == before
    ]
  links = []
  for a, b in pairs:
    there, back = (rng.randint(low_GBps, high_GBps) for _ in range(2))
    links += [(a, b, there), (b, a, there if symmetric else back)]
  return parts.make_cluster(names, inner, links)


def spread(
  graph: Cluster, ratio: Capacity, seed: int, *, symmetric: bool = True
) -> Cluster:
  """Returns the cluster with its capacities reduced by unequal factors.

  The factors go from 1 down to 1 / ratio in equal steps of their logarithm, one
  for each pair of linked nodes, in random order.  Between the two ends they are
  rounded to 3 significant digits, so that capacities stay exact decimals.  A
  homogeneous cluster then has capacities of 1 : ratio.  A single pair of linked
  nodes stays as it is.  Unless `symmetric`, each direction of a pair has a
  factor of its own.

  Example:
    >>> unequal = spread(random_mesh(4, 1, low_GBps=50), 100, 1)
    >>> min(link.GBps for link in unequal.links)
    Fraction(1, 2)
  """
  if not isinstance(graph, Cluster):
    raise ValueError(f'graph: expected a cluster, got {graph!r}.')
  exact = parts.check_capacity(ratio, 'ratio')
  if exact < 1:
    raise ValueError(f'ratio: expected at least 1, got {ratio!r}.')
  rng = random.Random(parts.check_integer(seed, 'seed', 0))

  def key(link: Link) -> tuple[str, ...]:
    return tuple(sorted(link[:2])) if symmetric else link[:2]

  pairs = list(dict.fromkeys(key(link) for link in graph.links))
  factors = _factors(exact, len(pairs))
  rng.shuffle(factors)
  factor = dict(zip(pairs, factors, strict=True))
  links = tuple(
    link._replace(GBps=link.GBps * factor[key(link)]) for link in graph.links
  )
  return Cluster(graph.nodes, graph.workers, links)


def _factors(ratio: Fraction, count: int) -> list[Fraction]:
  # Unlike powers of floats, those of decimals are the same on all machines.
  fine, coarse = decimal.Context(prec=12), decimal.Context(prec=3)
  base = fine.divide(ratio.denominator, ratio.numerator)
  powers = [fine.divide(i, count - 1) for i in range(1, count - 1)]
  between = [coarse.plus(fine.power(base, power)) for power in powers]
  ends = [Fraction(1), 1 / ratio][:count]
  return [*ends, *(Fraction(factor) for factor in between)]


def _rng(seed: int, density: float, low: int, high: int) -> random.Random:
  """Returns a random generator, after checks of the shared arguments."""
  parts.check_integer(seed, 'seed', 0)
  real = isinstance(density, numbers.Real)
  if not real or not 0 <= float(density) <= 1:
    raise ValueError(f'density: expected 0 to 1, got {density!r}.')
  parts.check_integer(high, 'high_GBps', parts.check_integer(low, 'low_GBps'))
  return random.Random(seed)
