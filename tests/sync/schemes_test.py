"""Tests for the schemes of sync/."""

import importlib
import json
import math

import hypothesis
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from sync import asp, bsp, dssp, elastic, quorum, r2sp, record, scheme, ssp
from tests.support import schedules
from tests.support.driver import Driver

_ARGUMENTS = {
  'bsp': {},
  'asp': {},
  'ssp': {'bound': 2},
  'dssp': {'low': 1, 'high': 4},
  'elastic': {'lookahead': 6, 'monitor_pushes': 2},
  'r2sp': {'relaxation': 0.8, 'smoothing': 0.5},
  'quorum': {'minimum': 1, 'grace': 0.5, 'late': 'count'},
}


def _make(name, num_workers, **changed):
  module = importlib.import_module('sync.' + name)
  return module.make(num_workers=num_workers, **_ARGUMENTS[name] | changed)


class DepartureTimelineTest(parameterized.TestCase):
  """Tests against timelines of three workers that leave and rejoin."""

  def _releases(self, scheme_, seconds, pushes, faults):
    driver = Driver(scheme_, 3)
    driver.run(schedules.constant(*seconds), pushes=pushes, faults=faults)
    return driver.releases

  def test_r2sp_skips_turns_and_changes_the_gap(self):
    # T is 3.  Three workers: a gap of 1.  Two from 4.5 on: 1.5, so the grant
    # due at 5 comes at 5.5.  From 7.5 on worker 1 is last of three again.
    releases = self._releases(
      r2sp.make(num_workers=3, relaxation=1.0, smoothing=1.0),
      (3, 3, 3),
      7,
      [(4.5, 'leave', 1), (7.5, 'join', 1)],
    )
    self.assertEqual(
      releases[1:],
      [
        (3, (0,)),
        (4, (1,)),
        (5.5, (2,)),
        (7, (0,)),
        (8.5, (2,)),
        (9.5, (1,)),
        (10.5, (0,)),
        (11.5, (2,)),
      ],
    )

  def test_r2sp_averages_iterations_without_waiting(self):
    scheme_ = r2sp.make(num_workers=2, relaxation=1.0, smoothing=0.5)
    scheme_.start(0.0)
    said = [
      scheme_.push(scheme.Push(0, 0, 4.0, 1.0, 1)),  # T = 4.
      scheme_.push(scheme.Push(1, 1, 6.0, 1.0, 1)),  # T = 5: due at 4 + 2.5.
      scheme_.wake(6.5),
      scheme_.push(scheme.Push(2, 0, 8.0, 1.0, 1)),  # T = 4.5: 6.5 + 2.25.
      scheme_.wake(8.75),
      scheme_.push(scheme.Push(3, 0, 10.75, 1.0, 1)),  # Took 2: T = 3.25.
      scheme_.push(scheme.Push(4, 1, 11.0, 1.0, 1)),  # Took 4.5: T = 3.875.
    ]
    self.assertEqual(
      [decision.release for decision in said],
      [(0,), (), (1,), (), (0,), (), (1,)],
    )
    self.assertEqual(
      [decision.wake_at for decision in said],
      [None, 6.5, None, 8.75, None, None, 11 + 3.875 / 2],
    )

  def test_elastic_searches_without_a_worker_that_leaves_in_monitoring(self):
    # At 5 worker 2 leaves before its push: 5 6 7 and 6 8 10 meet at 6.
    releases = self._releases(
      elastic.make(num_workers=3, lookahead=3, monitor_pushes=2),
      (1, 2, 3),
      10,
      [(5.0, 'leave', 2)],
    )
    self.assertEqual(
      releases[-4:], [(4, (0,)), (4, (1,)), (5, (0,)), (6, (0, 1))]
    )

  def test_elastic_ignores_workers_that_come_and_go_between_barriers(self):
    # Worker 2 waits for the barrier when it leaves again.
    left = [(0.5, 'leave', 2)]
    came_and_went = [(1.25, 'join', 2), (1.75, 'leave', 2)]
    once, again = (
      self._releases(
        elastic.make(num_workers=3, lookahead=3, monitor_pushes=2),
        (1, 2, 3),
        20,
        faults,
      )
      for faults in (left, left + came_and_went)
    )
    self.assertEqual(once, again)

  def test_elastic_releases_a_worker_that_joins_at_the_next_barrier(self):
    releases = self._releases(
      elastic.make(num_workers=3, lookahead=3, monitor_pushes=2),
      (1, 2, 3),
      15,
      [(7.0, 'leave', 2), (7.5, 'join', 2)],
    )
    self.assertEqual(
      releases[-4:], [(6, (2,)), (7, (0,)), (8, (0,)), (9, (0, 1, 2))]
    )

  @parameterized.parameters('bsp', 'elastic')
  def test_there_is_no_barrier_without_living_workers(self, name):
    driver = Driver(_make(name, 2), 2)
    driver.run(
      schedules.constant(1, 1),
      pushes=9,
      faults=[(0.5, 'leave', 0), (0.5, 'leave', 1), (2.0, 'join', 1)],
    )
    barriers = [s.event['time'] for s in driver.steps if s.decision.barrier]
    self.assertEqual(barriers[0], 2.0)


