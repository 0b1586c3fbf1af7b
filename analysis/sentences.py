"""Findings of a diagnosis as sentences."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from diagnosis import departures, rule, server_links, traffic, workers
from diagnosis.costs import Estimate, Iterations
from diagnosis.traffic import SlowLink, Traffic
from diagnosis.workers import Slowness, Spread

_SHOWN = 5  # Verdicts of one kind with a sentence of their own.
_EXPLAINS = 1.1  # Ratio of batches that is worth a word.
_BRIEF_S = 0.1  # Absences that are shown as brief.


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
    kind: 'worker', 'link', 'departures', 'none' (nobody is to blame) or
      'insufficient'.
    name: Name of the worker or link; '' for none.
    ratio: Its seconds over the median of the others; None without one.
    share: Share of its time that the run would take without it; None without
      one.
    text: The verdict as a sentence.
  """

  kind: str
  name: str
  ratio: Estimate | None
  share: Estimate | None
  text: str

  @property
  def sentence(self) -> str:
    """The text with a capital and a full stop."""
    return f'{self.text[:1].upper()}{self.text[1:]}.'


def on_too_few_rounds(rounds: int) -> list[Verdict]:
  """Returns the verdict on a run with too few rounds."""
  return [_insufficient(f'insufficient evidence: {rounds} iterations')]


def on_workers(
  found: Sequence[Slowness], iterations: Iterations, cluster: Cluster
) -> list[Verdict]:
  """Returns the verdicts on slow workers and links of workers.

  Args:
    found: What is slow, the most costly first.
    iterations: Iterations of the run.
    cluster: What else is known of the workers.
  """
  verdicts: list[Verdict] = []
  hidden: dict[str, list[str]] = {}
  for each in found:
    same = [one for one in verdicts if one.kind == each.kind]
    if len(same) < _SHOWN:
      verdicts.append(_on_worker(each, iterations, cluster))
    else:
      hidden.setdefault(each.kind, []).append(cluster.names[each.worker])
  for kind in ('worker', 'link'):
    if kind in hidden:
      names = ', '.join(hidden[kind])
      text = f'{len(hidden[kind])} more {kind}s are slow: {names}'
      verdicts.append(Verdict(kind, names, None, None, text))
  return verdicts


def on_spread(spread: Spread) -> list[Verdict]:
  """Returns the verdict on a run in which no worker is slow."""
  text = (
    'no single worker: with all at the median the run would take '
    f'{_percent(spread.share)} of its time'
  )
  if spread.explained is not None:
    text = (
      f'no single worker: the slowest {spread.slowest:.0%} explain '
      f'{spread.explained:.0%} of the slowdown '
      f'({1 / spread.share.value:.2f} times a run with all at the median)'
    )
  return [Verdict('none', '', None, spread.share, text)]


def on_links(
  windows: Sequence[Traffic],
  rates: Mapping[tuple[int, int], tuple[float, float]],
  *,
  is_planned: bool,
) -> list[Verdict]:
  """Returns the verdicts on the links of an allreduce.

  At most 5 of the most costly; a single one for all if most links are slow.

  Args:
    windows: Traffic of consecutive iterations.
    rates: Measured and planned bytes per second of each link over the run.
    is_planned: Whether planned rates are known.
  """
  if traffic.is_too_short(windows):
    return [_on_short_traffic(windows)]
  found = traffic.find_slow_links(windows, is_planned=is_planned)
  verdicts = []
  for (src, dst), slow in found.items():
    Bps, planned_Bps = rates[src, dst]
    text = f'link from worker {src} to worker {dst}'
    if is_planned:
      text += f' carries {_rates(Bps, planned_Bps)}'
    else:
      usual = float(np.median([each / plan for each, plan in rates.values()]))
      text += f' carries {_rates(Bps, planned_Bps * usual)}, as others do,'
    text += (
      f' {_since(slow)}; without it the run would take '
      f'{100 * slow.share.value:.0f} % of its time'
    )
    verdicts.append(Verdict('link', f'{src}-{dst}', None, slow.share, text))
  verdicts = _most_costly(verdicts)
  ends = {each for window in windows for each in window.slowness}
  if len(verdicts) > max(len(ends) / 2, 2):
    own, planned = np.median([rates[each] for each in found], axis=0)
    text = (
      f'{len(found)} of {len(ends)} links carry {_rates(own, planned)}: they '
      'go at the pace of the slowest, or share what is slow'
    )
    return [Verdict('link', '', None, verdicts[0].share, text)]
  return verdicts[:_SHOWN]


