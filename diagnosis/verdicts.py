"""Verdicts on a run: slow workers, links and stages, with their costs."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from configs.checks import require
from diagnosis import costs, departures, rule, server_links
from diagnosis.costs import Estimate, Iterations

SLIGHT = 0.05  # Share of the median computing added to transfers, which matter.
REPEATS = 4  # Iterations for which the traffic of a longer interval counts.
_START = 5  # Rounds after the start that still count as the start.
_SHOWN = 5  # Verdicts of one kind with a sentence of their own.
_SLOWEST = 0.03  # Share of the workers that are replaced together.
_EXPLAINS = 1.1  # Ratio of batches that is worth a word.
_CORRELATED = 0.5  # Least correlation that is worth a word.
_BRIEF_S = 0.1  # Absences that are shown as brief.
_NEGLIGIBLE = 0.01  # Share of a run's time below which there is no slowdown.

Replay = Callable[[Iterations, np.ndarray], float]


@dataclasses.dataclass(frozen=True)
class Cluster:
  """Names, hosts and other known properties of the workers.

  Attributes:
    names: Name of each worker.
    hosts: Host of each worker; '' if unknown.
    factors: Float [pushes] of each driving factor, such as 'cpu', by name.
    push_bytes: Bytes of an iteration's pull and push; None if unknown.
    has_links: Whether transfers are those of a worker's own link, rather than
      of an allreduce of all.
  """

  names: Sequence[str]
  hosts: Sequence[str]
  factors: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
  push_bytes: float | None = None
  has_links: bool = True


class Verdict(NamedTuple):
  """A verdict.

  Attributes:
    kind: 'worker', 'link', 'stage', 'departures', 'none' (nobody is to blame)
      or 'insufficient'.
    name: Name of the worker or stage; '' for none.
    ratio: Its seconds over the median of the others; None without one.
    share: Share of its time that the run would take without it; None likewise.
    text: The verdict as a sentence.
  """

  kind: str
  name: str
  ratio: Estimate | None
  share: Estimate | None
  text: str


def link_numbers(transfer_s: np.ndarray, compute_s: np.ndarray) -> np.ndarray:
  """Returns the seconds of transfers that the rule compares.

  A small share of the computing is added, so that differences between transfers
  that are short beside it do not count.

  Args:
    transfer_s: Float [..., workers].
    compute_s: Float of the same shape.

  Returns:
    Float of the same shape.
  """
  known = np.where(np.isnan(compute_s), 0.0, compute_s)
  return transfer_s + SLIGHT * rule.median(known)


def judge(
  iterations: Iterations, cluster: Cluster, replay: Replay
) -> list[Verdict]:
  """Returns the verdicts on workers and their links, the most costly first.

  Args:
    iterations: Iterations of a run.
    cluster: What else is known of the workers.
    replay: Replay of iterations, as `costs.share` takes it.

  Raises:
    ValueError: If there are fewer than two workers.
  """
  count = len(cluster.names)
  require(count > 1, 'workers', 'at least 2 to compare', count)
  rounds = int(iterations.rounds[-1]) + 1 if len(iterations.rounds) else 0
  if rounds < rule.LEAST:
    text = f'insufficient evidence: {rounds} iterations'
    return [Verdict('insufficient', '', None, None, text)]
  compute_s = iterations.table(iterations.compute_s, count)
  transfer_s = iterations.table(iterations.transfer_s, count)
  numbers_s = link_numbers(transfer_s, compute_s)
  found = []
  tables = [('worker', compute_s, rule.EFFECT)]
  if cluster.has_links:
    tables.append(('link', numbers_s, rule.LINK_EFFECT))
  for kind, table, effect in tables:
    episodes = rule.find_episodes(table, effect=effect)
    for worker in dict.fromkeys(each.series for each in episodes):
      own = [each for each in episodes if each.series == worker]
      shown_s = compute_s if kind == 'worker' else transfer_s
      found.append(
        _judge_one(
          kind, worker, own, shown_s, iterations, cluster, replay=replay
        )
      )
  found = [each for each in found if _matters(each)]
  found.sort(key=lambda each: each.share.value if each.share else 1.0)
  shown = [each for k, each in enumerate(found) if _rank(found, k) < _SHOWN]
  for kind in ('worker', 'link'):
    hidden = [each for each in found if each.kind == kind and each not in shown]
    if hidden:
      names = ', '.join(each.name for each in hidden)
      text = f'{len(hidden)} more {kind}s are slow: {names}'
      shown.append(Verdict(kind, names, None, None, text))
  if not found:
    shown.append(_judge_nobody(compute_s, iterations, replay))
  return shown


def _matters(verdict: Verdict) -> bool:
  """Returns whether a verdict is on a cost, or on a clearly slow worker."""
  if _costs(verdict) or verdict.ratio is None:
    return True
  return verdict.kind == 'worker' and verdict.ratio.value >= rule.EFFECT


def _costs(verdict: Verdict) -> bool:
  """Returns whether what a verdict names costs a run any time, if known."""
  return verdict.share is None or not verdict.share.value > 1 - _NEGLIGIBLE


def _rank(found: Sequence[Verdict], index: int) -> int:
  """Returns how many verdicts of the same kind come before one."""
  kind = found[index].kind
  return sum(each.kind == kind for each in found[:index])


def _judge_one(
  kind: str,
  worker: int,
  episodes: Sequence[rule.Episode],
  table: np.ndarray,
  iterations: Iterations,
  cluster: Cluster,
  *,
  replay: Replay,
) -> Verdict:
  is_slow = np.zeros(len(table), bool)
  for each in episodes:
    is_slow[each.start : each.end] = True
  usual_s = rule.median_of_others(_carry_forward(table))[:, worker]
  with np.errstate(divide='ignore', invalid='ignore'):
    logs = np.log(table[:, worker] / usual_s)
  ratio = _ratio(logs[is_slow & np.isfinite(logs)])
  chosen = (iterations.workers == worker) & is_slow[iterations.rounds]
  seconds = iterations.compute_s + iterations.transfer_s
  own_s = iterations.compute_s if kind == 'worker' else iterations.transfer_s
  change_s = np.minimum(usual_s[iterations.rounds] - own_s, 0.0)
  share = costs.share(
    iterations, seconds, seconds + np.where(chosen, change_s, 0.0), replay
  )
  name = cluster.names[worker]
  when = _when(episodes, iterations)
  if kind == 'worker':
    text = (
      f'worker {name} takes {_times(ratio, "to compute an iteration ")} {when}'
    )
  else:
    text = f'link of worker {name}'
    usual = float(np.nanmedian(usual_s))
    own = float(np.nanmedian(table[is_slow, worker]))
    if cluster.push_bytes and usual > 0 and own > 0:
      rates = [cluster.push_bytes / each for each in (own, usual)]
      text += f' carries {_rates(*rates)}: its transfers take'
    else:
      text += ': its transfers take'
    text += f' {_times(ratio)} {when}'
  if math.isfinite(share.value):
    text += f'; at their speed the run would take {_percent(share)} of its time'
  if kind == 'worker':
    notes = _correlates(worker, float(ratio.value), chosen, iterations, cluster)
    text += ''.join(f'; {note}' for note in notes)
  return Verdict(kind, name, ratio, share, text)


def _judge_nobody(
  compute_s: np.ndarray, iterations: Iterations, replay: Replay
) -> Verdict:
  """Returns the verdict on a run in which no worker is slow."""
  filled_s = _carry_forward(compute_s)
  usual_s = np.nanmedian(filled_s, axis=1)
  count = compute_s.shape[1]
  number = max(math.ceil(_SLOWEST * count), 1)
  order = np.argsort(-np.nanmean(compute_s, axis=0))
  chosen = np.isin(iterations.workers, order[:number])
  seconds = iterations.compute_s + iterations.transfer_s
  at_median_s = usual_s[iterations.rounds] + iterations.transfer_s
  ideal, slowest = (
    costs.share(iterations, seconds, replaced_s, replay)
    for replaced_s in (at_median_s, np.where(chosen, at_median_s, seconds))
  )
  saved = 1 - ideal.value
  if not saved > _NEGLIGIBLE:
    text = (
      'no single worker: with all at the median the run would take '
      f'{_percent(ideal)} of its time'
    )
  else:
    explained = max(1 - slowest.value, 0.0) / saved
    text = (
      f'no single worker: the slowest {number / count:.0%} explain '
      f'{explained:.0%} of the slowdown ({1 / ideal.value:.2f} times a run '
      'with all at the median)'
    )
  return Verdict('none', '', None, ideal, text)


def _by_series(
  episodes: Sequence[rule.Episode],
) -> dict[int, list[rule.Episode]]:
  found: dict[int, list[rule.Episode]] = {}
  for each in episodes:
    found.setdefault(each.series, []).append(each)
  return found


def _episode_ratio(
  table: np.ndarray, series: int, episodes: Sequence[rule.Episode]
) -> Estimate:
  is_slow = np.zeros(len(table), bool)
  for each in episodes:
    is_slow[each.start : each.end] = True
  usual = rule.median_of_others(table)[:, series]
  return _ratio(np.log(table[:, series] / usual)[is_slow])


def _share(after_s: np.ndarray, before_s: np.ndarray) -> Estimate:
  """Returns the share of the time of all steps, from blocks of steps."""
  count = min(10, len(before_s))
  parts = [
    float(after.sum() / before.sum())
    for after, before in zip(
      np.array_split(after_s, count),
      np.array_split(before_s, count),
      strict=True,
    )
  ]
  return costs.interval(parts, float(after_s.sum() / before_s.sum()))


def _ratio(logs: np.ndarray) -> Estimate:
  """Returns the geometric mean of ratios from means of consecutive blocks."""
  if not len(logs):
    return Estimate(math.nan, math.nan, math.nan)
  parts = [
    float(part.mean()) for part in np.array_split(logs, min(10, len(logs)))
  ]
  mean = costs.interval(parts, float(logs.mean()))
  return Estimate(*(float(np.exp(min(each, 700.0))) for each in mean))


def _carry_forward(table: np.ndarray) -> np.ndarray:
  """Returns a table in which missing values are the column's last before."""
  places = np.where(np.isnan(table), 0, np.arange(len(table))[:, None])
  places = np.maximum.accumulate(places, axis=0)
  return np.take_along_axis(table, places, axis=0)