class ScheduleTest(parameterized.TestCase):
  """Tests of random schedules with leaves and rejoins."""

  @parameterized.parameters(*_ARGUMENTS)
  @hypothesis.settings(max_examples=100, deadline=None)
  @hypothesis.given(**schedules.drawn())
  def test_bounds_hold_and_every_push_is_applied_once(
    self, name, num_workers, seed, faults
  ):
    driver = Driver(_make(name, num_workers), num_workers)

    driver.run(
      schedules.jittered(seed),
      pushes=120,
      faults=faults,
      check=getattr(self, '_' + name),
    )

    pending = sum(times == 0 for times in driver.applied.values())
    self.assertLessEqual(max(driver.applied.values(), default=0), 1)
    if name in ('asp', 'ssp', 'dssp', 'r2sp'):
      self.assertEqual(pending, 0)
    elif name == 'quorum':
      self.assertEqual(pending, driver.pushed)  # In the round that is open.
    else:
      waiting = len(driver.applied) - _pushes_before_barrier(driver)
      self.assertLessEqual(pending, waiting)
    self._check_replay(name, num_workers, driver)

  def _check_replay(self, name, num_workers, driver):
    rows = json.loads(
      json.dumps([record.encode_row(*step) for step in driver.steps])
    )
    fresh = _make(name, num_workers)
    for recorded, replayed in record.replay(fresh, rows):
      self.assertEqual(recorded, replayed)

  def _bsp(self, driver, step):
    if step.decision.release and step.kind != 'start':
      self.assertTrue(step.decision.barrier)
      self.assertEqual(set(step.decision.release), driver.living)

  def _asp(self, driver, step):
    self.assertEqual(driver.running, driver.living)

  def _ssp(self, driver, step):
    leads = _leads(driver, step)
    running = {worker for worker, lead in leads.items() if lead <= 2}
    self.assertEqual(driver.running, running)

  def _dssp(self, driver, step):
    self.assertLessEqual(_largest_lead(driver, step), 4)

  def _elastic(self, driver, step):
    if step.decision.barrier:
      self.assertEqual(set(step.decision.release), driver.living)
    remaining = driver.scheme.remaining
    if not driver.scheme.unmonitored:
      for worker in driver.running:
        self.assertBetween(remaining[worker], 1, 6)

  def _quorum(self, driver, step):
    self._check_quorum(driver, step, minimum=1, grace=0.5)

  @parameterized.parameters('count', 'drop')
  @hypothesis.settings(max_examples=100, deadline=None)
  @hypothesis.given(
    minimum=st.integers(1, 6),
    grace=st.sampled_from([0.0, 0.25, 1.0, 4.0]),
    **schedules.drawn(least_workers=2),
  )
  def test_rounds_end_with_a_quorum_and_its_grace_window(
    self, late, num_workers, minimum, grace, seed, faults
  ):
    minimum = min(minimum, num_workers)
    driver = Driver(
      quorum.make(
        num_workers=num_workers, minimum=minimum, grace=grace, late=late
      ),
      num_workers,
    )

    def check(driver, step):
      self._check_quorum(driver, step, minimum=minimum, grace=grace)

    driver.run(schedules.jittered(seed), pushes=120, faults=faults, check=check)

    self.assertLessEqual(max(driver.applied.values()), 1)
    if late == 'count':
      self.assertEqual(driver.dropped, [])
    for push in driver.dropped:
      self.assertEqual(driver.applied[push], 0)
    # All other pushes are applied, but for those of the last round.
    applied = [push for push, times in driver.applied.items() if times]
    pending = {*driver.applied} - {*applied} - {*driver.dropped}
    self.assertTrue(all(p > max(applied, default=-1) for p in pending))

  def _check_quorum(self, driver, step, *, minimum, grace):
    """Checks a step against rounds that are counted here."""
    kind, decision = step.kind, step.decision
    if kind == 'start':
      driver.begun = dict.fromkeys(decision.release, 0)  # Rounds, by worker.
      driver.rounds, driver.pushed, driver.start_s = 0, 0, 0.0
      driver.over = math.inf
      return
    now = step.event['time']
    if kind == 'push' and decision.into is None:
      self.assertLess(driver.begun[step.event['worker']], driver.rounds)
    elif kind == 'push':
      driver.pushed += 1
      if driver.pushed == minimum:
        driver.over = now + grace * (now - driver.start_s)
    computing = driver.running - set(decision.release)
    if computing and now < driver.over:
      self.assertEqual((decision.commit, decision.release), ((), ()))
    else:
      self.assertLen(decision.commit, bool(driver.pushed))
      self.assertEqual(driver.running, driver.living)
      driver.rounds, driver.pushed = driver.rounds + 1, 0
      driver.start_s, driver.over = now, math.inf
      driver.begun |= dict.fromkeys(decision.release, driver.rounds)

  def _r2sp(self, driver, step):
    if step.kind == 'start':
      driver.turns = sorted(driver.living), 0  # The order, and the next worker.
      return
    order, turn = driver.turns
    worker = step.event.get('worker')
    if step.kind == 'leave':
      place = order.index(worker)
      following = order[(place + 1) % len(order)]
      turn = following if turn == worker else turn
      order.remove(worker)
    elif step.kind == 'join':
      order.append(worker)
      turn = turn if len(order) > 1 else worker
    granted = set(step.decision.release)
    while turn in granted:
      granted.remove(turn)
      turn = order[(order.index(turn) + 1) % len(order)]
    self.assertEmpty(granted)
    driver.turns = order, turn


