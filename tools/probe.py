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

import os
import pathlib
import statistics
import sys
from collections.abc import Mapping
from typing import Any

from absl import app, flags

from analysis import printing
from cluster.membership import rendezvous_files
from cluster.network import credentials
from cluster.network import streams as transport
from cluster.probing import transfers, trials
from cluster.process import roles
from cluster.process.exits import Unmendable
from configs import config_file, paths, sections
from configs.checks import require
from launch import probe
from outputs import transient

_SHORTFALLS = """
Hosts or links that cannot do both at once, links that pairs share, TCP's
acknowledgements that wait behind data, or too few --seconds: the graph knows
nothing of it."""
_RATES = ('Mbit/s up', 'GB/s', 'Mbit/s down', 'GB/s')
_SHOWN = 10  # Worst shortfalls in the table.
_CONFIG = pathlib.Path(__file__).resolve().parents[1] / 'configs/default.py'


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
    if setup.rank:
      sys.exit(probe.follow(setup) or 0)
    print(describe(probe.lead(setup)))
  except transfers.Failure:
    # A stream whose other end is lost may hang or abort at a normal end.
    sys.stdout.flush()
    os._exit(1)
  except transport.TransportError as error:
    sys.exit(f'Failed: host0 at {error}')
  except (OSError, ValueError) as error:
    sys.exit(f'Failed: {error}')


def describe(content: Mapping[str, Any]) -> str:
  """Returns the content of a probe's file as tables.

  Of the shortfalls the 10 worst.
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
  parts = [printing.text(rows, align='r')]
  if groups := content['groups']:
    rows = [('group', *_RATES, 'hosts')]
    for group in groups:
      rows.append((group['id'], *_ways(group), ' '.join(group['hosts'])))
    parts.append(printing.text(rows, align='r'))
  if pairs := content['pairs']:
    rows = [('slower than both ends', 'Mbit/s', 'GB/s', 'latency')]
    for row in pairs:
      ends = row['src'], row['dst']
      us = _us(latency_s[ends])
      rows.append((' to '.join(ends), *_both_units(row['GBps']), us))
    parts.append(printing.text(rows, align='r'))
  else:
    parts.append('No pair is slower than both its ends.')
  if short := sorted(content['shortfalls'], key=lambda row: row['share']):
    rows = [(f'slower in both ({len(short)}, the worst)', 'share')]
    for row in short[:_SHOWN]:
      rows.append((f'{row["src"]} to {row["dst"]}', f'{row["share"]:.0%}'))
    parts.append(f'{printing.text(rows, align="r")}\n{_SHORTFALLS}')
  return '\n\n'.join(parts)


def _both_units(GBps: str) -> tuple[str, str]:
  return f'{8000 * float(GBps):.4g}', GBps


def _ways(row: Mapping[str, str]) -> tuple[str, ...]:
  return _both_units(row['up_GBps']) + _both_units(row['down_GBps'])


def _us(seconds: float) -> str:
  return f'{1e6 * seconds:.0f} us'


def _setup(values: Any) -> probe.Setup:
  """Returns the setup of this process from flags, config and environment."""
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
    place = probe.find_place(
      pathlib.Path(values.workdir), role, place, address, port, config
    )
  folder = 'the folder that all processes share, as there is no --coordinator'
  require(bool(place.coordinator), '--workdir', folder, values.workdir)
  path = values.out or (values.workdir and f'{values.workdir}/cluster.json')
  require(bool(path), '--out', 'a file', path)
  out = pathlib.Path(path)
  there = role.index > 0 or out.parent.is_dir()
  require(there, '--out', 'a file in an existing folder', path)
  return probe.Setup(
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


def _parse(argv: list[str]) -> list[str]:
  paths.define_path('out', 'JSON file; WORKDIR/cluster.json by default.')
  paths.define_path(
    'workdir', 'Folder that all processes share; needed without --coordinator.'
  )
  flags.DEFINE_float(
    'seconds', 0.5, 'Seconds of each transfer that are counted.'
  )
  flags.DEFINE_float(
    'limit_s', trials.LIMIT_S, 'Seconds of all tests together.'
  )
  flags.DEFINE_integer(
    'streams', 1, 'Number of TCP connections of each transfer.'
  )
  flags.DEFINE_float('tolerance', 0.1, 'Relative error of rates, 0 to 1.')
  flags.DEFINE_string(
    'role',
    '',
    'Role of this process, such as worker:2; by default as the environment '
    'says.',
  )
  flags.DEFINE_string(
    'coordinator',
    '',
    'HOST:PORT where worker 0 listens; by default as the environment or the '
    'folder says.',
  )
  text = 'Config of the run; --config.cluster.FIELD=VALUE changes a field.'
  with sections.reject_unknown_flags(argv):
    config_file.define_flag(str(_CONFIG), text)
    return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
