"""Packs the fastest forest of a cluster, prints its rate and bound, draws it.

  python -m tools.pack FILE|BUILDER [--collective=allreduce] [--out=FILE.json]
    [--draw=FILE.png --panels=4] [--keep] [--baselines]
    [--gap=0] [--max_trees=N] [--time_limit_s=S]
    [--size=100MB --latency_us=5 --message_us=0]
    [--nvlink_GBps=25 --pcie_GBps=12 --socket_GBps=10] [--unit_GBps=0.125]
    [--node_GBps=25 --switch_GBps=100 --hosts='n[0-3]']

BUILDER is a call of a function that topology/clusters/builders.py has, such as
'dgx_a100(2)'; boxes with unequal numbers of GPUs are 'dgx_a100([8, 4])',
'dgx_h100([8, 8, 2])' or 'mi250([8, 8])'.  FILE is one of these:

  nodes and links as JSON       (docs/files.md), or a forest
  `nvidia-smi topo -m >FILE`    --nvlink_GBps; without NVLinks --pcie_GBps and
                                --socket_GBps
  NCCL_TOPO_DUMP_FILE (XML)     --socket_GBps where PCIe joins processors;
                                others where the file does not say
  SLURM's topology.conf         --node_GBps, --switch_GBps; --hosts
  a matrix as CSV or .npy       --unit_GBps if it is not in GB/s

The flags are capacities that the file lacks; a missing one is asked for.

Prints a table: the rate, the bound that no forest can exceed, the trees, their
bottleneck and, with --baselines, the rates of other schemes; with --size the
time for that size.  --draw draws the loads of all links, the bottleneck and the
trees with the largest weights.  With --keep the forest of FILE is printed and
drawn as it is, and nothing is packed.
"""

import contextlib
import json
import math
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import app, flags

import topology
from analysis.figures import forest, look
from configs import paths, units
from configs.checks import require
from outputs import atomic
from topology.baselines import schemes
from topology.bounds import prices
from topology.clusters.cluster import Cluster
from topology.forests import export, files, timing, trees, usage
from topology.forests.trees import Forest

# Capacities that files may lack.
_CAPACITIES = {
  'nvlink_GBps': 'GB/s each way of one NVLink.',
  'pcie_GBps': 'GB/s each way of the PCIe link of a GPU or a switch.',
  'socket_GBps': 'GB/s each way between a socket and the others.',
  'node_GBps': "GB/s each way of a host's link, for topology.conf.",
  'switch_GBps': 'GB/s each way between two switches, for topology.conf.',
  'unit_GBps': 'GB/s of a 1 in a matrix: 0.125 for Gbit/s; by default 1.',
}
_MAX_NAMES = 6  # Links and nodes of the bottleneck, at most.
_EVERY_S = 1.0  # Between two progress lines in a file.
_ERASE = '\r\x1b[2K'


def main(argv: list[str]) -> None:
  """Packs the cluster that the command line names; prints and writes."""
  given = flags.FLAGS
  if len(argv) != 2:
    raise app.UsageError(f'Expected a file or a builder, got {argv[1:]}.')
  try:
    size = _size(given.size, given.latency_us, given.message_us)
    _check_folder('out', given.out)
    _check_picture(given.draw)
    require(given.panels >= 0, 'panels', 'at least 0', given.panels)
    with _progress() as progress:
      cluster, packed, seconds = _read_forest(argv[1], progress)
      rows: list[tuple[str, ...]] = [*summary(cluster, packed, seconds)]
      if size is not None:
        delays_s = given.latency_us / 1e6, given.message_us / 1e6
        rows += timed(cluster, packed, size, *delays_s)
      if given.baselines and packed.trees:
        progress('baselines')
        rows += compared(packed, schemes.build_all(cluster, packed))
    print(_table(rows))
    _write(cluster, packed)
  except (OSError, ValueError) as error:
    sys.exit(f'Refused: {error}')
  except KeyboardInterrupt:
    sys.exit(130)


def _read_forest(
  spec: str, progress: Callable[[str], None]
) -> tuple[Cluster, Forest, float | None]:
  """Returns a cluster, its forest, and the seconds of packing; None if read."""
  given = flags.FLAGS
  if given.keep:
    cluster, forest = files.read(spec)
    if forest is None:
      raise ValueError(
        f'keep: expected {spec} to have a forest, got a cluster.'
      )
    return cluster, forest, None
  known = {name: given[name].value for name in _CAPACITIES}
  cluster = files.read_cluster(
    spec,
    {name: value for name, value in known.items() if value is not None},
    given.hosts,
  )
  start_s = time.perf_counter()
  packed = topology.pack(
    cluster,
    collective=given.collective,
    gap=given.gap,
    max_trees=given.max_trees,
    time_limit_s=given.time_limit_s,
    progress=progress,
  )
  return cluster, packed, time.perf_counter() - start_s


