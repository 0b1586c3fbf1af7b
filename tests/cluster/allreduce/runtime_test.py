"""Tests for the allreduce runtime, with simulated members."""

import contextlib
import functools
import random
import time
from unittest import mock

import numpy as np
import pytest
from absl.testing import absltest, parameterized
from hypothesis import given, settings
from hypothesis import strategies as st

from batching import lb_bsp
from cluster.membership.events import WorkerMessage
from cluster.network import messages
from cluster.probing.failed_links import FailedLinks
from cluster.process.exits import Relinquished, Unmendable
from predict import ema
from tests.support import replicas


def _make_lb_bsp():
  """Returns LB-BSP of 3 workers that adapts at every iteration."""
  return lb_bsp.make(
    num_workers=3,
    worker_batch=replicas.BATCH,
    predictor=ema.make(num_workers=3, num_factors=0, seed=0, smoothing=0.5),
    threshold=0.0,
    least=1,
    most=(64,),
  )


def _start(workers=3, **fields):
  world = replicas.SimulatedRun(workers, **fields)
  world.begin()
  return world


def _disturb(seed, workers, moves, world, rate):
  """Lets members die and rejoin, in random order with all other steps."""
  rng, saves = random.Random(seed), False
  for _ in range(moves):
    if rng.random() < rate and workers > 1:
      index = rng.randrange(1, workers)
      if world.members[index].is_alive:
        world.members[index].end()
      else:
        world.join(index, keeps=rng.random() < 0.5)
    saves = saves or rng.random() < 0.01
    if saves and world.runtime.pause():
      world.check()
      world.check_deadlines()
      saves = False
    world.step(rng.choice)
  if saves:
    world.run_until(world.runtime.pause, rng.choice)
    world.check_deadlines()
  for index in range(1, workers):
    if not world.members[index].is_alive:
      world.join(index, keeps=rng.random() < 0.5)
  return rng


class AnyOrderTest(parameterized.TestCase):
  @settings(max_examples=40, deadline=None)
  @given(
    st.integers(0, 2**32),
    st.integers(1, 5),
    st.integers(20, 400),
    st.sampled_from([0.005, 0.02, 0.06]),
  )
  def test_members_die_and_rejoin(self, seed, workers, moves, rate):
    self._check(seed, workers, moves, rate)

  @pytest.mark.soak
  @settings(max_examples=3000, deadline=None)
  @given(
    st.integers(0, 2**32),
    st.integers(1, 6),
    st.integers(20, 800),
    st.sampled_from([0.005, 0.02, 0.06, 0.2]),
  )
  def test_members_die_and_rejoin_many_times(self, seed, workers, moves, rate):
    self._check(seed, workers, moves, rate)

  def _check(self, seed, workers, moves, rate):
    world = _start(workers)
    rng = _disturb(seed, workers, moves, world, rate)
    world.reach(world.store.version + 5, rng.choice)
    world.gather(rng.choice)
    world.reach(world.store.version + 5, rng.choice)
    world.check()

  @settings(max_examples=10, deadline=None)
  @given(st.integers(0, 2**32))
  def test_members_die_while_batches_change(self, seed):
    world = _start(3, batching=_make_lb_bsp())
    rng = _disturb(seed, 3, 200, world, 0.02)
    world.gather(rng.choice)
    world.reach(world.store.version + 6, rng.choice)
    world.check()

  @settings(max_examples=12, deadline=None)
  @given(st.integers(0, 2**32))
  def test_members_die_before_the_first_iteration(self, seed):
    rng, world = random.Random(seed), replicas.SimulatedRun(3)
    for _ in range(60):
      if rng.random() < 0.1:
        index = rng.randrange(1, 3)
        if world.members[index].is_alive:
          world.members[index].end()
        else:
          world.join(index)
      if world.runtime.epochs.is_running:
        break
      world.step(rng.choice)
    for index in (1, 2):
      if not world.members[index].is_alive:
        world.join(index)
    world.begin(rng.choice)
    world.reach(5, rng.choice)
    world.check()


