"""Tests for workers that catch up with a run before they join it."""

import functools
import itertools
import pathlib
import random
import signal
import tempfile
import threading
import time
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from absl.testing import absltest, parameterized

from cluster.allreduce import catching_up, retention
from cluster.allreduce.retention import Retention, Update
from cluster.allreduce.sums.host import HostReducer
from cluster.allreduce.sums.multi_round import MultiRoundReducer
from cluster.membership import handover
from cluster.network import messages
from cluster.network.handshake import Security
from cluster.network.port import Port
from cluster.process import roles
from learning.digest import digest
from learning.layout import Layout
from learning.learner import TaskLearner
from tests.support import members, processes, replays, replicas
from tests.support.recomputing import recompute
from wire.codec import PartialVector

_STATE = {'learner': {'version': 3, 'w': jnp.arange(8.0)}, 'replicated': ()}
# The joiner's transfers take as long as over slow links.
_SLOW = """
import time
from cluster.membership import handover
_fetch = handover.fetch

def fetch(*args, since=None, **fields):
  result = _fetch(*args, since=since, **fields)
  time.sleep(2.5 if since is None else 0.05)
  return result

handover.fetch = fetch
"""
_REPORTING = """
from cluster.allreduce import retention
_release = retention.Retention.release

def release(self, before):
  print(f'Retained {self.size_bytes} bytes', flush=True)
  _release(self, before)
  if before is None:
    print(f'Retained {self.size_bytes} bytes at the end', flush=True)

retention.Retention.release = release
"""


def _update(value, size=4):
  sums = np.full(size, value, np.float32)
  return Update(sums=sums, examples=8, weight=8.0, pushes=2, replicated=())


def _request(version, since=None):
  return messages.StateRequest(version, '', True, since)


