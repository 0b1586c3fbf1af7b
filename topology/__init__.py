"""Packs the fastest collectives of a cluster, as forests with proofs.

Six packages; each imports only those above it in this list:

  algorithms  flows, exact linear programs and trees in integer graphs
  clusters    workers, switches and links: built, read or measured
  bounds      how fast a collective can be at best, with certificates
  forests     weighted trees of hops: checked, timed, exported
  packing     finds forests: exactly, or grown hop by hop and weighted
  baselines   rings, hierarchies, servers and other schemes as forests

All packages need only Python and NumPy, no sockets and no JAX.  Equal arguments
give equal results, bit by bit, in every process.
"""

from topology.bounds.allgather import bound as allgather_bound
from topology.clusters.cluster import Cluster, Link, from_json
from topology.forests.trees import Forest, Tree
from topology.forests.verify import check
from topology.packing.pack import pack

__all__ = [
  'Cluster',
  'Forest',
  'Link',
  'Tree',
  'allgather_bound',
  'check',
  'from_json',
  'pack',
]