def _leads(driver, step):
  """Returns the lead of each living worker, by an independent count."""
  if not hasattr(driver, 'clock'):
    driver.clock = list(driver.finished)
  worker = step.event.get('worker')
  if step.kind == 'push':
    driver.clock[worker] += 1
  others = driver.living - {worker}
  if step.kind == 'join' and others:
    driver.clock[worker] = min(driver.clock[w] for w in others)
  slowest = min((driver.clock[w] for w in driver.living), default=0)
  return {w: driver.clock[w] - slowest for w in driver.living}


def _largest_lead(driver, step):
  """Returns the largest lead of a running worker."""
  leads = _leads(driver, step)
  return max((leads[w] for w in driver.running), default=0)


def _pushes_before_barrier(driver):
  """Returns the number of pushes up to the last barrier."""
  pushes = before = 0
  for step in driver.steps:
    pushes += step.kind == 'push'
    if step.decision.barrier:
      before = pushes
  return before


class _Later:
  """A scheme for which all times are later by as many seconds."""

  def __init__(self, scheme_, by_s):
    self._scheme, self._by_s = scheme_, by_s

  def _decide(self, kind, *, time, **event):
    decision = record.apply_event(
      self._scheme, kind, time=time + self._by_s, **event
    )
    if decision.wake_at is None:
      return decision
    return decision._replace(wake_at=decision.wake_at - self._by_s)

  def start(self, time):
    return self._decide('start', time=time)

  def push(self, push):
    return self._decide('push', **push._asdict())

  def wake(self, time):
    return self._decide('wake', time=time)

  def leave(self, worker, time):
    return self._decide('leave', worker=worker, time=time)

  def join(self, worker, time):
    return self._decide('join', worker=worker, time=time)