class ElasticTest(parameterized.TestCase):
  """Runs that start with some of their workers."""

  def test_workers_that_come_later_join_between_two_iterations(self):
    world = _start(4, min_workers=2)
    world.reach(3)
    first = world.members[0].learned[0]
    self.assertEqual([k for k, _ in first[1]], [0, 1])
    for index in (3, 2):
      world.join(index)
    world.gather()
    world.reach(world.store.version + 3)
    last = world.members[0].learned[-1]
    self.assertEqual([k for k, _ in last[1]], [0, 1, 2, 3])
    self.assertEmpty(world.accounting.lost)
    world.check()

  def test_the_first_workers_share_the_whole_batch(self):
    workers = 4
    batching = lb_bsp.make(
      num_workers=workers,
      worker_batch=replicas.BATCH,
      predictor=ema.make(
        num_workers=workers, num_factors=0, seed=0, smoothing=0.2
      ),
      threshold=0.0,
      least=1,
      most=(),
    )
    world = _start(workers, min_workers=3, batching=batching)
    batches = [worker.batch for worker in world.coordinator.workers]
    self.assertEqual(sum(batches), workers * replicas.BATCH)
    self.assertEqual(batches[3], 0)
    world.join(3)
    world.gather()
    world.reach(world.store.version + 3)
    batches = [worker.batch for worker in world.coordinator.workers]
    self.assertEqual(sum(batches), workers * replicas.BATCH)
    self.assertGreater(batches[3], 0)
    world.check()

  def test_the_coordinators_own_worker_is_there_at_the_start(self):
    world = replicas.SimulatedRun(4, min_workers=2)
    world.join(3)
    world.run_without({('0/0', 'deliver')})
    self.assertFalse(world.runtime.epochs.is_running)
    world.begin()
    world.reach(2)
    self.assertEqual(world.rendezvous.members, (0, 1, 3))
    world.check()

  @settings(max_examples=20, deadline=None)
  @given(st.integers(0, 2**32), st.integers(1, 4), st.integers(0, 60))
  def test_workers_come_at_any_moment(self, seed, least, steps):
    rng = random.Random(seed)
    world = replicas.SimulatedRun(4, min_workers=least)
    absent = [*range(least, 4)]
    for _ in range(steps):
      if world.runtime.epochs.is_running:
        break
      if absent and rng.random() < 0.1:
        world.join(absent.pop())
      world.step(rng.choice)
    world.begin(rng.choice)
    while absent:
      for _ in range(rng.randrange(20)):
        world.step(rng.choice)
      world.join(absent.pop())
    world.gather(rng.choice)
    world.reach(world.store.version + 3, rng.choice)
    world.check()


class SuccessionTest(parameterized.TestCase):
  @settings(max_examples=60, deadline=None)
  @given(
    st.integers(0, 2**32),
    st.integers(2, 5),
    st.integers(20, 300),
    st.sampled_from([0.0, 0.01, 0.04]),
  )
  def test_coordinators_die_at_any_moment(self, seed, workers, moves, rate):
    with contextlib.suppress(Relinquished):  # Too few members are left.
      self._check_deaths(seed, workers, moves, rate)

  def _check_deaths(self, seed, workers, moves, rate):
    world = _start(workers, eval_every=64)
    rng = random.Random(seed)
    for _ in range(2):
      for _ in range(moves):
        if rng.random() < rate:
          index = rng.randrange(workers)
          member = world.members.get(index)
          if index != world.local and member and member.is_alive:
            member.end()
          elif index != world.local:
            world.join(index, keeps=bool(member) and rng.random() < 0.5)
        world.step(rng.choice)
      before = world.store.version
      if not world.replace_coordinator():
        return
      self.assertGreaterEqual(world.store.version, before - 2)
    world.run_until(lambda: world.runtime.epochs.is_running, rng.choice)
    for index in range(workers):
      if index not in world.members or not world.members[index].is_alive:
        world.join(index)
    world.gather(rng.choice)
    world.reach(world.store.version + 5, rng.choice)
    world.check()

  def test_a_successor_without_its_worker_relinquishes(self):
    world = _start(3)
    world.reach(3)
    self.assertTrue(world.replace_coordinator())
    with self.assertRaisesRegex(Relinquished, 'has not joined'):
      world.runtime.epochs.give_up_absent()

  @parameterized.parameters(0, 1, 2, 3)
  def test_a_successor_decides_as_the_coordinator_would_have(self, lag):
    world = _start(3, batching=_make_lb_bsp())
    world.reach(6)
    # Members apply the iterations that are assigned; nothing is recorded.
    wait = {('coordinator', 'take'), ('0/0', 'deliver')}
    for _ in range(8 * lag):
      world.step(but=wait)
    successor = world.members[1]
    world.run_until(lambda: world.store.version == successor.version)
    expected = world.accounting
    sizes = [each.batch for each in world.coordinator.workers]
    self.assertTrue(world.replace_coordinator())
    world.reach(successor.version)
    found = world.coordinator.recorder.accounting
    self.assertEqual(found.examples, expected.examples)
    self.assertEqual(found.iterations, expected.iterations)
    self.assertEqual(found.updates, expected.updates)
    self.assertEqual(world.stream.used, found.examples)
    self.assertEqual(
      [each.batch for each in world.coordinator.workers][1:], sizes[1:]
    )
    world.reach(successor.version + 3)
    world.check()


