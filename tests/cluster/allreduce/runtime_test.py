"""Tests for the runtime of reduced routes: members are played."""

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
from cluster.process.exits import Unmendable
from predict import ema
from tests.support import replicas


def _began(workers=3, **fields):
  world = replicas.World(workers, **fields)
  world.begin()
  return world


def _trouble(seed, workers, moves, world, rate):
  """Lets members die and come back, in any order with all else."""
  rng, saves = random.Random(seed), False
  for _ in range(moves):
    if rng.random() < rate and workers > 1:
      index = rng.randrange(1, workers)
      if world.members[index].living:
        world.members[index].end()
      else:
        world.come(index, keeps=rng.random() < 0.5)
    saves = saves or rng.random() < 0.01
    if saves and world.runtime.pause():
      world.check()
      world.pass_by()
      saves = False
    world.go(rng.choice)
  if saves:
    world.until(world.runtime.pause, rng.choice)
    world.pass_by()
  for index in range(1, workers):
    if not world.members[index].living:
      world.come(index, keeps=rng.random() < 0.5)
  return rng


class AnyOrderTest(parameterized.TestCase):
  @settings(max_examples=40, deadline=None)
  @given(
    st.integers(0, 2**32),
    st.integers(1, 5),
    st.integers(20, 400),
    st.sampled_from([0.005, 0.02, 0.06]),
  )
  def test_members_die_and_come_back(self, seed, workers, moves, rate):
    self._check(seed, workers, moves, rate)

  @pytest.mark.soak
  @settings(max_examples=3000, deadline=None)
  @given(
    st.integers(0, 2**32),
    st.integers(1, 6),
    st.integers(20, 800),
    st.sampled_from([0.005, 0.02, 0.06, 0.2]),
  )
  def test_again_and_again(self, seed, workers, moves, rate):
    self._check(seed, workers, moves, rate)

  def _check(self, seed, workers, moves, rate):
    world = _began(workers)
    rng = _trouble(seed, workers, moves, world, rate)
    world.reach(world.store.version + 5, rng.choice)
    world.gather(rng.choice)
    world.reach(world.store.version + 5, rng.choice)
    world.check()

  @settings(max_examples=10, deadline=None)
  @given(st.integers(0, 2**32))
  def test_with_batches_that_change(self, seed):
    batching = lb_bsp.make(
      num_workers=3,
      worker_batch=replicas.BATCH,
      predictor=ema.make(num_workers=3, num_factors=0, seed=0, smoothing=0.5),
      threshold=0.0,
      least=1,
      most=(64,),
    )
    world = _began(3, batching=batching)
    rng = _trouble(seed, 3, 200, world, 0.02)
    world.gather(rng.choice)
    world.reach(world.store.version + 6, rng.choice)
    world.check()

  @settings(max_examples=12, deadline=None)
  @given(st.integers(0, 2**32))
  def test_members_die_before_the_first_iteration(self, seed):
    rng, world = random.Random(seed), replicas.World(3)
    for _ in range(60):
      if rng.random() < 0.1:
        index = rng.randrange(1, 3)
        if world.members[index].living:
          world.members[index].end()
        else:
          world.come(index)
      if world.runtime._running:
        break
      world.go(rng.choice)
    for index in (1, 2):
      if not world.members[index].living:
        world.come(index)
    world.begin(rng.choice)
    world.reach(5, rng.choice)
    world.check()


