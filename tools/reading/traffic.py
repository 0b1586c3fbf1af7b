"""What the links of a reduced run were planned to carry, and did."""

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from configs.checks import require
from tools.reading import records
from topology.clusters.cluster import Cluster
from topology.forests import export
from topology.forests.trees import Forest

Ends = tuple[int, int]  # Workers: who sends, and who receives.
_TOLD = 5  # Links of which a line is written.
_FOREST = ('generation', 'version', 'members', 'forest', 'rates', 'links')
_TRAFFIC = ('since', 'iterations', 'compute_s', 'wait_s', 'push_s', 'rates')
_PLANNED = ('names', 'size_bytes', 'chunk_bytes', 'known', 'hash')
_RATE = ('src', 'dst', 'planned_Bps')


class Link(NamedTuple):
  """From one worker to another.

  Attributes:
    bytes: How many have gone there.
    busy_s: Seconds for which something was on its way.
    planned_Bps: What the forest has it carry, bytes per second; 0 if nothing.
  """

  bytes: int
  busy_s: float
  planned_Bps: float

  @property
  def Bps(self) -> float | None:
    """Bytes per second while something was on its way; None if never."""
    return self.bytes / self.busy_s if self.busy_s else None

  @property
  def ratio(self) -> float | None:
    """What it has carried of what it was planned to; None if not known."""
    known = self.Bps is not None and self.planned_Bps
    return self.Bps / self.planned_Bps if known else None


class Window(NamedTuple):
  """What has happened between two rows.

  Attributes:
    start: Seconds.
    end: Seconds.
    iterations: How many were summed.
    compute_s: Seconds of an iteration, a mean over workers.
    wait_s: The same, for others to have computed.
    push_s: The same, of communication while nobody computed.
    links: By who sends and who receives.
  """

  start: float
  end: float
  iterations: int
  compute_s: float | None
  wait_s: float | None
  push_s: float | None
  links: Mapping[Ends, Link]


class Planned(NamedTuple):
  """Over what workers sum.

  Attributes:
    cluster: The links, as they were believed to be.
    forest: Of them.
    names: Worker by id of the cluster.
    size_bytes: Of what is summed.
    chunk_bytes: Of a chunk, at most.
    known: Whether the rates of links were; if not, only that they are equal.
  """

  cluster: Cluster
  forest: Forest
  names: Mapping[str, int]
  size_bytes: int
  chunk_bytes: int
  known: bool


class Generation(NamedTuple):
  """Workers that sum together.

  Attributes:
    number: Of those of a process that leads; again from 0 after a restart.
    why: It has begun.
    members: Who they are.
    version: That they began with.
    planned: Over what; None if that is not known.
    windows: From its beginning to its end, as far as rows tell.
  """

  number: int
  why: str
  members: Sequence[int]
  version: int
  planned: Planned | None
  windows: Sequence[Window]

  @property
  def iterations(self) -> int:
    """How many were summed, as far as rows tell."""
    return sum(window.iterations for window in self.windows)

  def links(self) -> dict[Ends, Link]:
    """Returns what each link has carried in all windows.

    If only shares of links are planned, not rates, then rates are as if the
    link that is fastest against them were as planned.
    """
    sums: dict[Ends, Link] = {}
    for window in self.windows:
      for ends, link in window.links.items():
        before = sums.get(ends, Link(0, 0.0, 0.0))
        sums[ends] = Link(
          before.bytes + link.bytes,
          before.busy_s + link.busy_s,
          link.planned_Bps,
        )
    if self.planned and not self.planned.known:
      unit = max((link.ratio or 0.0 for link in sums.values()), default=0.0)
      for ends, link in sums.items():
        sums[ends] = link._replace(planned_Bps=link.planned_Bps * unit)
    return sums


def generations(path: pathlib.Path) -> list[Generation]:
  """Returns the generations of a reduced run, in order; none of another run.

  Args:
    path: Folder of the run.

  Raises:
    ValueError: If there is no such run, or a row is broken; names the file.
    OSError: If a file cannot be read.
  """
  records.config(path)
  found: list[Generation] = []
  for row in records.links(path):
    if row['did'] == 'forest':
      found.append(generation(row, path))
    elif row['did'] == 'traffic' and found:
      before = found[-1]
      windows = (*before.windows, _window(row, path))
      found[-1] = before._replace(windows=windows)
  return found


