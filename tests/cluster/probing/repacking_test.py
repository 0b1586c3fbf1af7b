"""Tests for deciding whether links have changed, on simulated ones."""

import itertools
import random

from absl.testing import absltest, parameterized

from cluster.probing import repacking
from cluster.probing.repacking import RepackingPolicy

_SIZE, _HOSTS = 5e6, 4
_PAIRS = frozenset(itertools.permutations(range(_HOSTS), 2))
_FORMING_S, _MEASURING_S = 0.5, 3.0
_WINDOW_S = 2.0


class _Run:
  """A run over simple links: hosts, of which each has a part of the sums.

  A forest is the rates that it was made for: parts are in proportion to them,
  and an iteration takes as long as the slowest part.

  Attributes:
    switched: Iterations before which the forest was changed.
    measured: Seconds at which links were measured.
    iterations: Seconds of each.
  """

  def __init__(self, rates, *, noise=0.0, seed=0, assumed=None):
    self.rates, self._noise = [*rates], noise
    self._random = random.Random(seed)
    self.policy = RepackingPolicy()
    self.forest = [*(assumed or rates)]
    self.now_s = 0.0
    self.switched, self.measured, self.iterations = [], [], []
    self.kept, self.backs = [], []
    self.false_s = 1.0  # By which the prediction of a new forest is wrong.
    self.policy.begin_epoch(same=False)
    self._window_at = _WINDOW_S
    self._before = None

  def run(self, iterations, *, idle=()):
    for _ in range(iterations):
      drawn = self._draw()
      took_s = _time_s(self.forest, drawn)
      self.iterations.append(took_s)
      self.now_s += took_s
      self.policy.add_iteration(took_s)
      if self.now_s >= self._window_at:
        self._window_at = self.now_s + _WINDOW_S
        drawn = self._draw()
        shown = {
          (i, j): min(drawn[i], drawn[j]) / (_HOSTS - 1)
          for i, j in _PAIRS - {*idle}
        }
        self.policy.add_window(shown)
      self._decide()

  def _draw(self):
    spread = self._noise
    return [
      r * self._random.uniform(1 - spread, 1 + spread) for r in self.rates
    ]

  def _decide(self):
    if judged := self.policy.judge():
      if not judged[0]:
        self.backs.append(len(self.iterations))
        self.forest = self._before
        self.policy.begin_epoch(same=False)
      return
    believed_s = _time_s(
      self.forest, self.rates if self._noise else self.forest
    )
    if not self.policy.reason_to_measure(self.now_s, believed_s, _PAIRS):
      return
    self.measured.append(self.now_s)
    self.now_s += _MEASURING_S
    self.policy.note_measurement(self.now_s, _MEASURING_S)
    self.policy.begin_epoch(same=True)
    found = self._draw()
    switch = self.policy.decide(
      _time_s(self.forest, found),
      _time_s(found, found) * self.false_s,
      _FORMING_S,
    )
    if switch.worth:
      self.switched.append(len(self.iterations))
      self._before, self.forest = self.forest, found
      self.policy.begin_epoch(same=False)
    else:
      self.kept.append(switch)


def _time_s(forest, rates):
  parts = [_SIZE * rate / sum(forest) for rate in forest]
  return max(part / rate for part, rate in zip(parts, rates, strict=True))


