"""Compares the rates of packed forests with other schemes; times packing.

  python -m bench.forest [--parts=shares,spread,times,trees,chunks]
    [--topologies=FOLDER] [--out=FILE.json] [--picture=FILE.svg]

shares: the rate of an allreduce by every scheme of topology/baselines, as a
share of the proven optimum, per topology: boxes with unequal numbers of GPUs,
and those of FOLDER (or $SYNCOPATE_TOPOLOGIES), which holds JSON files, each
with `topologies` and their known optima; without it, one topology of each kind
that topology/clusters/ can build.  Also written as JSON, and drawn.
spread: the same on links that are more and more unequal, up to 1:100.
times: seconds of packing, with rates, gaps and trees.
trees: the trees of the best forests before and after they are thinned; the
share of the best rate that few trees, and phases one after the other, reach.
chunks: the time of several sizes with latency, in the best chunks.

All parts take about 3 minutes on two cores.
"""

import itertools
import json
import os
import pathlib
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import app, flags
from matplotlib.figure import Figure

import topology
from analysis import printing
from analysis.figures import look
from bench import flag_lists, topologies
from configs import paths
from outputs import atomic
from topology.algorithms import stopping
from topology.baselines import schemes
from topology.clusters import randomized
from topology.clusters.builders import build_cluster
from topology.clusters.cluster import Cluster
from topology.forests import timing, trees
from topology.packing import exact, thinning

_PARTS = ('shares', 'spread', 'times', 'trees', 'chunks')
_BASELINES = {
  'naive_ring': 'naive ring',
  'naive_ring_both_ways': 'naive both ways',
  'best_ring': 'best ring',
  'best_ring_both_ways': 'best both ways',
  'rotated_rings': 'rotated',
  'hierarchical': 'hierarchical',
  'double_binary_tree': 'double tree',
  'single_server': 'server',
  'sharded_server': 'sharded',
  'load_balanced_shards': 'balanced shards',
  'equal_shards': 'equal shards',
}
_EXACT = 64  # Most workers for which the table of speed-ups is exact.
_GAP = 0.01  # Largest gap to the bound for more workers.
_RATIOS = (1, 3, 10, 30, 100)
_SEEDS = (1, 2, 3)
_CLAIM = 18.3
_PEER_S = {'dgx_a100(2)': 9.1, 'mi250(2)': 65.0, 'dgx_a100(4)': 77.0}
_THINNED = 2**17  # Most workers times links of a thinned forest.
_FEW = (8, 16, 32, 64)
_BOXES = 'dgx_a100(2)'
_SIZES_MB = (1, 100, 1000)
_LATENCY_S = 5e-6
_MESSAGE_S = 2e-6


def main(argv: list[str]) -> None:
  """Prints the tables of the chosen parts."""
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  values = flags.FLAGS
  folder = values.topologies or os.environ.get('SYNCOPATE_TOPOLOGIES')
  known = topologies.read(folder) if folder else []
  if 'shares' in values.parts:
    others = known or topologies.built_in()
    records = print_shares([*topologies.unequal_boxes(), *others])
    if values.out:
      text = json.dumps(records, indent=1) + '\n'
      atomic.write(pathlib.Path(values.out), text)
    if values.picture:
      look.save(draw_shares(records), pathlib.Path(values.picture))
  if 'spread' in values.parts:
    print_spread()
  if 'times' in values.parts:
    print_times()
  if 'trees' in values.parts:
    print_thinned(known)
    print_few()
    print_phases()
  if 'chunks' in values.parts:
    print_chunks()


def ratios(cluster: Cluster, best: trees.Forest) -> dict[str, float | None]:
  """Returns the rate of a forest over that of each baseline, by its name.

  The value is None for a hierarchy where all workers are in one group.
  """
  forests = schemes.build_all(cluster, best)
  return {
    name: (
      float(best.rate_Bps / forests[name].rate_Bps) if name in forests else None
    )
    for name in _BASELINES
  }


