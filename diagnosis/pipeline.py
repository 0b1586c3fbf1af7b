"""Costs of ranks, stages and links of a pipeline: replays of its operations.

Operations of a rank run in the recorded order.  A message between stages takes
its time from when both ends have begun it, and a collective from when its last
rank has: the rest of such an operation is waiting, which a replay finds anew.
Other durations are given.  In the ideal run all operations of a type take the
mean (computing) or median (messages and collectives) of the type.  Source: Lin
et al., Understanding stragglers in large model training using what-if analysis
(OSDI 2025).

All variants of a step are replayed together, as one axis of arrays.
"""

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from configs.checks import require

COLUMNS = (
  *('dp_rank', 'stage', 'rank', 'step', 'optype', 'start_ts', 'duration'),
  'seq_id',
)
_COMPUTE = ('forward-compute', 'backward-compute', 'optimizer', 'gc')
# Messages: kind, and the step from a sender's stage to the receiver's.
_DIRECTIONS = {'forward': 1, 'backward': -1}
_SAME_S = 2e-6  # Operations of a rank this close to each other are one batch.
_SLOWEST = 0.03  # Share of the ranks that are replaced together.


class Operations(NamedTuple):
  """Operations of all ranks, one element each.

  Attributes:
    rank: Int, rank.
    stage: Int, stage of the pipeline of its rank.
    dp_rank: Int, data-parallel rank of its rank.
    step: Int, number of the training step.
    kind: Str, type, such as 'forward-compute'.
    start: Float, seconds from the beginning of the step.
    duration: Float, seconds.
    sequence: Int, number among the operations of its type, rank and step.
  """

  rank: np.ndarray
  stage: np.ndarray
  dp_rank: np.ndarray
  step: np.ndarray
  kind: np.ndarray
  start: np.ndarray
  duration: np.ndarray
  sequence: np.ndarray

  def select(self, chosen: np.ndarray) -> 'Operations':
    """Returns some of the operations.

    Args:
      chosen: Bool or Int, an index of arrays.
    """
    return Operations(*(field[chosen] for field in self))


@dataclasses.dataclass
class _Block:
  """Operations of a rank that begin together.

  Attributes:
    gap: Seconds since the end of the rank's block before.
    computes: Operation that waits for nobody; None if all are exchanges.
    exchanges: Indices of exchanges.
    arrived: Exchanges that have ended.
  """

  gap: float
  computes: int | None = None
  exchanges: list[int] = dataclasses.field(default_factory=list)
  arrived: int = 0


@dataclasses.dataclass
class _Exchange:
  """A message or a collective.

  Attributes:
    blocks: Blocks that take part.
    operations: Indices of the operations.
    seconds: Recorded seconds from its last beginning to its first end.
    ready: Number of blocks that have begun.
  """

  blocks: list[int] = dataclasses.field(default_factory=list)
  operations: list[int] = dataclasses.field(default_factory=list)
  seconds: float = 0.0
  ready: int = 0


class Step(NamedTuple):
  """One training step, ready for replays.

  Attributes:
    operations: Its operations.
    blocks: Blocks of operations.
    chains: Blocks of each rank, in order.
    exchanges: Messages and collectives.
    exchange_of: Int [operations], index of each one's exchange; -1 for none.
  """

  operations: Operations
  blocks: Sequence[_Block]
  chains: Sequence[Sequence[int]]
  exchanges: Sequence[_Exchange]
  exchange_of: np.ndarray

  @property
  def seconds(self) -> np.ndarray:
    """Float [operations], seconds of each without waiting."""
    own = self.operations.duration.copy()
    for exchange in self.exchanges:
      own[exchange.operations] = exchange.seconds
    return own


def check(operations: Operations) -> None:
  """Checks operations before anything is computed from them.

  Raises:
    ValueError: If there are none, or a time is wrong.
  """
  require(len(operations.rank) > 0, 'operations', 'at least one', 0)
  for name in ('start', 'duration'):
    values = getattr(operations, name)
    wrong = values[~(np.isfinite(values) & (values >= 0))]
    column = 'start_ts' if name == 'start' else name
    require(not len(wrong), column, 'finite seconds >= 0', list(wrong[:1]))


