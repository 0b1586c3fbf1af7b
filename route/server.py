"""Parameter servers: workers push to all of them, and pull from all of them.

Li et al., 'Scaling Distributed Machine Learning with the Parameter Server',
OSDI 2014.  As published, no byte of a pull is sent before the scheme has
released the worker: with N workers under BSP, S bytes, C seconds of computing
and one server of B bytes/s, a superstep costs C + 2NS/B.  Pipelined, servers
sum and serve each part as soon as all workers have pushed it, which costs about
C + NS/B on links that carry both directions at once.  The updates are the same.

With k servers in the first workers, a superstep costs, beside C and in units of
S/B, 2 max(1, (N - 1) / k), or 2 (N - 1) / N if k is N; and (N + k - 2) / k
pipelined.  So one in each worker is the fastest, and leaves nothing to gain by
pipelining: every link is busy in both directions while all push, and while all
pull.
"""

import dataclasses
from typing import TYPE_CHECKING

from configs.checks import require
from route.route import ParameterServer

if TYPE_CHECKING:
  from topology import Cluster


@dataclasses.dataclass(frozen=True)
class ServerRoute:
  """The route to servers; the attributes are those of ParameterServer."""

  servers: int
  dedicated: bool
  pipelined: bool

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
    """Returns the same servers, whatever the links: see `Route`.

    Raises:
      ValueError: If the servers of real hosts do not fit these workers.
    """
    del cluster, bucket_bytes, overlap
    servers = self.servers or (num_workers if distributed and divisible else 1)
    if distributed:
      self._check(servers, num_workers)
    return ParameterServer(servers, self.dedicated, self.pipelined)

  def _check(self, servers: int, num_workers: int) -> None:
    named = bool(self.servers) or not self.dedicated
    require(named, 'servers', 'at least 1 if they are dedicated', self.servers)
    most = f'at most config.cluster.workers, {num_workers}, unless dedicated'
    fits = self.dedicated or servers <= num_workers
    require(fits, 'servers', most, servers)
    gains = self.dedicated or servers < num_workers or not self.pipelined
    expected = (
      f'False with a server in each of {num_workers} workers, whose links are '
      'busy in both directions without it (fewer servers, or dedicated ones, '
      'gain by it)'
    )
    require(gains, 'pipelined', expected, self.pipelined)


def make(*, servers: int, dedicated: bool, pipelined: bool) -> ServerRoute:
  """Returns the route.

  Args:
    servers: How many share the parameters; 0 for one in each worker on real
      hosts if updates can be divided, and one otherwise.
    dedicated: Whether they are processes of their own, on real hosts.
    pipelined: Whether parts are summed and served one by one.

  Raises:
    ValueError: If there are less than 0 servers.
  """
  require(servers >= 0, 'servers', 'at least 0', servers)
  return ServerRoute(servers, dedicated, pipelined)