class EquivalenceTest(parameterized.TestCase):
  @parameterized.product(name=list(_ARGUMENTS), seed=[0, 1, 2])
  def test_decisions_do_not_depend_on_the_time_of_the_start(self, name, seed):
    steps = []
    for by_s in (0, 2**10):
      # Binary fractions, also where they are divided by the living workers.
      changed = {'relaxation': 0.5} if name == 'r2sp' else {}
      driver = Driver(_Later(_make(name, 2, **changed), by_s), 2)
      faults = [(3.0, 'leave', 1), (4.5, 'join', 1)]
      driver.run(schedules.jittered(seed), pushes=25, faults=faults)
      steps.append(driver.steps)
    self.assertEqual(*steps)

  def _steps(self, scheme_, seed):
    faults = [(3.0, 'leave', 1), (6.0, 'join', 1), (6.0, 'leave', 2)]
    driver = Driver(scheme_, 4)
    driver.run(schedules.jittered(seed), pushes=300, faults=faults)
    return driver.steps

  @parameterized.parameters(range(10))
  def test_ssp_without_a_bound_is_asp(self, seed):
    self.assertEqual(
      self._steps(ssp.make(num_workers=4, bound=math.inf), seed),
      self._steps(asp.make(num_workers=4), seed),
    )

  @parameterized.product(seed=list(range(10)), bound=[0, 1, 3])
  def test_dssp_with_an_empty_range_is_ssp(self, seed, bound):
    self.assertEqual(
      self._steps(dssp.make(num_workers=4, low=bound, high=bound), seed),
      self._steps(ssp.make(num_workers=4, bound=bound), seed),
    )

  @parameterized.parameters(range(10))
  def test_a_quorum_of_all_workers_is_bsp(self, seed):
    for one, other in zip(
      self._steps(bsp.make(num_workers=4), seed),
      self._steps(
        quorum.make(num_workers=4, minimum=4, grace=0.5, late='drop'), seed
      ),
      strict=True,
    ):
      self.assertEqual(one.event, other.event)
      self.assertEqual(one.decision.release, other.decision.release)
      self.assertEqual(len(one.decision.commit), len(other.decision.commit))

  @parameterized.parameters(range(10))
  def test_a_quorum_of_one_worker_without_grace_is_asp(self, seed):
    drivers = [
      Driver(scheme_, 4)
      for scheme_ in (
        quorum.make(num_workers=4, minimum=1, grace=0.0, late='count'),
        asp.make(num_workers=4),
      )
    ]
    for driver in drivers:
      driver.run(schedules.jittered(seed), pushes=300)
    self.assertEqual(drivers[0].steps, drivers[1].steps)

  @parameterized.parameters(range(10))
  def test_ssp_of_bound_0_releases_as_bsp_does(self, seed):
    drivers = [
      Driver(scheme_, 4)
      for scheme_ in (bsp.make(num_workers=4), ssp.make(num_workers=4, bound=0))
    ]
    for driver in drivers:
      driver.run(schedules.jittered(seed), pushes=200)
    self.assertEqual(drivers[0].releases, drivers[1].releases)

  @parameterized.parameters(*_ARGUMENTS)
  def test_one_worker_never_waits(self, name):
    driver = Driver(_make(name, 1), 1)

    driver.run(schedules.constant(2.0), pushes=20)

    changed = [s.decision for s in driver.steps if s.kind == 'push']
    self.assertLen(changed, 20)
    self.assertTrue(all(len(v.commit) == 1 for v in changed))
    # The gap of R2SP never delays a worker that is alone.
    self.assertEqual(driver.releases, [(2.0 * i, (0,)) for i in range(21)])


class _ReferenceDssp:
  """DSSP's server and its controller, from the times of all pushes; O(r^2).

  A worker that rejoins has no pushes, no grant and the clock of the slowest.
  """

  def __init__(self, num_workers, low, high, *, as_printed):
    self.low, self.high, self.as_printed = low, high, as_printed
    self.clock = [0] * num_workers
    self.extra = [0] * num_workers
    self.times = [[] for _ in range(num_workers)]
    self.living = {*range(num_workers)}
    self.waiting = set()

  def apply(self, step):
    """Returns the workers that get an OK at a step of a driver."""
    worker = step.event.get('worker')
    if step.kind == 'push':
      self.times[worker].append(step.event['time'])
      self.clock[worker] += 1
      released = {worker} if self._is_ok(worker) else set()
      self.waiting |= {worker} - released
      return released | self._release()
    if step.kind == 'leave':
      self.living.remove(worker)
      self.waiting.discard(worker)
      self.times[worker], self.extra[worker] = [], 0
      return self._release()
    if step.kind == 'join':
      if self.living:
        self.clock[worker] = min(self._clocks())
      self.living.add(worker)
      return {worker}
    return self.living if step.kind == 'start' else set()

  def _clocks(self):
    return [self.clock[worker] for worker in sorted(self.living)]

  def _release(self):
    """Lets workers go on that wait without need."""
    released = {w for w in self.waiting if self._lead(w) <= self.low}
    self.waiting -= released
    return released

  def _lead(self, worker):
    return self.clock[worker] - min(self._clocks())

  def _is_ok(self, worker):
    if self.extra[worker] > 0:
      self.extra[worker] -= 1
      return True
    if self._lead(worker) <= self.low:
      return True
    if self.clock[worker] < max(self._clocks()):
      return False
    most = self.high - self._lead(worker) + 1
    if self.as_printed:
      most = self.high - self.low
    grant = self._control(worker, most)
    # As printed, the permission itself is not one of those granted.
    self.extra[worker] = grant - (grant > 0 and not self.as_printed)
    return grant > 0

  def _control(self, worker, most):
    slowest = min(self.living, key=lambda w: (self.clock[w], w))
    if min(len(self.times[worker]), len(self.times[slowest])) < 2:
      return 0
    (a, b), (c, d) = self.times[worker][-2:], self.times[slowest][-2:]
    gaps = [
      (abs(d + (k + 1) * (d - c) - (b + r * (b - a))), r)
      for r in range(most + 1)
      for k in range(most + 1)
    ]
    return min(gaps)[1]


