"""Verifies that a forest carries out its collective, independently of packing.

Hops are followed link by link, contributions are counted as they are sent, and
loads are added up as fractions.
"""

import collections
import itertools
from collections.abc import Iterable, Sequence
from fractions import Fraction

from topology.algorithms import stopping
from topology.bounds import cuts, prices
from topology.clusters.cluster import Cluster
from topology.forests import trees

_STAGES = {
  'allreduce': ('up', 'down'),
  'allgather': ('down',),
  'reduce_scatter': ('up',),
}


def check(
  cluster: Cluster,
  forest: trees.Forest,
  *,
  relays: bool = False,
  stop: stopping.Stop = stopping.never,
) -> None:
  """Raises ValueError unless the forest is sound.

  Every tree spans all workers over links that exist, through switches only, in
  hops from worker to worker.  Sent step by step, the contribution of each
  worker is counted once, and each worker receives the result once.  No link
  carries more than its capacity.  Trees are sorted by root, in the order of the
  workers.  Weights add up to the rate; except in an allreduce, those of each
  root add up to an equal part of it.  Shares are proportional to the weights
  and cover all bytes.  The rate is not above the bound, which the certificate
  proves.  The check takes O(trees x workers x path length).

  Args:
    relays: Whether hops may pass through workers, which forward data without
      adding to it, as some baselines do.
    stop: Function that returns True to raise `Stopped`, called at each tree.

  Raises:
    Stopped: If `stop` returns True.
    ValueError: If a condition does not hold; the message names it.
  """
  if forest.collective not in _STAGES:
    raise ValueError(f'Unknown collective {forest.collective!r}.')
  if len(cluster.workers) == 1:
    if forest != trees.Forest(forest.collective, (), None, None, None):
      raise ValueError('A single worker needs neither trees nor a rate.')
    return
  for number, tree in enumerate(forest.trees):
    stopping.check(stop)
    try:
      _check_tree(cluster, forest.collective, tree, relays)
    except ValueError as error:
      raise ValueError(f'Tree {number}: {error}') from error
  _check_order(cluster, forest)
  _check_rates(cluster, forest)
  _check_loads(cluster, forest, stop)
  _check_bound(cluster, forest, stop)


def _check_tree(
  cluster: Cluster, collective: str, tree: trees.Tree, relays: bool
) -> None:
  if tree.root not in cluster.rank:
    raise ValueError(f'The root {tree.root!r} is no worker.')
  if not isinstance(tree.weight_Bps, Fraction) or tree.weight_Bps <= 0:
    raise ValueError(f'The weight {tree.weight_Bps!r} is no positive fraction.')
  for stage, hops in (('up', tree.up), ('down', tree.down)):
    if hops and stage not in _STAGES[collective]:
      raise ValueError(f'Hops {stage} have no place in {collective}.')
  _check_hops(cluster, (*tree.up, *tree.down), relays)
  if 'up' in _STAGES[collective]:
    _aggregate(cluster.workers, tree)
  if 'down' in _STAGES[collective]:
    _broadcast(cluster.workers, tree)


def _check_hops(
  cluster: Cluster, hops: Iterable[trees.Hop], relays: bool
) -> None:
  workers, switches = cluster.rank, set(cluster.switches)
  for hop in hops:
    if len(hop) < 2 or hop[0] not in workers or hop[-1] not in workers:
      raise ValueError(f'The hop {hop} does not go from worker to worker.')
    if not relays and not set(hop[1:-1]) <= switches:
      raise ValueError(f'The hop {hop} passes through what is no switch.')
    if len(set(hop)) < len(hop):
      raise ValueError(f'The hop {hop} passes through a node twice.')
    for ends in itertools.pairwise(hop):
      if ends not in cluster.capacity_Bps:
        raise ValueError(f'The hop {hop} needs a link {ends}, which is none.')


