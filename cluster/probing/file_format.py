"""File format of measured links: a cluster, with the measurements behind it."""

import statistics
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from cluster.probing.trials import Findings
from topology.clusters import cluster as clusters
from topology.clusters import measured


def content(
  found: Findings,
  *,
  seconds: float,
  streams: int,
  tolerance: float,
  command: str,
) -> dict[str, Any]:
  """Returns the content of a file, plain JSON.

  `topology.clusters.cluster.from_json` reads the graph of it.  Beside the graph
  it has `hosts`, `groups` of them, `pairs` that are slower than both their ends
  and the links of groups between them, `latency_s`, `shortfalls`,
  `measurements` and `command`.

  Args:
    found: Results of all tests.
    seconds: Length of the window in which each transfer was counted.
    streams: Number of connections of each transfer.
    tolerance: Relative error of rates.
    command: Command line that has measured.
  """
  rates = measured.fit(
    [rates for _, rates in found.tests],
    hosts=len(found.hosts),
    tolerance=tolerance,
    groups=found.groups,
  )
  shortfalls: dict[measured.Ends, Any] = {}
  for test, each in found.tests:
    if test.kind == 'both':
      short = measured.find_shortfalls(each, rates, tolerance=2 * tolerance)
      shortfalls |= short
  graph = clusters.to_json(measured.build_cluster(rates))
  # Decimals are as exact, and easier to read, than fractions.
  graph['links'] = [
    link | {'GBps': _decimal(Fraction(link['GBps']))} for link in graph['links']
  ]
  latency_s = {
    pair: min(s, found.latency_s[pair[::-1]])
    for pair, s in found.latency_s.items()
  }
  return {
    **graph,
    'hosts': [
      {
        'id': f'host{rank}',
        'name': host['hostname'],
        'address': host['address'],
        'up_GBps': _decimal(rates.up_GBps[rank]),
        'down_GBps': _decimal(rates.down_GBps[rank]),
      }
      for rank, host in enumerate(found.hosts)
    ],
    'groups': [
      {
        'id': f'group{number}',
        'hosts': [f'host{host}' for host in group.hosts],
        'up_GBps': _decimal(group.up_GBps),
        'down_GBps': _decimal(group.down_GBps),
      }
      for number, group in enumerate(rates.groups)
    ],
    'pairs': _rows(
      {p: _decimal(r) for p, r in rates.pairs_GBps.items()}, 'GBps'
    ),
    'latency_s': _rows(latency_s, 's'),
    'shortfalls': _rows({p: float(s) for p, s in shortfalls.items()}, 'share'),
    'measurements': {
      'seconds': seconds,
      'streams': streams,
      'tolerance': tolerance,
      'tests': [
        {'kind': test.kind, 'transfers': _rows(each, 'Bps')}
        for test, each in found.tests
      ],
    },
    'command': command,
  }


def host_latency_s(content: Mapping[str, Any]) -> dict[str, float]:
  """Returns each host's part of the latency of its links, seconds.

  The measured latency of a pair is about the sum of the parts of its hosts:
  a host's part is half the median of its pairs.
  """
  own: dict[str, list[float]] = {}
  for row in content['latency_s']:
    for host in (row['src'], row['dst']):
      own.setdefault(host, []).append(row['s'])
  return {host: statistics.median(each) / 2 for host, each in own.items()}


def summary(content: Mapping[str, Any]) -> str:
  """Returns a line about the links of a file, for logs."""
  hosts = content['hosts']
  rates = [
    f'{way} {_span([float(host[f"{way}_GBps"]) * 8000 for host in hosts])}'
    for way in ('up', 'down')
  ]
  pairs = [8000 * float(row['GBps']) for row in content['pairs']]
  slower = f', {len(pairs)} slower pairs {_span(pairs)}' if pairs else ''
  groups = content['groups']
  shared = f', {len(groups)} groups behind shared links' if groups else ''
  latency_s = statistics.median(row['s'] for row in content['latency_s'])
  return (
    f'{len(hosts)} hosts, {", ".join(rates)}{slower}{shared}, latency '
    f'{1e6 * latency_s:.0f} us'
  )


def _span(mbit: Sequence[float]) -> str:
  least, most = f'{min(mbit):.4g}', f'{max(mbit):.4g}'
  return f'{least if least == most else f"{least} to {most}"} Mbit/s'


def _rows(values: Mapping[measured.Ends, Any], name: str) -> list[Any]:
  return [
    {'src': f'host{i}', 'dst': f'host{j}', name: value}
    for (i, j), value in sorted(values.items())
  ]


def _decimal(GBps: Fraction) -> str:
  return f'{Decimal(f"{float(GBps):.3g}"):f}'
