"""Member of a probe: one process in the tests of tools.probe."""

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
  """Carries out the tests that the leader orders.

  Args:
    leader: HOST:PORT where the leader listens.
    endpoint: Sender and receiver of this process.
    rank: Rank of this process.
    address: Address of the endpoint.
    security: Credentials of the stream to the leader.
    timeout_s: Silence of a process after which it counts as lost, seconds.
    start_s: Seconds within which all members must connect.

  Returns:
    Reason of an early end; '' for a normal end.

  Raises:
    TransportError: If the leader is lost, or refuses the token.
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
