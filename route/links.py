"""Links of a run: those of the virtual clock, and those of a route."""

import functools
import math
from fractions import Fraction
from typing import NamedTuple

from ml_collections import ConfigDict

from configs import sections
from configs.checks import require
from topology import Cluster
from topology.clusters import shapes
from topology.clusters.cluster import Ends
from topology.forests import files

PROBE = 'probe'
_EQUAL_GBPS = Fraction(1, 8)  # Nominal capacity of equal links.
_UNLIMITED_GBPS = 10**12  # Capacity that stands for an infinite one.


class Links(NamedTuple):
  """Links of the virtual clock, with latencies.

  Attributes:
    cluster: Links; worker i of the cluster is worker i of the run.
    latency_s: Latency of each link by its ends, seconds.
  """

  cluster: Cluster
  latency_s: dict[Ends, float]


def read_cluster(spec: str, num_workers: int) -> Cluster | None:
  """Returns the cluster that a route's field `cluster` gives; None for 'probe'.

  Args:
    spec: Path of a file of a cluster, or of a forest with its cluster; call of
      a builder; 'probe'; or '' for equal links through one switch.
    num_workers: Number of workers that the cluster must have.

  Raises:
    ValueError: If `spec` gives no cluster, or one with another number of
      workers.
  """
  if spec == PROBE:
    return None
  return (
    _read_spec('cluster', spec, num_workers)
    if spec
    else make_equal(num_workers)
  )


@functools.cache
def make_equal(num_workers: int) -> Cluster:
  """Returns workers with equal links through one switch, of nominal capacity.

  Always returns the same object, so that callers can recognise by identity that
  capacities are not known.
  """
  return shapes.star([_EQUAL_GBPS] * num_workers)


def read_virtual(config: ConfigDict) -> Links:
  """Returns the links of a run under the virtual clock.

  They are those of config.cluster.links; if that is '', the hosts' up and down
  links in config.cluster.network, around one switch.  A host adds its latency
  to all of its links.

  Raises:
    ValueError: If a field is invalid; names it.
  """
  workers = config.cluster.workers
  hosts = sections.host_links(config.cluster.network, worker=workers)
  if config.cluster.links:
    cluster = _read_spec('config.cluster.links', config.cluster.links, workers)
  else:
    up, down = (
      [_GBps(each) for each in hosts[link]] for link in ('up_Bps', 'down_Bps')
    )
    cluster = shapes.star(up, down)
  host_s = dict(zip(cluster.workers, hosts['latency_s'], strict=True))
  return Links(
    cluster,
    {
      (src, dst): host_s.get(src, 0.0) + host_s.get(dst, 0.0)
      for src, dst, _ in cluster.links
    },
  )


def _GBps(Bps: float) -> Fraction:
  if Bps == math.inf:
    return Fraction(_UNLIMITED_GBPS)
  return Fraction(str(Bps)) / 10**9


def _read_spec(field: str, spec: str, num_workers: int) -> Cluster:
  try:
    cluster = files.read_cluster(spec)
  except (OSError, ValueError) as error:
    raise ValueError(
      f'{field}: expected a file of nodes and links, or a builder such as '
      f"'star([1, 1])', got {spec!r}: {error}"
    ) from error
  count = len(cluster.workers)
  expected = f'as many workers as config.cluster.workers, {num_workers}'
  require(count == num_workers, field, expected, count)
  return cluster
