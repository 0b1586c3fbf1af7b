"""Whether links have changed, and whether another forest is worth its while.

Nothing here measures, packs or knows a clock: rates and seconds come in,
decisions go out.

  watch    rates of the running forest's connections, and how long iterations
           take, by windows; the first ones with a forest are what it is like
  measure  the medians of the last windows are off by more than 15 %: how much
           every link carries has to be measured, as traffic does not show it
  switch   another forest is predicted to be at least 10 % faster, and what it
           gains in 100 iterations is more than changing forests costs
  back     it has gained less than half of that

At least 50 iterations are between two switches, and measuring takes at most 2 %
of the time, but for the first one; half of that each time it was in vain.
"""

import collections
import statistics
from collections.abc import Mapping
from typing import NamedTuple

Ends = tuple[int, int]

OFF = 0.15  # Of a median, from what it was.
FASTER = 0.10  # Share of the time that another forest has to save.
PAYBACK = 100  # Iterations in which it has to gain what changing costs.
BETWEEN = 50  # Iterations from one switch to the next.
SHARE = 0.02  # Of the time, for measuring.
IDLE_SHARE = 0.01  # The same where nothing but idle links asks for it.
WINDOWS = 5  # Of which medians are taken.
JUDGED = 10  # Iterations of which medians are compared after a switch.
_MOST_VAIN = 4  # Halvings of the share.
_COST_S = 3.0  # Of measuring, before that is known.


class Switch(NamedTuple):
  """What is expected of another forest.

  Attributes:
    old_s: Predicted seconds of an iteration's sums with the running forest.
    new_s: The same with the other one, over the same links.
    gain_s: Of it per iteration, of what is not hidden.
    worth: Whether it is to be used.
    why: It is, or is not.
  """

  old_s: float
  new_s: float
  gain_s: float
  worth: bool
  why: str