def _times(ratio: Estimate, what: str = '') -> str:
  """Returns a ratio of seconds to the median of others, with its interval."""
  digits = 1 if ratio.value >= 2 else 2
  return (
    f'{ratio.value:.{digits}f} times as long {what}as the median of the others '
    f'(95 %: {ratio.low:.{digits}f} to {ratio.high:.{digits}f})'
  )


def _percent(share: Estimate) -> str:
  """Returns a share with its interval, in percent."""
  return (
    f'{100 * share.value:.0f} % ({100 * share.low:.0f} to '
    f'{100 * share.high:.0f} %)'
  )


def _when(
  episodes: Sequence[rule.Episode], iterations: Iterations | None = None
) -> str:
  """Returns since when a series is slow, or from when to when."""

  def at(number: int) -> str:
    if number <= _START:
      return 'the start'
    if iterations is None or not np.any(iterations.times > 0):
      return f'iteration {number}'
    last = np.searchsorted(iterations.rounds, number) - 1
    return f'{iterations.times[last]:.4g} s (iteration {number})'

  texts = [
    f'since {at(each.start)}'
    if each.end is None
    else f'from {at(each.start)} to {at(each.end)}'
    for each in episodes[-2:]
  ]
  more = f', and {len(episodes) - 2} times before' if len(episodes) > 2 else ''
  return ' and '.join(texts) + more


