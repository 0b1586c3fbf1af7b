"""Tests for sync.elastic with a bound, and of what it does without one."""

import copy
import hashlib
import itertools
import json
import math

import hypothesis
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from sync import elastic, record, ssp
from tests.support.driver import Driver

# Of all decisions below, as they were before there was a bound.
_BEFORE = '06c0145f2aa78d8d67f3fabd2e5d93a827c5983ec7d33211911f6929fa9e11ed'


def _make(num_workers, *, lookahead=6, monitor_pushes=2, bound=math.inf):
  return elastic.make(
    num_workers=num_workers,
    lookahead=lookahead,
    monitor_pushes=monitor_pushes,
    bound=bound,
  )


def _constant(*seconds):
  return lambda worker, iteration: seconds[worker]


def _random(seed):
  """Seconds per iteration: unequal workers, jitter, and many ties."""
  rng = np.random.default_rng(seed)
  speed = rng.integers(1, 9, 8)
  table = rng.integers(1, 4, (8, 997)) * speed[:, None] / 4
  return lambda worker, iteration: float(table[worker, iteration % 997])


class _Leads:
  """Counts iterations since the barrier, of who started from it."""

  def __init__(self):
    self.made = {}
    self.largest = self.running = 0  # Of all, and of those that run.

  def __call__(self, driver, step):
    """Called after each step, as a check of the driver."""
    worker = step.event.get('worker')
    if step.told == 'leave':
      self.made.pop(worker, None)
    elif step.told == 'push':
      self.made[worker] += 1
    if step.decision.barrier or step.told == 'start':
      self.made = dict.fromkeys(step.decision.release, 0)
    slowest = min(self.made.values(), default=0)
    leads = {each: made - slowest for each, made in self.made.items()}
    self.largest = max(self.largest, *leads.values(), 0)
    self.running = max(self.running, 0, *(leads[w] for w in driver.running))


def _schedules():
  """Strategies of random schedules with deaths and returns."""
  return {
    'num_workers': st.integers(1, 6),
    'seed': st.integers(0, 2**32 - 1),
    'lookahead': st.integers(1, 7),
    'monitor_pushes': st.integers(2, 3),
    'faults': st.lists(
      st.tuples(
        st.integers(0, 60).map(lambda t: t / 2),
        st.sampled_from(['leave', 'join']),
        st.integers(0, 5),
      ),
      max_size=12,
    ),
  }


def _driven(scheme, seed, faults=(), pushes=120):
  num_workers = len(scheme.members.state)
  faults = [fault for fault in faults if fault[2] < num_workers]
  driver, leads = Driver(scheme, num_workers), _Leads()
  driver.run(_random(seed), pushes=pushes, faults=faults, check=leads)
  return driver, leads.running


def _rows(driver):
  return json.loads(json.dumps([record.row(*step) for step in driver.steps]))


class BoundTest(parameterized.TestCase):
  @parameterized.parameters((10, 28), (30, 73))
  def test_without_a_bound_a_lead_grows_while_it_monitors(self, slow, lead):
    driver, leads = Driver(_make(2, lookahead=15), 2), _Leads()
    driver.run(_constant(1, slow), pushes=400, check=leads)
    self.assertEqual(leads.largest, lead)

  @hypothesis.settings(max_examples=100, deadline=None)
  @hypothesis.given(bound=st.integers(0, 4), **_schedules())
  def test_it_holds_and_nobody_waits_for_ever(
    self, num_workers, seed, lookahead, monitor_pushes, faults, bound
  ):
    arguments = {
      'lookahead': lookahead,
      'monitor_pushes': monitor_pushes,
      'bound': bound,
    }

    # The driver fails if nobody can go on, or if an update is applied twice.
    driver, lead = _driven(_make(num_workers, **arguments), seed, faults)

    self.assertLessEqual(lead, bound)
    rows = _rows(driver)
    for recorded, replayed in record.replay(
      _make(num_workers, **arguments), rows
    ):
      self.assertEqual(recorded, replayed)

  @hypothesis.settings(max_examples=100, deadline=None)
  @hypothesis.given(cut=st.integers(1, 119), **_schedules())
  def test_a_copy_goes_on_as_the_original_does(
    self, num_workers, seed, lookahead, monitor_pushes, faults, cut
  ):
    made = _make(
      num_workers, lookahead=lookahead, monitor_pushes=monitor_pushes, bound=1
    )
    driver, _ = _driven(made, seed, faults)
    rows = _rows(driver)
    again = _make(
      num_workers, lookahead=lookahead, monitor_pushes=monitor_pushes, bound=1
    )
    list(record.replay(again, rows[:cut]))
    for recorded, replayed in record.replay(copy.deepcopy(again), rows[cut:]):
      self.assertEqual(recorded, replayed)

  def test_who_is_beyond_it_waits_and_no_longer(self):
    # Worker 0 (1 s) may lead by one beside worker 1 (3 s): two pushes by 2,
    # then one more for each of worker 1's, at 3.  At 6 both have monitored: 4
    # and 2 pushes at 5 and 6.  Worker 0 could push at 7 and then, having been
    # held up until 9, at 10; worker 1 at 9 and 12: 10 and 9 are nearest.
    driver, leads = Driver(_make(2, lookahead=2, bound=1), 2), _Leads()
    driver.run(_constant(1, 3), pushes=8, check=leads)
    self.assertEqual(
      driver.releases,
      [
        (0, (0, 1)),
        (1, (0,)),
        (3, (0, 1)),
        (6, (0, 1)),
        (9, (0,)),
        (10, (0, 1)),
      ],
    )
    self.assertTrue(driver.steps[-1].decision.barrier)
    self.assertEqual(leads.running, 1)

  def test_who_is_held_up_and_leaves_is_monitored_no_more(self):
    # At 1.5 worker 0 waits after one push of two; at 6 worker 1 has made both,
    # and would be monitored for ever if worker 0 were still expected.
    driver = Driver(_make(2, lookahead=1, bound=0), 2)
    driver.run(_constant(1, 3), pushes=4, faults=[(1.5, 'leave', 0)])
    barriers = [s.event['time'] for s in driver.steps if s.decision.barrier]
    self.assertEqual(barriers, [9])


