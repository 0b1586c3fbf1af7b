"""Packs the fastest collectives of a cluster, as forests.

The data is divided among trees with different roots, weighted so that all
links together carry as much as the slowest cut allows (Zhang et al.,
"Near-Optimal Topology-adaptive Parameter Synchronization in Distributed DNN
Training", INFOCOM 2021; ForestColl, Zhao et al., arXiv 2402.06787, 2024).
"""

import dataclasses
import math
import numbers
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from topology.algorithms import stopping
from topology.bounds import allgather, cuts, prices
from topology.clusters.cluster import Cluster
from topology.forests import verify
from topology.forests.trees import (
  COLLECTIVES,
  Certificate,
  Forest,
  fit_forest,
  reverse_forest,
)
from topology.packing import approximate, exact, thinning

_GB = 10**9
# Workers times links up to which the exact way is as quick as the other, and up
# to which it takes less than a minute or so, as far as was seen: switches have
# to be split off, and links that differ in direction make two variables.
_GATHER, _GATHER_MESH = (2**14, 2**18), (2**18, 2**20)
_REDUCE = 2**14, 2**18
_REDUCE_ONE_WAY, _REDUCE_ONE_WAY_MESH = (2**12, 2**13), (2**12, 2**15)
# Shares of the time limit: the exact way, and the search, after which weights
# are made whole and the forest is checked; and at most for all together.
_EXACT_SHARE, _SEARCH_SHARE, _BOUND_SHARE = 0.5, 0.75, 0.3
_MOST, _MORE_S = 1.15, 0.35


def pack(
  cluster: Cluster,
  *,
  collective: str = 'allreduce',
  gap: float = 0.0,
  max_trees: int | None = None,
  time_limit_s: float | None = None,
  overlap: bool = True,
  progress: Callable[[str], None] | None = None,
) -> Forest:
  """Returns a forest with a proven bound, which has been checked.

  There are two methods.  The exact one reaches the bound: in a second or so for
  64 workers on the usual networks, in half a minute for 256, but in hours for
  more or for many links (`packing.exact`, which can be called itself).  The
  other comes within a few percent in seconds, for up to 1,024 workers, and
  nearer in minutes (`packing.approximate`).  The number of workers and links
  decides: the exact one is used where it takes at most a minute or so.

  The same cluster gives the same forest in every process, to the last bit,
  unless a time limit ends the search: then let one process pack and send its
  forest to the others (`forests.export`).

  Args:
    cluster: Workers, switches and links.
    collective: 'allreduce': each worker has all data, and gets the sum.
      'allgather': each has 1 / N of the data, and gets all. 'reduce_scatter':
      each has all, and gets the sum of 1 / N of it.
    gap: Packing ends once 1 - rate / bound is at most this.  0 asks for the
      exact method, which is also tried if the other misses the gap; large
      clusters get as near as some hundreds of trees can.
    max_trees: Largest number of trees; in an allgather or reduce-scatter at
      least one for each worker.  The rate is the best that this number allows.
    time_limit_s: Seconds after which packing ends with the best forest so far,
      and its bound.  It ends within 1.2 times as much and half a second; if
      that is too short for any forest, with an error: an allgather of 1,024
      workers has a million hops, and takes more than 10 seconds.  Clusters of
      more than 200,000 links may take a second or so longer.
    overlap: Whether an allreduce sums up and sends down at the same time.  If
      not, one phase follows the other, packed by the exact method.
    progress: Function that is called with a short description of progress.

  Returns:
    The forest: no trees and no rate for a single worker.

  Raises:
    ValueError: If an argument is out of its range.
    TimeoutError: If the time limit is too short for any forest.
  """
  times = _Times(time.monotonic(), time_limit_s)
  _check(cluster, collective, gap, max_trees, time_limit_s, overlap)
  if len(cluster.workers) == 1:
    return Forest(collective, (), None, None, None)
  # A reduce-scatter is an allgather run backwards.
  turn = collective == 'reduce_scatter'
  packer = _Packer(
    'allgather' if turn else collective, gap, max_trees, overlap, progress
  )
  try:
    forest = packer.run(cluster.reversed() if turn else cluster, times)
    forest = reverse_forest(forest, times.is_over) if turn else forest
    verify.check(cluster, forest, stop=times.is_over)
  except stopping.Stopped:
    raise TimeoutError(
      f'time_limit_s: expected enough for a forest of {len(cluster.workers)} '
      f'workers and {len(cluster.links)} links, got {time_limit_s}.'
    ) from None
  return forest


class _Times(NamedTuple):
  """Start of packing, and its time limit if there is one."""

  start_s: float
  limit_s: float | None

  def is_exact_over(self) -> bool:
    """Returns whether the time of the exact method is over."""
    return self._after(_EXACT_SHARE, 0)

  def is_search_over(self) -> bool:
    """Returns whether the remaining time is needed to finish a forest."""
    return self._after(_SEARCH_SHARE, 0)

  def is_over(self) -> bool:
    """Returns whether all time is over."""
    return self._after(_MOST, _MORE_S)

  def make_bound_stop(self) -> stopping.Stop:
    """Returns the `stop` of a search for a bound that begins now."""
    if self.limit_s is None:
      return stopping.never
    now_s = time.monotonic()
    left_s = self.start_s + _SEARCH_SHARE * self.limit_s - now_s
    part = _Times(now_s, max(left_s, 0.0) * _BOUND_SHARE)
    return lambda: part._after(1, 0)

  def _after(self, share: float, more_s: float) -> bool:
    if self.limit_s is None:
      return False
    return time.monotonic() - self.start_s >= share * self.limit_s + more_s