class OrdersTest(parameterized.TestCase):
  def test_a_worker_that_rejoins_while_others_connect_waits_for_an_iteration(
    self,
  ):
    world = _start()
    world.reach(3)
    world.members[1].end()
    connect = {(f'{k}/0', 'connect') for k in (0, 2)}
    world.run_until(lambda: world.rendezvous.members == (0, 2), but=connect)
    world.join(1)
    world.run_until(lambda: world.reception.members[1].stream, but=connect)
    world.gather()
    world.reach(world.store.version + 3)
    world.check()
    self.assertLen(world.accounting.lost, 1)

  @parameterized.parameters(False, True)
  def test_a_newcomer_is_lost_before_it_is_a_member(self, other):
    world = _start()
    world.members[1].end()
    world.reach(3)
    world.join(1)
    world.run_until(
      lambda: world.runtime.epochs.in_scheme(1)
    )  # All are to stop.
    self.assertEqual(world.rendezvous.members, (0, 2))
    world.members[1].end()
    if other:
      world.join(1)
    world.reach(world.store.version + 4)
    world.check()

  @parameterized.parameters(1e-9, 2.0, 25.0)
  def test_evaluations_at_a_time_are_of_the_version_of_all_members(
    self, every_s
  ):
    world = _start(3, eval_every=every_s, is_timed=True)
    rng = random.Random(7)

    def choose(moves):
      world.runtime.time += 0.2 * rng.random()  # Until the next event.
      return rng.choice(moves)

    world.reach(150, choose)
    world.members[1].end()
    world.join(1)
    world.reach(300, choose)
    # Each is an iteration late at most, as the next one may be assigned.
    time_s, late_s = world.runtime.time, 2 * world.runtime.time / 300
    evaluations = world.coordinator.milestones.evaluations
    self.assertBetween(
      evaluations, time_s / (every_s + late_s) - 2, time_s / every_s
    )
    world.check()

  def test_members_fetch_the_state_of_one_that_ended_the_iteration(self):
    world = _start(eval_every=24)
    apply = {('0/0', 'apply'), ('1/0', 'apply')}
    world.run_until(lambda: world.members[2].version == 1, but=apply)
    world.members[1].end()
    world.reach(1, but=apply)
    self.assertLen(world.members[2].learned[0][1], 3)
    world.reach(4)
    world.check()
    self.assertEqual(world.members[0].learned[0], world.members[2].learned[0])

  def test_an_iteration_is_repeated_if_all_that_ended_it_are_lost(self):
    world = _start()
    apply = {('0/0', 'apply'), ('1/0', 'apply')}
    world.run_until(lambda: world.members[2].version == 1, but=apply)
    world.members[1].end()
    fetch = {('0/0', 'fetch')}
    world.run_until(
      lambda: world.members[0].doing == 'fetching', but=apply | fetch
    )
    world.members[2].end()
    world.reach(2)
    self.assertEqual([k for k, _ in world.members[0].learned[0][1]], [0])
    world.check()

  def test_the_state_of_a_new_incarnation_is_discarded(self):
    world = _start()
    apply = {('0/0', 'apply'), ('1/0', 'apply')}
    world.run_until(lambda: world.members[2].version == 1, but=apply)
    world.members[2].end()  # It has not reported that it ended an iteration.
    world.reach(1)
    world.join(2, keeps=True)
    world.run_until(lambda: world.members[2].doing == 'catching up')
    at = world.store.version
    world.members[2].learned += [('elsewhere', ())] * (at + 1)
    world.members[1].end()
    world.join(1)
    world.gather()
    world.reach(at + 4)
    world.check()

  def test_the_state_of_an_earlier_run_is_discarded(self):
    world = replicas.SimulatedRun(3)  # No checkpoint of the coordinator before.
    world.members[1].learned += [('elsewhere', ())] * 7
    world.begin()
    world.reach(3)
    world.check()

  def test_a_death_interrupts_members_that_end_their_iteration(self):
    world = _start(4, eval_every=10**6)
    world.members[1].end()
    world.reach(2)
    world.join(1)
    runtime, store = world.runtime, world.store
    world.run_until(
      lambda: (
        runtime.epochs.newcomers
        and runtime._assigner.newest == store.version
        and store.version == world.members[2].version
      )
    )
    wait = {('2/0', 'apply'), ('2/0', 'lose')}
    world.run_until(lambda: {'completes': True} in _stops(world, 2), but=wait)
    world.members[3].end()
    world.run_until(lambda: {'completes': False} in _stops(world, 2), but=wait)
    world.run_until(lambda: world.rendezvous.members == (0, 1, 2), but=wait)
    world.reach(store.version + 2)
    world.check()

  def test_all_workers_but_the_coordinators_may_die(self):
    world = _start(4)
    world.reach(2)
    for index in (1, 2, 3):
      world.members[index].end()
    world.reach(6)
    self.assertEqual(world.rendezvous.members, (0,))
    for index in (3, 1, 2):
      world.join(index)
    world.gather()
    world.reach(world.store.version + 3)
    world.check()

  def test_a_run_can_be_paused_while_a_worker_joins(self):
    world = _start()
    world.members[1].end()
    world.reach(2)
    world.join(1)
    world.run_until(world.runtime.pause)
    world.check()
    state = world.runtime.state()
    self.assertEqual(
      state['coordinator']['_stream'].used, world.accounting.examples
    )
    world.check_deadlines()
    world.gather()
    world.reach(world.store.version + 3)
    world.check()

  def test_a_link_between_live_workers_is_lost(self):
    world = _start(4)
    for times in (1, 2):  # One failure is tolerated.
      self.assertNotIn('out', str(world.rendezvous.packed.links))
      world.run_until(lambda: world.members[2].doing in ('waiting', 'forming'))
      world.members[2].lose(peer=3)
      world.run_until(
        lambda times=times: world.members[2].membership_epoch == times,
        but={('0/0', 'apply')},
      )
    world.reach(3)
    self.assertEqual(world.rendezvous.members, (0, 1, 2, 3))
    hops = {
      (hop[0], hop[-1])
      for tree in world.rendezvous.packed.forest.trees
      for hop in (*tree.up, *tree.down)
    }
    self.assertNotIn(('w2', 'w3'), hops)
    world.check()

  def test_a_worker_fetches_the_state_from_a_member_that_it_reaches(self):
    world = _start(4)
    world.members[1].end()
    world.reach(2)
    world.cut.append({0, 1})
    world.join(1)
    world.gather()
    world.reach(world.store.version + 3)
    world.check()

  def test_the_loss_of_the_coordinators_worker_ends_the_run(self):
    world = _start()
    world.members[0].end()
    with self.assertRaisesRegex(
      Unmendable, 'The worker of the coordinator is lost'
    ):
      world.reach(world.store.version + 3)

  def test_admissions_are_counted_across_checkpoints(self):
    world, other = _start(), replicas.SimulatedRun(4)
    for member, count in zip(world.reception.members, (1, 3, 2), strict=True):
      member.admissions = count
    world.run_until(world.runtime.pause)
    with mock.patch.object(other.store, 'restore'):
      other.runtime.restore(world.runtime.state())
    self.assertEqual(other.runtime.summary()['admissions'], [1, 3, 2, 1])