class OrdersTest(parameterized.TestCase):
  def test_who_comes_back_while_others_connect_waits_for_the_next_end(self):
    world = _began()
    world.reach(3)
    world.members[1].end()
    connect = {(f'{k}/0', 'connect') for k in (0, 2)}
    world.until(lambda: world.formation.members == (0, 2), but=connect)
    world.come(1)
    world.until(lambda: world.reception.members[1].stream, but=connect)
    world.gather()
    world.reach(world.store.version + 3)
    world.check()
    self.assertLen(world.accounting.lost, 1)

  @parameterized.parameters(False, True)
  def test_who_was_to_come_in_is_lost(self, other):
    world = _began()
    world.members[1].end()
    world.reach(3)
    world.come(1)
    world.until(lambda: world.runtime._in_lead(1))  # All are asked to stop.
    self.assertEqual(world.formation.members, (0, 2))
    world.members[1].end()
    if other:
      world.come(1)
    world.reach(world.store.version + 4)
    world.check()

  def test_who_has_ended_it_gives_it_to_the_others(self):
    world = _began(eval_every=24)
    apply = {('0/0', 'apply'), ('1/0', 'apply')}
    world.until(lambda: world.members[2].version == 1, but=apply)
    world.members[1].end()
    world.reach(1, but=apply)
    self.assertLen(world.members[2].learned[0][1], 3)
    world.reach(4)
    world.check()
    self.assertEqual(world.members[0].learned[0], world.members[2].learned[0])

  def test_it_is_done_again_if_all_are_lost_who_have_ended_it(self):
    world = _began()
    apply = {('0/0', 'apply'), ('1/0', 'apply')}
    world.until(lambda: world.members[2].version == 1, but=apply)
    world.members[1].end()
    fetch = {('0/0', 'fetch')}
    world.until(lambda: world.members[0].doing == 'fetching', but=apply | fetch)
    world.members[2].end()
    world.reach(2)
    self.assertEqual([k for k, _ in world.members[0].learned[0][1]], [0])
    world.check()

  def test_what_somebody_brings_from_elsewhere_is_nobodys(self):
    world = _began()
    apply = {('0/0', 'apply'), ('1/0', 'apply')}
    world.until(lambda: world.members[2].version == 1, but=apply)
    world.members[2].end()  # Nobody knows that it has ended an iteration.
    world.reach(1)
    world.come(2, keeps=True)
    world.until(lambda: world.members[2].doing == 'fetching')
    at = world.store.version
    world.members[2].learned += [('elsewhere', ())] * (at + 1)
    world.members[1].end()
    world.come(1)
    world.gather()
    world.reach(at + 4)
    world.check()

  def test_what_somebody_brings_to_a_new_beginning_is_nobodys(self):
    world = replicas.World(3)  # The coordinator before had left no checkpoint.
    world.members[1].learned += [('elsewhere', ())] * 7
    world.begin()
    world.reach(3)
    world.check()

  def test_a_death_hurries_those_who_were_to_end_their_iteration(self):
    world = _began(4, eval_every=10**6)
    world.members[1].end()
    world.reach(2)
    world.come(1)
    runtime, store = world.runtime, world.store
    world.until(
      lambda: (
        runtime._newcomers
        and runtime._dealing.newest == store.version
        and store.version == world.members[2].version
      )
    )
    wait = {('2/0', 'apply'), ('2/0', 'lose')}
    world.until(lambda: {'ends': True} in _stops(world, 2), but=wait)
    world.members[3].end()
    world.until(lambda: {'ends': False} in _stops(world, 2), but=wait)
    world.until(lambda: world.formation.members == (0, 1, 2), but=wait)
    world.reach(store.version + 2)
    world.check()

  def test_all_but_the_lead_may_die(self):
    world = _began(4)
    world.reach(2)
    for index in (1, 2, 3):
      world.members[index].end()
    world.reach(6)
    self.assertEqual(world.formation.members, (0,))
    for index in (3, 1, 2):
      world.come(index)
    world.gather()
    world.reach(world.store.version + 3)
    world.check()

  def test_it_can_be_paused_while_somebody_comes(self):
    world = _began()
    world.members[1].end()
    world.reach(2)
    world.come(1)
    world.until(world.runtime.pause)
    world.check()
    state = world.runtime.state()
    self.assertEqual(
      state['coordinator']['_stream'].used, world.accounting.examples
    )
    world.pass_by()
    world.gather()
    world.reach(world.store.version + 3)
    world.check()

  def test_a_link_alone_is_lost(self):
    world = _began(4)
    for times in (1, 2):  # Once may be a mishap.
      self.assertNotIn('out', str(world.formation.packed.links))
      world.until(lambda: world.members[2].doing in ('waiting', 'forming'))
      world.members[2].lose(peer=3)
      world.until(
        lambda times=times: world.members[2].generation == times,
        but={('0/0', 'apply')},
      )
    world.reach(3)
    self.assertEqual(world.formation.members, (0, 1, 2, 3))
    hops = {
      (hop[0], hop[-1])
      for tree in world.formation.packed.forest.trees
      for hop in (*tree.up, *tree.down)
    }
    self.assertNotIn(('w2', 'w3'), hops)
    world.check()

  def test_who_cannot_talk_to_one_gets_the_learner_from_another(self):
    world = _began(4)
    world.members[1].end()
    world.reach(2)
    world.cut.append({0, 1})
    world.come(1)
    world.gather()
    world.reach(world.store.version + 3)
    world.check()

  def test_the_worker_of_the_lead_is_needed(self):
    world = _began()
    world.members[0].end()
    with self.assertRaisesRegex(
      Unmendable, 'The worker of the coordinator is lost'
    ):
      world.reach(world.store.version + 3)

  def test_lives_are_counted_on_from_a_checkpoint(self):
    world, other = _began(), replicas.World(4)
    for member, lives in zip(world.reception.members, (1, 3, 2), strict=True):
      member.admissions = lives
    world.until(world.runtime.pause)
    with mock.patch.object(other.store, 'restore'):
      other.runtime.restore(world.runtime.state())
    self.assertEqual(other.runtime.summary()['lives'], [1, 3, 2, 1])


