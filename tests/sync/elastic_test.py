"""Tests for sync.elastic, with and without a bound on leads."""

import copy
import functools
import hashlib
import itertools
import json
import math

import hypothesis
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from sync import elastic, record, ssp
from tests.support import schedules
from tests.support.driver import Driver

# SHA-256 of the decisions without a bound, recorded before bounds existed.
_UNBOUNDED = '40f8dd64790706e641d3555f49494f9f291c5a0f9cecc61f56d107701abe6c84'


def _make(num_workers, *, lookahead=6, monitor_pushes=2, bound=math.inf):
  return elastic.make(
    num_workers=num_workers,
    lookahead=lookahead,
    monitor_pushes=monitor_pushes,
    bound=bound,
  )


_random = functools.partial(schedules.jittered, workers=8, slowest=8)


class _Leads:
  """Counts of iterations since the barrier, of workers that started from it.

  Attributes:
    finished: Iterations since the barrier, by worker.
    largest: Largest lead of any worker.
    running: Largest lead of a running worker.
  """

  def __init__(self):
    self.finished = {}
    self.largest = self.running = 0

  def __call__(self, driver, step):
    """Updates the counts after a step, as a check of the driver."""
    worker = step.event.get('worker')
    if step.kind == 'leave':
      self.finished.pop(worker, None)
    elif step.kind == 'push':
      self.finished[worker] += 1
    if step.decision.barrier or step.kind == 'start':
      self.finished = dict.fromkeys(step.decision.release, 0)
    slowest = min(self.finished.values(), default=0)
    leads = {each: count - slowest for each, count in self.finished.items()}
    self.largest = max(self.largest, *leads.values(), 0)
    self.running = max(self.running, 0, *(leads[w] for w in driver.running))


def _schedules():
  """Returns strategies of random schedules with leaves and rejoins."""
  return {
    **schedules.drawn(),
    'lookahead': st.integers(1, 7),
    'monitor_pushes': st.integers(2, 3),
  }


def _drive(scheme, seed, faults=(), pushes=120):
  driver, leads = Driver(scheme, len(scheme.members.state)), _Leads()
  driver.run(_random(seed), pushes=pushes, faults=faults, check=leads)
  return driver, leads.running


def _rows(driver):
  rows = [record.encode_row(*step) for step in driver.steps]
  return json.loads(json.dumps(rows))


class BoundTest(parameterized.TestCase):
  @parameterized.parameters((10, 28), (30, 73))
  def test_without_a_bound_leads_grow_during_monitoring(self, slow, lead):
    driver, leads = Driver(_make(2, lookahead=15), 2), _Leads()
    driver.run(schedules.constant(1, slow), pushes=400, check=leads)
    self.assertEqual(leads.largest, lead)

  @hypothesis.settings(max_examples=100, deadline=None)
  @hypothesis.given(bound=st.integers(0, 4), **_schedules())
  def test_leads_stay_within_the_bound_and_no_worker_waits_forever(
    self, num_workers, seed, lookahead, monitor_pushes, faults, bound
  ):
    arguments = {
      'lookahead': lookahead,
      'monitor_pushes': monitor_pushes,
      'bound': bound,
    }

    # The driver fails if no worker can continue or an update is applied twice.
    driver, lead = _drive(_make(num_workers, **arguments), seed, faults)

    self.assertLessEqual(lead, bound)
    rows = _rows(driver)
    for recorded, replayed in record.replay(
      _make(num_workers, **arguments), rows
    ):
      self.assertEqual(recorded, replayed)

  @hypothesis.settings(max_examples=100, deadline=None)
  @hypothesis.given(cut=st.integers(1, 119), **_schedules())
  def test_a_copy_makes_the_same_decisions_as_the_original(
    self, num_workers, seed, lookahead, monitor_pushes, faults, cut
  ):
    original, resumed = (
      _make(
        num_workers, lookahead=lookahead, monitor_pushes=monitor_pushes, bound=1
      )
      for _ in range(2)
    )
    driver, _ = _drive(original, seed, faults)
    rows = _rows(driver)
    list(record.replay(resumed, rows[:cut]))
    for recorded, replayed in record.replay(copy.deepcopy(resumed), rows[cut:]):
      self.assertEqual(recorded, replayed)

  def test_a_worker_waits_while_its_lead_exceeds_the_bound(self):
    # Worker 0 (1 s) may lead worker 1 (3 s) by one: two pushes by time 2, then
    # one more for each push of worker 1, at 3.  At 6 monitoring ends, after 4
    # and 2 pushes, the last at 5 and 6.  Worker 0 could push at 7 and then,
    # after waiting until 9, at 10; worker 1 at 9 and 12: 10 and 9 are nearest.
    driver, leads = Driver(_make(2, lookahead=2, bound=1), 2), _Leads()
    driver.run(schedules.constant(1, 3), pushes=8, check=leads)
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

  def test_monitoring_ends_without_a_waiting_worker_that_leaves(self):
    # At 1.5 worker 0 waits after one push of two; at 6 worker 1 has made both,
    # and monitoring would never end if it still included worker 0.
    driver = Driver(_make(2, lookahead=1, bound=0), 2)
    driver.run(schedules.constant(1, 3), pushes=4, faults=[(1.5, 'leave', 0)])
    barriers = [s.event['time'] for s in driver.steps if s.decision.barrier]
    self.assertEqual(barriers, [9])