def print_shares(
  chosen: Sequence[topologies.Topology],
) -> list[dict[str, Any]]:
  """Prints a row per topology: the optimum, and each scheme's share of it.

  Returns:
    A record per topology: `name`, `workers`, `optimum_GBps`, `gap` of the
    packed forest and `shares` by name of the scheme.
  """
  head = 'topology', 'workers', 'optimum', 'packed', 'gap'
  rows = [(*head, *_BASELINES.values())]
  records = []
  equal = below = above = 0
  for name, cluster, optimum in chosen:
    count = len(cluster.workers)
    best = topology.pack(cluster, gap=0 if count <= _EXACT else _GAP)
    rate = best.rate_Bps / 10**9
    if optimum is not None:
      equal += rate == optimum
      below += rate < optimum
      above += rate > optimum
    packed = float(best.rate_Bps / best.bound_Bps)
    shares = {
      key: packed / ratio
      for key, ratio in ratios(cluster, best).items()
      if ratio is not None
    }
    bound = float(best.bound_Bps) / 1e9
    records.append(
      {
        'name': name,
        'workers': count,
        'optimum_GBps': bound,
        'gap': float(best.gap),
        'shares': {'packed': packed, **shares},
      }
    )
    cells = [name, f'{count}', f'{bound:.5g}', f'{packed:.2f}', _gap(best)]
    cells += [_ratio(shares.get(key)) for key in _BASELINES]
    rows.append(tuple(cells))
  print(
    '\nAllreduce: the proven optimum, GB/s, and the share of it that each '
    f'scheme reaches:\n\n{printing.markdown(rows)}\n\n'
    '-: a hierarchy needs several groups of workers.  Above '
    f'{_EXACT} workers the forest, and that of\nequal shards (ForestColl: '
    'reduce-scatter, then allgather), are packed to a gap of '
    f'{_GAP:.0%}.\nBalanced shards are those of hivemind.',
    flush=True,
  )
  if equal + below + above:
    print(
      f'Of {equal + below + above} known optima, rates equal {equal}, as '
      f'fractions, are below {below} and above {above}.',
      flush=True,
    )
  return records


@look.styled
def draw_shares(records: Sequence[Mapping[str, Any]]) -> Figure:
  """Returns a figure of `print_shares`: a cell per topology and scheme."""
  titles = {'packed': 'packed', **_BASELINES}
  values = np.array(
    [[each['shares'].get(key, np.nan) for key in titles] for each in records]
  )
  figure = Figure((look.PAGE, 1.4 + 0.17 * len(records)))
  axes = figure.subplots()
  axes.grid(visible=False)
  axes.imshow(values, cmap='cividis', vmin=0, vmax=1, aspect='auto')
  names = [f'{each["name"]} ({each["workers"]})' for each in records]
  axes.set_yticks(range(len(names)), names)
  axes.set_xticks(range(len(titles)), titles.values(), rotation=35, ha='left')
  axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False)
  for (row, column), value in np.ndenumerate(values):
    text = '-' if np.isnan(value) else f'{value:.2f}'
    color = 'black' if np.isnan(value) or value > 0.55 else 'white'
    axes.text(column, row, text, ha='center', va='center', color=color)
  axes.set_xlabel(
    'Rate of an allreduce over the proven optimum (workers in brackets)',
  )
  return figure


