"""Which combination is the best one, why, and what would change that."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tools.advise import simulating
from tools.advise.clusters import Described
from tools.advise.needed import BSP, SOURCES, Combination, Needed
from tools.advise.simulating import Pace, Workload

_WORTH = 0.95  # Of BSP's time: less is a gain, as in the ledger.
_FURTHER = 1.5  # Times the staleness that was measured: not known any more.


class Row(NamedTuple):
  """A combination beside BSP.

  Attributes:
    combination: Which one.
    pace: As simulated.
    needed: Examples over those of BSP, as measured.
    speed: Examples per second over those of BSP.
  """

  combination: Combination
  pace: Pace
  needed: Needed
  speed: float

  @property
  def time(self) -> float:
    """To an accuracy, over that of BSP."""
    return self.needed.used / self.speed

  @property
  def covered(self) -> bool:
    """Whether gradients about as stale were measured."""
    return self.pace.staleness <= max(1.0, _FURTHER * self.needed.staleness)


class Why(NamedTuple):
  """Where the time of an iteration of BSP goes, seconds.

  Attributes:
    compute_s: Computing, mean over workers.
    waiting_s: Waiting for the slowest to have computed.
    links_s: What links add.
  """

  compute_s: float
  waiting_s: float
  links_s: float

  @property
  def limit(self) -> str:
    """What takes the most of it."""
    return ('computing', 'waiting', 'links')[self.index(max(self))]


class Advice(NamedTuple):
  """What to run.

  Attributes:
    cluster: For which cluster.
    rows: All combinations, the fastest to an accuracy first.
    base: BSP's, with equal batches and float32.
    best: That is advised.
    why: What limits BSP.
  """

  cluster: Described
  rows: list[Row]
  base: Row
  best: Row
  why: Why


def advise(
  cluster: Described,
  workload: Workload,
  needed: Mapping[Combination, Needed],
  tell: Callable[[str], None] = lambda text: None,
) -> Advice:
  """Simulates what a cluster can do, and ranks it.

  Args:
    cluster: Which cluster.
    workload: What is trained.
    needed: From `needed.measured`.
    tell: Is told what is going on.

  Raises:
    ValueError: If the cluster is wrong, before anything runs; names the field.
  """
  choices = simulating.possible(cluster, needed)
  simulating.check(cluster, workload, choices)
  paces = {}
  for number, each in enumerate(choices, start=1):
    tell(f'{number} of {len(choices)}: {each}')
    paces[each] = simulating.pace(cluster, workload, each)
  plain = BSP if BSP in paces else BSP._replace(route='ring')
  rows = [
    Row(
      each,
      pace,
      needed[each],
      pace.examples_per_s / paces[plain].examples_per_s,
    )
    for each, pace in paces.items()
  ]
  # Of equals the one that changes the least comes first.
  rows.sort(key=lambda row: (round(row.time, 3), _changes(row.combination)))
  base = next(row for row in rows if row.combination == plain)
  best = next(row for row in rows if row.covered)
  if best.time > _WORTH:
    best = base
  free = simulating.unlimited(cluster, workload)
  return Advice(cluster, rows, base, best, _why(cluster, workload, base, free))


def table(advice: Advice) -> str:
  """Returns a row per combination; a star where staleness was not measured."""
  head = ('when', 'how much', 'what', 'where', 'examples/s', 'staleness')
  rows = [('', *head, 'examples over BSP', 'time over BSP', '')]
  for place, row in enumerate(advice.rows, start=1):
    when, much, what, where, pipelined = row.combination
    low, high = row.needed.least / row.speed, row.needed.most / row.speed
    needed = row.needed
    rows.append(
      (
        f'{place}',
        *(when, much, what, f'{where}, pipelined' if pipelined else where),
        f'{row.pace.examples_per_s:.4g}',
        f'{row.pace.staleness:.1f}' + ('' if row.covered else '*'),
        f'{needed.median:.2f} ({needed.least:.2f} to {needed.most:.2f})',
        f'{row.time:.2f} ({low:.2f} to {high:.2f})',
        'advised' if row is advice.best else '',
      )
    )
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  lines = [
    '  '.join(
      cell.ljust(width) for cell, width in zip(row, widths, strict=True)
    ).rstrip()
    for row in rows
  ]
  stars = [row for row in advice.rows if not row.covered]
  if stars:
    lines.append(
      '* staler than what was measured: the examples it needs are not known, '
      'and it is not advised.'
    )
  return '\n'.join(lines)


def explain(advice: Advice) -> str:
  """Returns the reason, what to run, and what would change the ranking."""
  parts = [_reason(advice)]
  flags = simulating.flags(advice.cluster, advice.best.combination)
  parts.append('Run it with\n  ' + '\n  '.join(flags))
  runs = sorted(row.needed.runs for row in advice.rows)
  parts.append(
    'What would change this:\n'
    + '\n'.join(f'  {line}' for line in _changers(advice))
    + f'\nExamples over BSP: medians and ranges of {runs[0]} to {runs[-1]} '
    f'runs of eight workers, {", ".join(SOURCES)} of the ledger; fewer than '
    'those of BSP count as 1.'
  )
  return '\n\n'.join(parts)


def _why(cluster: Described, workload: Workload, base: Row, free: Pace) -> Why:
  whole_s, free_s = (
    cluster.workers * workload.batch / pace.examples_per_s
    for pace in (base.pace, free)
  )
  waiting_s = max(free_s - free.compute_s, 0.0)
  return Why(free.compute_s, waiting_s, max(whole_s - free_s, 0.0))


def _reason(advice: Advice) -> str:
  """Returns a sentence: what limits BSP here, and what is done about it."""
  why, best = advice.why, advice.best
  shares = (
    f'An iteration of BSP takes {sum(why):.3g} s: {why.compute_s:.3g} s of '
    f'computing, {why.waiting_s:.3g} s of waiting for the slowest worker'
    f'{_slowest(advice)} and {why.links_s:.3g} s of links{_thinnest(advice)}; '
  )
  if best is advice.base:
    return (
      f'{shares}it is limited by {why.limit}, and nothing that was measured '
      f'gains {1 - _WORTH:.0%}: there is nothing to gain, stay with BSP.'
    )
  sure = best.needed.most / best.speed < 1
  return (
    f'{shares}it is limited by {why.limit}. {best.combination} takes '
    f'{best.time:.2f} of its time to an accuracy'
    + ('.' if sure else ', though not in every run that was measured.')
  )


def _slowest(advice: Advice) -> str:
  slowdown = list(advice.cluster.speed['slowdown'])
  most = max(slowdown)
  alone = len(slowdown) > 1 and slowdown.count(most) == 1
  return f' ({slowdown.index(most)})' if alone else ''


def _thinnest(advice: Advice) -> str:
  """Returns whose link is below all others, or that servers' are."""
  cluster = advice.cluster
  if cluster.links or advice.why.limit != 'links':
    return ''
  ways = [
    [*cluster.network[link]] * (1 if len(cluster.network[link]) > 1 else n)
    for n, link in (
      (cluster.workers, 'worker_up_Bps'),
      (cluster.workers, 'worker_down_Bps'),
    )
  ]
  rates = [min(pair) for pair in zip(*ways, strict=True)]
  if cluster.dedicated:
    own = min(
      sum(rate) if len(rate) > 1 else cluster.servers * rate[0]
      for rate in (
        cluster.network['server_up_Bps'],
        cluster.network['server_down_Bps'],
      )
    )
    if own < cluster.workers * min(rates):
      return " (the servers')"
  least = min(rates)
  alone = rates.count(least) == 1
  return f" (worker {rates.index(least)}'s is the thinnest)" if alone else ''