class RivalsTest(parameterized.TestCase):
  """Two processes of one rank, which rejoin whenever they are evicted."""

  def _world(self):
    world = _start()
    world.rivals = [(1, 'one'), (1, 'two')]
    return world

  def _lives(self, world):
    return world.runtime.summary()['admissions'][1]

  def test_a_second_process_of_a_rank_delays_no_iteration(self):
    world, alone = self._world(), _start()
    for each in (world, alone):
      for _ in range(1500):
        each.step()
    self.assertEqual(self._lives(world), 1)
    self.assertEqual(world.rendezvous.membership_epoch, 0)
    self.assertEmpty(world.accounting.lost)
    self.assertGreater(world.store.version, 0.6 * alone.store.version)
    world.check()

  @settings(max_examples=15, deadline=None)
  @given(st.integers(0, 2**32), st.sampled_from(['die', 'evict']))
  def test_each_loss_is_followed_by_one_admission(self, seed, how):
    rng, world, losses = random.Random(seed), self._world(), 0
    for _ in range(400):
      if rng.random() < 0.02 and world.reception.members[1].stream:
        losses += 1
        if how == 'die':
          world.members[1].end()
        else:
          world.runtime.epochs.lose(1, 'it computes too long')
        ready = functools.partial(_is_ready, world, self._lives(world))
        world.run_until(ready, rng.choice)
      world.step(rng.choice)
    self.assertEqual(self._lives(world), 1 + losses)
    self.assertLessEqual(len(world.accounting.lost), losses)
    self.assertEqual(world.runtime.summary()['admissions'][::2], [1, 1])
    world.gather(rng.choice)
    world.reach(world.store.version + 5, rng.choice)
    world.check()

  def test_one_process_of_a_rank_is_admitted_at_a_time(self):
    world = replicas.SimulatedRun(3)
    self.assertFalse(world.join(1, process='two'))
    world.members[1].end()
    self.assertFalse(
      world.join(1, process='two')
    )  # Its end is not reported yet.
    world.deliver(world.members[1])  # The report that it is ready.
    world.deliver(world.members[1])
    self.assertTrue(world.join(1, process='two'))
    world.begin()
    world.reach(3)
    world.check()
    self.assertEqual(self._lives(world), 2)

  def test_messages_of_an_evicted_incarnation_are_ignored(self):
    world = _start()
    world.reach(2)
    old = world.members[1]
    world.runtime.epochs.lose(1, 'it was silent')
    self.assertTrue(world.join(1, process='two'))
    old.to_member.clear()
    epoch = world.rendezvous.membership_epoch
    for message in (
      messages.EpochStopped(epoch, 9**9, []),
      messages.ConnectionLost(epoch, 2, 'x'),
      messages.Connected(epoch, 9, 'x', []),
      messages.ReplicaReady('x', 'x'),
    ):
      world.reception.handle(old.incarnation, message)
    left = messages.SessionEnd('left', 'it was silent')
    self.assertEqual(old.to_member, 4 * [left])
    world.gather()
    world.reach(world.store.version + 3)
    world.check()
    self.assertEqual(world.rendezvous.address(1), world.members[1].address)


