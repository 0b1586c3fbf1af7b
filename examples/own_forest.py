"""The fastest allreduce of a custom cluster, with a proof.

  python -m examples.own_forest [--out=forest.json] [--cluster=FILE.json]

The cluster is a dictionary of nodes and links: two boxes of three workers, each
with a switch, and one slow cable between them; or FILE, in the same form.
Packs a forest, checks it from scratch, and prints its rate, the bound that no
forest can exceed, the rate of the best ring, the links that limit the forest,
and every tree with its root and its share of the data.  Takes about a second.
"""

import json
import pathlib
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from absl import app, flags

import topology
from topology.baselines import schemes
from topology.forests import export


def _both_ways(a: str, b: str, rate: str) -> list[dict[str, str]]:
  return [
    {'src': a, 'dst': b, 'GBps': rate},
    {'src': b, 'dst': a, 'GBps': rate},
  ]


CLUSTER = {
  'nodes': [
    *({'id': f'w{number}', 'worker': True} for number in range(6)),
    {'id': 'left', 'worker': False},
    {'id': 'right', 'worker': False},
  ],
  'links': [
    *_both_ways('w0', 'left', '10'),
    *_both_ways('w1', 'left', '10'),
    *_both_ways('w2', 'left', '20/3'),  # An old card; rates may be fractions.
    *_both_ways('w3', 'right', '10'),
    *_both_ways('w4', 'right', '10'),
    *_both_ways('w5', 'right', '10'),
    *_both_ways('left', 'right', '4'),
    # Two cards that need no switch.
    *_both_ways('w0', 'w1', '25'),
  ],
}


def show(data: Mapping[str, Any], out: str | None = None) -> None:
  """Packs, checks and prints the forest of a cluster.

  Args:
    data: Nodes and links.
    out: File for the forest, as JSON; None for none.
  """
  cluster = topology.from_json(data)
  packed = topology.pack(cluster)
  topology.check(cluster, packed)  # Recomputes rate and proof.
  ring = schemes.best_ring(cluster, packed)
  print(f'rate    {_GBps(packed.rate_Bps)}')
  print(f'bound   {_GBps(packed.bound_Bps)}')
  print(f'gap     {float(packed.gap):.2%}')
  print(f'ring    {_GBps(ring.rate_Bps)}')
  loads = packed.loads_Bps
  full = [
    f'{src} to {dst}'
    for src, dst, GBps in cluster.links
    if loads.get((src, dst), 0) == GBps * 10**9
  ]
  print(f'full    {", ".join(full)}')
  for tree in packed.trees:
    hops = ', '.join('-'.join(hop) for hop in tree.up)
    print(f'{float(tree.share):6.1%} to {tree.root}: {hops}')
  if out:
    text = json.dumps(export.to_json(cluster, packed), indent=2)
    pathlib.Path(out).write_text(f'{text}\n')


def _GBps(rate: Fraction) -> str:
  return f'{float(rate) / 1e9:.3f} GB/s ({rate / 10**9})'


def main(argv: list[str]) -> None:
  """Shows the forest of the cluster that the flags name."""
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  data = CLUSTER
  if flags.FLAGS.cluster:
    data = json.loads(pathlib.Path(flags.FLAGS.cluster).read_text())
  show(data, flags.FLAGS.out)


if __name__ == '__main__':
  flags.DEFINE_string('out', None, 'File for the forest, as JSON.')
  flags.DEFINE_string('cluster', None, 'File with nodes and links, as JSON.')
  app.run(main)
