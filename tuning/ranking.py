"""Ranking of combinations, its reasons, and its sensitivity."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from analysis import printing
from tuning import combinations, examples, islands, simulating
from tuning.clusters import ClusterDescription
from tuning.combinations import BSP, Combination
from tuning.examples import ExamplesRatio, Ratios
from tuning.simulating import Pace, Workload

_WORTH = 0.95  # Largest time relative to BSP that counts as a gain.
_FURTHER = 1.5  # Largest staleness relative to the measured one.
# Workers from which on combinations that cannot be advised are not simulated.
_MANY = 32
# Least time of an iteration with pipelined servers over one without: pulls
# overlap pushes, and nothing else changes.
_PIPELINED = 0.5


class RankedCombination(NamedTuple):
  """A combination compared with BSP.

  Attributes:
    combination: The combination.
    pace: Its simulated pace.
    needed: Examples relative to those of BSP.
    speed: Examples per second relative to those of BSP.
  """

  combination: Combination
  pace: Pace
  needed: ExamplesRatio
  speed: float

  @property
  def time(self) -> float:
    """Time to an accuracy relative to that of BSP."""
    return self.needed.predicted / self.speed

  @property
  def is_covered(self) -> bool:
    """True if its examples are known for gradients of about this staleness."""
    limit = max(1.0, _FURTHER * self.needed.staleness)
    return self.needed.is_known and self.pace.staleness <= limit


class IterationTime(NamedTuple):
  """Parts of the time of an iteration of BSP, seconds.

  Attributes:
    compute_s: Computing, mean over workers.
    waiting_s: Waiting for the gradient of the slowest worker.
    links_s: Remaining time on links.
  """

  compute_s: float
  waiting_s: float
  links_s: float

  @property
  def limit(self) -> str:
    """Name of the largest part: 'computing', 'waiting' or 'links'."""
    return ('computing', 'waiting', 'links')[self.index(max(self))]


class Advice(NamedTuple):
  """Ranking and advice for a cluster.

  Attributes:
    cluster: The cluster.
    rows: All combinations, sorted by the time to an accuracy.
    base: BSP with equal batches and float32.
    best: Advised combination.
    iteration: Time of an iteration of BSP.
    omitted: Combinations that were not simulated, with the reason.
  """

  cluster: ClusterDescription
  rows: list[RankedCombination]
  base: RankedCombination
  best: RankedCombination
  iteration: IterationTime
  omitted: Mapping[Combination, str]


def advise(
  cluster: ClusterDescription,
  workload: Workload,
  ratios: Ratios,
  log: Callable[[str], None] = lambda text: None,
  choices: Iterable[Combination] = combinations.ALL,
) -> Advice:
  """Simulates and ranks the combinations on a cluster.

  Args:
    ratios: Ratios of `examples.read_ratios`.
    log: Receives lines on the progress.
    choices: Combinations to rank, with BSP among them.

  Raises:
    ValueError: If the cluster is wrong, before anything runs; names the field.
  """
  choices = simulating.possible(cluster, workload, choices)
  simulating.check(cluster, workload, choices)
  paces: dict[Combination, Pace] = {}
  omitted: dict[Combination, str] = {}
  with islands.describe(cluster) as grouped:
    choices += simulating.with_islands(grouped, choices)
    # Those that overlap pulls come last: others may show that they gain
    # nothing.
    ordered = sorted(choices, key=lambda each: each.pipelined)
    for number, each in enumerate(ordered, start=1):
      if reason := _why_not(each, cluster.workers, ratios, paces):
        omitted[each] = reason
        continue
      log(f'{number} of {len(choices)}: {each}')
      used = grouped if grouped and each.hosts > 1 else cluster
      paces[each] = simulating.simulate_pace(used, workload, each)
  plain = BSP._replace(local_steps=workload.local_steps)
  if plain not in paces:
    plain = plain._replace(route='ring')
  rows = [
    RankedCombination(
      each,
      pace,
      examples.find(ratios, each),
      pace.examples_per_s / paces[plain].examples_per_s,
    )
    for each, pace in paces.items()
  ]
  # Among equals the one with the fewest changes comes first.
  rows.sort(key=lambda row: (round(row.time, 3), _changes(row.combination)))
  base = next(row for row in rows if row.combination == plain)
  best = next(row for row in rows if row.is_covered)
  if best.time > _WORTH:
    best = base
  free = simulating.simulate_unlimited(cluster, workload)
  iteration = _iteration_time(cluster, workload, base, free)
  return Advice(cluster, rows, base, best, iteration, omitted)


def _why_not(
  combination: Combination,
  workers: int,
  ratios: Ratios,
  paces: Mapping[Combination, Pace],
) -> str:
  """Returns why a combination is not simulated; '' if it is."""
  # Simulations of many workers take long, and some cannot lead to an advice.
  # Without barriers, the staleness of a gradient is the number of other
  # workers.
  if workers <= _MANY:
    return ''
  own = examples.find(ratios, combination)
  if combination.sync != 'bsp' and workers - 1 > _FURTHER * own.staleness:
    return f'its gradients would be about {workers - 1} updates stale'
  plain = paces.get(combination._replace(pipelined=False))
  if not combination.pipelined or plain is None:
    return ''
  most = plain.examples_per_s / _PIPELINED / own.predicted
  best = max(
    p.examples_per_s / examples.find(ratios, c).predicted
    for c, p in paces.items()
  )
  return 'others are faster than it can be' if most < best else ''


def table(advice: Advice) -> str:
  """Returns a row per combination; a star where its examples are not known."""
  head = ('when', 'how much', 'what', 'where', 'examples/s', 'staleness')
  rows = [('', *head, 'examples over BSP', 'time over BSP', '')]
  for place, row in enumerate(advice.rows, start=1):
    when, much, what, *_ = row.combination
    rows.append(
      (
        f'{place}',
        *(when, much, what, row.combination.where),
        f'{row.pace.examples_per_s:.4g}',
        f'{row.pace.staleness:.1f}' + ('' if row.is_covered else '*'),
        _range(row.needed, 1.0),
        _range(row.needed, row.speed),
        'advised' if row is advice.best else '',
      )
    )
  lines = [printing.text(rows, align='l')]
  stars = [row for row in advice.rows if not row.is_covered]
  if stars:
    lines.append(
      '* How many examples it needs at this staleness is not known: it is not '
      'advised.'
    )
  lines += [f'Not simulated: {c}: {why}.' for c, why in advice.omitted.items()]
  return '\n'.join(lines)


def explain(advice: Advice) -> str:
  """Returns the reason, what to run, and what would change the ranking."""
  parts = [_reason(advice)]
  flags = simulating.flags(advice.cluster, advice.best.combination)
  parts.append('Run it with\n  ' + '\n  '.join(flags))
  lines = ['What would change this:']
  lines += [f'  {line}' for line in _changers(advice)]
  runs = sorted(row.needed.runs for row in advice.rows if row.needed.runs)
  lines.append(
    f'Examples over BSP: medians and ranges of {runs[0]} to {runs[-1]} runs; '
    'fewer than those of BSP count as 1.'
    if runs
    else 'No run tells how many examples stale gradients need: '
    '--examples_from=SWEEP takes that from your own runs.'
  )
  parts.append('\n'.join(lines))
  return '\n\n'.join(parts)


def _range(needed: ExamplesRatio, speed: float) -> str:
  """Returns examples over a speed, with the range of the runs."""
  if not needed.is_known:
    return 'not known'
  if not needed.runs:
    return f'{needed.median / speed:.2f}'
  low, high = needed.least / speed, needed.most / speed
  return f'{needed.predicted / speed:.2f} ({low:.2f} to {high:.2f})'


def _iteration_time(
  cluster: ClusterDescription,
  workload: Workload,
  base: RankedCombination,
  free: Pace,
) -> IterationTime:
  whole_s, free_s = (
    cluster.workers
    * workload.batch
    * workload.local_steps
    / pace.examples_per_s
    for pace in (base.pace, free)
  )
  waiting_s = max(free_s - free.compute_s, 0.0)
  return IterationTime(free.compute_s, waiting_s, max(whole_s - free_s, 0.0))


def _reason(advice: Advice) -> str:
  """Returns sentences on the limit of BSP and on the advice."""
  parts, best = advice.iteration, advice.best
  shares = (
    f'An iteration of BSP takes {sum(parts):.3g} s: {parts.compute_s:.3g} s of '
    f'computing, {parts.waiting_s:.3g} s of waiting for the slowest worker'
    f'{_slowest(advice)} and {parts.links_s:.3g} s of links'
    f'{_thinnest(advice)}; '
  )
  if best is advice.base:
    return (
      f'{shares}it is limited by {parts.limit}, and nothing that was measured '
      f'gains {1 - _WORTH:.0%}: there is nothing to gain, stay with BSP.'
    )
  sure = best.needed.most / best.speed < 1
  return (
    f'{shares}it is limited by {parts.limit}. {best.combination} takes '
    f'{best.time:.2f} of its time to an accuracy'
    + ('.' if sure else ', though not in every run that was measured.')
  )


def _slowest(advice: Advice) -> str:
  slowdown = list(advice.cluster.speed['slowdown'])
  most = max(slowdown)
  alone = len(slowdown) > 1 and slowdown.count(most) == 1
  return f' ({slowdown.index(most)})' if alone else ''


def _thinnest(advice: Advice) -> str:
  """Returns the worker with the slowest link, or the servers, as text."""
  cluster = advice.cluster
  if cluster.links or advice.iteration.limit != 'links':
    return ''
  ways = [
    [*cluster.network[link]] * (1 if len(cluster.network[link]) > 1 else n)
    for n, link in (
      (cluster.workers, 'worker_up_Bps'),
      (cluster.workers, 'worker_down_Bps'),
    )
  ]
  rates = [min(pair) for pair in zip(*ways, strict=True)]
  if cluster.has_dedicated_servers:
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
  """Returns lines on the limits at which another combination is the best."""
  best, lines = advice.best, []
  others = [row for row in advice.rows if row is not best and row.is_covered]
  ahead = [row for row in advice.rows if not row.is_covered]
  ahead = [row for row in ahead if row.time < best.time]
  for row in (*others[:1], *ahead[:1]):
    limit = best.time * row.speed
    distance = row.time / best.time - 1
    side = 'behind' if distance >= 0 else 'ahead'
    text = f'{row.combination} is {abs(distance):.0%} {side}: '
    text += f'it is first if it needs less than {limit:.2f} times the examples '
    text += f'of BSP ({_known(row)}).'
    lines.append(text)
  if others and best.combination[:3] != BSP[:3]:
    limit = others[0].time * best.speed
    lines.append(
      f'{best.combination} is first as long as it needs less than {limit:.2f} '
      'times the examples of BSP.'
    )
  return lines


def _known(row: RankedCombination) -> str:
  """Returns what is known of the examples that a combination needs, as text."""
  needed = row.needed
  if not needed.is_known:
    return 'not known'
  if not needed.runs:
    return 'it needs as many'
  text = (
    f'measured {needed.median:.2f}, {needed.least:.2f} to {needed.most:.2f}'
  )
  if row.is_covered:
    return text
  return (
    f'{text}, at a staleness of {needed.staleness:.0f} at most, here '
    f'{row.pace.staleness:.0f}'
  )


def _changes(combination: Combination) -> int:
  return sum(a != b for a, b in zip(combination, BSP, strict=True))
