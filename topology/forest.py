"""The fastest collectives of a cluster, as forests.

The data are divided among trees with different roots, weighted so that all
links together carry as much as the slowest cut allows (Zhang et al.,
"Near-Optimal Topology-adaptive Parameter Synchronization in Distributed DNN
Training", INFOCOM 2021; ForestColl, Zhao et al., arXiv 2402.06787, 2024).
"""

import dataclasses
import time
from collections.abc import Callable

from topology import approximate, bounds, exact, prices, stopping, verify
from topology import cluster as clusters
from topology.trees import Forest, Hop, Tree, backwards, fitted

__all__ = ['COLLECTIVES', 'Forest', 'Hop', 'Tree', 'pack']

COLLECTIVES = ('allreduce', 'allgather', 'reduce_scatter')
_GB = 10**9
_SMALL = 16  # Workers up to which the exact way is the fastest.
_LARGE = 2**18  # Workers times links above which it is too slow.
_LARGE_MESH = 2**20  # The same for an allgather without switches.
_EXACT_SHARE = 0.5  # Of the time limit, for the exact way.


def pack(
  cluster: clusters.Cluster,
  *,
  collective: str = 'allreduce',
  gap: float = 0.0,
  max_trees: int | None = None,
  time_limit_s: float | None = None,
  overlap: bool = True,
  progress: Callable[[str], None] | None = None,
) -> Forest:
  """Returns a forest with a proven bound, which has been checked.

  Two ways lead to it.  The exact one reaches the bound: in a second or so for
  64 workers on the usual networks, in half a minute for 256, but in hours for
  more or for many links (`topology.exact`, which can be called itself).  The
  other comes within a few percent in seconds, for up to 1,024 workers, and
  nearer in minutes (`topology.approximate`).  Clusters of which the number of
  workers times that of links is above 262,144 are packed the second way.

  The same cluster gives the same forest in every process, with two exceptions:
  a time limit, and the approximate way on processors that differ, where the
  last digit of a matrix product may too.  Then let one process pack.

  Args:
    cluster: Workers, switches and links.
    collective: 'allreduce': each worker has all data, and gets the sum.
      'allgather': each has 1 / N of the data, and gets all.
      'reduce_scatter': each has all, and gets the sum of 1 / N of it.
    gap: How far below the bound the rate may be, as a part of it, so that
      packing ends there.  0 asks for the exact way; large clusters get as near
      as some hundreds of trees can.
    max_trees: The most trees; in an allgather or reduce-scatter at least one
      for each worker.  The rate is what so many can reach.
    time_limit_s: Seconds after which packing ends with the best forest so far,
      soon if not at once: bounds are finished, and one tree for each root.
    overlap: Whether an allreduce sums up and sends down at the same time.  If
      not, one phase follows the other, packed the exact way.
    progress: Told in a few words how far it is.

  Returns:
    The forest: no trees and no rate for a single worker.

  Raises:
    ValueError: If an argument is out of its range.
  """
  _check(cluster, collective, gap, max_trees, time_limit_s, overlap)
  if len(cluster.workers) == 1:
    return Forest(collective, (), None, None, None)
  # A reduce-scatter is an allgather run backwards.
  turn = collective == 'reduce_scatter'
  packer = _Packer(
    'allgather' if turn else collective, gap, max_trees, overlap, progress
  )
  forest = packer.run(cluster.reversed() if turn else cluster, time_limit_s)
  forest = backwards(forest) if turn else forest
  verify.check(cluster, forest)
  return forest


