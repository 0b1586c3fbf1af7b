"""Measures the links between the hosts of a run: a cluster graph as JSON.

  python -m tools.launch --workers=4 --module=tools.probe -- --out=cluster.json
    [--seconds=0.5] [--limit_s=30] [--streams=1] [--tolerance=0.1]
    [--config.cluster.FIELD=...]
  srun --ntasks-per-node=1 python -m tools.probe --workdir=runs/probe
    --config.cluster.workers=4 --config.cluster.interface=eth0

Every host runs one process.  It finds its rank and worker 0 as main.py does
(see cluster/process/roles.py), with --workdir through the files of that
folder, and takes interface, token, TLS and limits from the same config.  Worker
0 writes the file, which `topology.from_json` reads;
topology/clusters/measured.py derives rates and graph from the measurements.

Rates are in 1e9 bytes per second, decimals of 3 significant digits.  Beside the
graph the file has `hosts`, `groups` of them, `pairs` that are slower than both
their ends and the links of groups between them, `latency_s`, `shortfalls`,
`measurements` and `command`.

  pairs   one host to another, alone; with more than 8 hosts together with other
          pairs, no two with a host in common.  Before it, half a round trip
  up      one host to all others; with more than 8 hosts, to those of its star,
          while the other stars do the same: hosts that this does not fill are
          tested with more others
  down    others to one host, in the same way
  again   slow pairs, if there are few
  both    pairs without a host in common, both ways, all at once; at most 8 such
          rounds with more than 8 hosts
  all     all hosts to all others
  group   some hosts to all others, or all others to them, one to one
  near    half of all hosts to those that they reach best

A test counts --seconds, or up to 4 times that if rates are not stable before;
less if the tests of pairs would take more than .45 of --limit_s.  It starts
half as long before; from `again` on it counts 3 times that, but such windows
are not longer than .3 s or --seconds.  H hosts need at
most H (H - 1) + 3 H tests, or 2 H + 22 if there are more than 8.  If these
tests suggest shared links, further ones follow: `all` shows which hosts may be
behind one link, `group` tests each such set twice, of at most H - 2 sets, and
`near` runs up to 3 times.  A set is a group if its link carries less, by twice
the tolerance, than all else explains, and `near` is not as slow.  A group is
found if the joint traffic of about half of its hosts exceeds its link.

No test begins after --limit_s, but the first of each host.  Tests that have to
be left out are logged; pairs without one count as fast as their hosts.

A rate is the best of all tests.  A pair that is slower than that in `both`, by
twice the tolerance, and shares no link of a group, is listed in `shortfalls`,
which the graph cannot express: a host or a link cannot do both at once, pairs
share a link, or TCP's acknowledgements wait behind data, as they do if up and
down differ.

Tests use TCP with one connection for each pair, or --streams, as collectives
do, for which the graph is made; with TLS if the config names a certificate.
"""

import dataclasses
import functools
import json
import os
import pathlib
import shlex
import statistics
import sys
import threading
from collections.abc import Mapping
from typing import Any

from absl import app, flags

from cluster.membership import rendezvous_files
from cluster.network import credentials, sockets
from cluster.network import streams as transport
from cluster.network.loop_streams import LoopListener
from cluster.probing import file_format, transfers, trials
from cluster.process import roles
from cluster.process.exits import Unmendable
from configs import config_file, paths, sections
from configs.checks import require
from outputs import atomic, transient
from tools.calibrating import tables
from tools.probing import lockstep, member

_SHORTFALLS = """
Hosts or links that cannot do both at once, links that pairs share, TCP's
acknowledgements that wait behind data, or too few --seconds: the graph knows
nothing of it."""
_RATES = ('Mbit/s up', 'GB/s', 'Mbit/s down', 'GB/s')
_SHOWN = 10  # Worst shortfalls in the table.
_CONFIG = pathlib.Path(__file__).resolve().parents[1] / 'configs/default.py'


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


def probe(setup: Setup) -> str:
  """Runs one process of a probe; rank 0 also writes the file and the tables.

  Returns:
    Reason of the leader for an early end, in any rank but 0; else ''.

  Raises:
    Failure: If another process fails or is lost, in rank 0.
    TransportError: If the leader is lost.
    OSError: If listening on an address or writing the file fails.
  """
  number = setup.port if setup.rank else sockets.split(setup.leader)[1]
  port = transport.Port(setup.address, number, setup.security)
  with transfers.Endpoint(port, timeout_s=setup.timeout_s) as endpoint:
    part = functools.partial(
      member.follow,
      endpoint=endpoint,
      rank=setup.rank,
      address=setup.address,
      security=setup.security,
      timeout_s=setup.timeout_s,
      start_s=setup.start_s,
    )
    if setup.rank:
      return part(setup.leader)
    leader = lockstep.Leader(
      setup.hosts, timeout_s=setup.timeout_s, start_s=setup.start_s
    )
    with LoopListener(port, leader.handle) as listener:
      own = threading.Thread(target=part, args=[listener.address], daemon=True)
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
  content = _content(setup, found)
  atomic.write(setup.out, json.dumps(content, indent=1) + '\n')
  print(describe(content))
  return ''