def summary(
  cluster: Cluster, packed: Forest, seconds: float | None
) -> list[tuple[str, str]]:
  """Returns rows of a name and a value: the cluster, the forest, its bound.

  Args:
    seconds: Seconds of packing; None if it was packed earlier.
  """
  rows = [
    ('collective', packed.collective),
    ('workers', f'{len(cluster.workers)}'),
    ('switches', f'{len(cluster.switches)}'),
    ('links', f'{len(cluster.links)}'),
  ]
  if packed.rate_Bps is None or packed.bound_Bps is None:
    return [*rows, ('rate', 'none: a single worker has nothing to send')]
  hops = sum(len(tree.up) + len(tree.down) for tree in packed.trees)
  deepest = max(tree.depth for tree in packed.trees)
  exact = 'none: no forest is faster'
  return [
    *rows,
    ('rate', f'{_GBps(packed.rate_Bps)} GB/s'),
    ('bound', f'{_GBps(packed.bound_Bps)} GB/s'),
    ('gap', f'{float(packed.gap):.3%}' if packed.gap else exact),
    ('trees', f'{len(packed.trees)}'),
    ('hops', f'{hops}'),
    ('largest depth', f'{deepest}'),
    *([] if seconds is None else [('packed in', f'{seconds:.3g} s')]),
    ('bottleneck', bottleneck(cluster, packed)),
  ]


def bottleneck(cluster: Cluster, packed: Forest) -> str:
  """Returns a text that names the links which limit a forest, and their weight.

  If a cut proves the forest's bound, they are the links of the cut, with their
  capacity in GB/s and the workers on one side.  If prices prove it, they are
  the links of the highest price, with their part of the bound; or all links, if
  they have one price.  At most 6 links or workers are named, and the number of
  the others.

  Args:
    cluster: Cluster of the forest, whose ids are the names.
    packed: The forest.

  Raises:
    ValueError: If the forest has no certificate, as for a single worker.
  """
  capacity = {(src, dst): GBps for src, dst, GBps in cluster.links}
  if isinstance(packed.certificate, prices.Prices):
    priced = packed.certificate.links
    highest = max(price for _, _, price in priced)
    links = [(src, dst) for src, dst, price in priced if price == highest]
    if len(links) == len(capacity):
      return 'all links, at one price'
    worth = sum(price * capacity[src, dst] for src, dst, price in priced)
    part = highest * sum(capacity[ends] for ends in links) / worth
    return f'{_ends(links)}: the highest price, {float(part):.0%} of the bound'
  if packed.certificate is None:
    raise ValueError('certificate: expected a cut or prices, got None.')
  cut = usage.bottleneck(cluster, packed)
  total = sum(capacity[ends] for ends in cut)
  inside = set(packed.certificate.nodes)
  near = [worker for worker in cluster.workers if worker in inside]
  far = [worker for worker in cluster.workers if worker not in inside]
  side = f'all workers but {_join_names(far)}'
  if len(near) <= len(far):
    side = _join_names(near)
  way = 'into' if packed.collective == 'reduce_scatter' else 'out of'
  return f'{_ends(cut)}: the {float(total):.4g} GB/s {way} {side}'


def timed(
  cluster: Cluster,
  packed: Forest,
  size: int,
  latency_s: float,
  message_s: float,
) -> list[tuple[str, str]]:
  """Returns rows of a forest's predicted time, at its best chunk size.

  Args:
    size: Bytes of the whole vector.
    latency_s: Seconds of every link.
    message_s: Seconds for which each chunk holds the links of a hop, in
      addition to its bytes.
  """
  chunk_bytes, total_s = timing.best_chunk_bytes(
    cluster, packed, size, latency_s=latency_s, message_s=message_s
  )
  name = f'time of {size / 1e6:.6g} MB'
  if packed.rate_Bps is None:
    return [(name, '0 s')]
  chunks = timing.chunk_counts(packed, size, chunk_bytes)
  most = f'{min(chunks)} to {max(chunks)}'
  return [
    (name, f'{total_s:.4g} s'),
    ('effective rate', f'{_GBps(size / total_s)} GB/s'),
    ('without latency', f'{float(size / packed.rate_Bps):.4g} s'),
    ('chunks of a tree', most if min(chunks) < max(chunks) else f'{chunks[0]}'),
  ]