class ChoiceTest(parameterized.TestCase):
  """With constant times predictions are exact: the barrier is the best one."""

  @hypothesis.settings(max_examples=100, deadline=None)
  @hypothesis.given(
    seconds=st.lists(st.integers(1, 9), min_size=2, max_size=3),
    lookahead=st.integers(1, 4),
    bound=st.integers(0, 4),
  )
  def test_no_barrier_within_the_bound_waits_less(
    self, seconds, lookahead, bound
  ):
    # Irrational times: no ties, in whose order the schemes may differ.
    times = _constant(*(s + math.sqrt(p) / 50 for p, s in enumerate(seconds)))
    made = _make(len(seconds), lookahead=lookahead, bound=bound)
    at_search = []

    def check(driver, step):
      if not driver.scheme.monitored and not at_search:
        at_search.extend(driver.finished)

    driver = Driver(made, len(seconds))
    driver.run(times, pushes=400, check=check)
    first = next(s.event['time'] for s in driver.steps if s.decision.barrier)
    pushes = [s.event for s in driver.steps if s.told == 'push']
    stopped = [
      max(p['time'] for p in pushes if p['worker'] == w and p['time'] <= first)
      for w in range(len(seconds))
    ]

    free = Driver(ssp.make(num_workers=len(seconds), bound=bound), len(seconds))
    free.run(times, pushes=400)
    ends = [
      [s.event['time'] for s in free.steps if s.event.get('worker') == w]
      for w in range(len(seconds))
    ]
    choices = itertools.product(
      *(range(made, made + lookahead) for made in at_search)
    )
    best = min(
      max(at) - min(at)
      for chosen in choices
      if max(chosen) - min(chosen) <= bound + 1
      for at in [[row[c] for row, c in zip(ends, chosen, strict=True)]]
    )
    self.assertAlmostEqual(max(stopped) - min(stopped), best)


class WithoutTest(parameterized.TestCase):
  def test_verdicts_are_those_of_before_there_was_a_bound(self):
    digest = hashlib.sha256()
    for seed in range(40):
      faults = [(3.0, 'leave', 1), (6.0, 'join', 1), (6.0, 'leave', 2)]
      driver, _ = _driven(_make(4), seed, faults)
      rows = json.dumps(_rows(driver))
      for now, before in (('"event"', '"told"'), ('"decision"', '"said"')):
        rows = rows.replace(now, before)
      digest.update(rows.encode())
    self.assertEqual(digest.hexdigest(), _BEFORE)

  @hypothesis.settings(max_examples=100, deadline=None)
  @hypothesis.given(**_schedules())
  def test_a_bound_that_nobody_reaches_changes_nothing(
    self, num_workers, seed, lookahead, monitor_pushes, faults
  ):
    made = [
      _make(
        num_workers,
        lookahead=lookahead,
        monitor_pushes=monitor_pushes,
        bound=bound,
      )
      for bound in (math.inf, 1000)
    ]
    off, wide = (_driven(scheme, seed, faults)[0].steps for scheme in made)
    self.assertEqual(off, wide)

  @parameterized.parameters(-1, 1.5, True, math.nan, -math.inf, '3')
  def test_a_bad_bound_is_refused(self, bound):
    with self.assertRaisesRegex(ValueError, 'bound: expected an integer'):
      _make(2, bound=bound)

  def test_a_whole_number_may_be_a_float(self):
    self.assertEqual(_make(2, bound=3.0), _make(2, bound=3))


if __name__ == '__main__':
  absltest.main()