def told(path: pathlib.Path) -> Generation:
  """Returns the generation of a run of which rows tell the most iterations.

  Raises:
    ValueError: If there is none.
    OSError: If a file cannot be read.
  """
  every = generations(path)
  if not every:
    raise ValueError(
      f'{path}/events.jsonl: expected rows on links, as of a run of today '
      'whose workers sum, got none.'
    )
  return max(every, key=lambda each: each.iterations)


def slowest(links: Mapping[Ends, Link], count: int) -> list[tuple[Ends, Link]]:
  """Returns the links that lag their plans the most, the slowest first."""
  known = [each for each in links.items() if each[1].ratio is not None]
  return sorted(known, key=lambda each: each[1].ratio or 0.0)[:count]


def unit(links: Iterable[Link]) -> tuple[str, float]:
  """Returns a unit in which rates are neither long nor small, and its size."""
  most = max((max(x.planned_Bps, x.Bps or 0.0) for x in links), default=0.0)
  return ('GB/s', 1e9) if most >= 1e9 else ('MB/s', 1e6)


def described(generation: Generation) -> str:
  """Returns lines on iterations and on the slowest links."""
  count = generation.iterations
  lines = [
    f'{count} iterations of {len(generation.members)} workers in a generation; '
    'of one, means over workers: '
    + ', '.join(
      f'{name} {_mean(generation, phase):.3g} s'
      for name, phase in (
        ('compute', 'compute_s'),
        ('waiting', 'wait_s'),
        ('exposed communication', 'push_s'),
      )
    )
  ]
  links = generation.links()
  name, size = unit(links.values())
  for (src, dst), link in slowest(links, _TOLD):
    lines.append(
      f'  worker {src} to {dst}: {(link.Bps or 0) / size:.4g} of '
      f'{link.planned_Bps / size:.4g} {name}, {link.ratio:.0%} of plan, '
      f'{link.bytes / 1e6:.4g} MB'
    )
  if not generation.planned:
    lines.append(f'  {generation.why}.')
  return '\n'.join(lines)


def _mean(generation: Generation, phase: str) -> float:
  """Returns seconds of an iteration, over all windows."""
  windows = generation.windows
  parts = (w.iterations * (getattr(w, phase) or 0.0) for w in windows)
  return sum(parts) / max(generation.iterations, 1)


def generation(row: Mapping[str, Any], path: pathlib.Path) -> Generation:
  """Returns what a row of `did` 'forest' tells.

  Args:
    row: Of events.jsonl.
    path: Folder of the run, for messages.

  Raises:
    ValueError: If it is broken; names the file.
  """
  _check(row, _FOREST, path)
  planned = None
  if row['forest'] is not None:
    _check(row, _PLANNED, path)
    same = export.digest(row['forest']) == row['hash']
    require(
      same, f'{path}/events.jsonl: hash', 'that of the forest', row['hash']
    )
    try:
      cluster, forest = export.from_json(row['forest'])
    except ValueError as error:
      raise ValueError(f'{path}/events.jsonl: {error}') from error
    planned = Planned(cluster, forest, *(row[name] for name in _PLANNED[:-1]))
  return Generation(
    row['generation'], row['why'], row['members'], row['version'], planned, ()
  )


def _window(row: Mapping[str, Any], path: pathlib.Path) -> Window:
  _check(row, _TRAFFIC, path)
  links = {}
  for each in row['rates']:
    _check(each, _RATE, path)
    links[each['src'], each['dst']] = Link(
      each.get('bytes', 0), each.get('busy_s', 0.0), each['planned_Bps'] or 0.0
    )
  seconds = (row[name] for name in ('compute_s', 'wait_s', 'push_s'))
  return Window(row['since'], row['time'], row['iterations'], *seconds, links)


def _check(
  row: Mapping[str, Any], fields: Iterable[str], path: pathlib.Path
) -> None:
  for name in fields:
    if name not in row:
      raise ValueError(
        f'{path}/events.jsonl: expected the field {name}, got {str(row)[:80]}.'
      )
