"""What goes over the links of a reduced run, beside what was planned: rows.

A row of `did` 'forest' says over what workers sum from then on; one of
'traffic' what each has sent to each other since the last row, and how an
iteration of that time went.  Both runtimes write them, so that whoever reads
them need not know which it was.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from outputs.recorder import Recorder
from topology import Cluster, Forest
from topology.forests import export, usage

Ends = tuple[int, int]  # Workers: who sends, and who receives.
_PHASES = ('compute', 'wait', 'push')  # Nobody pulls.
_MOST = 1024  # Links of a row.
_HOPS = 20_000  # Of a forest, to be written whole: about a megabyte.


class Sent(NamedTuple):
  """From one worker to another.

  Attributes:
    bytes: How many.
    busy_s: Seconds for which something was on its way.
  """

  bytes: int
  busy_s: float


class Planned(NamedTuple):
  """A forest, and what it was made for.

  Attributes:
    cluster: The links.
    forest: Of them.
    names: Worker by id of the cluster.
    size_bytes: Of what is summed.
    chunk_bytes: Of a chunk, at most.
    known: Whether the rates of links are; if not, only that they are equal.
  """

  cluster: Cluster
  forest: Forest
  names: Mapping[str, int]
  size_bytes: int
  chunk_bytes: int
  known: bool

  @property
  def Bps(self) -> dict[Ends, float]:
    """What each worker is to send to each other, bytes per second."""
    return {
      (self.names[src], self.names[dst]): float(rate)
      for (src, dst), rate in usage.between(self.forest).items()
    }


class Mark(NamedTuple):
  """A moment of a run, and what workers have done until then.

  Attributes:
    time: Seconds.
    iterations: Of workers.
    spent_s: Of workers, by phase.
  """

  time: float
  iterations: int
  spent_s: Mapping[str, float]


class Window(NamedTuple):
  """Since the last row.

  Attributes:
    start: When it began.
    version: That all workers had.
    planned_Bps: Of the links of the forest in use.
  """

  start: Mark
  version: int
  planned_Bps: Mapping[Ends, float]


class Traffic:
  """Writes the rows of a run.

  Attributes:
    window: Since the last one; None before the first.
  """

  def __init__(self, recorder: Recorder):
    """Has written nothing.

    Args:
      recorder: Of the run.
    """
    self.window: Window | None = None
    self._recorder = recorder

  def mark(self, time: float) -> Mark:
    """Returns this moment."""
    accounting = self._recorder.accounting
    spent_s = {phase: accounting.seconds[phase] for phase in _PHASES}
    return Mark(time, accounting.iterations, spent_s)

  def formed(
    self,
    at: Mark,
    *,
    version: int,
    why: str,
    generation: int,
    members: Sequence[int],
    planned: Planned | None,
  ) -> None:
    """Workers sum together from now on.

    Args:
      at: When.
      version: That all have.
      why: They, or over another forest than before.
      generation: Which one of the run.
      members: Who they are.
      planned: Over what; None if that is not known.
    """
    row: dict[str, Any] = {'time': at.time, 'did': 'forest', 'why': why}
    row |= {'generation': generation, 'version': version}
    row |= {'members': [*members], 'forest': None}
    Bps: dict[Ends, float] = {}
    if planned:
      Bps = planned.Bps
      trees = planned.forest.trees
      hops = sum(len(tree.up) + len(tree.down) for tree in trees)
      content = None
      if hops <= _HOPS:
        content = export.to_json(planned.cluster, planned.forest)
      row |= {
        'size_bytes': planned.size_bytes,
        'chunk_bytes': planned.chunk_bytes,
        'known': planned.known,
        'hash': content and export.digest(content),
        'trees': len(trees),
        'names': planned.names,
        'forest': content,
      }
    row |= _of_links(Bps, {})
    self._recorder.record_links(row)
    self.window = Window(at, version, Bps)

  def carried(
    self, at: Mark, *, version: int, why: str, sent: Mapping[Ends, Sent]
  ) -> None:
    """All have come to a version; after `formed`.

    Args:
      at: When.
      version: Which one.
      why: It is told.
      sent: Since the last row.
    """
    start, before, planned_Bps = self._window
    iterations = at.iterations - start.iterations
    row: dict[str, Any] = {'time': at.time, 'did': 'traffic', 'why': why}
    row |= {'since': start.time, 'iterations': version - before}
    for phase in _PHASES:
      spent_s = at.spent_s[phase] - start.spent_s[phase]
      row[f'{phase}_s'] = spent_s / iterations if iterations else None
    row |= _of_links(planned_Bps, sent)
    self._recorder.record_traffic(row)
    self.window = Window(at, version, planned_Bps)

  @property
  def _window(self) -> Window:
    if self.window is None:
      raise RuntimeError('Expected workers that sum, got none.')
    return self.window


def _of_links(
  planned_Bps: Mapping[Ends, float], sent: Mapping[Ends, Sent]
) -> dict[str, Any]:
  """Returns the fields on links: those that lag their plan the most."""
  rows = [
    _of_link(ends, planned_Bps.get(ends), sent.get(ends))
    for ends in sorted(planned_Bps.keys() | sent.keys())
  ]
  if len(rows) > _MOST:
    rows = sorted(rows, key=_lag)[:_MOST]
  return {'links': len(planned_Bps.keys() | sent.keys()), 'rates': rows}


def _of_link(
  ends: Ends, planned_Bps: float | None, sent: Sent | None
) -> dict[str, Any]:
  row = {'src': ends[0], 'dst': ends[1], 'planned_Bps': planned_Bps}
  if sent:
    Bps = sent.bytes / sent.busy_s if sent.busy_s else None
    row |= {'bytes': sent.bytes, 'busy_s': sent.busy_s, 'Bps': Bps}
  return row


def _lag(row: Mapping[str, Any]) -> float:
  """Returns what is least where a link is the slowest against its plan."""
  known = row.get('Bps') is not None and row['planned_Bps']
  return row['Bps'] / row['planned_Bps'] if known else 1.0