def steps(operations: Operations) -> Iterator[Step]:
  """Yields each step of a trace, in order."""
  kinds, codes = np.unique(operations.kind, return_inverse=True)
  usual_s = _usual_gaps(operations, codes, len(kinds))
  order = np.lexsort(
    (
      operations.start + operations.duration,
      operations.start,
      operations.rank,
      operations.step,
    )
  )
  ordered = operations.select(order)
  edges = np.flatnonzero(np.diff(ordered.step)) + 1
  for part in np.split(np.arange(len(order)), edges):
    gaps = usual_s[codes[order[part]]]
    yield _prepare(ordered.select(part), gaps)


def _usual_gaps(
  operations: Operations, codes: np.ndarray, count: int
) -> np.ndarray:
  """Returns the median gap before operations of each type, seconds."""
  order = np.lexsort((operations.start, operations.rank, operations.step))
  starts = operations.start[order]
  ends = starts + operations.duration[order]
  same = (np.diff(operations.rank[order]) == 0) & (
    np.diff(operations.step[order]) == 0
  )
  gaps = np.maximum(starts[1:] - ends[:-1], 0.0)
  after = codes[order][1:]
  usual = np.zeros(count)
  for code in range(count):
    found = gaps[same & (after == code)]
    usual[code] = np.median(found) if len(found) else 0.0
  return usual


def _prepare(operations: Operations, usual_s: np.ndarray) -> Step:
  """Returns a step, whose operations are in the order of ranks and starts."""
  blocks: list[_Block] = []
  chains: list[list[int]] = []
  block_of = np.zeros(len(operations.rank), int)
  rank, start, end = None, 0.0, 0.0
  ends = operations.start + operations.duration
  for k, kind in enumerate(operations.kind):
    if operations.rank[k] != rank:
      rank, start, end = operations.rank[k], -1.0, 0.0
      chains.append([])
    together = (
      chains[-1]
      and abs(operations.start[k] - start) < _SAME_S
      and _is_message(kind)
      and blocks[chains[-1][-1]].computes is None
    )
    if not together:
      gap = max(float(operations.start[k]) - end, 0.0)
      if not (_is_compute(kind) or _is_message(kind)):
        # Longer gaps before collectives are waits for others, unrecorded.
        gap = min(gap, float(usual_s[k]))
      chains[-1].append(len(blocks))
      blocks.append(_Block(gap, k if _is_compute(kind) else None))
      start = float(operations.start[k])
    block_of[k] = len(blocks) - 1
    end = max(end, float(ends[k])) if together else float(ends[k])
  exchanges, exchange_of = _find_exchanges(operations, block_of)
  for number, exchange in enumerate(exchanges):
    for block in exchange.blocks:
      blocks[block].exchanges.append(number)
  return Step(operations, blocks, chains, exchanges, exchange_of)


def _find_exchanges(
  operations: Operations, block_of: np.ndarray
) -> tuple[list[_Exchange], np.ndarray]:
  count = int(operations.stage.max()) + 1
  groups: dict[tuple[object, ...], list[int]] = {}
  numbers: collections.Counter[tuple[object, ...]] = collections.Counter()
  by_sequence = np.lexsort((operations.sequence, operations.rank))
  for k in by_sequence:
    kind = str(operations.kind[k])
    if _is_compute(kind):
      continue
    stage, dp_rank = int(operations.stage[k]), int(operations.dp_rank[k])
    number = numbers[operations.rank[k], kind]
    numbers[operations.rank[k], kind] += 1
    key: tuple[object, ...]
    if _is_message(kind):
      direction, end = kind.split('-')
      if end == 'recv':
        stage = (stage - _DIRECTIONS[direction]) % count
      key = direction, dp_rank, stage, number
    elif kind.startswith('embedding'):
      key = kind, dp_rank, number
    elif kind.startswith('layernorm'):
      key = kind, int(operations.rank[k]), number
    elif kind.startswith('optimizer'):
      key = kind, number
    else:
      key = kind, stage, number
    groups.setdefault(key, []).append(int(k))
  exchange_of = np.full(len(block_of), -1)
  exchanges: list[_Exchange] = []
  ends = operations.start + operations.duration
  for members in groups.values():
    exchange_of[members] = len(exchanges)
    begun = float(operations.start[members].max())
    seconds = max(float(ends[members].min()) - begun, 0.0)
    if len(members) == 1:
      seconds = float(operations.duration[members[0]])
    exchanges.append(
      _Exchange([*{int(block_of[k]) for k in members}], members, seconds)
    )
  return exchanges, exchange_of