def _is_ready(world, incarnation):
  member = world.reception.members[1]
  return member.stream is not None and member.incarnation == incarnation


def _drift_rows(world):
  """Returns the rows about replicas that differed."""
  rows = [call.args[0] for call in world.files.rows.event.call_args_list]
  return [row for row in rows if row['event'] == 'drift']


class ReplicasTest(parameterized.TestCase):
  """Replicas that drift by rounding, or are corrupt."""

  def test_equal_replicas_are_not_repaired(self):
    world = _start(4)
    world.reach(20)
    self.assertEmpty(_drift_rows(world))
    self.assertGreater(world.agreed_version, 10)
    self.assertEqual(world.runtime.summary()['drift']['repairs'], 0)

  @settings(max_examples=20, deadline=None)
  @given(st.integers(0, 2**32), st.integers(2, 5), st.data())
  def test_replicas_on_unlike_processors_are_repaired(
    self, seed, workers, data
  ):
    errors = st.sampled_from([0.0, 2.0**-24, -(2.0**-22)])
    rounding = {k: data.draw(errors) for k in range(workers)}
    world = _start(workers, rounding=rounding)
    rng = random.Random(seed)
    world.reach(20, rng.choice)
    world.run_until(world.runtime.pause, rng.choice)
    self.assertEqual(world.agreed_version, world.store.version)
    living = [life for life in world.members.values() if life.is_alive]
    self.assertLen({life.bits for life in living}, 1)
    self.assertLen(living, workers)  # None of them was evicted.
    rows = _drift_rows(world)
    self.assertEqual(bool(rows), len({*rounding.values()}) > 1)
    self.assertFalse(any(row['corrupt'] for row in rows))
    totals = world.runtime.summary()['drift']
    self.assertEqual(totals['repairs'], len(rows))
    largest = max((row['difference'] for row in rows), default=0.0)
    self.assertEqual(totals['largest'], largest)
    world.check()

  def test_members_die_while_replicas_drift(self):
    for seed in range(15):
      world = _start(4, rounding={1: 2.0**-24, 3: 2.0**-23}, eval_every=24)
      rng = _disturb(seed, 4, 300, world, 0.02)
      world.reach(world.store.version + 5, rng.choice)
      world.gather(rng.choice)
      world.reach(world.store.version + 5, rng.choice)
      world.run_until(world.runtime.pause, rng.choice)
      self.assertLen({life.bits for life in world.members.values()}, 1)
      self.assertNotEmpty(_drift_rows(world))
      self.assertFalse(any(row['corrupt'] for row in _drift_rows(world)))
      world.check()

  @parameterized.product(corrupt=(0, 1, 2), seed=(0, 1, 2, 3))
  def test_one_corrupt_replica_of_three_is_replaced(self, corrupt, seed):
    world, rng = _start(3, eval_every=48), random.Random(seed)
    world.reach(3, rng.choice)
    before = world.members[corrupt]
    before.bits += 0.5
    world.run_until(lambda: _drift_rows(world), rng.choice)
    self.assertEqual(
      [(row['worker'], row['corrupt']) for row in _drift_rows(world)],
      [(corrupt, True)],
    )
    self.assertEqual(_drift_rows(world)[0]['difference'], 0.5)
    if corrupt:
      world.run_until(lambda: not before.is_alive, rng.choice)
      world.join(corrupt)
    world.gather(rng.choice)
    world.reach(world.store.version + 8, rng.choice)
    world.run_until(world.runtime.pause, rng.choice)
    self.assertEqual([m.bits for m in world.members.values()], [0.0] * 3)
    self.assertEqual(world.members[0].is_alive, True)
    self.assertLen(_drift_rows(world), 1)
    totals = world.runtime.summary()['drift']
    self.assertEqual((totals['corrupt'], totals['largest']), (1, 0.0))
    world.check()

  def test_a_corrupt_replica_beside_drifting_ones_is_replaced(self):
    world = _start(5, rounding={3: 2.0**-24, 4: 2.0**-24}, eval_every=48)
    world.reach(3)
    world.members[3].bits += 0.25
    world.run_until(lambda: any(row['corrupt'] for row in _drift_rows(world)))
    world.run_until(lambda: not world.members[3].is_alive)
    world.join(3)
    world.gather()
    world.reach(world.store.version + 8)
    corrupt = [row['worker'] for row in _drift_rows(world) if row['corrupt']]
    self.assertEqual(corrupt, [3])
    world.check()

  def test_two_of_five_replicas_are_corrupt_one_of_them_the_coordinators(self):
    world = _start(5, eval_every=48)
    world.reach(3)
    for index in (0, 4):
      world.members[index].bits += 0.5 + index
    world.run_until(lambda: not world.members[4].is_alive)
    world.join(4)
    world.gather()
    world.reach(world.store.version + 8)
    world.run_until(world.runtime.pause)
    self.assertEqual([m.bits for m in world.members.values()], [0.0] * 5)
    self.assertEqual([row['worker'] for row in _drift_rows(world)], [0, 4])
    self.assertEqual(world.runtime.summary()['drift']['corrupt'], 2)
    world.check()

  def test_without_a_majority_all_return_to_a_checkpoint(self):
    for workers, corrupt in ((2, 0), (2, 1), (4, (2, 3)), (3, (0, 1, 2))):
      world = _start(workers, eval_every=48)
      world.reach(2)
      for index in np.atleast_1d(corrupt):
        world.members[index].bits += 0.5 + index
      with self.assertRaisesRegex(Unmendable, 'without a majority'):
        world.reach(12)

  def test_a_corrupt_replica_restarts_all_where_xla_sums(self):
    world = _start(3, eval_every=48, tolerates_loss=False)
    world.reach(2)
    world.members[1].bits += 2.0**-23
    world.run_until(lambda: _drift_rows(world))  # Drift is repaired there, too.
    world.members[1].bits += 0.5
    with self.assertRaisesRegex(Unmendable, r'\[1\] at version'):
      world.reach(20)

  def test_all_replicas_have_the_state_of_a_checkpoint(self):
    world = _start(3, eval_every=10**6)
    world.reach(3)
    world.members[0].bits += 0.5
    world.run_until(world.runtime.pause)
    self.assertEqual(world.members[0].bits, 0.0)
    self.assertEqual(world.agreed_version, world.store.version)

  def test_a_source_that_dies_during_a_repair_is_replaced(self):
    world = _start(3, rounding={2: 2.0**-24}, eval_every=48)
    world.run_until(lambda: world.members[2].doing == 'comparing')
    source = world.sessions[world.members[2].comparison.sources[0][1]]
    if source.index == 0:
      world.cut.append({0, 2})
    else:
      source.end()
    world.reach(8)
    world.check()

  def test_copies_of_a_corrupt_state_do_not_vote_for_it(self):
    world = _start(3, eval_every=10**6)
    world.reach(2)
    world.members[1].end()
    world.reach(4)
    world.members[0].bits += 0.5
    world.join(1)  # It fetches the corrupt state of worker 0.
    with self.assertRaisesRegex(Unmendable, 'without a majority'):
      world.gather()

  def test_the_run_ends_if_only_a_corrupt_replica_is_left(self):
    world = _start(3, eval_every=48)
    world.reach(2)
    world.members[0].bits += 0.5
    world.run_until(lambda: world.runtime.epochs.check._is_replacing)
    for index in (1, 2):
      world.members[index].end()
    with self.assertRaisesRegex(Unmendable, 'Only corrupt replicas'):
      world.reach(20)

  def test_no_check_begins_in_an_epoch_that_ends(self):
    world = _start(3, eval_every=24)
    holds = {('0/0', 'deliver'), ('1/0', 'apply')}
    world.run_until(lambda: world.members[0].version == 1, but=holds)
    world.members[1].end()
    while world.members[1].to_coordinator:
      world.deliver(world.members[1])
    self.assertFalse(world.runtime.epochs.is_running)
    while world.members[0].to_coordinator:
      world.deliver(world.members[0])
    self.assertFalse(world.runtime.epochs.check.is_running)
    world.reach(6)
    self.assertEqual(world.rendezvous.members, (0, 2))
    world.check()

  def test_a_member_without_a_link_to_the_reference_fetches_a_copy(self):
    rounding = {k: (k + 1) * 2.0**-24 for k in range(4)}
    world = _start(4, rounding=rounding, eval_every=64)
    sources = world.rendezvous.find_sources

    def reached(index, among):  # The link between workers 0 and 1 is lost.
      other = {0: 1, 1: 0}.get(index)
      return sources(index, [k for k in among if k != other])

    with mock.patch.object(world.rendezvous, 'find_sources', reached):
      world.reach(12)
      world.run_until(world.runtime.pause)
    self.assertLen({life.bits for life in world.members.values()}, 1)
    lives = [life.number for life in world.members.values()]
    self.assertEqual(lives, [0] * 4)
    self.assertNotEmpty(_drift_rows(world))
    self.assertFalse(any(row['corrupt'] for row in _drift_rows(world)))

  def test_a_member_that_does_not_answer_is_evicted(self):
    world = _start(3, eval_every=48)
    hangs = ('2/0', 'handle')
    world.run_until(lambda: world.runtime.epochs.check.is_running)
    world.run_without(but={hangs})
    self.assertTrue(world.runtime.epochs.check.is_running)
    world.runtime.epochs.check._limit_s = 0.1
    time.sleep(0.2)
    world.runtime._check_at = 0.0
    world.check_deadlines()
    self.assertIsNone(world.reception.members[2].stream)