def _rates(own_Bps: float, usual_Bps: float) -> str:
  """Returns two rates in one unit, as in '52 of 100 Mbit/s'."""
  size, unit = (1e9, 'Gbit/s') if 8 * usual_Bps >= 1e9 else (1e6, 'Mbit/s')
  return f'{8 * own_Bps / size:.3g} of {8 * usual_Bps / size:.3g} {unit}'


def _correlates(
  worker: int,
  ratio: float,
  chosen: np.ndarray,
  iterations: Iterations,
  cluster: Cluster,
) -> list[str]:
  """Returns what the slowness of a worker goes with, as parts of a sentence."""
  notes = []
  others = iterations.examples[iterations.workers != worker]
  own = iterations.examples[chosen]
  if len(own) and len(others) and np.median(others) > 0:
    batch = float(np.median(own) / np.median(others))
    if batch > _EXPLAINS:
      explains = ', which explains it' if batch > ratio / _EXPLAINS else ''
      notes.append(f"its batch is {batch:.2g} times the others'{explains}")
  mine = iterations.workers == worker
  for name, values in cluster.factors.items():
    pairs = np.array([iterations.compute_s[mine], values[mine]])
    pairs = pairs[:, np.isfinite(pairs).all(axis=0)]
    if pairs.shape[1] < rule.LEAST or not pairs.std(axis=1).all():
      continue
    found = float(np.corrcoef(pairs)[0, 1])
    if abs(found) > max(_CORRELATED, 3 / math.sqrt(pairs.shape[1])):
      notes.append(f'its times correlate with {name} by {found:.2f}')
  host = cluster.hosts[worker]
  beside = [
    name
    for k, name in enumerate(cluster.names)
    if host and k != worker and cluster.hosts[k] == host
  ]
  if host and len(set(cluster.hosts)) > 1:
    shared = f', with worker {", ".join(beside)}' if beside else ''
    notes.append(f'it is on host {host}{shared}')
  return notes