class RivalsTest(parameterized.TestCase):
  """Two processes of one rank, which come again whenever they have to leave."""

  def _world(self):
    world = _began()
    world.rivals = [(1, 'one'), (1, 'two')]
    return world

  def _lives(self, world):
    return world.runtime.summary()['lives'][1]

  def test_the_second_one_costs_no_iteration(self):
    world, alone = self._world(), _began()
    for each in (world, alone):
      for _ in range(1500):
        each.go()
    self.assertEqual(self._lives(world), 1)
    self.assertEqual(world.formation.generation, 0)
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
          world.runtime._lose(1, 'it computes too long')
        ready = functools.partial(_is_ready, world, self._lives(world))
        world.until(ready, rng.choice)
      world.go(rng.choice)
    self.assertEqual(self._lives(world), 1 + losses)
    self.assertLessEqual(len(world.accounting.lost), losses)
    self.assertEqual(world.runtime.summary()['lives'][::2], [1, 1])
    world.gather(rng.choice)
    world.reach(world.store.version + 5, rng.choice)
    world.check()

  def test_one_at_a_time_is_admitted_at_the_start(self):
    world = replicas.World(3)
    self.assertFalse(world.come(1, process='two'))
    world.members[1].end()
    self.assertFalse(world.come(1, process='two'))  # Nobody has noticed yet.
    world.hear(world.members[1])  # That it is ready.
    world.hear(world.members[1])
    self.assertTrue(world.come(1, process='two'))
    world.begin()
    world.reach(3)
    world.check()
    self.assertEqual(self._lives(world), 2)

  def test_what_the_one_before_still_says_does_not_count(self):
    world = _began()
    world.reach(2)
    old = world.members[1]
    world.runtime._lose(1, 'it was silent')
    self.assertTrue(world.come(1, process='two'))
    old.wire.clear()
    generation = world.formation.generation
    for said in (
      messages.EpochStopped(generation, 9**9, []),
      messages.ConnectionLost(generation, 2, 'x'),
      messages.Connected(generation, 9, 'x', []),
      messages.ReplicaReady('x', 'x'),
    ):
      world.reception.handle(old.visit, said)
    left = messages.SessionEnd('left', 'it was silent')
    self.assertEqual(old.wire, 4 * [left])
    world.gather()
    world.reach(world.store.version + 3)
    world.check()
    self.assertEqual(world.formation.address(1), world.members[1].address)