def compared(
  packed: Forest, others: Mapping[str, Forest]
) -> list[tuple[str, ...]]:
  """Returns rows: name and rate of a baseline, and `packed`'s rate over it.

  Args:
    packed: The packed forest.
    others: Baselines by name.
  """
  rows: list[tuple[str, ...]] = [('',), ('baseline', 'GB/s', 'forest/baseline')]
  for name, other in others.items():
    ratio = ''
    if packed.rate_Bps is not None and other.rate_Bps is not None:
      ratio = f'{float(packed.rate_Bps / other.rate_Bps):.2f}'
    rows.append((name, _GBps(other.rate_Bps), ratio))
  return rows


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
  """Yields a function that shows a text on stderr, replacing the last one."""
  # If stderr is no terminal, the function prints lines, at most one per second.
  terminal, printed_s = sys.stderr.isatty(), -math.inf

  def show(text: str) -> None:
    nonlocal printed_s
    now_s = time.monotonic()
    if terminal:
      print(f'{_ERASE}{text}', end='', file=sys.stderr, flush=True)
    elif now_s - printed_s >= _EVERY_S:
      print(text, file=sys.stderr, flush=True)
      printed_s = now_s

  try:
    yield show
  finally:
    if terminal:
      print(_ERASE, end='', file=sys.stderr, flush=True)


def _size(text: str | None, latency_us: float, message_us: float) -> int | None:
  """Returns the bytes to time, or None without --size."""
  if text is not None:
    return units.parse_bytes(text)
  for flag, value in (('latency_us', latency_us), ('message_us', message_us)):
    require(not value, flag, 'none without --size', value)
  return None


def _write(cluster: Cluster, packed: Forest) -> None:
  """Writes the files that flags name, and prints their names."""
  given = flags.FLAGS
  if given.out is None:
    print('\n--out=FILE.json saves the forest.')
  else:
    text = json.dumps(export.to_json(cluster, packed))
    atomic.write(given.out, text + '\n')
    print(f'\nForest: {given.out}')
  if given.draw is not None:
    figure = forest.draw_forest(cluster, packed, trees=given.panels)
    look.save(figure, pathlib.Path(given.draw))
    print(f'Picture: {given.draw}')


def _check_folder(flag: str, path: str | None) -> None:
  """Raises ValueError unless the folder of a file exists; None passes."""
  if path is not None:
    exists = pathlib.Path(path).parent.is_dir()
    require(exists, flag, 'a file in a folder that exists', path)


def _check_picture(path: str | None) -> None:
  """Raises ValueError unless a picture can be written; None passes."""
  _check_folder('draw', path)
  if path is not None:
    suffix = pathlib.Path(path).suffix.removeprefix('.')
    expected = f'a file of one of {look.FORMATS}'
    require(suffix in look.FORMATS, 'draw', expected, path)


def _GBps(Bps: Any) -> str:
  return f'{float(Bps) / 1e9:.4g}'


def _ends(links: Sequence[tuple[str, str]]) -> str:
  return _join_names([f'{src} to {dst}' for src, dst in links])


def _join_names(names: Sequence[str]) -> str:
  more = len(names) - _MAX_NAMES
  rest = f' and {more} more' if more > 0 else ''
  return ', '.join(names[:_MAX_NAMES]) + rest


def _table(rows: Sequence[tuple[str, ...]]) -> str:
  """Returns rows as text, with the first two columns aligned."""
  first = max(len(row[0]) for row in rows)
  second = max((len(row[1]) for row in rows if len(row) == 3), default=0)
  lines = []
  for name, *values in rows:
    if len(values) == 2:
      values = [values[0].rjust(second), values[1]]
    lines.append('  '.join([name.ljust(first), *values]).rstrip())
  return '\n'.join(lines)


if __name__ == '__main__':
  flags.DEFINE_enum(
    'collective', 'allreduce', trees.COLLECTIVES, 'Collective to pack.'
  )
  flags.DEFINE_float('gap', 0.0, 'Largest gap to the bound.')
  flags.DEFINE_integer('max_trees', None, 'Largest number of trees.')
  flags.DEFINE_float(
    'time_limit_s', None, 'Seconds after which the best forest is used.'
  )
  paths.define_path('out', 'File for the forest as JSON.')
  paths.define_path(
    'draw', 'File for a picture of the forest: png, svg or pdf.'
  )
  flags.DEFINE_integer('panels', 4, 'Largest number of panels of single trees.')
  flags.DEFINE_bool(
    'keep', False, 'Use the forest of FILE as it is, without packing.'
  )
  flags.DEFINE_bool('baselines', False, 'Compare other schemes.')
  flags.DEFINE_string('size', None, 'Bytes to time, such as 100MB.')
  flags.DEFINE_float('latency_us', 0.0, 'Microseconds of every link.')
  flags.DEFINE_float('message_us', 0.0, 'Microseconds for each chunk and hop.')
  for _name, _help in _CAPACITIES.items():
    flags.DEFINE_string(_name, None, _help)  # Text is exact: '100/3'.
  flags.DEFINE_string('hosts', '', "Hosts of topology.conf: 'n[0-3,8]'.")
  app.run(main)