def _changers(advice: Advice) -> list[str]:
  """Returns from where on another combination would be the best."""
  best, lines = advice.best, []
  others = [row for row in advice.rows if row is not best and row.covered]
  ahead = [row for row in advice.rows if not row.covered]
  ahead = [row for row in ahead if row.time < best.time]
  for row in (*others[:1], *ahead[:1]):
    limit = best.time * row.speed
    distance = row.time / best.time - 1
    side = 'behind' if distance >= 0 else 'ahead'
    text = f'{row.combination} is {abs(distance):.0%} {side}: '
    text += f'it is first if it needs less than {limit:.2f} times the examples '
    text += f'of BSP (measured {row.needed.median:.2f}, '
    text += f'{row.needed.least:.2f} to {row.needed.most:.2f}'
    if not row.covered:
      text += f', at a staleness of {row.needed.staleness:.0f} at most, here '
      text += f'{row.pace.staleness:.0f}'
    lines.append(f'{text}).')
  if others and best.combination[:3] != BSP[:3]:
    limit = others[0].time * best.speed
    lines.append(
      f'{best.combination} is first as long as it needs less than {limit:.2f} '
      'times the examples of BSP.'
    )
  return lines


def _changes(combination: Combination) -> int:
  return sum(a != b for a, b in zip(combination, BSP, strict=True))