def _is_ready(world, lives):
  member = world.reception.members[1]
  return member.stream is not None and member.incarnation == lives


def _apart(world):
  """Returns the rows that were written on replicas that differed."""
  return [call.args[0] for call in world.drift.call_args_list]


class ReplicasTest(parameterized.TestCase):
  """Replicas that drift, or are corrupt."""

  def test_equal_ones_are_not_repaired(self):
    world = _began(4)
    world.reach(20)
    self.assertEmpty(_apart(world))
    self.assertGreater(world.agreed, 10)
    self.assertEqual(world.runtime.summary()['drift']['repairs'], 0)

  @settings(max_examples=20, deadline=None)
  @given(st.integers(0, 2**32), st.integers(2, 5), st.data())
  def test_those_of_unlike_processors_drift_and_are_repaired(
    self, seed, workers, data
  ):
    errors = st.sampled_from([0.0, 2.0**-24, -(2.0**-22)])
    rounding = {k: data.draw(errors) for k in range(workers)}
    world = _began(workers, rounding=rounding)
    rng = random.Random(seed)
    world.reach(20, rng.choice)
    world.until(world.runtime.pause, rng.choice)
    self.assertEqual(world.agreed, world.store.version)
    living = [life for life in world.members.values() if life.living]
    self.assertLen({life.bits for life in living}, 1)
    self.assertLen(living, workers)  # None of them was evicted.
    rows = _apart(world)
    self.assertEqual(bool(rows), len({*rounding.values()}) > 1)
    self.assertFalse(any(row['corrupt'] for row in rows))
    totals = world.runtime.summary()['drift']
    self.assertEqual(totals['repairs'], len(rows))
    largest = max((row['difference'] for row in rows), default=0.0)
    self.assertEqual(totals['largest'], largest)
    world.check()

  def test_members_die_while_replicas_drift(self):
    for seed in range(15):
      world = _began(4, rounding={1: 2.0**-24, 3: 2.0**-23}, eval_every=24)
      rng = _trouble(seed, 4, 300, world, 0.02)
      world.reach(world.store.version + 5, rng.choice)
      world.gather(rng.choice)
      world.reach(world.store.version + 5, rng.choice)
      world.until(world.runtime.pause, rng.choice)
      self.assertLen({life.bits for life in world.members.values()}, 1)
      self.assertFalse(any(row['corrupt'] for row in _apart(world)))
      world.check()

  @parameterized.product(corrupt=(0, 1, 2), seed=(0, 1, 2, 3))
  def test_a_corrupt_one_of_three_heals(self, corrupt, seed):
    world, rng = _began(3, eval_every=48), random.Random(seed)
    world.reach(3, rng.choice)
    before = world.members[corrupt]
    before.bits += 0.5
    world.until(lambda: _apart(world), rng.choice)
    self.assertEqual(
      [(row['worker'], row['corrupt']) for row in _apart(world)],
      [(corrupt, True)],
    )
    self.assertEqual(_apart(world)[0]['difference'], 0.5)
    if corrupt:
      world.until(lambda: not before.living, rng.choice)
      world.come(corrupt)
    world.gather(rng.choice)
    world.reach(world.store.version + 8, rng.choice)
    world.until(world.runtime.pause, rng.choice)
    self.assertEqual([m.bits for m in world.members.values()], [0.0] * 3)
    self.assertEqual(world.members[0].living, True)
    self.assertLen(_apart(world), 1)
    totals = world.runtime.summary()['drift']
    self.assertEqual((totals['corrupt'], totals['largest']), (1, 0.0))
    world.check()

  def test_a_corrupt_one_beside_those_that_drift_heals(self):
    world = _began(5, rounding={3: 2.0**-24, 4: 2.0**-24}, eval_every=48)
    world.reach(3)
    world.members[3].bits += 0.25
    world.until(lambda: any(row['corrupt'] for row in _apart(world)))
    world.until(lambda: not world.members[3].living)
    world.come(3)
    world.gather()
    world.reach(world.store.version + 8)
    corrupt = [row['worker'] for row in _apart(world) if row['corrupt']]
    self.assertEqual(corrupt, [3])
    world.check()

  def test_two_of_five_are_corrupt_the_first_among_them(self):
    world = _began(5, eval_every=48)
    world.reach(3)
    for index in (0, 4):
      world.members[index].bits += 0.5 + index
    world.until(lambda: not world.members[4].living)
    world.come(4)
    world.gather()
    world.reach(world.store.version + 8)
    world.until(world.runtime.pause)
    self.assertEqual([m.bits for m in world.members.values()], [0.0] * 5)
    self.assertEqual([row['worker'] for row in _apart(world)], [0, 4])
    self.assertEqual(world.runtime.summary()['drift']['corrupt'], 2)
    world.check()

  def test_without_a_majority_all_return_to_a_checkpoint(self):
    for workers, corrupt in ((2, 0), (2, 1), (4, (2, 3)), (3, (0, 1, 2))):
      world = _began(workers, eval_every=48)
      world.reach(2)
      for index in np.atleast_1d(corrupt):
        world.members[index].bits += 0.5 + index
      with self.assertRaisesRegex(Unmendable, 'without a majority'):
        world.reach(12)

  def test_where_xla_sums_a_corrupt_one_restarts_all(self):
    world = _began(3, eval_every=48, mends=False)
    world.reach(2)
    world.members[1].bits += 2.0**-23
    world.until(lambda: _apart(world))  # That is repaired there, too.
    world.members[1].bits += 0.5
    with self.assertRaisesRegex(Unmendable, r'\[1\] at version'):
      world.reach(20)

  def test_a_checkpoint_is_of_a_state_that_all_share(self):
    world = _began(3, eval_every=10**6)
    world.reach(3)
    world.members[0].bits += 0.5
    world.until(world.runtime.pause)
    self.assertEqual(world.members[0].bits, 0.0)
    self.assertEqual(world.agreed, world.store.version)

  def test_a_source_that_dies_during_a_repair_is_replaced(self):
    world = _began(3, rounding={2: 2.0**-24}, eval_every=48)
    world.until(lambda: world.members[2].doing == 'comparing')
    source = world.lives[world.members[2].order.source[1]]
    if source.index == 0:
      world.cut.append({0, 2})
    else:
      source.end()
    world.reach(8)
    world.check()

  def test_copies_of_a_corrupt_state_do_not_vote_for_it(self):
    world = _began(3, eval_every=10**6)
    world.reach(2)
    world.members[1].end()
    world.reach(4)
    world.members[0].bits += 0.5
    world.come(1)  # It fetches the state of worker 0, which nothing tells of.
    with self.assertRaisesRegex(Unmendable, 'without a majority'):
      world.gather()

  def test_a_corrupt_state_that_is_known_is_not_gone_on_with(self):
    world = _began(3, eval_every=48)
    world.reach(2)
    world.members[0].bits += 0.5
    world.until(lambda: world.runtime._check._replacing)
    for index in (1, 2):
      world.members[index].end()
    with self.assertRaisesRegex(Unmendable, 'Only corrupt replicas'):
      world.reach(20)

  def test_no_check_begins_in_a_generation_that_ends(self):
    world = _began(3, eval_every=24)
    holds = {('0/0', 'say'), ('1/0', 'apply')}
    world.until(lambda: world.members[0].version == 1, but=holds)
    world.members[1].end()
    while world.members[1].says:
      world.hear(world.members[1])
    self.assertFalse(world.runtime._running)
    while world.members[0].says:
      world.hear(world.members[0])
    self.assertFalse(world.runtime._check.is_running)
    world.reach(6)
    self.assertEqual(world.formation.members, (0, 2))
    world.check()

  def test_a_member_without_a_link_to_the_reference_gets_it_from_another(self):
    rounding = {k: (k + 1) * 2.0**-24 for k in range(4)}
    world = _began(4, rounding=rounding, eval_every=64)
    source = world.formation.source

    def reached(index, among):  # The link between workers 0 and 1 is lost.
      other = {0: 1, 1: 0}.get(index)
      return source(index, [k for k in among if k != other])

    with mock.patch.object(world.formation, 'source', reached):
      world.reach(12)
      world.until(world.runtime.pause)
    self.assertLen({life.bits for life in world.members.values()}, 1)
    lives = [life.number for life in world.members.values()]
    self.assertEqual(lives, [0] * 4)
    self.assertFalse(any(row['corrupt'] for row in _apart(world)))

  def test_a_member_that_does_not_answer_is_evicted(self):
    world = _began(3, eval_every=48, timeout_s=0.05)
    hangs = ('2/0', 'heed')
    world.until(lambda: world.runtime._check.is_running)
    silent = list(world.reception.members)
    world.rest(but={hangs})
    self.assertTrue(world.runtime._check.is_running)
    time.sleep(0.2)
    for member in silent:
      member.seen = time.monotonic()
    world.runtime._check_at = 0.0
    world.pass_by()
    self.assertIsNone(world.reception.members[2].stream)


