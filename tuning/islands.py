"""Groups of hosts as workers: a cluster of islands in place of one of hosts."""

import contextlib
import itertools
import json
import pathlib
import tempfile
from collections.abc import Iterator

from configs import default
from route import links
from topology.baselines.ways import Ways, ways_of
from topology.clusters import cluster as topologies
from topology.clusters import pruned
from tuning.clusters import ClusterDescription

_LATENCY_S = 'worker_latency_s'


@contextlib.contextmanager
def describe(
  description: ClusterDescription,
) -> Iterator[ClusterDescription | None]:
  """Yields the cluster whose workers are the groups of fast links.

  Between islands leaders use the links that they have as hosts.  Inside, a host
  sends to the next one of its group at the rate of the thinnest link on the
  way; the latencies of both hosts add up.

  Args:
    description: Cluster in which each host is a worker.

  Yields:
    The cluster of islands, as long as the context lasts; None if links between
    hosts are not known, or if there are no groups of one size, a power of two,
    that follow each other in the order of the hosts.
  """
  cluster = None
  if description.links:
    cluster = links.read_cluster(description.links, description.workers)
  if cluster is None:
    yield None
    return
  ways = ways_of(cluster)
  groups = ways.groups()
  hosts = len(groups[0])
  in_order = tuple(host for group in groups for host in group)
  is_regular = len({len(group) for group in groups}) == 1
  if (
    len(groups) == 1
    or not is_regular
    or hosts & (hosts - 1)
    or in_order != cluster.workers
  ):
    yield None
    return
  followers = [host for group in groups for host in group[1:]]
  between = pruned.remove(cluster, workers=followers)
  defaults = default.get_config().cluster.network
  latency_s = [*description.network.get(_LATENCY_S, defaults.worker_latency_s)]
  others = {
    field: value
    for field, value in description.network.items()
    if not field.startswith(('worker_', 'server_'))
  }
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, 'islands.json')
    path.write_text(json.dumps(topologies.to_json(between)))
    yield description._replace(
      workers=len(groups),
      hosts_per_worker=hosts,
      links=str(path),
      network={
        **others,
        _LATENCY_S: latency_s[:: hosts if len(latency_s) > 1 else 1],
        'island_Bps': [_rate_Bps(ways, group) for group in groups],
        'island_latency_s': [2 * max(latency_s)],
      },
    )


def _rate_Bps(ways: Ways, group: list[str]) -> float:
  """Returns the rate of a ring through a group, bytes per second."""
  capacity_GBps = {link[:2]: link.GBps for link in ways.cluster.links}
  hops = [
    ways.hop(src, dst)
    for src, dst in zip(group, [*group[1:], group[0]], strict=True)
  ]
  return 1e9 * float(
    min(capacity_GBps[ends] for hop in hops for ends in itertools.pairwise(hop))
  )
