"""Calibrates the links of allreduce runs.

The ratios of the links are those that the run measured or read from a file.  If
the run assumed equal links, the ratios follow from the traffic of each host.
One factor scales all rates: the one with which simulated iterations, with the
recorded compute times and forest, take the measured time in the mean.
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

from analysis import printing, traffic
from analysis.traffic import Link, MembershipEpoch
from cluster.speed import layers
from cluster.virtual.allreduce import Sums
from configs.checks import require
from configs.sections import has_fragments
from route import ring
from route.links import Links, make_equal
from route.route import LATENCY_S
from route.selection import Latency
from topology import Forest
from topology.baselines.transfer import transfer_forest
from topology.clusters import cluster as clusters
from topology.clusters import shapes
from topology.clusters.cluster import Cluster
from tuning.calibrating import placement
from tuning.calibrating.timeline import Timeline

SHARED = ()  # Any allreduce route predicts any other.
_LEAST = 8  # Fewest iterations.
_MOST = 64  # Most iterations whose times are compared.
_RANGE = 1e4  # Range of the factor.
_EXACT = 1.0005  # Ratio of the bounds at which the search for it ends.
_SAME = 0.8  # Share of a rate above which another counts as the same.


class AllreduceLinks(NamedTuple):
  """Measured links of an allreduce run.

  Attributes:
    size_bytes: Bytes of the summed vector.
    cluster: Content of a file of links; None for rates of hosts, up and down.
    up_Bps: Send rate of each host, bytes per second; () if there is a cluster.
    down_Bps: Receive rate of each host, bytes per second; () with a cluster.
    bound: True if links ever limited an iteration.
    iteration_s: Mean seconds of the iterations that were compared.
    fitted_s: Predicted mean seconds of these iterations.
    used: Number of these iterations.
  """

  size_bytes: int
  cluster: dict[str, Any] | None
  up_Bps: Sequence[float]
  down_Bps: Sequence[float]
  bound: bool
  iteration_s: float
  fitted_s: float
  used: int

  @property
  def server_work(self) -> None:
    """None, as an allreduce has no servers."""
    return None


def measure(
  recorded: Timeline,
  config: ConfigDict,
  run: Mapping[str, Any],
  times: Sequence[Sequence[float]],
) -> AllreduceLinks:
  """Returns the links of a run, and sets them in a config.

  Args:
    config: Config of the run under the virtual clock, which is changed.
    run: Not used.
    times: Not used.

  Raises:
    ValueError: If the run has no rows on links, or too few iterations of all
      workers, or if its iterations sum fragments.
  """
  del run, times
  path, workers = recorded.run.path, config.cluster.workers
  field, expected = 'config.route.fragments', '1, without overlap or blend'
  require(not has_fragments(config), field, expected, config.route.fragments)
  epoch = traffic.longest_epoch(recorded.run, workers)
  planned = epoch.plan
  size_bytes = planned.size_bytes if planned else _size(recorded, workers)
  shape = _shape(epoch, workers)
  model = _Model(shape, epoch, config, size_bytes)
  compute_s, took_s = _iterations(recorded, workers)
  require(len(took_s) >= _LEAST, f'{path}', f'{_LEAST} iterations', len(took_s))
  middle = slice(*_middle(len(took_s)))
  measured_s = float(np.mean(took_s[middle]))
  factor, bound = _factor(model, compute_s[middle], measured_s)
  cluster = model.scale(factor)
  result = AllreduceLinks(
    size_bytes=size_bytes,
    cluster=None,
    up_Bps=(),
    down_Bps=(),
    bound=bound,
    iteration_s=measured_s,
    fitted_s=model.mean_s(factor, compute_s[middle]),
    used=len(took_s[middle]),
  )
  if planned and planned.has_rates:
    return result._replace(cluster=_content(cluster))
  up, down = _hosts(cluster)
  config.cluster.network.worker_up_Bps = placement.round_values(up)
  config.cluster.network.worker_down_Bps = placement.round_values(down)
  return result._replace(up_Bps=up, down_Bps=down)


def describe(
  found: AllreduceLinks, config: ConfigDict, times: Sequence[Sequence[float]]
) -> str:
  """Returns a table of the measurements, and warnings on missing ones.

  Args:
    found: Result of `measure`.
    config: Not used.
    times: Seconds that each worker computed, by iteration.
  """
  del config
  off = found.fitted_s / found.iteration_s - 1
  lines = [
    f'Workers sum {found.size_bytes / 1e6:.4g} MB.  {found.used} iterations '
    f'took {found.iteration_s:.4g} s in the mean,\nand take {off:+.1%} with '
    'these links.'
  ]
  if found.cluster:
    rows: list[tuple[str, ...]] = [('from', 'to', 'MB/s')]
    rows += [
      (row['src'], row['dst'], f'{1e3 * float(row["GBps"]):.3g}')
      for row in found.cluster['links']
    ]
    means = [
      (f'worker {worker}', '', f'{statistics.fmean(own):.4g}')
      for worker, own in enumerate(times)
    ]
    lines.append(printing.text(rows, align='r'))
    lines.append(printing.text([('', '', 'compute s'), *means], align='r'))
  else:
    head = ('host', 'up MB/s', 'down MB/s', 'compute s')
    rows = [
      (f'worker {worker}', *map(_MBps, rates), f'{statistics.fmean(own):.4g}')
      for worker, (own, *rates) in enumerate(
        zip(times, found.up_Bps, found.down_Bps, strict=True)
      )
    ]
    lines.append(printing.text([head, *rows], align='r'))
  if not found.bound:
    lines.append(
      'WARNING: links never limited an iteration: they may be faster, and '
      'routes that\nuse them more may be faster than predicted.'
    )
  return '\n'.join(lines)


class _Model:
  """Iterations over the recorded forest under the virtual clock.

  Args:
    shape: Links with rates up to a common factor.
    epoch: Membership epoch of all workers.
  """

  def __init__(
    self,
    shape: Cluster,
    epoch: MembershipEpoch,
    config: ConfigDict,
    size_bytes: int,
  ):
    self._shape, self._planned = shape, epoch.plan
    many = config.route.bucket_bytes
    even = layers.in_proportion(layers.equal_sizes(size_bytes, many))
    self._ranges = layers.buckets(even, many, 0)
    (self._host_s,) = config.cluster.network.worker_latency_s
    self._overlap = config.route.overlap and epoch.plan is not None

  def scale(self, factor: float) -> Cluster:
    """Returns the links with rates multiplied by a factor."""
    links = [
      link._replace(GBps=link.GBps * Fraction(factor).limit_denominator(10**9))
      for link in self._shape.links
    ]
    return clusters.from_json(_content(self._shape, links))

  def mean_s(self, factor: float, compute_s: np.ndarray) -> float:
    """Returns the mean seconds of iterations, all rates times a factor."""
    cluster = self.scale(factor)
    rank = cluster.rank
    latency_s = {
      ends: self._host_s * sum(end in rank for end in ends)
      for ends in cluster.capacity_Bps
    }
    sums = Sums(
      Links(cluster, latency_s),
      assumed=None,
      forest=self._forest,
      stages=[[self._ranges]],
      overlap=self._overlap,
      range_s=0.0,
    )
    starts = dict.fromkeys(range(compute_s.shape[1]), 0.0)
    return statistics.fmean(
      sums.ends(starts, dict(enumerate(row)), 0) for row in compute_s.tolist()
    )

  def _forest(
    self, cluster: Cluster, size_bytes: int, latency_s: Latency = LATENCY_S
  ) -> Forest:
    """Returns the recorded forest, or XLA's ring, over links."""
    if self._planned is None:
      return ring.build_in_order(cluster, size_bytes, latency_s)
    names = {
      node: cluster.workers[worker]
      for node, worker in self._planned.names.items()
    }
    return transfer_forest(self._planned.forest, cluster, names)


