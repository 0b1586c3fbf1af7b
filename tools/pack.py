"""Packs the fastest forest of a cluster, and says how good it is.

  python -m tools.pack FILE|BUILDER [--collective=allreduce] [--out=FILE.json]
    [--gap=0] [--max_trees=N] [--time_limit_s=S] [--baselines] [--dot=FILE.dot]
    [--size=100MB --latency_us=5 --message_us=0]

FILE is a cluster as JSON, BUILDER a call of a function that
topology/clusters/builders.py knows, such as 'dgx_a100(2)'.  Prints a table: the
rate, the bound that no forest can exceed, the trees, what holds them back and,
with --baselines, the rates of other schemes; with --size the time for that many
bytes.
"""

import contextlib
import json
import math
import pathlib
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import app, flags

import topology
from configs.checks import require
from outputs import atomic
from topology.baselines import schemes
from topology.bounds import prices
from topology.clusters.cluster import Cluster
from topology.forests import dot, export, files, timing, trees, usage
from topology.forests.trees import Forest

_UNITS = {'B': 1, 'kB': 10**3, 'MB': 10**6, 'GB': 10**9}
_UNITS |= {'KiB': 2**10, 'MiB': 2**20, 'GiB': 2**30}
_NAMED = 6  # Links and nodes of the bottleneck, at most.
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
    _check_folder('dot', given.dot)
    cluster = files.read_cluster(argv[1])
    with _progress() as progress:
      start_s = time.perf_counter()
      packed = topology.pack(
        cluster,
        collective=given.collective,
        gap=given.gap,
        max_trees=given.max_trees,
        time_limit_s=given.time_limit_s,
        progress=progress,
      )
      seconds = time.perf_counter() - start_s
      rows: list[tuple[str, ...]] = [*summary(cluster, packed, seconds)]
      if size is not None:
        delays_s = given.latency_us / 1e6, given.message_us / 1e6
        rows += timed(cluster, packed, size, *delays_s)
      if given.baselines and packed.trees:
        progress('baselines')
        rows += compared(packed, schemes.build_all(cluster, packed))
    print(_table(rows))
    _write(cluster, packed, given.out, given.dot)
  except (OSError, ValueError) as error:
    sys.exit(f'Refused: {error}')
  except KeyboardInterrupt:
    sys.exit(130)


def size_bytes(text: str) -> int:
  """Returns a number of bytes such as '100MB', '1.5 GiB' or '4096'.

  Raises:
    ValueError: If it is none, or less than one byte.
  """
  match = re.fullmatch(r'(\d+(?:\.\d+)?) ?([a-zA-Z]*)', text)
  unit = _UNITS.get(match[2] or 'B', 0) if match else 0
  size = round(float(match[1]) * unit) if match else 0
  expected = f'bytes, with one of {", ".join(_UNITS)}'
  require(size >= 1, 'size', expected, text)
  return size


def summary(
  cluster: Cluster, packed: Forest, seconds: float
) -> list[tuple[str, str]]:
  """Returns rows of a name and a value: the cluster, the forest, its bound.

  Args:
    cluster: The cluster.
    packed: Its forest.
    seconds: Seconds of packing.
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
    ('packed in', f'{seconds:.3g} s'),
    ('bottleneck', bottleneck(cluster, packed)),
  ]


def bottleneck(cluster: Cluster, packed: Forest) -> str:
  """Returns the bottleneck of a forest by the names of its links."""
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
  side = f'all workers but {_listed(far)}'
  if len(near) <= len(far):
    side = _listed(near)
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
    cluster: Cluster of the forest.
    packed: The forest.
    size: Bytes of the whole.
    latency_s: Seconds of every link.
    message_s: Seconds for which each chunk holds the links of a hop, besides
      its bytes.
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
  """Returns rows of each baseline's name and rate, and of the speed-up over it.

  Args:
    packed: Forest that is compared with the baselines.
    others: Forests of the baselines, by name.
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
  """Yields a function that shows a text on stderr, in the place of the last.

  If stderr is no terminal, the function prints lines, at most one per second.
  """
  terminal, told_s = sys.stderr.isatty(), -math.inf

  def tell(text: str) -> None:
    nonlocal told_s
    now_s = time.monotonic()
    if terminal:
      print(f'{_ERASE}{text}', end='', file=sys.stderr, flush=True)
    elif now_s - told_s >= _EVERY_S:
      print(text, file=sys.stderr, flush=True)
      told_s = now_s

  try:
    yield tell
  finally:
    if terminal:
      print(_ERASE, end='', file=sys.stderr, flush=True)


def _size(text: str | None, latency_us: float, message_us: float) -> int | None:
  """Returns the bytes to time, or None without --size."""
  if text is not None:
    return size_bytes(text)
  for flag, value in (('latency_us', latency_us), ('message_us', message_us)):
    require(not value, flag, 'none without --size', value)
  return None


def _write(
  cluster: Cluster, packed: Forest, out: str | None, drawn: str | None
) -> None:
  """Writes the requested files, and prints their paths and the next steps."""
  if drawn is not None:
    text = dot.to_dot(cluster, packed)
    atomic.write(drawn, text)
    print(f'\nGraph: {drawn} (dot -Tsvg -O {drawn})')
  if out is None:
    print('\n--out=FILE.json keeps the forest.')
    return
  text = json.dumps(export.to_json(cluster, packed))
  atomic.write(out, text + '\n')
  print(f'\nForest: {out}\nPicture: python -m tools.show_forest {out}')


def _check_folder(flag: str, path: str | None) -> None:
  """Raises ValueError unless the folder of a file exists; None passes."""
  if path is not None:
    there = pathlib.Path(path).parent.is_dir()
    require(there, flag, 'a file in a folder that exists', path)


def _GBps(Bps: Any) -> str:
  return f'{float(Bps) / 1e9:.4g}'


def _ends(links: Sequence[tuple[str, str]]) -> str:
  return _listed([f'{src} to {dst}' for src, dst in links])


def _listed(names: Sequence[str]) -> str:
  more = len(names) - _NAMED
  rest = f' and {more} more' if more > 0 else ''
  return ', '.join(names[:_NAMED]) + rest


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
    'collective', 'allreduce', trees.COLLECTIVES, 'What to pack.'
  )
  flags.DEFINE_float('gap', 0.0, 'How far below the bound is good enough.')
  flags.DEFINE_integer('max_trees', None, 'Trees, at most.')
  flags.DEFINE_float('time_limit_s', None, 'Seconds, for the best until then.')
  flags.DEFINE_string('out', None, 'File for the forest as JSON.')
  flags.DEFINE_string('dot', None, 'File for the graph in the DOT language.')
  flags.DEFINE_bool('baselines', False, 'Whether to compare other schemes.')
  flags.DEFINE_string('size', None, 'Bytes to time, such as 100MB.')
  flags.DEFINE_float('latency_us', 0.0, 'Microseconds of every link.')
  flags.DEFINE_float('message_us', 0.0, 'Microseconds for each chunk and hop.')
  app.run(main)