def replay(step: Step, seconds: np.ndarray) -> np.ndarray:
  """Returns the end of a step with other seconds of its operations.

  Args:
    step: The step.
    seconds: Float [variants, operations], without waiting.

  Returns:
    Float [variants], seconds.

  Raises:
    ValueError: If the operations wait for one another in a circle.
  """
  variants, blocks = len(seconds), step.blocks
  begins = np.zeros((len(blocks), variants))
  ends = np.zeros((len(blocks), variants))
  latest = np.zeros((len(step.exchanges), variants))
  ready = [0] * len(step.exchanges)
  missing = [len(block.exchanges) for block in blocks]
  following = np.full(len(blocks), -1)
  for chain in step.chains:
    following[chain[:-1]] = chain[1:]
  todo = [(chain[0], np.zeros(variants)) for chain in step.chains]
  done, finish = 0, np.zeros(variants)

  def end(number: int) -> None:
    nonlocal done, finish
    done += 1
    finish = np.maximum(finish, ends[number])
    if following[number] >= 0:
      todo.append((int(following[number]), ends[number]))

  while todo:
    number, since = todo.pop()
    block = blocks[number]
    begins[number] = since + block.gap
    ends[number] = begins[number]
    if block.computes is not None:
      ends[number] = begins[number] + seconds[:, block.computes]
    if not block.exchanges:
      end(number)
    for each in block.exchanges:
      exchange = step.exchanges[each]
      np.maximum(latest[each], begins[number], out=latest[each])
      ready[each] += 1
      if ready[each] < len(exchange.blocks):
        continue
      over = latest[each] + seconds[:, exchange.operations[0]]
      for member in exchange.blocks:
        np.maximum(ends[member], over, out=ends[member])
        missing[member] -= 1
        if not missing[member]:
          end(member)
  if done < len(blocks):
    raise ValueError(
      f'step {step.operations.step[0]}: expected operations in an order that '
      f'can be executed, got {len(blocks) - done} that wait for one another.'
    )
  return finish


class Result(NamedTuple):
  """Replays of all steps of a trace.

  Attributes:
    recorded_s: Float [steps], recorded seconds.
    replayed_s: Float [steps], seconds of the replay of what was recorded.
    ideal_s: Float [steps], if all operations were ideal.
    ranks_s: Float [steps, ranks], if those of one rank were.
    stages_s: Float [steps, stages], if those of one stage were.
    messages_s: Float [steps], if messages and collectives were.
    slowest_s: Float [steps], if those of the slowest ranks were.
    slowest: Indices in `ranks` of these ranks.
    ranks: Int [ranks], numbers of the ranks.
    stage_of: Int [ranks], stage of each.
    compute_s: Float [steps, ranks], seconds of computing of each.
    pairing: Correlation of the seconds forward and backward of a microbatch,
      apart from differences of stages; NaN if unknown.
  """

  recorded_s: np.ndarray
  replayed_s: np.ndarray
  ideal_s: np.ndarray
  ranks_s: np.ndarray
  stages_s: np.ndarray
  messages_s: np.ndarray
  slowest_s: np.ndarray
  slowest: np.ndarray
  ranks: np.ndarray
  stage_of: np.ndarray
  compute_s: np.ndarray
  pairing: float


def measure(operations: Operations) -> Result:
  """Returns what ranks and stages cost in a trace.

  Args:
    operations: Operations of the trace.

  Raises:
    ValueError: If a step cannot be replayed.
  """
  check(operations)
  prepared = list(steps(operations))
  own_s = [step.seconds for step in prepared]
  ideals = _ideal_seconds(prepared, own_s)
  ranks, places = np.unique(operations.rank, return_index=True)
  stage_of = operations.stage[places].astype(int)
  count = int(stage_of.max()) + 1
  compute_s = np.array([_compute_s(step, ranks) for step in prepared])
  # Of the ranks by themselves the slowest are found first.
  rows = [
    _variants(step, own, ideals, ranks, count)
    for step, own in zip(prepared, own_s, strict=True)
  ]
  ends = np.array(
    [replay(s, row) for s, row in zip(prepared, rows, strict=True)]
  )
  ranks_s = ends[:, 3 : 3 + len(ranks)]
  number = max(round(_SLOWEST * len(ranks)), 1)
  slowest = np.argsort(ranks_s.sum(axis=0), kind='stable')[:number]
  slowest_s = []
  for step, own in zip(prepared, own_s, strict=True):
    ideal = _ideal_of(step, ideals)
    chosen = np.isin(step.operations.rank, ranks[slowest])
    row = np.where(_with_exchanges(step, chosen), ideal, own)
    slowest_s.append(replay(step, row[None])[0])
  return Result(
    recorded_s=np.array([_recorded_s(step) for step in prepared]),
    replayed_s=ends[:, 0],
    ideal_s=ends[:, 1],
    messages_s=ends[:, 2],
    ranks_s=ranks_s,
    stages_s=ends[:, 3 + len(ranks) :],
    slowest_s=np.array(slowest_s),
    slowest=slowest,
    ranks=ranks,
    stage_of=stage_of,
    compute_s=compute_s,
    pairing=_pairing(operations),
  )