def _factor(
  model: _Model, compute_s: np.ndarray, wanted_s: float
) -> tuple[float, bool]:
  """Returns the fitted factor, and True if links limited iterations."""
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


def _shape(epoch: MembershipEpoch, workers: int) -> Cluster:
  """Returns links with rates up to a common factor."""
  planned = epoch.plan
  if planned and planned.has_rates:
    return planned.cluster
  links = epoch.sum_links()
  if not any(link.Bps for link in links.values()):
    return make_equal(workers)
  up, down = hosts_of(links, workers)
  return shapes.star([_GBps(each) for each in up], [_GBps(x) for x in down])


def hosts_of(
  links: Mapping[traffic.Ends, Link], workers: int
) -> tuple[list[float], list[float]]:
  """Returns the send and receive rates of hosts, bytes per second, by traffic.

  Simultaneous transfers of a host share its link: its rate is the sum of their
  bytes over the longest time.  Both rates of a host are taken to be equal,
  unless it has sent at a lower rate and no receiver was a limit.  A host
  without traffic gets the highest rate of the others.

  Args:
    links: Traffic of the links between hosts.
    workers: Number of workers, one on each host.
  """
  out, into = ([0.0] * workers for _ in range(2))
  slow: dict[int, int] = {}  # Receiver of the longest transfer of a host.
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
  unknown = max(both)  # Rate of a host without traffic.
  return [x or unknown for x in up], [x or unknown for x in both]


def _iterations(
  recorded: Timeline, workers: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns compute times, s, [iterations, workers], and durations, s."""
  # Only iterations of all workers count, without the first.
  events = recorded.run.events
  ends = sorted({*events['time'][events['event'] == 'push'].tolist()})
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
  """Returns the first iteration to compare, and the one after the last."""
  first = max(count - _MOST, 0) // 2
  return first, min(first + _MOST, count)


def _size(recorded: Timeline, workers: int) -> int:
  """Returns the bytes of the summed vector, from all bytes on hops."""
  updates, hops = recorded.summary['updates'], 2 * (workers - 1)
  require(
    updates > 0 < hops, f'{recorded.run.path}', 'sums of several', updates
  )
  size_bytes: int = round(recorded.summary['bytes'] / (updates * hops))
  return size_bytes


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
