"""Routes that sum among the workers, all alike but for their forests."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from configs.checks import require
from route import links
from route.choosing import GOODPUT
from route.route import LATENCY_S, Allreduce, Forests
from topology import Cluster

if TYPE_CHECKING:
  from topology import Forest


@dataclasses.dataclass(frozen=True)
class AllreduceRoute:
  """A route that knows how to find a forest.

  Attributes:
    name: As config.route.name.
    links: As the field `cluster`: see `links.believed`.
    forest: Finds the forest.
    fits: Raises ValueError if there is no such forest over these links.
    adapt: As of `Allreduce`.
  """

  name: str
  links: str
  forest: Forests
  fits: Callable[[Cluster], None] = lambda cluster: None
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
    """Returns the plan: see `Route`.

    Raises:
      ValueError: If the links that it believes in are not of these workers.
    """
    del divisible
    believed = links.believed(self.links, num_workers)
    known = believed or cluster
    if known is not None:
      self.fits(known)
    forest = Real(self.forest) if distributed else self.forest
    expected = 'False under the virtual clock, whose links do not change'
    require(distributed or not self.adapt, 'adapt', expected, self.adapt)
    return Allreduce(
      self.name, believed, forest, bucket_bytes, overlap, self.adapt
    )


@dataclasses.dataclass(frozen=True)
class Real:
  """Finds forests over real links, which carry headers as well."""

  forest: Forests

  def __call__(
    self,
    cluster: Cluster,
    size_bytes: int,
    latency_s: float | Mapping[tuple[str, str], float] = LATENCY_S,
  ) -> 'Forest':
    """Returns what is the fastest for so many bytes beside the headers."""
    return self.forest(cluster, round(size_bytes / GOODPUT), latency_s)