class FailedLinksTest(parameterized.TestCase):
  """Links and executors that fail for some time, by a simulated clock."""

  def _start(self, workers):
    self.now = 0.0
    failed = FailedLinks(timeout_s=10.0, clock=lambda: self.now)
    return _start(workers, failed=failed)

  def _break(self, world, ends):
    """Cuts a link during an iteration that uses it."""
    world.cut.append({*ends})
    worker, peer = ends[0], ends[-1]
    world.run_until(lambda: world.members[worker].doing == 'waiting')
    world.members[worker].lose(peer)

  def _hops(self, world):
    workers = world.rendezvous.packed.cluster.workers
    return {
      frozenset((workers.index(hop[0]), workers.index(hop[-1])))
      for tree in world.rendezvous.packed.forest.trees
      for hop in (*tree.up, *tree.down)
    }

  def _count_epochs(self, world, iterations):
    """Returns the number of epochs that begin within some iterations."""
    before = world.rendezvous.membership_epoch
    world.reach(world.store.version + iterations)
    return world.rendezvous.membership_epoch - before

  def test_a_link_is_used_again_once_its_cut_is_over(self):
    world = self._start(4)
    self._break(world, (2, 3))
    world.run_until(lambda: world.rendezvous.packed.avoided_pairs)
    world.reach(world.store.version + 5)
    self.assertNotIn({2, 3}, self._hops(world))
    world.cut.clear()
    self.now += 19.0
    self.assertEqual(self._count_epochs(world, 5), 0)
    self.now += 1.0
    self.assertEqual(self._count_epochs(world, 5), 1)
    self.assertIn({2, 3}, self._hops(world))
    self.assertEqual(self._count_epochs(world, 20), 0)
    world.check()

  def test_a_link_that_stays_cut_is_tried_less_and_less_often(self):
    world = self._start(4)
    self._break(world, (2, 3))
    world.run_until(lambda: world.rendezvous.packed.avoided_pairs)
    world.reach(world.store.version + 3)
    for backoff_s in (20, 40, 80, 160):
      self.now += backoff_s - 1
      self.assertEqual(self._count_epochs(world, 5), 0)
      self.now += 1
      # One epoch with the link, and one without it.
      self.assertEqual(self._count_epochs(world, 5), 2)
      self.assertNotIn({2, 3}, self._hops(world))
    self.assertEqual(world.rendezvous.members, (0, 1, 2, 3))
    world.check()

  @parameterized.parameters([(0, 1)], [(1,)])
  def test_an_unreachable_worker_is_excluded_for_some_time(self, ends):
    world = self._start(2)
    self._break(world, ends[::-1])
    world.run_until(lambda: world.rendezvous.members == (0,))
    world.join(1)  # Its process lives, and rejoins at once.
    world.reach(world.store.version + 5)
    self.assertEqual(self._count_epochs(world, 20), 0)
    self.now += 20.0  # It is tried again, and fails.
    world.run_until(lambda: not world.members[1].is_alive)
    world.join(1)
    world.reach(world.store.version + 5)
    self.now += 39.0
    self.assertEqual(self._count_epochs(world, 20), 0)
    world.cut.clear()
    self.now += 1.0
    world.gather()
    world.reach(world.store.version + 5)
    self.assertEqual(world.rendezvous.members, (0, 1))
    world.check()

  def test_a_worker_may_be_unreachable_before_the_start(self):
    self.now = 0.0
    failed = FailedLinks(timeout_s=10.0, clock=lambda: self.now)
    world = replicas.SimulatedRun(2, failed=failed)
    world.cut.append({0, 1})
    world.run_until(lambda: not world.members[1].is_alive)
    world.join(1)
    while world.step():
      self.assertFalse(world.runtime.epochs.try_connect())
    before = world.rendezvous.membership_epoch
    world.cut.clear()
    self.assertFalse(world.runtime.epochs.try_connect())
    self.now += 20.0
    self.assertFalse(world.runtime.epochs.try_connect())  # It forms an epoch.
    world.begin()
    self.assertLessEqual(world.rendezvous.membership_epoch, before + 1)
    world.reach(3)
    world.check()

  @settings(max_examples=15, deadline=None)
  @given(st.integers(0, 2**32), st.integers(2, 4))
  def test_links_are_cut_and_mended_in_any_order(self, seed, workers):
    world, rng = self._start(workers), random.Random(seed)
    pairs = [{a, b} for a in range(workers) for b in range(1, workers)]
    for move in range(400):
      self.now += 0.3 if move < 300 else 100.0
      if move == 300:
        world.cut.clear()
      if move < 300 and rng.random() < 0.05:
        pair = rng.choice(pairs)
        if pair in world.cut:
          world.cut.remove(pair)
        else:
          world.cut.append(pair)
          ends = [*pair]
          if world.members[ends[0]].doing == 'waiting':
            world.members[ends[0]].lose(ends[-1])
      for index, life in world.members.items():
        if not life.is_alive:
          world.join(index, keeps=True)
      world.step(rng.choice)
    world.reach(world.store.version + 3, rng.choice)
    world.gather(rng.choice)
    world.reach(world.store.version + 3, rng.choice)
    world.check()

  def test_two_failures_of_the_coordinators_executor_end_the_run(self):
    world = self._start(3)
    with self.assertRaisesRegex(Unmendable, 'worker 0 has an executor'):
      self._break(world, (0,))
      world.reach(world.store.version + 3)


