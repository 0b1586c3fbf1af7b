"""What a route is: where the bytes of a run travel, as data.

A route is made by `make(...)` of the module that config.route.name names.  It
is asked once, before anything starts, and answers with a plan that the runtimes
carry out.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:  # Workers start without it.
  from topology import Cluster, Forest

LATENCY_S = 1e-4  # Of a link, if nobody has said anything about it.


class ParameterServer(NamedTuple):
  """To parameter servers and back.

  Attributes:
    servers: How many share the parameters.
    dedicated: Whether they are processes of their own, on real hosts.
    pipelined: Whether parts are summed and served one by one, before the
      scheme has released anybody.  Asks for a scheme that releases all workers
      together and for a wire that treats each number by itself.
  """

  servers: int
  dedicated: bool
  pipelined: bool


class Forests(Protocol):
  """Finds the forest to use over given links."""

  def __call__(
    self,
    cluster: 'Cluster',
    size_bytes: int,
    latency_s: 'float | Mapping[tuple[str, str], float]' = LATENCY_S,
  ) -> 'Forest':
    """Returns an allreduce, the same for equal arguments in every process.

    Args:
      cluster: The links, as far as is known; its workers are those that live.
      size_bytes: Of what is summed.
      latency_s: Of every link, or of each by its ends; seconds.

    Raises:
      ValueError: If there is none of this kind over these links.
    """


class Allreduce(NamedTuple):
  """Gradients are summed among the workers, who all hold the parameters.

  Asks for a scheme that releases all workers together.

  Attributes:
    name: The route's, as config.route.name.
    cluster: The links that it believes in; its worker i is worker i of the
      run.  None: to be measured, or the true ones under the virtual clock.
    forest: Finds the forest to use over such links, or over what is left of
      them (`topology.clusters.pruned`).  None: XLA's psum.
    bucket_bytes: Least bytes of a bucket, in float32, which is sent as soon as
      it is full; 0: tensor by tensor, inf: all in one.  None: still to be
      chosen, see `cluster.virtual.tuning`.
    overlap: Whether it is while the others are still computed.
    adapt: Whether links are followed, and forests changed with them.
  """

  name: str
  cluster: 'Cluster | None'
  forest: Forests | None
  bucket_bytes: float | None
  overlap: bool
  adapt: bool = False

  @property
  def chosen_bucket_bytes(self) -> float:
    """`bucket_bytes`, which has been chosen.

    Raises:
      RuntimeError: If it has not.
    """
    if self.bucket_bytes is None:
      raise RuntimeError('Expected a plan with a bucket size, got none.')
    return self.bucket_bytes


Plan = ParameterServer | Allreduce


def unused(plan: Plan) -> tuple[str, ...]:
  """Returns patterns of the config's fields of which a plan makes no use.

  But for links of servers: see `cluster.virtual.site`.
  """
  if isinstance(plan, ParameterServer):
    ranges = 'route.bucket_bytes', 'route.overlap'
    own = 'cluster.links', 'cluster.network.range_s', 'cluster.speed.layers'
    return (*ranges, *own)
  return () if plan.forest else ('route.overlap', 'cluster.speed.layers')


class Route(Protocol):
  """Where does it travel?"""

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
    """Returns what is to be carried out.

    Args:
      cluster: The workers and the links between them; None if these are not
        known, as between real hosts before anybody has measured them.
      num_workers: How many workers there are.
      distributed: Whether they are real hosts.
      divisible: Whether parts of an update can be applied by themselves.
      bucket_bytes: As of `Allreduce`.
      overlap: Likewise.

    Raises:
      ValueError: If the route does not fit the cluster.
    """