class RepackingPolicyTest(parameterized.TestCase):
  @parameterized.product(seed=[0, 1, 2, 3, 4], rate=[2e6, 25e6])
  def test_noise_of_a_tenth_never_switches(self, seed, rate):
    run = _Run([rate] * _HOSTS, noise=0.1, seed=seed)
    run.run(500)
    self.assertEmpty(run.switched)
    share = len(run.measured) * _MEASURING_S / run.now_s
    self.assertLess(share, 0.05)

  @parameterized.product(seed=[0, 1, 2], noise=[0.0, 0.05])
  def test_a_drop_and_a_recovery_of_a_link_change_the_forest_once_each(
    self, seed, noise
  ):
    run = _Run([2.5e6] * _HOSTS, noise=noise, seed=seed)
    run.run(200)
    self.assertEmpty(run.switched)
    run.rates[3] = 0.625e6
    run.run(200)
    self.assertLen(run.switched, 1)
    self.assertLess(run.switched[0], 200 + 60)
    fresh_s = _time_s(run.rates, run.rates)
    for took_s in run.iterations[-50:]:
      self.assertLess(took_s, fresh_s * (1.1 + 3 * noise))
    run.rates[3] = 2.5e6  # The traffic of its connections shows it.
    run.run(1500)
    self.assertLen(run.switched, 2)
    self.assertLess(
      run.iterations[-1], 1.1 * _time_s(run.rates, run.rates) + noise
    )

  def test_links_that_change_all_the_time_change_the_forest_rarely(self):
    run = _Run([2.5e6] * _HOSTS)
    for _ in range(60):
      run.rates[3] = 3.125e6 - run.rates[3]  # 2.5 and 0.625 in turn.
      run.run(25)
    gaps = [b - a for a, b in itertools.pairwise(run.switched)]
    self.assertGreaterEqual(min(gaps, default=99), repacking.BETWEEN)
    share = (len(run.measured) - 1) * _MEASURING_S / run.now_s
    self.assertLessEqual(share, repacking.SHARE)

  def test_links_that_were_wrong_from_the_start_are_measured(self):
    run = _Run([2.5e6, 2.5e6, 2.5e6, 0.625e6], assumed=[2.5e6] * _HOSTS)
    run.run(100)
    self.assertLen(run.switched, 1)

  def test_a_forest_that_saves_nothing_is_replaced_by_the_one_before(self):
    run = _Run([2.5e6] * _HOSTS)
    run.run(100)
    decide, before = run.policy.decide, run.forest
    promised = lambda old_s, new_s, cost_s: decide(  # noqa: E731
      2 * old_s, new_s, cost_s
    )
    run.policy.decide = promised
    run.rates = [1.25e6] * _HOSTS  # All alike: no forest is faster.
    run.run(300)
    self.assertLen(run.switched, 1)
    self.assertLen(run.backs, 1)
    self.assertEqual(run.forest, before)

  def test_a_forest_that_does_not_pay_back_is_not_used(self):
    for cost_s, worth in ((100 * 0.1 + 0.01, False), (9.9, True)):
      run = _Run([2.5e6] * _HOSTS)
      run.run(60)
      switch = run.policy.decide(0.3, 0.2, cost_s)
      self.assertEqual(switch.worth, worth)
      self.assertEqual('not gained in 100' in switch.why, not worth)

  def test_a_saving_of_less_than_a_tenth_is_not_used(self):
    run = _Run([2.5e6] * _HOSTS)
    run.run(60)
    self.assertFalse(run.policy.decide(1.0, 0.91, 0.01).worth)

  def test_hidden_communication_counts_for_nothing(self):
    policy = RepackingPolicy()
    policy.begin_epoch(same=False)
    for _ in range(11):
      policy.add_iteration(0.0)
    self.assertFalse(policy.decide(1.0, 0.1, 0.5).worth)

  def test_idle_links_are_measured_now_and_then(self):
    run = _Run([2.5e6] * _HOSTS)
    run.run(4000, idle=[(0, 1)])
    gaps = [b - a for a, b in itertools.pairwise(run.measured)]
    self.assertGreater(len(run.measured), 1)
    self.assertGreaterEqual(min(gaps), _MEASURING_S / repacking.IDLE_SHARE)
    self.assertEmpty(run.switched)

  def test_a_single_deviating_window_is_no_change(self):
    run = _Run([2.5e6] * _HOSTS)
    run.run(100)
    for _ in range(2):
      run.policy.add_window(dict.fromkeys(_PAIRS, 1e5))
    self.assertEqual(run.policy.reason_to_measure(1e6, 0.0), '')
    run.policy.add_window(dict.fromkeys(_PAIRS, 1e5))
    self.assertRegex(
      run.policy.reason_to_measure(1e6, 0.0), 'go 0.8 Mbit/s, not 6.667'
    )


if __name__ == '__main__':
  absltest.main()