def on_server_links(
  windows: Sequence[Traffic],
  rates: Mapping[str, server_links.Rates],
  hosts: Sequence[str],
) -> list[Verdict]:
  """Returns the verdicts on the links of hosts that have servers.

  At most 5 verdicts, of the most costly links.

  Args:
    windows: Traffic of consecutive iterations, with the slowness of hosts.
    rates: Rates of each host over the run.
    hosts: Host of each worker; '' if unknown.
  """
  if traffic.is_too_short(windows):
    return [_on_short_traffic(windows)]
  verdicts = []
  found = traffic.find_slow_links(windows, is_planned=True)
  for host, slow in found.items():
    names = [str(k) for k, each in enumerate(hosts) if each == host]
    own, usual = (8 * Bps / 1e6 for Bps in rates[host])
    text = f'link of host {host}'
    text += f' (worker {", ".join(names)})' if names else ''
    text += (
      f': a connection over it carries {own:.3g} Mbit/s, one between other '
      f'hosts {usual:.3g} Mbit/s, {_since(slow)}; without it the run would '
      f'take {_percent(slow.share)} of its time'
    )
    verdicts.append(Verdict('link', host, None, slow.share, text))
  return _most_costly(verdicts)[:_SHOWN]


def on_departures(found: departures.Departures) -> list[Verdict]:
  """Returns the verdict on departures of workers, if they cost anything."""
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
  elif found.share.high < 1 - workers.NEGLIGIBLE:
    text += (
      f'; without departures the run would take {_percent(found.share)} of its '
      'time'
    )
  else:
    return []
  return [Verdict('departures', '', None, found.share, text)]


def _on_worker(
  slow: Slowness, iterations: Iterations, cluster: Cluster
) -> Verdict:
  name, is_worker = cluster.names[slow.worker], slow.kind == 'worker'
  when = _when(slow.episodes, iterations)
  if is_worker:
    what = 'to compute an iteration '
    text = f'worker {name} takes {_times(slow.ratio, what)} {when}'
  else:
    text = f'link of worker {name}'
    if cluster.push_bytes and slow.usual_s > 0 and slow.own_s > 0:
      rates = [cluster.push_bytes / each for each in (slow.own_s, slow.usual_s)]
      text += f' carries {_rates(*rates)}'
    text += f': its transfers take {_times(slow.ratio)} {when}'
  if math.isfinite(slow.share.value):
    share = _percent(slow.share)
    text += f'; at their speed the run would take {share} of its time'
  if is_worker:
    text += ''.join(f'; {note}' for note in _notes(slow, cluster))
  return Verdict(slow.kind, name, slow.ratio, slow.share, text)


def _notes(slow: Slowness, cluster: Cluster) -> list[str]:
  """Returns what the slowness of a worker goes with, as parts of a sentence."""
  notes = []
  if slow.batch is not None and slow.batch > _EXPLAINS:
    is_why = slow.batch > slow.ratio.value / _EXPLAINS
    explains = ', which explains it' if is_why else ''
    notes.append(f"its batch is {slow.batch:.2g} times the others'{explains}")
  notes += [
    f'its times correlate with {name} by {correlation:.2f}'
    for name, correlation in slow.correlations.items()
  ]
  host = cluster.hosts[slow.worker]
  beside = [
    name
    for k, name in enumerate(cluster.names)
    if host and k != slow.worker and cluster.hosts[k] == host
  ]
  if host and len(set(cluster.hosts)) > 1:
    shared = f', with worker {", ".join(beside)}' if beside else ''
    notes.append(f'it is on host {host}{shared}')
  return notes


def _most_costly(verdicts: Sequence[Verdict]) -> list[Verdict]:
  """Returns the verdicts on what costs any time, the most costly first."""
  costly = [each for each in verdicts if workers.is_costly(each.share)]
  return sorted(costly, key=lambda each: each.share.value if each.share else 1)


def _on_short_traffic(windows: Sequence[Traffic]) -> Verdict:
  count = len(windows)
  plural = '' if count == 1 else 's'
  return _insufficient(
    f'insufficient evidence of links: {count} window{plural} of traffic'
  )


def _insufficient(text: str) -> Verdict:
  return Verdict('insufficient', '', None, None, text)


def _often(count: int) -> str:
  return 'once' if count == 1 else f'{count} times'


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


def _when(episodes: Sequence[rule.Episode], iterations: Iterations) -> str:
  """Returns since when a series is slow, or from when to when."""

  def at(number: int) -> str:
    if number <= rule.START:
      return 'the start'
    if not np.any(iterations.times > 0):
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


def _since(slow: SlowLink) -> str:
  start = 'the start' if slow.start is None else f'{slow.start:.4g} s'
  if slow.end is None:
    return f'since {start}'
  return f'from {start} to {slow.end:.4g} s'


def _rates(own_Bps: float, usual_Bps: float) -> str:
  """Returns two rates in one unit, as in '52 of 100 Mbit/s'."""
  size, unit = (1e9, 'Gbit/s') if 8 * usual_Bps >= 1e9 else (1e6, 'Mbit/s')
  return f'{8 * own_Bps / size:.3g} of {8 * usual_Bps / size:.3g} {unit}'