class AllNeededTest(parameterized.TestCase):
  """Runs where XLA sums: members cannot continue without one another."""

  def _connecting(self):
    world = replicas.SimulatedRun(3, tolerates_loss=False)
    world.members[1].end()
    world.join(1)  # No member has connected yet.
    arriving = {(life.address, 'arrive') for life in world.members.values()}
    world.run_until(lambda: world.rendezvous.members, but=arriving)
    self.assertEqual(world.rendezvous.members, (0, 1, 2))
    return world

  def test_the_loss_of_a_worker_ends_the_run(self):
    world = self._connecting()
    world.members[1].end()
    with self.assertRaisesRegex(Unmendable, 'Worker 1 is lost, and XLA .* all'):
      while True:
        world.deliver(world.members[1])

  def test_the_loss_of_a_connection_ends_the_run(self):
    world = self._connecting()

    def report(membership_epoch, incarnation):
      message = messages.ConnectionLost(membership_epoch, None, 'gone')
      world.runtime._dispatch(
        WorkerMessage(worker=2, incarnation=incarnation, message=message)
      )

    for outdated in ((1, 0), (0, 1)):
      report(*outdated)
    with self.assertRaisesRegex(Unmendable, 'Worker 2: gone'):
      report(0, 0)


def _stops(world, index):
  life = world.members[index]
  received = [*life.to_member, *life.inbox]
  stops = [each for each in received if isinstance(each, messages.StopEpoch)]
  return [{'completes': each.completes} for each in stops]


if __name__ == '__main__':
  absltest.main()
