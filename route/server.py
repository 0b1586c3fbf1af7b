"""Parameter servers: workers push to all of them, and pull from all of them.

Li et al., 'Scaling Distributed Machine Learning with the Parameter Server',
OSDI 2014.  As published, no byte of a pull is sent before the scheme has
released the worker: with N workers under BSP, S bytes, C seconds of computing
and one server of B bytes/s, a superstep costs C + 2NS/B.  Pipelined, servers
sum and serve each part as soon as all workers have pushed it, which costs about
C + NS/B on links that carry both directions at once.  The updates are the same.
"""

import dataclasses
from typing import TYPE_CHECKING

from configs.checks import require
from route.route import Served

if TYPE_CHECKING:
  from topology import Cluster


@dataclasses.dataclass(frozen=True)
class ServerRoute:
  """The route to servers; the attributes are those of Served."""

  servers: int
  dedicated: bool
  pipelined: bool

  def plan(self, cluster: 'Cluster | None') -> Served:
    """Returns the same servers, whatever the links."""
    del cluster
    return Served(self.servers, self.dedicated, self.pipelined)


def make(*, servers: int, dedicated: bool, pipelined: bool) -> ServerRoute:
  """Returns the route.

  Args:
    servers: How many share the parameters.
    dedicated: Whether they are processes of their own, on real hosts.
    pipelined: Whether parts are summed and served one by one.

  Raises:
    ValueError: If there is no server.
  """
  require(servers >= 1, 'servers', 'at least 1', servers)
  return ServerRoute(servers, dedicated, pipelined)