@dataclasses.dataclass(frozen=True)
class _Packer:
  """What is asked for, an allreduce or an allgather."""

  collective: str
  gap: float
  max_trees: int | None
  overlap: bool
  progress: Callable[[str], None] | None

  def run(
    self, cluster: clusters.Cluster, time_limit_s: float | None
  ) -> Forest:
    """Returns the forest: exact if that is asked for and can be in time."""
    end, exact_end = _deadline(time_limit_s), stopping.never
    if time_limit_s is not None:
      exact_end = _deadline(time_limit_s * _EXACT_SHARE)
    best = None
    if self._is_exact(cluster):
      self._tell('packing exactly')
      try:
        best = self._exact(cluster, exact_end)
      except stopping.Stopped:
        self._tell('not exact in time')
    if best and (self.max_trees or len(best.trees)) >= len(best.trees):
      return best
    return self._approximate(cluster, end, best)

  def _is_exact(self, cluster: clusters.Cluster) -> bool:
    workers = len(cluster.workers)
    if not self.overlap or workers <= _SMALL:
      return True
    if self.collective == 'allgather' and not cluster.switches:
      return workers * len(cluster.links) <= _LARGE_MESH
    return not self.gap and workers * len(cluster.links) <= _LARGE

  def _exact(self, cluster: clusters.Cluster, stop: stopping.Stop) -> Forest:
    if self.collective == 'allreduce':
      return exact.allreduce(cluster, stop, overlap=self.overlap)
    return exact.allgather(cluster, stop)

  def _approximate(
    self,
    cluster: clusters.Cluster,
    stop: stopping.Stop,
    known: Forest | None,
  ) -> Forest:
    """Returns grown trees; `known` is of the same cluster, but has too many."""
    wanted = {'gap': self.gap, 'max_trees': self.max_trees, 'stop': stop}
    if self.collective == 'allreduce':
      columns, proof = approximate.allreduce(
        cluster, **wanted, report=self._report
      )
      bound = prices.proven(cluster, proof)
    else:
      cut = known.certificate if known else self._cut(cluster, stop)
      columns, proof = approximate.allgather(
        cluster, cut, **wanted, report=self._report
      )
      bound = len(cluster.workers) / bounds.proven(cluster, proof)
    if known is None:
      known = Forest(self.collective, (), None, bound * _GB, proof)
    return fitted(cluster, columns, known)

  def _cut(self, cluster: clusters.Cluster, stop: stopping.Stop) -> bounds.Cut:
    try:
      return bounds.optimum(cluster, stop).cut
    except stopping.Stopped:
      return bounds.around_workers(cluster)

  def _report(self, count: int, rate: float, bound: float) -> None:
    self._tell(
      f'{count} trees: {rate:.4g} of {bound:.4g} GB/s, '
      f'gap {100 * (1 - rate / bound):.2g} %'
    )

  def _tell(self, text: str) -> None:
    if self.progress is not None:
      self.progress(text)


def _deadline(seconds: float | None) -> stopping.Stop:
  if seconds is None:
    return stopping.never
  end = time.monotonic() + seconds
  return lambda: time.monotonic() >= end


def _check(
  cluster: clusters.Cluster,
  collective: str,
  gap: float,
  max_trees: int | None,
  time_limit_s: float | None,
  overlap: bool,
) -> None:
  if collective not in COLLECTIVES:
    raise ValueError(
      f'collective: expected one of {COLLECTIVES}, got {collective!r}.'
    )
  if not 0 <= gap < 1:
    raise ValueError(f'gap: expected at least 0 and below 1, got {gap}.')
  least = 1 if collective == 'allreduce' else len(cluster.workers)
  whole = max_trees is None or isinstance(max_trees, int)
  if not whole or (max_trees is not None and max_trees < least):
    raise ValueError(
      f'max_trees: expected an integer of at least {least} for this '
      f'{collective}, got {max_trees!r}.'
    )
  if time_limit_s is not None and not 0 <= time_limit_s < float('inf'):
    raise ValueError(
      f'time_limit_s: expected at least 0 seconds, got {time_limit_s}.'
    )
  if not overlap and collective != 'allreduce':
    raise ValueError(f'overlap: expected True for {collective}, got False.')
  if not overlap and (max_trees is not None or time_limit_s is not None):
    raise ValueError(
      'overlap: expected True with max_trees or time_limit_s, got False.'
    )
