"""Parameter servers: workers push to all servers and pull from all servers.

Li et al., 'Scaling Distributed Machine Learning with the Parameter Server',
OSDI 2014.  As published, no byte of a pull is sent before the scheme has
released the worker: with N workers under BSP, S bytes, C seconds of computing
and one server of B bytes/s, a superstep costs C + 2NS/B.  Pipelined, servers
sum and serve each part as soon as all workers have pushed it, which costs about
C + NS/B on links that carry both directions at once.  The updates are the same.

With k servers in the first workers, a superstep costs, besides C and in units
of S/B, 2 max(1, (N - 1) / k), or 2 (N - 1) / N if k is N; and (N + k - 2) / k
pipelined.  So a server in each worker is the fastest.  Its links are busy in
both directions during pushes and pulls, so that the bound is the same if it is
pipelined; but no link is idle between the two phases, and no server waits with
its sums for the coordinator.
"""

import dataclasses
from typing import TYPE_CHECKING

from configs import declared
from configs.checks import require
from route.route import ParameterServer

if TYPE_CHECKING:
  from topology import Cluster


@dataclasses.dataclass(frozen=True)
class ServerRoute:
  """The route to parameter servers, whose plan does not depend on links.

  `plan` raises ValueError if real workers cannot have these servers.

  Attributes:
    servers: Number of servers; 0 to choose it by the runtime.
    dedicated: Whether servers are processes of their own, on real hosts.
    pipelined: Whether parts are summed and served one by one.
    mirror_s: Seconds between two mirrors, on real hosts; 0 for none.
  """

  servers: int
  dedicated: bool
  pipelined: bool
  mirror_s: float

  def plan(
    self,
    cluster: 'Cluster | None',
    *,
    num_workers: int,
    distributed: bool,
    divisible: bool,
    bucket_bytes: float | None,
    overlap: bool,
  ) -> ParameterServer:
    del cluster, bucket_bytes, overlap
    servers = self.servers or (num_workers if distributed and divisible else 1)
    if distributed:
      self._check(servers, num_workers)
    return ParameterServer(
      servers, self.dedicated, self.pipelined, self.mirror_s
    )

  def _check(self, servers: int, num_workers: int) -> None:
    has_count = bool(self.servers) or not self.dedicated
    expected = 'at least 1 if they are dedicated'
    require(has_count, 'servers', expected, self.servers)
    most = f'at most config.cluster.workers, {num_workers}, unless dedicated'
    fits = self.dedicated or servers <= num_workers
    require(fits, 'servers', most, servers)


@declared.check_arguments('route.server')
def make(
  *, servers: int, dedicated: bool, pipelined: bool, mirror_s: float
) -> ServerRoute:
  """Returns the route `server`.

  Args:
    servers: Number of servers, which share the parameters; 0 for one in each
      worker on real hosts if updates can be divided, and one otherwise.
    dedicated: Whether servers are processes of their own, on real hosts.
    pipelined: Whether parts are summed and served one by one.
    mirror_s: Seconds between two mirrors of the servers' states, which other
      processes of real runs hold in memory; 0 for none.

  Raises:
    ValueError: If `servers` or `mirror_s` is negative or not finite.
  """
  return ServerRoute(servers, dedicated, pipelined, mirror_s)
