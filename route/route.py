"""What a route is: where the bytes of a run travel, as data.

A route is made by `make(...)` of the module that config.route.name names.  It
is asked once, before anything starts, and answers with a plan that the runtimes
carry out.
"""

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:  # Workers start without it.
  from topology import Cluster


class Served(NamedTuple):
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


class Route(Protocol):
  """Where does it travel?"""

  def plan(
    self,
    cluster: 'Cluster | None',
    *,
    num_workers: int,
    distributed: bool,
    divisible: bool,
  ) -> Served:
    """Returns what is to be carried out.

    Args:
      cluster: The workers and the links between them; None if these are not
        known, as between real hosts before anybody has measured them.
      num_workers: How many workers there are.
      distributed: Whether they are real hosts.
      divisible: Whether parts of an update can be applied by themselves.

    Raises:
      ValueError: If the route does not fit the cluster.
    """