def print_spread(seeds: Sequence[int] = _SEEDS) -> None:
  """Prints a row per network and inequality of its links, mean and range."""
  head = 'network', '1 :', *_BASELINES.values()
  rows = [(*head, 'least', 'least without equal shards')]
  above = []
  for name, spec in topologies.SPREAD.items():
    for ratio in _RATIOS:
      runs = [
        _unequal(spec, ratio, s) for s in seeds[: None if ratio > 1 else 1]
      ]
      ratios_of = {
        title: [run[key] for run in runs if run[key] is not None]
        for key, title in _BASELINES.items()
      }
      mean = {title: statistics.fmean(v) for title, v in ratios_of.items() if v}
      cells = [name, f'{ratio}', *map(_range, ratios_of.values())]
      cells.append(_least(mean))
      mean.pop('equal shards')
      cells.append(_least(mean))
      rows.append(tuple(cells))
      most = {
        title: max(values, default=0) for title, values in ratios_of.items()
      }
      over = [f'{t} {r:.3g}' for t, r in most.items() if r > _CLAIM]
      if over:
        above.append(f'{name}, 1 : {ratio}: {", ".join(over)}')
  print(
    f'\nThe same where capacities are spread over 1 : ratio, mean and range of '
    f'{len(seeds)} seeds, and\nthe baseline of the least mean:\n\n'
    f'{printing.markdown(rows)}\n\nAbove {_CLAIM}, at most:\n'
    + '\n'.join(above)
    + '\n'
    f'{_CLAIM} is the most that the paper reports (INFOCOM 2021) over schemes '
    'and in settings\nthat are not known to us: the two cannot be compared.',
    flush=True,
  )


def print_times() -> None:
  """Prints seconds, rate, gap and trees of each packing as it ends."""
  print(
    '\nSeconds of packing, and of the processor, for the largest gap that '
    "is allowed;\nForestColl's Python was measured beforehand on such a "
    f'machine, not by this command:\n\n{"cluster":52}{"collective":16}'
    f'{"N":>4}{"GB/s":>9}{"allowed":>8}{"gap":>7}{"trees":>7}'
    f'{"s":>8}{"CPU s":>8}{"ForestColl":>12}'
  )
  for specs, gap, collectives in topologies.TIMES:
    for spec, collective in itertools.product(specs, collectives):
      cluster = build_cluster(spec)
      start_s, start_cpu_s = time.perf_counter(), time.process_time()
      best = topology.pack(cluster, collective=collective, gap=gap)
      cpu_s = time.process_time() - start_cpu_s
      took_s = time.perf_counter() - start_s
      peer_s = _PEER_S.get(spec, '') if collective == 'allgather' else ''
      print(
        f'{spec:52}{collective:16}{len(cluster.workers):4}'
        f'{float(best.rate_Bps) / 1e9:9.2f}{gap:8.0%}{_gap(best):>7}'
        f'{len(best.trees):7}{took_s:8.2f}{cpu_s:8.2f}{peer_s:>12}',
        flush=True,
      )


def print_thinned(chosen: Sequence[topologies.Topology] = ()) -> None:
  """Prints trees and depth of exact forests, before and after thinning.

  Includes all clusters of other tables that are packed exactly within seconds.
  """
  clusters = {name: cluster for name, cluster, _ in chosen}
  clusters |= {name: build_cluster(name) for name in topologies.exact_specs()}
  rows = [('allreduce', 'workers', 'trees', 'depth', 's', 'thinning s')]
  for name, cluster in clusters.items():
    if len(cluster.workers) * len(cluster.links) > _THINNED:
      continue
    start_s = time.process_time()
    first = exact.allreduce(cluster)
    took_s = time.process_time() - start_s
    few = thinning.thin(cluster, first, stopping.never)
    more_s = time.process_time() - start_s - took_s
    cells = [f'{len(cluster.workers)}']
    for count in (lambda f: len(f.trees), _deepest):
      before, after = count(first), count(few)
      cells.append(f'{before} to {after}' if before > after else f'{before}')
    rows.append((name, *cells, f'{took_s:.3f}', f'{more_s:.3f}'))
  print(
    '\nTrees of optimal forests, and the most hops to a root, before and after '
    f'they are thinned, at the\nsame rate:\n\n{printing.markdown(rows)}',
    flush=True,
  )


def print_few() -> None:
  """Prints the share of the optimal rate that a few trees reach."""
  few = [('cluster', 'trees', *(f'{most}' for most in _FEW))]
  for spec in topologies.FEW_OF:
    cluster = build_cluster(spec)
    best = topology.pack(cluster)
    forests = [topology.pack(cluster, max_trees=most) for most in _FEW]
    parts = [f'{float(f.rate_Bps / best.rate_Bps):.3f}' for f in forests]
    few.append((spec, f'{len(best.trees)}', *parts))
  print(
    '\nAllreduce: trees of the best forest, and the share of its rate with a '
    f'limited number:\n\n{printing.markdown(few)}',
    flush=True,
  )


