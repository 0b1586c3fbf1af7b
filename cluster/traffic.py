"""Rows of events.jsonl on the links of an allreduce run: planned and carried.

A row with `did` 'forest' has the forest of the workers from then on.  A row
with 'traffic' has the bytes between workers since the last row, and the phases
of a mean iteration.  The virtual and the real runtime write the same rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from outputs.recorder import Recorder
from topology import Cluster, Forest
from topology.forests import export, usage

Ends = tuple[int, int]  # Sending and receiving worker.
_PHASES = ('compute', 'wait', 'push')  # Workers never pull.
_MOST = 1024  # Links in a row.
_HOPS = 20_000  # Hops of the largest forest that is written: about a megabyte.


class Sent(NamedTuple):
  """Traffic from one worker to another.

  Attributes:
    bytes: Number of bytes.
    busy_s: Seconds in which bytes were under way.
  """

  bytes: int
  busy_s: float


class Planned(NamedTuple):
  """A forest as it was planned.

  Attributes:
    cluster: Links for which it was planned.
    forest: The forest.
    names: Index of each worker by its id in the cluster.
    size_bytes: Bytes of a worker's contribution.
    chunk_bytes: Bytes of a chunk of it, at most.
    known: Whether the rates of the links are known; if not, they count as
      equal.
  """

  cluster: Cluster
  forest: Forest
  names: Mapping[str, int]
  size_bytes: int
  chunk_bytes: int
  known: bool

  @property
  def Bps(self) -> dict[Ends, float]:
    """Planned rate between each pair of workers, bytes per second."""
    return {
      (self.names[src], self.names[dst]): float(rate)
      for (src, dst), rate in usage.rates_between(self.forest).items()
    }


class Mark(NamedTuple):
  """A moment of a run, with its accounting.

  Attributes:
    time: Seconds on the run's clock.
    iterations: Iterations of all workers until then.
    spent_s: Seconds of all workers until then, by phase.
  """

  time: float
  iterations: int
  spent_s: Mapping[str, float]


class Window(NamedTuple):
  """Interval since the last row.

  Attributes:
    start: Moment at which it began.
    version: Version that all workers had then.
    planned_Bps: Planned rates of the links of the forest.
  """

  start: Mark
  version: int
  planned_Bps: Mapping[Ends, float]


class Traffic:
  """Writer of a run's rows on links.

  Attributes:
    window: Interval since the last row; None before the first.
  """

  def __init__(self, recorder: Recorder):
    """Creates a writer before its first row.

    Args:
      recorder: Recorder of the run.
    """
    self.window: Window | None = None
    self._recorder = recorder

  def mark(self, time: float) -> Mark:
    """Returns a time with the present counts of iterations and phases."""
    accounting = self._recorder.accounting
    spent_s = {phase: accounting.seconds[phase] for phase in _PHASES}
    return Mark(time, accounting.iterations, spent_s)

  def record_epoch(
    self,
    at: Mark,
    *,
    version: int,
    why: str,
    membership_epoch: int,
    members: Sequence[int],
    planned: Planned | None,
  ) -> None:
    """Writes a row about a new membership epoch and its forest.

    Args:
      at: Moment of the beginning.
      version: Version that all of them have.
      why: Reason, as text.
      membership_epoch: Number of the membership epoch.
      members: Indices of the workers.
      planned: Forest; None if it is not known.
    """
    row: dict[str, Any] = {'time': at.time, 'did': 'forest', 'why': why}
    row |= {'membership_epoch': membership_epoch, 'version': version}
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

  def record_traffic(
    self, at: Mark, *, version: int, why: str, sent: Mapping[Ends, Sent]
  ) -> None:
    """Writes a row about the traffic since the previous row.

    Args:
      at: Moment of the row.
      version: The version.
      why: Reason for the row, as text.
      sent: Traffic since the last row.
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
      raise RuntimeError('Expected a forest before its traffic, got none.')
    return self.window


def _of_links(
  planned_Bps: Mapping[Ends, float], sent: Mapping[Ends, Sent]
) -> dict[str, Any]:
  """Returns the fields on links; if there are many, on the slowest."""
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
  """Returns the measured rate of a link as a share of the planned one."""
  known = row.get('Bps') is not None and row['planned_Bps']
  return row['Bps'] / row['planned_Bps'] if known else 1.0
