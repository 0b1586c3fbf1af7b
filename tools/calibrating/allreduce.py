"""Links of runs whose workers sum among themselves.

Which of them are slower than others is what the run knew of them: what it had
measured or was told.  If it only took them to be equal, it is what its traffic
says of each host.  How fast they are follows from how long iterations took, by
one factor: that with which iterations of the recorded compute times, over the
recorded forest, take as long in the mean under the virtual clock.
"""

import bisect
import math
import statistics
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from cluster.speed import layers
from cluster.virtual.allreduce import Sums
from configs.checks import require
from route import ring
from route.links import Links, equal
from tools.calibrating import placement, tables
from tools.calibrating.timeline import Timeline
from tools.reading import traffic
from tools.reading.traffic import Generation, Link
from topology.baselines.moved import moved
from topology.clusters import cluster as clusters
from topology.clusters import shapes
from topology.clusters.cluster import Cluster
from topology.forests.dealing import CHUNK_BYTES

SHARED = ()  # Any reduced route predicts any other.
_LEAST = 8  # Iterations.
_MOST = 64  # Of which times are compared.
_RANGE = 1e4  # Of the factor.
_EXACT = 1.0005  # To which it is found.
_SAME = 0.8  # Of a rate, from which on it is about that one.


class Found(NamedTuple):
  """What was measured.

  Attributes:
    size_bytes: Of what is summed.
    cluster: The links, content of a file; None for those of hosts, up and down.
    up_Bps: Of each host, bytes per second; none if there is a cluster.
    down_Bps: The same.
    bound: Whether links ever held an iteration back.
    iteration_s: Mean seconds of the iterations that were compared.
    fitted_s: The same as predicted.
    used: How many they were.
  """

  size_bytes: int
  cluster: dict[str, Any] | None
  up_Bps: Sequence[float]
  down_Bps: Sequence[float]
  bound: bool
  iteration_s: float
  fitted_s: float
  used: int


def measure(
  recorded: Timeline,
  config: ConfigDict,
  run: Mapping[str, Any],
  times: Sequence[Sequence[float]],
) -> Found:
  """Returns the links of a run, and puts them into a config.

  Args:
    recorded: The run's.
    config: Of the run, on the virtual clock; is changed.
    run: Not used.
    times: Not used.

  Raises:
    ValueError: If it has no rows on links, or too few iterations of all
      workers.
  """
  del run, times
  path, workers = recorded.path, config.cluster.workers
  generation = traffic.told(path)
  everyone = [*generation.members] == [*range(workers)]
  require(everyone, f'{path}', 'iterations of all workers', generation.members)
  planned = generation.planned
  size_bytes = planned.size_bytes if planned else _size(recorded, workers)
  shape = _shape(generation, workers)
  model = _Model(shape, generation, config, size_bytes)
  compute_s, took_s = _iterations(recorded, workers)
  require(len(took_s) >= _LEAST, f'{path}', f'{_LEAST} iterations', len(took_s))
  middle = slice(*_middle(len(took_s)))
  wanted_s = float(np.mean(took_s[middle]))
  factor, bound = _factor(model, compute_s[middle], wanted_s)
  scaled = model.scaled(factor)
  found = Found(
    size_bytes=size_bytes,
    cluster=None,
    up_Bps=(),
    down_Bps=(),
    bound=bound,
    iteration_s=wanted_s,
    fitted_s=model.mean_s(factor, compute_s[middle]),
    used=len(took_s[middle]),
  )
  if planned and planned.known:
    return found._replace(cluster=_content(scaled))
  up, down = _hosts(scaled)
  config.cluster.network.worker_up_Bps = placement.rounded(up)
  config.cluster.network.worker_down_Bps = placement.rounded(down)
  return found._replace(up_Bps=up, down_Bps=down)


