"""A probe of the links between hosts: what each of its processes does.

`tools.probe` describes the tests and the file.
"""

import dataclasses
import functools
import json
import pathlib
import shlex
import socket
import sys
import threading
from typing import Any

from cluster.membership import rendezvous_files
from cluster.network import sockets
from cluster.network import streams as transport
from cluster.network.loop_streams import LoopListener
from cluster.network.messages import HostDescription, ProbeMember
from cluster.probing import file_format, transfers, trials
from cluster.process import roles
from configs.checks import require
from launch import lockstep
from outputs import atomic


@dataclasses.dataclass(frozen=True)
class Setup:
  """Settings of one process of a probe.

  Attributes:
    hosts: Number of hosts.
    rank: Index of this host.
    leader: HOST:PORT where the process of rank 0 listens.
    address: Address of this host, to listen on.
    port: Port to listen on, unless it is that of the leader; 0 for any.
    security: Credentials of the streams to the leader.
    timeout_s: Silence of a process after which it counts as lost, seconds.
    start_s: Seconds within which all processes must have connected.
    seconds: Seconds for which each transfer is counted.
    limit_s: Time limit of all tests, seconds.
    streams: Connections of each transfer.
    tolerance: Relative error of rates.
    out: File for the graph.
  """

  hosts: int
  rank: int
  leader: str
  address: str
  port: int
  security: transport.Security
  timeout_s: float
  start_s: float
  seconds: float
  limit_s: float
  streams: int
  tolerance: float
  out: pathlib.Path

  def __post_init__(self) -> None:
    require(self.hosts > 1, 'config.cluster.workers', 'at least 2', self.hosts)
    for flag in ('seconds', 'limit_s'):
      value = getattr(self, flag)
      finite = 0 < value < float('inf')
      require(finite, f'--{flag}', 'more than 0', value)
    require(self.streams > 0, '--streams', 'at least 1', self.streams)
    valid = 0 <= self.tolerance < 1
    expected = 'at least 0 and less than 1'
    require(valid, '--tolerance', expected, self.tolerance)


def follow(setup: Setup) -> str:
  """Carries out the tests that the leader orders, in any rank but 0.

  Returns:
    Reason of the leader for an early end; '' for a normal end.

  Raises:
    TransportError: If the leader is lost, or refuses the token.
    OSError: If listening on an address fails.
  """
  port = transport.Port(setup.address, setup.port, setup.security)
  with transfers.Endpoint(port, timeout_s=setup.timeout_s) as endpoint:
    return _follow(setup, endpoint, setup.leader)


def lead(setup: Setup) -> dict[str, Any]:
  """Orders the tests, in rank 0; writes the file, and returns its content.

  Raises:
    Failure: If another process fails or is lost.
    OSError: If listening on an address or writing the file fails.
  """
  number = sockets.split(setup.leader)[1]
  port = transport.Port(setup.address, number, setup.security)
  leader = lockstep.Leader(
    setup.hosts, timeout_s=setup.timeout_s, start_s=setup.start_s
  )
  with (
    transfers.Endpoint(port, timeout_s=setup.timeout_s) as endpoint,
    LoopListener(port, leader.handle) as listener,
  ):
    part = functools.partial(_follow, setup, endpoint, listener.address)
    own = threading.Thread(target=part, daemon=True)
    own.start()
    try:
      found = trials.measure(
        leader,
        leader.gather(),
        seconds=setup.seconds,
        limit_s=setup.limit_s,
        streams=setup.streams,
        tolerance=setup.tolerance,
        log=functools.partial(print, flush=True),
      )
    except transfers.Failure as error:
      # Printed first: the others end now, and a lost one delays this one.
      print(f'Failed: {error}', flush=True)
      leader.dismiss(str(error))
      raise
    leader.dismiss('')
    own.join(setup.timeout_s)
  content = file_format.content(
    found,
    seconds=setup.seconds,
    streams=setup.streams,
    tolerance=setup.tolerance,
    command=shlex.join([sys.executable, '-m', 'tools.probe', *sys.argv[1:]]),
  )
  atomic.write(setup.out, json.dumps(content, indent=1) + '\n')
  return content


def _follow(setup: Setup, endpoint: transfers.Endpoint, leader: str) -> str:
  hostname = socket.gethostname()
  host = HostDescription(
    hostname=hostname, address=setup.address, card='', port=endpoint.port
  )
  name = f'host{setup.rank} ({hostname})'
  return lockstep.follow(
    leader,
    ProbeMember(rank=setup.rank, name=name, host=host),
    lambda order: trials.carry_out(order, endpoint),
    security=setup.security,
    timeout_s=setup.timeout_s,
    start_s=setup.start_s,
  )


def find_place(
  folder: pathlib.Path,
  role: roles.Role,
  place: rendezvous_files.Place,
  address: str,
  port: int,
  config: Any,
) -> rendezvous_files.Place:
  """Returns the place of the rendezvous, through files of a shared folder.

  Rank 0 creates the folder and announces the place; others wait for it.

  Args:
    folder: Folder that all hosts share.
    address: Address of rank 0.
    port: Port of rank 0; 0 for any free one.
    config: Settings with `start_s`, the seconds within which rank 0 must come.
  """
  if role.index > 0:
    return rendezvous_files.join(
      folder, place, launch=role.launch, limit_s=config.start_s
    )
  folder.mkdir(parents=True, exist_ok=True)
  return rendezvous_files.host(
    folder,
    place,
    address=address,
    launch=role.launch,
    ports=lambda: port or roles.free_ports(1)[0],
  )