class Traffic(NamedTuple):
  """Traffic of an allreduce's links for some iterations.

  Attributes:
    start: Start, seconds on the run's clock.
    iterations: Number of iterations.
    exposed: Share of an iteration that is exposed communication.
    slowness: Planned over measured rate, by sending and receiving worker; with
      servers, usual over measured rate, by host.
  """

  start: float
  iterations: int
  exposed: float
  slowness: Mapping[Any, float]


def link_costs(window: Traffic, *, is_planned: bool) -> dict[Any, float]:
  """Returns how many times longer each link makes an iteration.

  Exposed communication is taken to be in proportion to the slowness of the
  slowest link.

  Args:
    window: Traffic of the links.
    is_planned: Whether planned rates are known; else a link is compared with
      the median of all.
  """
  usual = 1.0
  if not is_planned and window.slowness:
    usual = float(np.median([*window.slowness.values()]))
  return {
    ends: 1 / (1 - window.exposed * (1 - min(usual / slowness, 1.0)))
    for ends, slowness in window.slowness.items()
  }


def judge_links(
  windows: Sequence[Traffic],
  rates: Mapping[tuple[int, int], tuple[float, float]],
  *,
  is_planned: bool,
) -> list[Verdict]:
  """Returns the verdicts on the links of an allreduce.

  Args:
    windows: Traffic of consecutive iterations.
    rates: Measured and planned bytes per second of each link over the run.
    is_planned: Whether planned rates are known.
  """
  if _is_short(windows):
    return [_insufficient_traffic(windows)]
  found = _find_slow_links(windows, is_planned=is_planned)
  verdicts = []
  for (src, dst), (share, when) in found.items():
    Bps, planned_Bps = rates[src, dst]
    text = f'link from worker {src} to worker {dst}'
    if is_planned:
      text += f' carries {_rates(Bps, planned_Bps)}'
    else:
      usual = float(np.median([each / plan for each, plan in rates.values()]))
      text += f' carries {_rates(Bps, planned_Bps * usual)}, as others do,'
    text += f' {when}'
    text += (
      f'; without it the run would take {100 * share.value:.0f} % of its time'
    )
    verdicts.append(Verdict('link', f'{src}-{dst}', None, share, text))
  verdicts = [each for each in verdicts if _costs(each)]
  verdicts.sort(key=lambda each: each.share.value if each.share else 1.0)
  ends = {each for window in windows for each in window.slowness}
  if len(verdicts) > max(len(ends) / 2, 2):
    own, planned = np.median([rates[each] for each in found], axis=0)
    text = (
      f'{len(found)} of {len(ends)} links carry {_rates(own, planned)}: they '
      'go at the pace of the slowest, or share what is slow'
    )
    return [Verdict('link', '', None, verdicts[0].share, text)]
  return verdicts[:_SHOWN]