def _aggregate(workers: Sequence[str], tree: trees.Tree) -> None:
  """Sends partial sums, as counts of contributions, in the order of hops."""
  # As one integer, in which each worker has digits of its own: it sends once
  # at most, so that no count is above the number of workers.
  digits = len(workers).bit_length()
  held = {worker: 1 << i * digits for i, worker in enumerate(workers)}
  sent: set[str] = set()
  for hop in tree.up:
    src, dst = hop[0], hop[-1]
    if src in sent:
      raise ValueError(f'Worker {src} sends up twice.')
    if dst in sent:
      raise ValueError(f'Worker {dst} sends up before it has all from {src}.')
    sent.add(src)
    held[dst] += held[src]
  for i, worker in enumerate(workers):
    count = held[tree.root] >> i * digits & ~(-1 << digits)
    if count != 1:
      raise ValueError(f'Worker {worker} is counted {count} times, not once.')
  if tree.root in sent:
    raise ValueError(f'The root {tree.root} sends up.')


def _broadcast(workers: Iterable[str], tree: trees.Tree) -> None:
  """Sends the result, in the order of hops, and counts who receives it."""
  received = collections.Counter([tree.root])
  for hop in tree.down:
    src, dst = hop[0], hop[-1]
    if not received[src]:
      raise ValueError(f'Worker {src} sends down what it has not received.')
    received[dst] += 1
  for worker in workers:
    if (count := received[worker]) != 1:
      raise ValueError(f'Worker {worker} receives {count} times, not once.')


def _check_order(cluster: Cluster, forest: trees.Forest) -> None:
  """Raises ValueError unless the trees of each root are adjacent."""
  places = [cluster.rank[tree.root] for tree in forest.trees]
  for number, (before, after) in enumerate(itertools.pairwise(places), start=1):
    if after < before:
      root = cluster.workers[after]
      raise ValueError(f'Tree {number}: its root {root} is out of order.')


def _check_rates(cluster: Cluster, forest: trees.Forest) -> None:
  weight_of = dict.fromkeys(cluster.workers, Fraction(0))
  for tree in forest.trees:
    weight_of[tree.root] += tree.weight_Bps
  rate = sum(weight_of.values(), Fraction(0))
  if not isinstance(forest.rate_Bps, Fraction) or forest.rate_Bps != rate:
    raise ValueError(f'The rate is {rate} B/s, not {forest.rate_Bps}.')
  for worker, weight in weight_of.items():
    if forest.collective != 'allreduce' and weight * len(weight_of) != rate:
      raise ValueError(f'Trees of {worker} carry {weight} B/s of {rate}.')
  for number, tree in enumerate(forest.trees):
    own = isinstance(tree.share, Fraction)
    if not own or tree.share * rate != tree.weight_Bps:
      raise ValueError(f'Tree {number}: the share {tree.share} is not its own.')
  if sum(tree.share for tree in forest.trees) != 1:
    raise ValueError('The shares do not add up to 1.')


def _check_loads(
  cluster: Cluster, forest: trees.Forest, stop: stopping.Stop
) -> None:
  hops = ((tree.weight_Bps, (*tree.up, *tree.down)) for tree in forest.trees)
  for (src, dst), load in trees.loads(hops, stop).items():
    if load > cluster.capacity_Bps[src, dst]:
      raise ValueError(
        f'The link from {src} to {dst} carries {load} B/s of '
        f'{cluster.capacity_Bps[src, dst]}.'
      )


def _check_bound(
  cluster: Cluster, forest: trees.Forest, stop: stopping.Stop
) -> None:
  proof = forest.certificate
  kind = prices.Prices if forest.collective == 'allreduce' else cuts.Cut
  if not isinstance(proof, kind) or not forest.bound_Bps:
    raise ValueError('The bound has no proof.')
  if not isinstance(forest.bound_Bps, Fraction):
    raise ValueError(f'The bound {forest.bound_Bps!r} is no fraction.')
  if isinstance(proof, prices.Prices):
    bound = prices.prove_rate(cluster, proof, stop) * 10**9
  else:
    backwards = forest.collective == 'reduce_scatter'
    there = cluster.reversed() if backwards else cluster
    named = proof.nodes in [nodes for _, nodes in proof.parts]
    if not named or proof.links != cuts.leaving(there, proof.nodes):
      raise ValueError('The bottleneck is none of the cuts of the proof.')
    bound = len(cluster.workers) * 10**9 / cuts.prove_time(there, proof, stop)
  if forest.bound_Bps != bound:
    raise ValueError(f'The bound is {bound} B/s, not {forest.bound_Bps}.')
  if forest.rate_Bps is None or forest.rate_Bps > bound:
    raise ValueError(f'The rate {forest.rate_Bps} is above the bound {bound}.')