def print_phases() -> None:
  """Prints the gain of overlapping reduction and broadcast."""
  rows = [('cluster', 'best shares', 'equal shards')]
  for spec in topologies.PHASES_OF:
    cluster = build_cluster(spec)
    best = topology.pack(cluster)
    phases = topology.pack(cluster, overlap=False)
    shards = schemes.equal_shards(cluster, best)
    cells = [
      f'{float(best.rate_Bps / f.rate_Bps):.3f}' for f in (phases, shards)
    ]
    rows.append((spec, *cells))
  print(
    '\nRate with both ways overlapped over that of one phase after the other:'
    f'\n\n{printing.markdown(rows)}',
    flush=True,
  )


def print_chunks() -> None:
  """Prints the times of several sizes with latency, in the best chunks."""
  cluster = build_cluster(_BOXES)
  best = topology.pack(cluster)
  compared = {
    'forest': best,
    'of 8 trees': topology.pack(cluster, max_trees=8),
    'rotated rings': schemes.rotated_rings(cluster, best),
    'hierarchical': schemes.hierarchical(cluster, best),
    'double tree': schemes.double_binary_tree(cluster, best),
  }
  rows = [('scheme', 'GB/s', *(f'{size} MB' for size in _SIZES_MB))]
  for name, scheme in compared.items():
    cells = [name, f'{float(scheme.rate_Bps) / 1e9:.1f}']
    for size in _SIZES_MB:
      delays = {'latency_s': _LATENCY_S, 'message_s': _MESSAGE_S}
      chunk_bytes, total_s = timing.best_chunk_bytes(
        cluster, scheme, size * 10**6, **delays
      )
      chunks = timing.chunk_counts(scheme, size * 10**6, chunk_bytes)
      rate = size / 1e3 / total_s
      cells.append(f'{1e3 * total_s:.3g} ms, {rate:.3g} ({_span(chunks)})')
    rows.append(tuple(cells))
  print(
    f'\nAllreduce of {_BOXES}: rate without latency; with {_LATENCY_S * 1e6:g} '
    f'us for each link and {_MESSAGE_S * 1e6:g} us for each\nchunk and hop, '
    'milliseconds, GB/s and, in brackets, the best chunks of a tree:\n\n'
    f'{printing.markdown(rows)}',
    flush=True,
  )


def _unequal(spec: str, ratio: int, seed: int) -> dict[str, float | None]:
  cluster = randomized.spread(build_cluster(spec), ratio, seed)
  return ratios(cluster, topology.pack(cluster))


def _deepest(forest: trees.Forest) -> int:
  return max(tree.depth for tree in forest.trees)


def _gap(best: trees.Forest) -> str:
  return f'{float(best.gap):.2%}' if best.gap else '0'


def _ratio(value: float | None) -> str:
  return '-' if value is None else f'{value:.2f}'


def _range(values: Sequence[float]) -> str:
  if not values:
    return '-'
  mean, low, high = (
    f'{value:.3g}'
    for value in (statistics.fmean(values), min(values), max(values))
  )
  return mean if low == high else f'{mean} ({low}-{high})'


def _least(mean: Mapping[str, float]) -> str:
  title = min(mean, key=mean.__getitem__)
  return f'{title} {mean[title]:.2f}'


def _span(counts: Sequence[int]) -> str:
  low, high = min(counts), max(counts)
  return f'{low}' if low == high else f'{low}-{high}'


def _parse(argv: list[str]) -> list[str]:
  flag_lists.define_choices('parts', _PARTS, 'Parts to print.')
  paths.define_path(
    'topologies',
    'Folder of JSON files of topologies; $SYNCOPATE_TOPOLOGIES by default.',
  )
  paths.define_path('out', 'Of shares: JSON file to write.')
  paths.define_path('picture', 'Of shares: picture to write, such as SVG.')
  return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
