"""The policy of changing the forest of a run when its links change.

The policy decides from rates and durations that its caller provides.  It
measures nothing, packs no forest and reads no clock.

  watch    Rates of the running forest's connections, and durations of
           iterations, are collected in windows.  The first windows of a forest
           are its reference.
  measure  If medians of the last windows differ from the reference by more than
           15 %, all links have to be measured: traffic of the running forest
           does not show what other links could carry.
  switch   Another forest is used if it is predicted to be at least 10 % faster,
           and to save more in 100 iterations than the change costs.
  back     The forest before is used again if less than half of that is saved.

At least 50 iterations are between two switches.  Measuring takes at most 2 % of
the time, but for the first one, and half of that after each one in vain.
"""

import collections
import statistics
from collections.abc import Mapping
from typing import NamedTuple

Ends = tuple[int, int]

OFF = 0.15  # Relative difference of a median from its reference.
FASTER = 0.10  # Share of the time that another forest has to save.
PAYBACK = 100  # Iterations in which a switch has to save its cost.
BETWEEN = 50  # Iterations from one switch to the next.
SHARE = 0.02  # Largest share of the time for measuring.
IDLE_SHARE = 0.01  # The same if idle links are the only reason.
WINDOWS = 5  # Number of windows in a median of rates.
JUDGED = 10  # Number of iterations in a median of durations.
_MOST_VAIN = 4  # Largest number of halvings of the share.
_COST_S = 3.0  # Cost of measuring, before the first one.


class Switch(NamedTuple):
  """A decision about another forest.

  Attributes:
    old_s: Predicted seconds of an allreduce with the running forest.
    new_s: The same with the other forest, over the same links.
    gain_s: Predicted saving per iteration, of exposed communication.
    worth: Whether the other forest is to be used.
    why: Reason of the decision.
  """

  old_s: float
  new_s: float
  gain_s: float
  worth: bool
  why: str