class Adapting:
  """Decides; one for a run."""

  def __init__(self) -> None:
    """Has seen nothing."""
    self._windows: collections.deque[Mapping[Ends, float]] = collections.deque(
      maxlen=WINDOWS
    )
    self._usual: dict[Ends, float] = {}  # Rates with this forest at first.
    self._usual_s = 0.0
    self._exposed_s: collections.deque[float] = collections.deque(maxlen=JUDGED)
    self._fresh = True  # The next iteration is the first of a generation.
    self._since = BETWEEN  # Iterations, from the last switch.
    self._spent_s, self._measured_at, self._cost_s = 0.0, 0.0, _COST_S
    self._idle = False  # Whether nothing but idle links has asked.
    self._vain = 0
    self._judging: tuple[float, float] | None = None  # Before, and gain.

  @property
  def exposed_s(self) -> float:
    """The median of how long the last iterations have waited for sums."""
    return statistics.median(self._exposed_s) if self._exposed_s else 0.0

  @property
  def _now_s(self) -> float:
    """The same of so few that all are of after a change that has shown."""
    last = [*self._exposed_s][-(JUDGED // 2) :]
    return statistics.median(last) if last else 0.0

  @property
  def rates(self) -> dict[Ends, float]:
    """The medians of the last windows, bytes per second."""
    found: dict[Ends, list[float]] = {}
    for window in self._windows:
      for ends, rate in window.items():
        found.setdefault(ends, []).append(rate)
    # A connection that seldom has anything to send shows little.
    enough = len(self._windows) // 2 + 1
    return {
      ends: statistics.median(rates)
      for ends, rates in found.items()
      if len(rates) >= enough
    }

  def formed(self, *, same: bool) -> None:
    """A generation begins.

    Args:
      same: Whether it sums over the forest of before, and links are thought to
        be as they were.
    """
    self._windows.clear()
    self._fresh = True
    if not same:
      self._usual, self._usual_s = {}, 0.0
      self._exposed_s.clear()

  def forget(self) -> None:
    """Others take part now: what was expected of a switch shows no more."""
    self._judging = None

  def iterated(self, exposed_s: float) -> None:
    """An iteration has ended.

    Args:
      exposed_s: From the last worker's end of computing to the end of the sums.
    """
    self._since += 1
    if self._fresh:  # Connections have just begun to fill.
      self._fresh = False
      return
    self._exposed_s.append(exposed_s)

  def window(self, rates: Mapping[Ends, float]) -> None:
    """A window has ended.

    Args:
      rates: Bytes per second, while there was something to send, by sender and
        receiver.
    """
    self._windows.append(dict(rates))
    if not self._usual and len(self._windows) == WINDOWS:
      self._usual, self._usual_s = self.rates, self.exposed_s

  def suspects(
    self, now_s: float, predicted_s: float, pairs: frozenset[Ends] = frozenset()
  ) -> str:
    """Returns why links have to be measured; '' if they need not.

    Args:
      now_s: Seconds of the run.
      predicted_s: Of the running forest over the links that are believed in;
        0 if they are not known.
      pairs: All that have links.
    """
    if self._judging or self._since < BETWEEN:
      return ''
    if len(self._windows) < WINDOWS or not self._usual:
      return ''
    if len(self._exposed_s) < JUDGED:
      return ''
    share = SHARE / 2 ** min(self._vain, _MOST_VAIN)
    if self._spent_s > share * now_s:
      return ''
    if why := self._off(predicted_s):
      self._idle = False
      return why
    idle = pairs - self._usual.keys()
    self._idle = now_s - self._measured_at > self._cost_s / IDLE_SHARE
    return f'{len(idle)} links are idle' if idle and self._idle else ''

  def measured(self, now_s: float, cost_s: float) -> None:
    """Links have been measured, or could not be.

    Args:
      now_s: Seconds of the run.
      cost_s: For which nothing else went on.
    """
    self._spent_s += cost_s
    self._measured_at, self._cost_s = now_s, cost_s

  def decide(self, old_s: float, new_s: float, cost_s: float) -> Switch:
    """Returns whether another forest is to be used; it is, from here on.

    Args:
      old_s: Predicted seconds of the running forest.
      new_s: The same of the other one.
      cost_s: Of changing.
    """
    # What is hidden cannot be gained.
    now_s = self._now_s
    gain_s = min(old_s - new_s, now_s)
    if new_s > (1 - FASTER) * old_s:
      why = f'no forest is predicted to save {FASTER:.0%}'
    elif gain_s * PAYBACK <= cost_s:
      why = f'{cost_s:.3g} s are not gained in {PAYBACK} iterations'
    else:
      self._vain = 0
      self._since = 0
      self._judging = now_s, gain_s
      self.formed(same=False)
      return Switch(old_s, new_s, gain_s, True, f'{gain_s:.3g} s an iteration')
    self._vain += not self._idle
    self.formed(same=False)  # What it is like now is what it is like.
    return Switch(old_s, new_s, gain_s, False, why)

  def judge(self) -> tuple[bool, float, float] | None:
    """Returns whether a switch was worth it, once, when that shows.

    With the seconds that it has gained per iteration, and should have.
    """
    if self._judging is None or len(self._exposed_s) < JUDGED:
      return None
    before_s, gain_s = self._judging
    self._judging = None
    gained_s = before_s - self.exposed_s
    good = gained_s >= gain_s / 2
    if not good:
      self._vain += 1
      self._since = 0
      self.formed(same=False)
    return good, gained_s, gain_s

  def _off(self, predicted_s: float) -> str:
    """Returns what is not as it was with this forest at first."""
    slow_s = predicted_s * (1 + OFF)
    if predicted_s and not self._vain and self.exposed_s > slow_s:
      return f'sums take {self.exposed_s:.3g} s, not {predicted_s:.3g} s'
    if self._usual_s and self.exposed_s > self._usual_s * (1 + OFF):
      return f'sums take {self.exposed_s:.3g} s, not {self._usual_s:.3g} s'
    worst, by = None, OFF
    for ends, rate in self.rates.items():
      usual = self._usual.get(ends)
      if usual and abs(rate / usual - 1) > by:
        worst, by = ends, abs(rate / usual - 1)
    if worst is None:
      return ''
    now, before = self.rates[worst], self._usual[worst]
    return (
      f'from worker {worst[0]} to {worst[1]} go {8e-6 * now:.4g} Mbit/s, not '
      f'{8e-6 * before:.4g}'
    )
