"""Which links a run has, and which ones a route is told to believe in."""

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
_EQUAL_GBPS = Fraction(1, 8)  # Of each link, where only equality is known.
_UNLIMITED_GBPS = 10**12  # What has no limit, so that capacities are numbers.


class Links(NamedTuple):
  """What the virtual clock knows of links.

  Attributes:
    cluster: The links; its worker i is worker i of the run.
    latency_s: Of each link by its ends, seconds.
  """

  cluster: Cluster
  latency_s: dict[Ends, float]


def believed(spec: str, num_workers: int) -> Cluster | None:
  """Returns the links that a route's field `cluster` says; None for 'probe'.

  Args:
    spec: A file of a cluster, or of a forest with its cluster; the call of a
      builder; 'probe'; or '' for equal links through one switch.
    num_workers: How many workers it is to have.

  Raises:
    ValueError: If there is no such cluster, or it has another number of
      workers.
  """
  if spec == PROBE:
    return None
  return _read('cluster', spec, num_workers) if spec else equal(num_workers)


@functools.cache
def equal(num_workers: int) -> Cluster:
  """Returns workers with equal links through one switch, of nominal rates.

  Always the same one: who believes in it knows no more than that.
  """
  return shapes.star([_EQUAL_GBPS] * num_workers)


def virtual(config: ConfigDict) -> Links:
  """Returns the links of a run under the virtual clock.

  Those of config.cluster.links; if that is '', the hosts' up and down links in
  config.cluster.network, around one switch.  A host adds its latency on all of
  its links.

  Raises:
    ValueError: If a field is wrong; names it.
  """
  workers = config.cluster.workers
  hosts = sections.host_links(config.cluster.network, worker=workers)
  if config.cluster.links:
    cluster = _read('config.cluster.links', config.cluster.links, workers)
  else:
    up, down = (
      [_GBps(each) for each in hosts[link]] for link in ('up_Bps', 'down_Bps')
    )
    cluster = shapes.star(up, down)
  host_s = dict(zip(cluster.workers, hosts['latency_s'], strict=True))
  for worker, each in host_s.items():
    field = 'config.cluster.network.worker_latency_s'
    require(each < math.inf, field, f'finite seconds of {worker}', each)
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


def _read(field: str, spec: str, num_workers: int) -> Cluster:
  try:
    cluster = files.cluster(spec)
  except (OSError, ValueError) as error:
    raise ValueError(
      f'{field}: expected a file of nodes and links, or a builder such as '
      f"'star([1, 1])', got {spec!r}: {error}"
    ) from error
  names = len(cluster.workers)
  expected = f'as many workers as config.cluster.workers, {num_workers}'
  require(names == num_workers, field, expected, names)
  return cluster