def describe(
  found: Found, config: ConfigDict, times: Sequence[Sequence[float]]
) -> str:
  """Returns a table of what was measured, and what could not be."""
  del config
  off = found.fitted_s / found.iteration_s - 1
  lines = [
    f'Workers sum {found.size_bytes / 1e6:.4g} MB.  {found.used} iterations '
    f'took {found.iteration_s:.4g} s in the mean,\nand take {off:+.1%} with '
    'these links.'
  ]
  if found.cluster:
    rows = [('from', 'to', 'MB/s')]
    rows += [
      (row['src'], row['dst'], f'{1e3 * float(row["GBps"]):.3g}')
      for row in found.cluster['links']
    ]
    means = [
      (f'worker {worker}', '', f'{statistics.fmean(own):.4g}')
      for worker, own in enumerate(times)
    ]
    lines.append(tables.table(rows))
    lines.append(tables.table([('', '', 'compute s'), *means]))
  else:
    head = ('host', 'up MB/s', 'down MB/s', 'compute s')
    rows = [
      (f'worker {worker}', *map(_MBps, rates), f'{statistics.fmean(own):.4g}')
      for worker, (own, *rates) in enumerate(
        zip(times, found.up_Bps, found.down_Bps, strict=True)
      )
    ]
    lines.append(tables.table([head, *rows]))
  if not found.bound:
    lines.append(
      'WARNING: links never held an iteration back: they may be faster, and '
      'what would\nuse them more may be faster than predicted.'
    )
  return '\n'.join(lines)


class _Model:
  """Iterations over the recorded forest under the virtual clock."""

  def __init__(
    self,
    shape: Cluster,
    generation: Generation,
    config: ConfigDict,
    size_bytes: int,
  ):
    """Knows which links are slower than others.

    Args:
      shape: Rates up to a factor; worker i is the i-th.
      generation: Of all workers.
      config: The run's.
      size_bytes: Of what is summed.
    """
    self._shape, self._planned = shape, generation.planned
    many = config.route.bucket_bytes
    even = layers.in_proportion(layers.even(size_bytes, many))
    self._ranges = layers.buckets(even, many, 0)
    (self._host_s,) = config.cluster.network.worker_latency_s
    self._overlap = config.route.overlap and generation.planned is not None

  def scaled(self, factor: float) -> Cluster:
    """Returns the links, so many times as fast."""
    links = [
      link._replace(GBps=link.GBps * Fraction(factor).limit_denominator(10**9))
      for link in self._shape.links
    ]
    return clusters.from_json(_content(self._shape, links))

  def mean_s(self, factor: float, compute_s: np.ndarray) -> float:
    """Returns the mean seconds of iterations.

    Args:
      factor: Of all rates.
      compute_s: Float [iterations, workers].
    """
    cluster = self.scaled(factor)
    own = cluster.rank
    latency_s = {
      ends: self._host_s * sum(end in own for end in ends)
      for ends in cluster.capacity_Bps
    }
    sums = Sums(
      Links(cluster, latency_s),
      believed=None,
      forest=self._forest,
      stages=[[self._ranges]],
      overlap=self._overlap,
      range_s=0.0,
      chunk_bytes=CHUNK_BYTES,
    )
    began = dict.fromkeys(range(compute_s.shape[1]), 0.0)
    return statistics.fmean(
      sums.ends(began, dict(enumerate(own)), 0) for own in compute_s.tolist()
    )

  def _forest(self, cluster: Cluster, *args: Any) -> Any:
    """Returns the recorded forest, or XLA's ring, over links."""
    if self._planned is None:
      return ring.in_order(cluster, *args)
    names = {
      node: cluster.workers[worker]
      for node, worker in self._planned.names.items()
    }
    return moved(self._planned.forest, cluster, names)


def _factor(
  model: _Model, compute_s: np.ndarray, wanted_s: float
) -> tuple[float, bool]:
  """Returns the factor of rates that fits, and whether they were a limit."""
  least, most = 1 / _RANGE, _RANGE
  if model.mean_s(most, compute_s) >= wanted_s:
    return 1.0, False
  while most / least > _EXACT:
    middle = math.sqrt(least * most)
    if model.mean_s(middle, compute_s) > wanted_s:
      least = middle
    else:
      most = middle
  return most, True


def _shape(generation: Generation, workers: int) -> Cluster:
  """Returns links whose rates are right up to a factor."""
  planned = generation.planned
  if planned and planned.known:
    return planned.cluster
  links = generation.links()
  if not any(link.Bps for link in links.values()):
    return equal(workers)
  up, down = hosts_of(links, workers)
  return shapes.star([_GBps(each) for each in up], [_GBps(x) for x in down])