def _variants(
  step: Step,
  own: np.ndarray,
  ideals: Mapping[str, float],
  ranks: np.ndarray,
  stages: int,
) -> np.ndarray:
  """Returns seconds of operations: recorded, ideal, and partly ideal."""
  operations, ideal = step.operations, _ideal_of(step, ideals)
  computes = np.array([_is_compute(kind) for kind in operations.kind])
  chosen = [np.zeros(len(own), bool), np.ones(len(own), bool), ~computes]
  chosen += [_with_exchanges(step, operations.rank == rank) for rank in ranks]
  chosen += [
    _with_exchanges(step, operations.stage == stage) for stage in range(stages)
  ]
  return np.where(np.array(chosen), ideal, own)


def _with_exchanges(step: Step, chosen: np.ndarray) -> np.ndarray:
  """Returns the operations, and others of the same exchanges.

  An exchange takes the seconds of its first operation in a replay.
  """
  is_of = np.zeros(len(step.exchanges) + 1, bool)
  is_of[step.exchange_of[chosen]] = True
  is_of[-1] = False  # Of operations without one.
  found: np.ndarray = chosen | is_of[step.exchange_of]
  return found


def _ideal_seconds(
  prepared: Sequence[Step], own_s: Sequence[np.ndarray]
) -> dict[str, float]:
  """Returns the ideal seconds of an operation by type."""
  kinds = np.concatenate([step.operations.kind for step in prepared])
  seconds = np.concatenate(own_s)
  found = {}
  for kind in np.unique(kinds):
    chosen = seconds[kinds == kind]
    mean = np.mean if _is_compute(kind) else np.median
    found[str(kind)] = float(mean(chosen))
  return found


def _ideal_of(step: Step, ideals: Mapping[str, float]) -> np.ndarray:
  return np.array([ideals[str(kind)] for kind in step.operations.kind])


def _compute_s(step: Step, ranks: np.ndarray) -> np.ndarray:
  """Returns the seconds of computing of each rank in a step."""
  operations = step.operations
  computes = np.array(
    [
      kind in ('forward-compute', 'backward-compute')
      for kind in operations.kind
    ]
  )
  places = np.searchsorted(ranks, operations.rank[computes])
  found: np.ndarray = np.bincount(
    places, operations.duration[computes], minlength=len(ranks)
  )
  return found


def _recorded_s(step: Step) -> float:
  operations = step.operations
  return float((operations.start + operations.duration).max())


def _pairing(operations: Operations) -> float:
  """Returns the correlation of forward and backward seconds: see `Result`."""
  parts = []
  for kind in ('forward-compute', 'backward-compute'):
    chosen = operations.select(operations.kind == kind)
    order = np.lexsort((chosen.sequence, chosen.rank, chosen.step))
    parts.append(chosen.select(order))
  forward, backward = parts
  if len(forward.rank) != len(backward.rank) or len(forward.rank) < 3:
    return float('nan')
  both = np.array([forward.duration, backward.duration], float)
  for stage in np.unique(forward.stage):
    chosen = forward.stage == stage
    both[:, chosen] /= both[:, chosen].mean(axis=1, keepdims=True)
  if not both.std(axis=1).all():
    return float('nan')
  return float(np.corrcoef(both)[0, 1])


def _is_compute(kind: str) -> bool:
  return kind in _COMPUTE


def _is_message(kind: str) -> bool:
  direction, _, end = kind.partition('-')
  return direction in _DIRECTIONS and end in ('send', 'recv')
