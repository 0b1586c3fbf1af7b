"""How a process takes part in the tests of tools.probe."""

import socket

from cluster.network.messages import HostDescription, ProbeMember
from cluster.network.streams import Security
from cluster.probing import transfers, trials
from tools.probing import lockstep


def follow(
  leader: str,
  endpoint: transfers.Endpoint,
  rank: int,
  *,
  address: str,
  security: Security,
  timeout_s: float,
  start_s: float,
) -> str:
  """Takes part in the tests.

  Args:
    leader: HOST:PORT where it listens.
    endpoint: Of this process.
    rank: Of this process.
    address: Of the endpoint, IPv4.
    security: Of the stream to the leader.
    timeout_s: Silence of a process after which it counts as lost.
    start_s: Until all have to be there.

  Returns:
    Why they have ended too early; '' if they have not.

  Raises:
    TransportError: If the leader is lost, or does not know the token.
  """
  hostname = socket.gethostname()
  hello = ProbeMember(
    rank=rank,
    name=f'host{rank} ({hostname})',
    host=HostDescription(
      hostname=hostname, address=address, card='', port=endpoint.port
    ),
  )
  return lockstep.follow(
    leader,
    hello,
    lambda order: trials.carry_out(order, endpoint),
    security=security,
    timeout_s=timeout_s,
    start_s=start_s,
  )