class RetentionTest(parameterized.TestCase):
  def _recorded(self, count=3, **fields):
    found = Retention(**{'wait_s': 0.05} | fields)
    found.plan(3)
    self.assertTrue(found.is_due(3))
    found.retain(3, _STATE)
    for k in range(count):
      found.record(3 + k, _update(k))
    return found

  def test_nothing_is_recorded_before_a_state_is_retained(self):
    found = Retention(wait_s=0.0)
    found.record(2, _update(0))
    self.assertFalse(found.is_recording)
    found.plan(3)
    self.assertFalse(found.is_due(2))
    self.assertEqual(found.size_bytes, 0)
    with self.assertRaisesRegex(LookupError, 'updates from version 2 to 3'):
      found.find(_request(3, since=2))

  def test_the_state_stays_while_updates_reuse_its_memory(self):
    state = {'w': jnp.arange(1000.0)}
    expected = digest(state)
    found = Retention(wait_s=0.0)
    found.plan(0)
    found.retain(0, state)
    step = jax.jit(lambda tree: {'w': tree['w'] + 1}, donate_argnums=0)
    for _ in range(3):
      state = step(state)
    copy, got = found.find(_request(0))
    self.assertEqual(got, expected)
    np.testing.assert_array_equal(copy.arrays[0][1], np.arange(1000.0))

  def test_updates_are_found_from_any_version_on(self):
    found = self._recorded()
    for since, version in itertools.combinations(range(3, 7), 2):
      copy, _ = found.find(_request(version, since=since))
      values = [array[0] for _, array in copy.arrays]
      self.assertEqual(values, [*range(since - 3, version - 3)])

  def test_replicated_state_in_a_workspace_is_copied(self):
    found, workspace = self._recorded(0), np.ones(3)
    found.record(3, _update(0)._replace(replicated=workspace))
    workspace[:] = 7.0
    copy, _ = found.find(_request(4, since=3))
    np.testing.assert_array_equal(copy.arrays[1][1], np.ones(3))

  @mock.patch.object(retention, 'SPARE_BYTES', 0)
  def test_retained_bytes_are_bounded(self):
    found, state_bytes = self._recorded(0), 32
    update = _update(0).size_bytes
    most = state_bytes + retention.SPARE_UPDATES * update
    for k in range(100):
      found.record(3 + k, _update(k))
      self.assertLessEqual(found.size_bytes, state_bytes + most)
    # The updates since the state are incomplete.
    with self.assertRaisesRegex(LookupError, 'the state of version 3'):
      found.find(_request(3))
    with self.assertRaises(LookupError):
      found.find(_request(103, since=3))
    self.assertEqual(found.size_bytes, most)
    copy, _ = found.find(_request(103, since=103 - most // update))
    self.assertEqual(copy.size_bytes, most)

  def test_a_newer_state_replaces_the_one_before_but_no_updates(self):
    found = self._recorded()
    found.plan(6)
    found.retain(6, _STATE)
    with self.assertRaises(LookupError):
      found.find(_request(3))
    found.find(_request(6))
    found.find(_request(6, since=3))

  def test_released_versions_are_dropped(self):
    found = self._recorded()
    found.release(5)
    for request in (_request(3), _request(6, since=4)):
      with self.assertRaises(LookupError):
        found.find(request)
    found.find(_request(6, since=5))
    self.assertEqual(found.size_bytes, _update(0).size_bytes)
    found.record(6, _update(3))
    found.release(None)
    self.assertEqual((found.size_bytes, found.is_recording), (0, False))

  def test_a_source_that_is_slower_is_awaited(self):
    found = self._recorded(wait_s=10.0)
    timer = threading.Timer(0.1, found.record, [6, _update(9)])
    timer.start()
    self.addCleanup(timer.join)
    copy, _ = found.find(_request(7, since=6))
    self.assertEqual(copy.arrays[0][1][0], 9)

  def test_a_wait_ends_in_time_and_with_the_session(self):
    with self.assertRaises(LookupError):
      self._recorded().find(_request(7, since=6))
    found = self._recorded(wait_s=10.0)
    timer = threading.Timer(0.1, found.clear)
    timer.start()
    self.addCleanup(timer.join)
    start = time.monotonic()
    with self.assertRaises(LookupError):
      found.find(_request(7, since=6))
    self.assertLess(time.monotonic() - start, 5.0)

  def test_an_update_of_another_version_is_refused(self):
    with self.assertRaisesRegex(RuntimeError, 'version 6, got 8'):
      self._recorded().record(8, _update(0))


class ReplayTest(parameterized.TestCase):
  """Sums that one learner has applied, and another one replays."""

  def setUp(self):
    super().setUp()
    rng = np.random.default_rng(0)
    params = {
      'a': jnp.asarray(rng.normal(size=(30, 40)), jnp.float32),
      'b': jnp.asarray(rng.normal(size=(40,)), jnp.float32),
    }
    self.learner = TaskLearner(
      params=params,
      stats=(),
      tx=optax.adamw(1.0),
      schedule=lambda examples, updates: 0.1 / (1 + examples + updates),
      reduction='sum',
      num_workers=3,
      worker_batch=8,
    )
    self.arguments = {
      'workers': 3,
      'gradient': mock.Mock(copies=None),
      'port': Port('127.0.0.1', 0, Security()),
      'timeout_s': 1.0,
    }

  def _layout(self, dtype='float32'):
    return Layout(
      self.learner.params,
      bucket_bytes=1000,
      dtype=jnp.dtype(dtype),
      step_statistics=5,
    )

  def _check(self, apply, reducer, draw):
    """Applies five updates, replays copies of their sums, and compares."""
    start = handover.copy_state(self.learner.state())
    copies = []
    for k in range(5):
      draw()
      apply(self.learner, examples=8 + k, weight=7.5 + k, pushes=3)
      copies.append(reducer.copy_sum())
    draw()  # The buffer is used again.
    other = self.learner.fork()
    other.restore(start)
    for k, sums in enumerate(copies):
      reducer.apply_copy(other, sums, examples=8 + k, weight=7.5 + k, pushes=3)
    self.assertEqual(digest(other.state()), digest(self.learner.state()))
    return sum(leaf.nbytes for leaf in jax.tree.leaves(copies[0]))

  @parameterized.parameters('float32', 'bfloat16', 'float16')
  def test_replayed_sums_give_the_same_bits(self, dtype):
    layout = self._layout(dtype)
    reducer = HostReducer(0, layout=layout, **self.arguments)
    rng = np.random.default_rng(1)

    def draw():
      vector = rng.normal(size=layout.size).astype(np.float32)
      for bucket in layout.buckets:  # The executor rounds sums likewise.
        part = vector[bucket.start : bucket.end]
        part[:] = part.astype(bucket.dtype)
      reducer._vectors[0][:] = vector

    copied = self._check(reducer.apply, reducer, draw)
    self.assertEqual(copied, layout.size_bytes)

  def test_sums_that_were_not_rounded_are_copied_in_full(self):
    layout = self._layout('bfloat16')
    reducer = HostReducer(0, layout=layout, **self.arguments)
    rng = np.random.default_rng(1)

    def draw():
      reducer._vectors[0][:] = rng.normal(size=layout.size)

    copied = self._check(reducer.apply, reducer, draw)
    self.assertEqual(copied, 4 * layout.size)

  @parameterized.parameters(False, True)
  def test_numbers_that_have_not_arrived_stay_the_same(self, is_partial):
    layout = self._layout()
    size, rng = layout.gradient_size, np.random.default_rng(1)
    reducer = MultiRoundReducer(
      0,
      layout=layout,
      multi_round=mock.MagicMock(uses_numpy=True),
      bucket_bytes=1000,
      overlap=False,
      **self.arguments,
    )

    def draw():
      arrived = rng.random(size) < 0.1 if is_partial else ()
      total = rng.normal(size=layout.size).astype(np.float32)
      if is_partial:
        total[:size][~arrived] = 0.0
      reducer._total[:] = total
      reducer._ended = mock.Mock()
      reducer._ended.reduced = PartialVector(total[:size], arrived)

    copied = self._check(reducer.apply, reducer, draw)
    if is_partial:
      self.assertLess(copied, 4 * layout.size / 4)


class SimulatedTest(parameterized.TestCase):
  """Simulated members, whose state is the list of updates."""

  def _start(self, workers=4, lost=(3,), **fields):
    world = replicas.SimulatedRun(workers, eval_every=10**6, **fields)
    world.begin()
    world.reach(2)
    for index in lost:
      world.members[index].end()
    world.reach(4)
    for index in lost:
      world.join(index)
    self.late = {
      (f'{index}/{incarnation}', 'catch_up')
      for index in range(workers)
      for incarnation in range(1, 9)
    }
    world.run_until(
      lambda: all(world.members[k].doing == 'catching up' for k in lost),
      but=self.late,
    )
    return world

  def _assert_joins(self, world, workers=4):
    world.run_until(
      lambda: (
        len(world.rendezvous.living) == workers
        and world.runtime.epochs.is_running
      )
    )
    world.reach(world.store.version + 3)
    world.check()
    for session in world.members.values():
      retained = session.due, session.state_version, session.recorded
      self.assertEqual(retained, (None, None, None))

  def test_others_continue_while_a_worker_catches_up(self):
    world = self._start()
    epoch, version = world.rendezvous.membership_epoch, world.store.version
    world.reach(version + 50, but=self.late)
    self.assertEqual(world.rendezvous.membership_epoch, epoch)
    self.assertEqual(world.rendezvous.members, (0, 1, 2))
    self._assert_joins(world)

  def test_a_worker_that_has_caught_up_never_fetches_as_a_member(self):
    world = self._start()
    fetch = mock.Mock(side_effect=AssertionError)
    with mock.patch.object(members.Session, 'fetch', fetch):
      self._assert_joins(world)

  @parameterized.parameters(((1,),), ((2,),), ((1, 2),))
  def test_sources_die_meanwhile(self, dying):
    world = self._start()
    for index in dying:
      world.members[index].end()
    world.reach(world.store.version + 3, but=self.late)
    self._assert_joins(world, 4 - len(dying))

  def test_a_source_that_has_got_another_state_is_replaced(self):
    world = self._start()
    for index in range(3):  # As after an iteration that only others have ended.
      world.members[index].recorded = world.members[index].state_version = None
    self._assert_joins(world)

  def test_members_drop_their_states_once_the_joiner_dies(self):
    world = self._start()
    world.reach(world.store.version + 5, but=self.late)
    self.assertIsNotNone(world.members[0].recorded)
    world.members[3].end()
    world.reach(world.store.version + 5)
    for session in world.members.values():
      self.assertIsNone(session.recorded)
    world.join(3)
    self._assert_joins(world)

  def test_the_joiner_asks_the_next_coordinator_again(self):
    world = self._start()
    world.reach(world.store.version + 5, but=self.late)
    self.assertTrue(world.replace_coordinator())
    world.run_until(lambda: world.runtime.epochs.is_running)
    world.reach(world.store.version + 5)
    self.assertIn(3, world.rendezvous.members)
    world.check()

  def test_workers_that_join_together_share_one_state(self):
    world = self._start(6, lost=(3, 4, 5))
    orders = [world.members[k].order for k in (3, 4, 5)]
    self.assertLen({order.version for order in orders}, 1)
    self.assertEqual([order.since for order in orders], [None] * 3)
    self._assert_joins(world, 6)

  def test_a_worker_that_comes_later_uses_the_same_state(self):
    world = self._start(5, lost=(3,))
    world.members[4].end()
    world.reach(world.store.version + 5, but=self.late)
    world.join(4)
    world.run_until(
      lambda: world.members[4].doing == 'catching up', but=self.late
    )
    self.assertEqual(
      world.members[3].order.version, world.members[4].order.version
    )
    self._assert_joins(world, 5)

  def test_a_worker_whose_fetches_fail_joins_after_some_attempts(self):
    world, attempts = self._start(), []

    def fail(session):
      session.doing = 'nothing'
      attempts.append(session.order)
      report = messages.CaughtUp(session.order.version, 'failed')
      session.send_to_coordinator(report)

    with mock.patch.object(members.Session, 'catch_up', fail):
      self._assert_joins(world)
    states = [order.version for order in attempts if order.since is None]
    self.assertLen(states, catching_up.ATTEMPTS)
    self.assertLen({*states}, catching_up.ATTEMPTS)  # A newer one each time.

  def test_a_worker_that_stays_behind_joins_after_some_rounds(self):
    with mock.patch.object(catching_up, '_SHORT_S', 0.0):
      world, rounds = self._start(), 0
      while 3 not in world.rendezvous.members:
        target = world.store.version + 9
        world.run_until(
          lambda at=target: (
            world.store.version >= at or 3 in world.rendezvous.members
          ),
          but=self.late,
        )
        if world.members[3].doing == 'catching up':
          world.members[3].catch_up()
          rounds += 1
        self.assertLess(rounds, 20)
      self.assertGreaterEqual(rounds, catching_up.ROUNDS)
      self._assert_joins(world)

  @parameterized.parameters(*range(8))
  def test_deaths_at_any_moment_lose_no_example(self, seed):
    rng = random.Random(seed)
    world = self._start(5, lost=(3, 4))
    world.rivals = [(k, 'one') for k in range(1, 5)]
    for _ in range(6):
      for _ in range(rng.randrange(120)):
        world.step(rng.choice)
      world.members[rng.randrange(1, 5)].end()
    self._assert_joins(world, 5)


@pytest.mark.soak
class RunTest(processes.TestCase, parameterized.TestCase):
  @parameterized.parameters(
    {'optimizer__name': 'adamw'},
    {'wire__name': 'sparse', 'wire__sparse__chunk': 16},
    {'wire__name': 'lowrank'},
  )
  def test_others_continue_while_a_slow_worker_catches_up(self, **fields):
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    address = f'--coordinator=127.0.0.1:{roles.free_ports(1)[0]}'
    start = functools.partial(
      processes.alone,
      folder,
      address,
      route__name='ring',
      epochs=1000.0,
      cluster__workers=4,
      cluster__min_workers=3,
      cluster__timeout_s=4.0,
      cluster__speed__injected=True,
      cluster__speed__name='constant',
      cluster__speed__fixed_s=0.05,
      cluster__speed__per_example_s=0.0,
      log_every=10**6,
      **fields,
    )
    roles_ = [f'--role=worker:{k}' for k in range(4)]
    with (
      start(roles_[0], code=_REPORTING) as coordinator,
      start(roles_[1], code=_REPORTING) as first,
      start(roles_[2], code=_REPORTING) as second,
    ):
      coordinator.until('The run starts with 3 of 4 workers')
      with start(roles_[3], code=_SLOW) as late:
        began = coordinator.until('Worker 3 fetches version')
        close = coordinator.until('Worker 3 has caught up')
        joined = coordinator.until('Worker 3 takes part')
        coordinator.until('Membership epoch 1 runs')
        for launch in (coordinator, first, second):
          launch.until('Retained 0 bytes at the end')
          retained = {int(text) for text in _numbers(launch.text)}
          self.assertGreater(max(retained), 1000)
        rows = len(coordinator.rows('events.jsonl'))
        while len(coordinator.rows('events.jsonl')) < rows + 20:
          time.sleep(0.05)
        launches = (coordinator, first, second, late)
        for launch in launches:
          launch.signal(signal.SIGTERM)
        for launch in launches:
          self.assertEqual(launch.wait(), 143, launch.text)
    self.assertGreater(close - began, 2.5)
    events = coordinator.rows('events.jsonl')
    pushes = [e for e in events if e['event'] == 'push']
    join = next(e['time'] for e in events if e['event'] == 'join')
    before = [e['time'] for e in pushes if join - 2.5 < e['time'] <= join]
    self.assertGreater(len(before), 3 * 5)
    self.assertLess(max(np.diff(before)), 2.0)
    self.assertLess(joined - close, 2.5)
    # Digests of all members, parameters and optimizer, were equal.
    summary = coordinator.summary
    self.assertEqual(
      (summary['drift']['repairs'], summary['drift']['corrupt']), (0, 0)
    )
    self.assertNotIn('begins with the state', late.text)
    self.assertEqual({e['worker'] for e in pushes[-4:]}, {0, 1, 2, 3})
    self.assertEmpty(summary['lost'])
    self.assertEqual(sum(e['examples'] for e in pushes), summary['examples'])
    replays.check(self, folder)
    self.assertEqual(recompute.difference(folder), 0.0)


def _numbers(text):
  for line in text.splitlines():
    words = line.split()
    if words[:1] == ['Retained']:
      yield words[1]


if __name__ == '__main__':
  absltest.main()