class ChoiceTest(parameterized.TestCase):
  """Tests of chosen barriers with constant times, whose prediction is exact."""

  @hypothesis.settings(max_examples=100, deadline=None)
  @hypothesis.given(
    seconds=st.lists(st.integers(1, 9), min_size=2, max_size=3),
    lookahead=st.integers(1, 4),
    bound=st.integers(0, 4),
  )
  def test_the_barrier_has_the_shortest_wait_within_the_bound(
    self, seconds, lookahead, bound
  ):
    # Irrational times: no ties, in whose order the schemes may differ.
    times = schedules.constant(
      *(s + math.sqrt(p) / 50 for p, s in enumerate(seconds))
    )
    scheme = _make(len(seconds), lookahead=lookahead, bound=bound)
    at_search = []

    def check(driver, step):
      if not driver.scheme.unmonitored and not at_search:
        at_search.extend(driver.finished)

    driver = Driver(scheme, len(seconds))
    driver.run(times, pushes=400, check=check)
    first = next(s.event['time'] for s in driver.steps if s.decision.barrier)
    pushes = [s.event for s in driver.steps if s.kind == 'push']
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
      *(range(count, count + lookahead) for count in at_search)
    )
    best = min(
      max(at) - min(at)
      for chosen in choices
      if max(chosen) - min(chosen) <= bound + 1
      for at in [[row[c] for row, c in zip(ends, chosen, strict=True)]]
    )
    self.assertAlmostEqual(max(stopped) - min(stopped), best)


class WithoutTest(parameterized.TestCase):
  def test_decisions_equal_those_recorded_before_bounds_existed(self):
    digest = hashlib.sha256()
    for seed in range(40):
      faults = [(3.0, 'leave', 1), (6.0, 'join', 1), (6.0, 'leave', 2)]
      driver, _ = _drive(_make(4), seed, faults)
      digest.update(json.dumps(_rows(driver)).encode())
    self.assertEqual(digest.hexdigest(), _UNBOUNDED)

  @hypothesis.settings(max_examples=100, deadline=None)
  @hypothesis.given(**_schedules())
  def test_a_bound_that_no_worker_reaches_changes_nothing(
    self, num_workers, seed, lookahead, monitor_pushes, faults
  ):
    schemes = [
      _make(
        num_workers,
        lookahead=lookahead,
        monitor_pushes=monitor_pushes,
        bound=bound,
      )
      for bound in (math.inf, 1000)
    ]
    off, wide = (_drive(scheme, seed, faults)[0].steps for scheme in schemes)
    self.assertEqual(off, wide)

  def test_an_integral_float_is_accepted(self):
    self.assertEqual(_make(2, bound=3.0), _make(2, bound=3))


if __name__ == '__main__':
  absltest.main()
