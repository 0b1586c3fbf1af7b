"""Interface of routes: plans of where the bytes of a run travel, as data.

A route is created by `make(...)` of the module that config.route.name names.
Before the run starts, `plan` returns a ParameterServer or an Allreduce, which
the runtimes carry out.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:  # Workers start without it.
  from topology import Cluster, Forest

LATENCY_S = 1e-4  # Assumed latency of a link, seconds.


class ParameterServer(NamedTuple):
  """Plan of pushes to parameter servers, and pulls from them.

  Attributes:
    servers: Number of servers, which share the parameters.
    dedicated: Whether servers are processes of their own, on real hosts.
    pipelined: Whether parts are summed and served one by one, before the
      scheme has released a worker.  Needs a synchronous scheme and an
      elementwise wire.
    mirror_s: Seconds between two mirrors of the servers, on real hosts; 0 for
      none.
  """

  servers: int
  dedicated: bool
  pipelined: bool
  mirror_s: float = 0.0


class ForestBuilder(Protocol):
  """Function that builds the forest of an allreduce for given links."""

  def __call__(
    self,
    cluster: 'Cluster',
    size_bytes: int,
    latency_s: 'float | Mapping[tuple[str, str], float]' = LATENCY_S,
  ) -> 'Forest':
    """Returns a forest, the same for equal arguments in every process.

    Args:
      cluster: Known links, among the living workers.
      size_bytes: Bytes of the message that is summed.
      latency_s: Latency of every link, or of each by its ends, seconds.

    Raises:
      ValueError: If there is no forest of this kind over these links.
    """


class Allreduce(NamedTuple):
  """Plan of sums among the workers, which all hold the parameters.

  Needs a synchronous scheme.

  Attributes:
    name: Name of the route, as in config.route.name.
    cluster: Links that the route assumes; worker i of the cluster is worker i
      of the run.  None: to be measured, or the true ones under the virtual
      clock.
    forest: Builds the forest for these links, or for those of the remaining
      workers (`topology.clusters.pruned`).  None: XLA's psum.
    bucket_bytes: Smallest size of a bucket, in float32, which is sent as soon
      as it is full; 0: tensor by tensor, inf: all in one.  None: still to be
      chosen, see `cluster.virtual.tuning`.
    overlap: Whether a bucket is sent while later gradients are still computed.
    adapt: Whether links are measured during the run, and the forest is replaced
      when they change.
  """

  name: str
  cluster: 'Cluster | None'
  forest: ForestBuilder | None
  bucket_bytes: float | None
  overlap: bool
  adapt: bool = False

  @property
  def chosen_bucket_bytes(self) -> float:
    """`bucket_bytes`, if it has been chosen.

    Raises:
      RuntimeError: If it has not.
    """
    if self.bucket_bytes is None:
      raise RuntimeError('Expected a plan with a bucket size, got none.')
    return self.bucket_bytes


Plan = ParameterServer | Allreduce


def unused(plan: Plan) -> tuple[str, ...]:
  """Returns patterns of the config fields that a plan does not use.

  Links of servers are checked in `cluster.virtual.site`.
  """
  if isinstance(plan, ParameterServer):
    ranges = 'route.bucket_bytes', 'route.overlap', 'route.lanes'
    own = 'cluster.links', 'cluster.network.range_s', 'cluster.speed.layers'
    return (*ranges, *own)
  if plan.forest:
    return ()
  return ('route.overlap', 'route.lanes', 'cluster.speed.layers')


class Route(Protocol):
  """Policy that decides where the bytes of a run travel."""

  def plan(
    self,
    cluster: 'Cluster | None',
    *,
    num_workers: int,
    distributed: bool,
    divisible: bool,
    bucket_bytes: float | None,
    overlap: bool,
  ) -> Plan:
    """Returns the plan, as data.

    Args:
      cluster: The workers and the links between them; None if these are not
        known, as between real hosts before they are measured.
      num_workers: Number of workers.
      distributed: Whether the workers are real hosts.
      divisible: Whether parts of an update can be applied by themselves.
      bucket_bytes: As in `Allreduce`.
      overlap: As in `Allreduce`.

    Raises:
      ValueError: If the route does not fit the cluster.
    """
