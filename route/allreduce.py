"""Routes that sum among the workers, which differ in their forests alone."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from configs.checks import require
from route import links
from route.route import LATENCY_S, Allreduce, ForestBuilder
from route.selection import GOODPUT
from topology import Cluster

if TYPE_CHECKING:
  from topology import Forest


@dataclasses.dataclass(frozen=True)
class AllreduceRoute:
  """A route that sums over forests of one kind.

  Attributes:
    name: Value of config.route.name.
    links: Links, as `links.read_cluster` reads them.
    forest: Function that builds the forest for given links.
    check_links: Function that raises ValueError if there is no such forest.
    adapt: Whether the forest is replaced when real links change.
  """

  name: str
  links: str
  forest: ForestBuilder
  check_links: Callable[[Cluster], None] = lambda cluster: None
  adapt: bool = False

  def plan(
    self,
    cluster: Cluster | None,
    *,
    num_workers: int,
    distributed: bool,
    divisible: bool,
    bucket_bytes: float | None,
    overlap: bool,
  ) -> Allreduce:
    del divisible
    own = links.read_cluster(self.links, num_workers)
    known = own or cluster
    if known is not None:
      self.check_links(known)
    forest = RealLinkBuilder(self.forest) if distributed else self.forest
    expected = 'False under the virtual clock, whose links do not change'
    require(distributed or not self.adapt, 'adapt', expected, self.adapt)
    return Allreduce(self.name, own, forest, bucket_bytes, overlap, self.adapt)


@dataclasses.dataclass(frozen=True)
class RealLinkBuilder:
  """Builder of forests for messages with their headers, which real links carry.

  Attributes:
    forest: Function that builds the forest for given links.
  """

  forest: ForestBuilder

  def __call__(
    self,
    cluster: Cluster,
    size_bytes: int,
    latency_s: float | Mapping[tuple[str, str], float] = LATENCY_S,
  ) -> 'Forest':
    return self.forest(cluster, round(size_bytes / GOODPUT), latency_s)