@dataclasses.dataclass(frozen=True)
class _Packer:
  """Settings of a request for an allreduce or an allgather."""

  collective: str
  gap: float
  max_trees: int | None
  overlap: bool
  progress: Callable[[str], None] | None

  def run(self, cluster: Cluster, times: _Times) -> Forest:
    """Returns the forest: an exact one if requested and possible in time."""
    stopping.check(times.is_over)
    size = len(cluster.workers) * len(cluster.links)
    small, large = self._limits(cluster)
    stopping.check(times.is_over)
    best = None
    if not self.overlap or size <= (small if self.gap else large):
      best = self._exact(cluster, times.is_exact_over)
    if best and self._few_enough(best):
      return best
    found = self._approximate(cluster, times, best)
    if best and self.max_trees is not None:
      few = self.max_trees
      columns = approximate.heaviest(cluster, best, few, times.is_search_over)
      rival = fit_forest(cluster, columns, best, stop=times.is_over)
      found = max(found, rival, key=lambda forest: forest.rate_Bps or 0)
    if self.gap and found.gap > self.gap and not best and size <= large:
      # The exact way may reach a rate that the search does not.
      best = self._exact(cluster, times.is_search_over)
      if best and self._few_enough(best):
        return best
    return found

  def _few_enough(self, forest: Forest) -> bool:
    return self.max_trees is None or len(forest.trees) <= self.max_trees

  def _limits(self, cluster: Cluster) -> tuple[int, int]:
    """Returns workers x links up to which the exact way is quick, or usable."""
    if self.collective == 'allgather':
      return _GATHER if cluster.switches else _GATHER_MESH
    if cluster.symmetric:
      return _REDUCE
    return _REDUCE_ONE_WAY if cluster.switches else _REDUCE_ONE_WAY_MESH

  def _exact(self, cluster: Cluster, stop: stopping.Stop) -> Forest | None:
    self._notify('packing exactly')
    try:
      if self.collective == 'allreduce':
        forest = exact.allreduce(cluster, stop, overlap=self.overlap)
      else:
        forest = exact.allgather(cluster, stop)
    except stopping.Stopped:
      self._notify('not exact in time')
      return None
    if not self.overlap:
      return forest
    self._notify('exact: looking for fewer and shallower trees')
    try:
      return thinning.thin(cluster, forest, stop)
    except stopping.Stopped:
      return forest

  def _approximate(
    self, cluster: Cluster, times: _Times, known: Forest | None
  ) -> Forest:
    """Returns grown trees; `known` is of the same cluster, but has too many."""
    wanted: dict[str, Any] = {'gap': self.gap, 'max_trees': self.max_trees}
    wanted |= {
      'stop': times.is_search_over,
      'end': times.is_over,
      'report': self._report,
    }
    proof: Certificate
    if self.collective == 'allreduce':
      columns, proof = approximate.allreduce(cluster, **wanted)
      bound = prices.prove_rate(cluster, proof, times.is_over)
    else:
      proof = _cut(cluster, times, known)
      columns = approximate.allgather(cluster, proof, **wanted)
      bound = len(cluster.workers) / cuts.prove_time(
        cluster, proof, times.is_over
      )
    known = known or Forest(self.collective, (), None, bound * _GB, proof)
    return fit_forest(cluster, columns, known, stop=times.is_over)

  def _report(self, count: int, rate: float, bound: float) -> None:
    self._notify(
      f'{count} trees: {rate:.4g} of {bound:.4g} GB/s, '
      f'gap {100 * (1 - rate / bound):.2g} %'
    )

  def _notify(self, text: str) -> None:
    if self.progress is not None:
      self.progress(text)


def _cut(cluster: Cluster, times: _Times, known: Forest | None) -> cuts.Cut:
  if known and isinstance(known.certificate, cuts.Cut):
    return known.certificate
  try:
    return allgather.optimum(cluster, times.make_bound_stop()).cut
  except stopping.Stopped:
    return allgather.around_workers(cluster)


def _check(
  cluster: Cluster,
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
  if not isinstance(gap, numbers.Real) or not 0 <= gap < 1:
    raise ValueError(f'gap: expected at least 0 and below 1, got {gap!r}.')
  least = 1 if collective == 'allreduce' else len(cluster.workers)
  few = least if max_trees is None else max_trees
  if not isinstance(few, int) or few < least:
    raise ValueError(
      f'max_trees: expected an integer of at least {least} for this '
      f'{collective}, got {max_trees!r}.'
    )
  seconds = 0 if time_limit_s is None else time_limit_s
  if not isinstance(seconds, numbers.Real) or not 0 <= seconds < math.inf:
    raise ValueError(
      f'time_limit_s: expected 0 or more, finite, got {time_limit_s!r}.'
    )
  if not overlap and collective != 'allreduce':
    raise ValueError(f'overlap: expected True for {collective}, got False.')
  if not overlap and (gap or max_trees or time_limit_s is not None):
    raise ValueError(
      'overlap: expected True with a gap, max_trees or time_limit_s, got False.'
    )