def hosts_of(
  links: Mapping[traffic.Ends, Link], workers: int
) -> tuple[list[float], list[float]]:
  """Returns what hosts can send and receive, bytes per second, by traffic.

  What a host sends to several at once shares its link: all its bytes over the
  time of the one that took longest.  A host is taken to be as fast both ways,
  unless it has sent less and nobody that it has sent to was a limit.

  Args:
    links: Between them.
    workers: How many there are.
  """
  out, into = ([0.0] * workers for _ in range(2))
  slow: dict[int, int] = {}  # To whom a host has sent for the longest.
  for found, own in ((out, 0), (into, 1)):
    for worker in range(workers):
      mine = {ends: x for ends, x in links.items() if ends[own] == worker}
      busy_s = max((x.busy_s for x in mine.values()), default=0.0)
      if busy_s:
        found[worker] = sum(x.bytes for x in mine.values()) / busy_s
        if own == 0:
          slow[worker] = max(mine, key=lambda ends: mine[ends].busy_s)[1]
  both = [max(pair) for pair in zip(out, into, strict=True)]
  up = list(both)
  for worker, other in slow.items():
    limited = into[other] >= _SAME * both[other]
    limited = limited or out[worker] >= _SAME * both[worker]
    if not limited:
      up[worker] = out[worker]
  unknown = max(both)  # Of a host without any traffic.
  return [x or unknown for x in up], [x or unknown for x in both]


def _iterations(
  recorded: Timeline, workers: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns of iterations of all workers what each computed, and their times.

  Float [iterations, workers] and [iterations], seconds; but for the first.
  """
  ends = sorted({e['time'] for e in recorded.events if e['event'] == 'push'})
  found: list[dict[int, float]] = [{} for _ in ends]
  for spans in recorded.workers:
    for span in spans:
      if span.phase == 'compute':
        # Files have microseconds, as floats.
        at = bisect.bisect_left(ends, span.end - 1e-9)
        if at < len(found):
          found[at][span.worker] = span.end - span.start
  rows = [
    ([own[worker] for worker in range(workers)], ends[k] - ends[k - 1])
    for k, own in enumerate(found)
    if k and len(own) == workers == len(found[k - 1])
  ]
  compute_s, took_s = zip(*rows, strict=True) if rows else ((), ())
  return np.array(compute_s).reshape(-1, workers), np.array(took_s)


def _middle(count: int) -> tuple[int, int]:
  """Returns from which to which iteration times are compared."""
  first = max(count - _MOST, 0) // 2
  return first, min(first + _MOST, count)


def _size(recorded: Timeline, workers: int) -> int:
  """Returns the bytes that are summed, of all that has crossed hops."""
  updates, hops = recorded.summary['updates'], 2 * (workers - 1)
  require(updates > 0 < hops, f'{recorded.path}', 'sums of several', updates)
  return round(recorded.summary['bytes'] / (updates * hops))


def _content(cluster: Cluster, links: Sequence[Any] = ()) -> dict[str, Any]:
  """Returns a cluster as files have it, with rates to six digits."""
  content = clusters.to_json(cluster)
  content['links'] = [
    {'src': src, 'dst': dst, 'GBps': f'{Decimal(f"{float(GBps):.6g}"):f}'}
    for src, dst, GBps in links or cluster.links
  ]
  return content


def _hosts(cluster: Cluster) -> tuple[list[float], list[float]]:
  """Returns the links of a star's hosts, up and down, bytes per second."""
  own = cluster.rank
  up, down = ([0.0] * len(cluster.workers) for _ in range(2))
  for src, dst, GBps in cluster.links:
    if src in own:
      up[own[src]] = float(GBps) * 1e9
    else:
      down[own[dst]] = float(GBps) * 1e9
  return up, down


def _GBps(Bps: float) -> Fraction:
  return Fraction(f'{Bps:.6g}') / 10**9


def _MBps(Bps: float) -> str:
  return f'{Bps / 1e6:.3g}'