def judge_departures(found: departures.Departures) -> list[Verdict]:
  """Returns the verdict on departures of workers, if they cost anything.

  Args:
    found: Departures of a run.
  """
  total = sum(found.counts.values())
  parts = []
  if total:
    most = max(found.counts, key=lambda worker: found.counts[worker])
    part = f'worker {most} left'
    if total > 1:
      own = _often(found.counts[most])
      part = f'workers left {_often(total)} (worker {most} {own})'
    if found.away_s is not None:
      seconds = f'{found.away_s:.3g}'
      if found.away_s < _BRIEF_S:
        seconds = f'less than {_BRIEF_S:g}'
      part += f', for {seconds} s in the median'
    parts.append(part)
  if found.restarts:
    often = _often(found.restarts)
    parts.append(f'all continued from an earlier state {often}')
  if not parts:
    return []
  text = ', and '.join(parts)
  if found.share is None:
    text += '; all workers were together too briefly to tell what that costs'
  elif found.share.high < 1 - _NEGLIGIBLE:
    text += (
      f'; without departures the run would take {_percent(found.share)} of its '
      'time'
    )
  else:
    return []
  return [Verdict('departures', '', None, found.share, text)]


def _often(count: int) -> str:
  return 'once' if count == 1 else f'{count} times'


def judge_server_links(
  windows: Sequence[Traffic],
  rates: Mapping[str, server_links.Rates],
  hosts: Sequence[str],
) -> list[Verdict]:
  """Returns the verdicts on the links of hosts that have servers.

  Args:
    windows: Traffic of consecutive iterations, with the slowness of hosts.
    rates: Rates of each host over the run.
    hosts: Host of each worker; '' if unknown.
  """
  if _is_short(windows):
    return [_insufficient_traffic(windows)]
  verdicts = []
  for host, (share, when) in _find_slow_links(windows, is_planned=True).items():
    workers = [str(k) for k, each in enumerate(hosts) if each == host]
    own, usual = (8 * Bps / 1e6 for Bps in rates[host])
    text = f'link of host {host}'
    text += f' (worker {", ".join(workers)})' if workers else ''
    text += (
      f': a connection over it carries {own:.3g} Mbit/s, one between other '
      f'hosts {usual:.3g} Mbit/s, {when}; without it the run would take '
      f'{_percent(share)} of its time'
    )
    verdicts.append(Verdict('link', host, None, share, text))
  verdicts = [each for each in verdicts if _costs(each)]
  verdicts.sort(key=lambda each: each.share.value if each.share else 1.0)
  return verdicts[:_SHOWN]


def _is_short(windows: Sequence[Traffic]) -> bool:
  """Returns whether there is traffic, but too little of it for a verdict."""
  return 0 < sum(map(_repeats, windows)) < rule.LEAST


def _insufficient_traffic(windows: Sequence[Traffic]) -> Verdict:
  count = len(windows)
  text = f'insufficient evidence of links: {count} window'
  text += '' if count == 1 else 's'
  return Verdict('insufficient', '', None, None, f'{text} of traffic')


def _repeats(window: Traffic) -> int:
  """Returns the number of iterations for which a window stands."""
  return min(window.iterations, REPEATS)


def _find_slow_links(
  windows: Sequence[Traffic], *, is_planned: bool
) -> dict[Any, tuple[Estimate, str]]:
  """Returns the links that become slow by the rule.

  Args:
    windows: Traffic of consecutive iterations.
    is_planned: As of `link_costs`.

  Returns:
    By link, the share of its time that the run would take without the link, and
    since when it is slow, as text; {} without traffic.
  """
  ends = sorted({each for window in windows for each in window.slowness})
  rows, begins = [], []
  for window in windows:
    found = link_costs(window, is_planned=is_planned)
    row = [found.get(each, math.nan) for each in ends]
    rows += [row] * _repeats(window)
    begins += [window.start] * _repeats(window)
  if not rows:
    return {}
  table = np.array(rows)
  episodes = rule.find_episodes(table, reference=np.ones_like(table))
  slow = {}
  for series, own in _by_series(episodes).items():
    is_slow = np.zeros(len(table), bool)
    for each in own:
      is_slow[each.start : each.end] = True
    shares = np.where(is_slow, 1 / table[:, series], 1.0)
    parts = shares[~np.isnan(shares)][::REPEATS]
    share = costs.interval(parts, float(parts.mean()))
    since = own[-1].start
    when = 'the start' if since <= _START else f'{begins[since]:.4g} s'
    until = (
      '' if own[-1].end is None else f' to {begins[own[-1].end - 1]:.4g} s'
    )
    when = f'{"from" if until else "since"} {when}{until}'
    slow[ends[series]] = share, when
  return slow