class FailedLinksTest(parameterized.TestCase):
  """Links, and executors, that fail for some time; by a clock of ours."""

  def _began(self, workers):
    self.now = 0.0
    failed = FailedLinks(timeout_s=10.0, clock=lambda: self.now)
    return _began(workers, failed=failed)

  def _break(self, world, ends):
    """Cuts a link, so that the running iteration loses it."""
    world.cut.append({*ends})
    worker, peer = ends[0], ends[-1]
    world.until(lambda: world.members[worker].doing == 'waiting')
    world.members[worker].lose(peer)

  def _hops(self, world):
    workers = world.formation.packed.cluster.workers
    return {
      frozenset((workers.index(hop[0]), workers.index(hop[-1])))
      for tree in world.formation.packed.forest.trees
      for hop in (*tree.up, *tree.down)
    }

  def _generations(self, world, iterations):
    """Returns how many generations some iterations take."""
    before = world.formation.generation
    world.reach(world.store.version + iterations)
    return world.formation.generation - before

  def test_a_link_is_used_again_once_its_cut_is_over(self):
    world = self._began(4)
    self._break(world, (2, 3))
    world.until(lambda: world.formation.packed.lost)
    world.reach(world.store.version + 5)
    self.assertNotIn({2, 3}, self._hops(world))
    world.cut.clear()
    self.now += 19.0
    self.assertEqual(self._generations(world, 5), 0)
    self.now += 1.0
    self.assertEqual(self._generations(world, 5), 1)
    self.assertIn({2, 3}, self._hops(world))
    self.assertEqual(self._generations(world, 20), 0)
    world.check()

  def test_a_link_that_stays_cut_costs_less_and_less(self):
    world = self._began(4)
    self._break(world, (2, 3))
    world.until(lambda: world.formation.packed.lost)
    world.reach(world.store.version + 3)
    for backoff_s in (20, 40, 80, 160):
      self.now += backoff_s - 1
      self.assertEqual(self._generations(world, 5), 0)
      self.now += 1
      # One with the link, and one without it.
      self.assertEqual(self._generations(world, 5), 2)
      self.assertNotIn({2, 3}, self._hops(world))
    self.assertEqual(world.formation.members, (0, 1, 2, 3))
    world.check()

  @parameterized.parameters([(0, 1)], [(1,)])
  def test_a_worker_that_nobody_reaches_is_left_out_for_some_time(self, ends):
    world = self._began(2)
    self._break(world, ends[::-1])
    world.until(lambda: world.formation.members == (0,))
    world.come(1)  # Its process lives, and joins again at once.
    world.reach(world.store.version + 5)
    self.assertEqual(self._generations(world, 20), 0)
    self.now += 20.0  # It is tried again, and fails.
    world.until(lambda: not world.members[1].living)
    world.come(1)
    world.reach(world.store.version + 5)
    self.now += 39.0
    self.assertEqual(self._generations(world, 20), 0)
    world.cut.clear()
    self.now += 1.0
    world.gather()
    world.reach(world.store.version + 5)
    self.assertEqual(world.formation.members, (0, 1))
    world.check()

  def test_a_worker_may_be_cut_off_before_the_start(self):
    self.now = 0.0
    failed = FailedLinks(timeout_s=10.0, clock=lambda: self.now)
    world = replicas.World(2, failed=failed)
    world.cut.append({0, 1})
    world.until(lambda: not world.members[1].living)
    world.come(1)
    while world.go():
      self.assertFalse(world.runtime._is_connected())
    before = world.formation.generation
    world.cut.clear()
    self.assertFalse(world.runtime._is_connected())
    self.now += 20.0
    self.assertFalse(world.runtime._is_connected())  # Now it forms.
    world.begin()
    self.assertLessEqual(world.formation.generation, before + 1)
    world.reach(3)
    world.check()

  @settings(max_examples=15, deadline=None)
  @given(st.integers(0, 2**32), st.integers(2, 4))
  def test_links_are_cut_and_mended_in_any_order(self, seed, workers):
    world, rng = self._began(workers), random.Random(seed)
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
        if not life.living:
          world.come(index, keeps=True)
      world.go(rng.choice)
    world.reach(world.store.version + 3, rng.choice)
    world.gather(rng.choice)
    world.reach(world.store.version + 3, rng.choice)
    world.check()

  def test_the_coordinators_own_executor_may_fail_twice_at_most(self):
    world = self._began(3)
    with self.assertRaisesRegex(Unmendable, 'worker 0 has an executor'):
      self._break(world, (0,))
      world.reach(world.store.version + 3)