def describe(content: Mapping[str, Any]) -> str:
  """Returns the content of a file as tables.

  Args:
    content: Content of the file.
  """
  latency_s = {
    (row['src'], row['dst']): row['s'] for row in content['latency_s']
  }
  rows: list[tuple[str, ...]] = [('', *_RATES, 'latency', 'name')]
  for host in content['hosts']:
    own = [s for pair, s in latency_s.items() if host['id'] in pair]
    rows.append(
      (host['id'], *_ways(host), _us(statistics.median(own)), host['name'])
    )
  parts = [tables.table(rows)]
  if groups := content['groups']:
    rows = [('group', *_RATES, 'hosts')]
    for group in groups:
      rows.append((group['id'], *_ways(group), ' '.join(group['hosts'])))
    parts.append(tables.table(rows))
  if pairs := content['pairs']:
    rows = [('slower than both ends', 'Mbit/s', 'GB/s', 'latency')]
    for row in pairs:
      ends = row['src'], row['dst']
      us = _us(latency_s[ends])
      rows.append((' to '.join(ends), *_both_units(row['GBps']), us))
    parts.append(tables.table(rows))
  else:
    parts.append('No pair is slower than both its ends.')
  if short := sorted(content['shortfalls'], key=lambda row: row['share']):
    rows = [(f'slower in both ({len(short)}, the worst)', 'share')]
    for row in short[:_SHOWN]:
      rows.append((f'{row["src"]} to {row["dst"]}', f'{row["share"]:.0%}'))
    parts.append(f'{tables.table(rows)}\n{_SHORTFALLS}')
  return '\n\n'.join(parts)


def _content(setup: Setup, found: trials.Findings) -> dict[str, Any]:
  """Returns the content of the file."""
  return file_format.content(
    found,
    seconds=setup.seconds,
    streams=setup.streams,
    tolerance=setup.tolerance,
    command=shlex.join([sys.executable, '-m', 'tools.probe', *sys.argv[1:]]),
  )


def _both_units(GBps: str) -> tuple[str, str]:
  return f'{8000 * float(GBps):.4g}', GBps


def _ways(row: Mapping[str, str]) -> tuple[str, ...]:
  return _both_units(row['up_GBps']) + _both_units(row['down_GBps'])


def _us(seconds: float) -> str:
  return f'{1e6 * seconds:.0f} us'


def _setup(values: Any) -> Setup:
  """Returns the setup of this process from flags, config and environment.

  Raises:
    ValueError: If anything is missing or out of its range.
    OSError: If a file cannot be read.
  """
  config = values.config.cluster
  with sections.error_prefix('config.cluster'):
    address = transport.interface_address(config.interface)
  role = roles.find(
    os.environ,
    workers=config.workers,
    dedicated=0,
    role=values.role,
    coordinator=values.coordinator,
    here=address,
  )
  port = roles.listening_port(
    config.port, f'worker {role.index}', workers=config.workers, dedicated=0
  )
  place = rendezvous_files.Place(role.coordinator, config.token_file)
  if values.workdir:
    place = _find_place(
      pathlib.Path(values.workdir), role, place, address, port, config
    )
  folder = 'the folder that all processes share, as there is no --coordinator'
  require(bool(place.coordinator), '--workdir', folder, values.workdir)
  path = values.out or (values.workdir and f'{values.workdir}/cluster.json')
  require(bool(path), '--out', 'a file', path)
  out = pathlib.Path(path)
  there = role.index > 0 or out.parent.is_dir()
  require(there, '--out', 'a file in an existing folder', path)
  return Setup(
    hosts=config.workers,
    rank=role.index,
    leader=place.coordinator,
    address=address,
    port=port,
    security=credentials.security(config, address, place.token_file),
    timeout_s=config.timeout_s,
    start_s=config.start_s,
    seconds=values.seconds,
    limit_s=values.limit_s,
    streams=values.streams,
    tolerance=values.tolerance,
    out=out,
  )


def _find_place(
  folder: pathlib.Path,
  role: roles.Role,
  place: rendezvous_files.Place,
  address: str,
  port: int,
  config: Any,
) -> rendezvous_files.Place:
  """Returns the place of the rendezvous, through files of a shared folder."""
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


def main(argv: list[str]) -> None:
  """Probes as the flags say."""
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  try:
    setup = _setup(flags.FLAGS)
  except (OSError, ValueError) as error:
    transient.leave(error)
  except Unmendable as error:
    sys.exit(f'Failed: {error}')
  try:
    sys.exit(probe(setup) or 0)
  except transfers.Failure:
    # A stream whose other end is lost may hang or abort at a normal end.
    sys.stdout.flush()
    os._exit(1)
  except transport.TransportError as error:
    sys.exit(f'Failed: host0 at {error}')
  except (OSError, ValueError) as error:
    sys.exit(f'Failed: {error}')


def _parse(argv: list[str]) -> list[str]:
  paths.define_path('out', 'JSON file; WORKDIR/cluster.json by default.')
  paths.define_path('workdir', 'Folder of the run.')
  flags.DEFINE_float(
    'seconds', 0.5, 'Seconds of each transfer that are counted.'
  )
  flags.DEFINE_float('limit_s', trials.LIMIT_S, 'Seconds of all tests.')
  flags.DEFINE_integer('streams', 1, 'TCP connections of each transfer.')
  flags.DEFINE_float('tolerance', 0.1, 'Relative error of a rate.')
  flags.DEFINE_string('role', '', 'Role of this process: worker:2.')
  flags.DEFINE_string('coordinator', '', 'HOST:PORT where worker 0 listens.')
  text = 'Config of the run; --config.cluster.FIELD=VALUE changes a field.'
  with sections.reject_unknown_flags(argv):
    config_file.define_flag(str(_CONFIG), text)
    return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