class ReferenceDsspTest(parameterized.TestCase):
  @parameterized.product(as_printed=[False, True], low=[0, 1, 3])
  @hypothesis.settings(max_examples=60, deadline=None)
  @hypothesis.given(
    most=st.sampled_from([0, 1, 5, 12]), **schedules.drawn(least_workers=2)
  )
  def test_workers_are_released_as_by_the_algorithm_while_they_come_and_go(
    self, as_printed, low, most, num_workers, seed, faults
  ):
    high = low + most
    driver = Driver(
      dssp.make(
        num_workers=num_workers, low=low, high=high, as_printed=as_printed
      ),
      num_workers,
    )
    reference = _ReferenceDssp(num_workers, low, high, as_printed=as_printed)

    def check(driver, step):
      expected = reference.apply(step)
      self.assertEqual(set(step.decision.release), expected, step)

    driver.run(schedules.jittered(seed), pushes=150, faults=faults, check=check)

  def test_leads_are_bounded_only_if_the_print_is_not_followed(self):
    leads = {False: 0, True: 0}
    for as_printed in leads:
      driver = Driver(
        dssp.make(num_workers=2, low=3, high=15, as_printed=as_printed), 2
      )

      def check(driver, step, as_printed=as_printed):
        largest = _largest_lead(driver, step)
        leads[as_printed] = max(leads[as_printed], largest)

      driver.run(schedules.constant(1.0, 2.1), pushes=300, check=check)
    self.assertLessEqual(leads[False], 15)
    self.assertGreater(leads[True], 30)


class RejectionTest(parameterized.TestCase):
  @parameterized.parameters(
    ('bsp', {'num_workers': 0}, 'num_workers: expected an integer'),
    ('asp', {'num_workers': 1.5}, 'num_workers: expected an integer'),
    ('dssp', {'low': 5}, 'high: expected at least low, 5, got 4'),
    ('quorum', {'minimum': 4}, 'minimum: expected at most 3, the number of wo'),
  )
  def test_invalid_arguments_are_rejected_by_name(self, name, changed, message):
    with self.assertRaisesRegex(ValueError, message):
      _make(name, changed.pop('num_workers', 3), **changed)

  @parameterized.parameters(*_ARGUMENTS)
  def test_impossible_events_are_rejected(self, name):
    scheme_ = _make(name, 2)
    scheme_.start(0.0)
    scheme_.leave(1, 1.0)
    with self.assertRaisesRegex(ValueError, 'expected a living worker, got 1'):
      scheme_.leave(1, 2.0)
    with self.assertRaisesRegex(ValueError, 'to be running, got absent'):
      scheme_.push(scheme.Push(0, 1, 2.0, 1.0, 1))
    with self.assertRaisesRegex(ValueError, 'to be absent, got running'):
      scheme_.join(0, 2.0)
    with self.assertRaisesRegex(ValueError, 'expected 0 to 1, got 2'):
      scheme_.join(2, 2.0)

  def test_unknown_events_are_rejected(self):
    with self.assertRaisesRegex(ValueError, "got 'stop'"):
      record.apply_event(bsp.make(num_workers=1), 'stop', time=0.0)


class WakeTest(parameterized.TestCase):
  @parameterized.parameters(*_ARGUMENTS)
  def test_spurious_wakes_change_no_decision(self, name):
    scheme_, with_wakes = _make(name, 3), _make(name, 3)
    scheme_.start(0.0), with_wakes.start(0.0)
    for time in (0.5, 0.6):
      self.assertEqual(with_wakes.wake(time).release, ())
    for worker in range(3):
      push = scheme.Push(worker, worker, 1.0, 1.0, 1)
      self.assertEqual(scheme_.push(push), with_wakes.push(push))

  def test_a_late_wake_grants_the_turn(self):
    scheme_ = r2sp.make(num_workers=2, relaxation=1.0, smoothing=1.0)
    scheme_.start(0.0)
    scheme_.push(scheme.Push(0, 0, 4.0, 4.0, 1))
    self.assertEqual(scheme_.push(scheme.Push(1, 1, 4.0, 4.0, 1)).wake_at, 6.0)
    self.assertEqual(scheme_.wake(5.0).wake_at, 6.0)
    self.assertEqual(scheme_.wake(9.0).release, (1,))


if __name__ == '__main__':
  absltest.main()