class RepackingPolicy:
  """The policy of one run: see the module."""

  def __init__(self) -> None:
    """Creates the policy, without any rates."""
    self._windows: collections.deque[Mapping[Ends, float]] = collections.deque(
      maxlen=WINDOWS
    )
    # References: medians of the first windows with this forest.
    self._reference: dict[Ends, float] = {}
    self._reference_s = 0.0
    self._exposed_s: collections.deque[float] = collections.deque(maxlen=JUDGED)
    self._is_first = True  # Whether an epoch's first iteration comes next.
    self._since_switch = BETWEEN  # Iterations.
    self._spent_s, self._measured_at, self._cost_s = 0.0, 0.0, _COST_S
    self._only_idle = False  # Whether idle links were the only reason.
    self._useless = 0  # Measurements and switches that saved nothing.
    # Last switch: exposed seconds before it, and its predicted saving.
    self._judging: tuple[float, float] | None = None

  @property
  def exposed_s(self) -> float:
    """Median of the last iterations' exposed communication, seconds."""
    return statistics.median(self._exposed_s) if self._exposed_s else 0.0

  @property
  def _recent_s(self) -> float:
    """Median of half as many iterations, all after a change of links."""
    last = [*self._exposed_s][-(JUDGED // 2) :]
    return statistics.median(last) if last else 0.0

  @property
  def rates(self) -> dict[Ends, float]:
    """Medians of the last windows, bytes per second."""
    found: dict[Ends, list[float]] = {}
    for window in self._windows:
      for ends, rate in window.items():
        found.setdefault(ends, []).append(rate)
    # The rate of a connection that seldom sends says little.
    enough = len(self._windows) // 2 + 1
    return {
      ends: statistics.median(rates)
      for ends, rates in found.items()
      if len(rates) >= enough
    }

  def begin_epoch(self, *, same: bool) -> None:
    """Records that connections have been made for another membership epoch.

    Args:
      same: Whether forest and links are those of the epoch before.
    """
    self._windows.clear()
    self._is_first = True
    if not same:
      self._reference, self._reference_s = {}, 0.0
      self._exposed_s.clear()

  def forget_switch(self) -> None:
    """Drops the last switch without judging it, as the members have changed."""
    self._judging = None

  def add_iteration(self, exposed_s: float) -> None:
    """Records an iteration.

    Args:
      exposed_s: Time from the last worker's end of computing to the end of the
        allreduce, seconds.
    """
    self._since_switch += 1
    if self._is_first:  # Connections have just begun to fill.
      self._is_first = False
      return
    self._exposed_s.append(exposed_s)

  def add_window(self, rates: Mapping[Ends, float]) -> None:
    """Records a window.

    Args:
      rates: Bytes per second while there was something to send, by sender and
        receiver.
    """
    self._windows.append(dict(rates))
    if not self._reference and len(self._windows) == WINDOWS:
      self._reference, self._reference_s = self.rates, self.exposed_s

  def reason_to_measure(
    self, now_s: float, predicted_s: float, pairs: frozenset[Ends] = frozenset()
  ) -> str:
    """Returns the reason why links have to be measured; '' if there is none.

    Args:
      now_s: Seconds of the run.
      predicted_s: Predicted seconds of an allreduce with the running forest; 0
        if the links are not known.
      pairs: All pairs of workers that have links.
    """
    if self._judging or self._since_switch < BETWEEN:
      return ''
    if len(self._windows) < WINDOWS or not self._reference:
      return ''
    if len(self._exposed_s) < JUDGED:
      return ''
    share = SHARE / 2 ** min(self._useless, _MOST_VAIN)
    if self._spent_s > share * now_s:
      return ''
    if why := self._difference(predicted_s):
      self._only_idle = False
      return why
    idle = pairs - self._reference.keys()
    self._only_idle = now_s - self._measured_at > self._cost_s / IDLE_SHARE
    return f'{len(idle)} links are idle' if idle and self._only_idle else ''

  def note_measurement(self, now_s: float, cost_s: float) -> None:
    """Records that links have been measured, or that this has failed.

    Args:
      now_s: Seconds of the run.
      cost_s: Seconds for which the run has stopped.
    """
    self._spent_s += cost_s
    self._measured_at, self._cost_s = now_s, cost_s

  def decide(self, old_s: float, new_s: float, cost_s: float) -> Switch:
    """Decides whether another forest is used from here on.

    Args:
      old_s: Predicted seconds of an allreduce with the running forest.
      new_s: The same with the other forest.
      cost_s: Cost of the change, seconds.
    """
    # Communication that computation hides cannot be saved.
    exposed_s = self._recent_s
    gain_s = min(old_s - new_s, exposed_s)
    if new_s > (1 - FASTER) * old_s:
      why = f'no forest is predicted to save {FASTER:.0%}'
    elif gain_s * PAYBACK <= cost_s:
      why = f'{cost_s:.3g} s are not gained in {PAYBACK} iterations'
    else:
      self._useless = 0
      self._since_switch = 0
      self._judging = exposed_s, gain_s
      self.begin_epoch(same=False)
      return Switch(old_s, new_s, gain_s, True, f'{gain_s:.3g} s an iteration')
    self._useless += not self._only_idle
    self.begin_epoch(same=False)  # The next windows are the reference.
    return Switch(old_s, new_s, gain_s, False, why)

  def judge(self) -> tuple[bool, float, float] | None:
    """Judges the last switch, once, after enough iterations.

    Returns:
      Whether the switch was good; and the seconds per iteration that it has
      saved, and was predicted to save.  None if there is nothing to judge.
    """
    if self._judging is None or len(self._exposed_s) < JUDGED:
      return None
    before_s, gain_s = self._judging
    self._judging = None
    gained_s = before_s - self.exposed_s
    good = gained_s >= gain_s / 2
    if not good:
      self._useless += 1
      self._since_switch = 0
      self.begin_epoch(same=False)
    return good, gained_s, gain_s

  def _difference(self, predicted_s: float) -> str:
    """Describes how rates or durations differ from their references."""
    slow_s = predicted_s * (1 + OFF)
    if predicted_s and not self._useless and self.exposed_s > slow_s:
      return f'sums take {self.exposed_s:.3g} s, not {predicted_s:.3g} s'
    if self._reference_s and self.exposed_s > self._reference_s * (1 + OFF):
      return f'sums take {self.exposed_s:.3g} s, not {self._reference_s:.3g} s'
    worst, largest = None, OFF
    for ends, rate in self.rates.items():
      reference = self._reference.get(ends)
      if reference and abs(rate / reference - 1) > largest:
        worst, largest = ends, abs(rate / reference - 1)
    if worst is None:
      return ''
    now, before = self.rates[worst], self._reference[worst]
    return (
      f'from worker {worst[0]} to {worst[1]} go {8e-6 * now:.4g} Mbit/s, not '
      f'{8e-6 * before:.4g}'
    )