class AllNeededTest(parameterized.TestCase):
  """XLA sums: who connect cannot go on without one another."""

  def _connecting(self):
    world = replicas.World(3, mends=False)
    world.members[1].end()
    world.come(1)  # Nobody has connected yet.
    arriving = {(life.address, 'arrive') for life in world.members.values()}
    world.until(lambda: world.formation.members, but=arriving)
    self.assertEqual(world.formation.members, (0, 1, 2))
    return world

  def test_one_is_lost(self):
    world = self._connecting()
    world.members[1].end()
    with self.assertRaisesRegex(Unmendable, 'Worker 1 is lost, and XLA .* all'):
      while True:
        world.hear(world.members[1])

  def test_one_has_lost_another(self):
    world = self._connecting()

    def lose(generation, incarnation):
      world.runtime._react(
        WorkerMessage(
          worker=2,
          incarnation=incarnation,
          message=messages.ConnectionLost(generation, None, 'gone'),
        )
      )

    for generation, incarnation in ((1, 0), (0, 1)):  # Not of today.
      lose(generation, incarnation)
    with self.assertRaisesRegex(Unmendable, 'Worker 2: gone'):
      lose(0, 0)


def _stops(world, index):
  life = world.members[index]
  told = [*life.wire, *life.inbox]
  return [
    {'ends': each.completes}
    for each in told
    if isinstance(each, messages.StopEpoch)
  ]


if __name__ == '__main__':
  absltest.main()
