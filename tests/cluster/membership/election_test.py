"""Tests for the election of a coordinator, with random schedules."""

import random

from absl.testing import absltest, parameterized
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.membership import election
from cluster.membership.election import Position, Standing


class _Node:
  """A process: its knowledge, and its role."""

  def __init__(self, rank, members):
    self.rank, self.is_alive = rank, True
    self.position, self.leader = Position.FOLLOWS, 0
    self.term, self.epoch, self.members = 1, 0, members
    self.line = ()  # Updates that it has applied, each as term and epoch.
    self.patience = 0
    # Of a leader: the epoch that runs, and members that have stayed.
    self.running, self.agreed = False, members
    self.present = set(members)

  @property
  def standing(self):
    return Standing(
      self.rank, self.position, self.term, self.epoch, len(self.line), True
    )


class _World:
  """Processes that iterate, die, and are cut off from each other."""

  def __init__(self, size, rng):
    self.rng = rng
    members = tuple(range(size))
    self.nodes = [_Node(rank, members) for rank in members]
    self.leases = {1: 0}
    self.cut = set()
    first = self.nodes[0]
    first.position, first.running = Position.LEADS, True

  def reaches(self, a, b):
    alive = self.nodes[a].is_alive and self.nodes[b].is_alive
    return alive and frozenset((a, b)) not in self.cut

  def step(self, node):
    """Lets a process do what it can do."""
    if not node.is_alive:
      return
    if node.position is Position.FOLLOWS:
      leader = self.nodes[node.leader]
      leads = leader.position in (Position.LEADS, Position.GATHERS)
      is_member = node.rank in leader.present
      if not (leads and is_member and self.reaches(node.rank, node.leader)):
        node.position, node.patience = Position.LOST, 2
    elif node.position is Position.LOST:
      self._elect(node)
    elif node.position is Position.GATHERS:
      self._gather(node)
    else:
      self._lead(node)

  def _elect(self, node):
    others = [k for k in node.members if k != node.rank]
    answers = {
      k: self.nodes[k].standing if self.reaches(node.rank, k) else None
      for k in others
    }
    node.patience -= 1
    decision = election.decide(
      node.standing, node.members, answers, is_patient=node.patience > 0
    )
    if decision.leads:
      node.position, node.patience = Position.GATHERS, 4
      node.agreed, node.present = node.members, {node.rank}
    elif decision.follows is not None:
      leader = self.nodes[decision.follows]
      # As a newcomer of a later term it does not count as present, and the
      # leader's own line replaces its line; that is not simulated.
      is_same = leader.term == node.term
      if is_same and (
        leader.position is Position.GATHERS or node.rank in leader.members
      ):
        node.position, node.leader = Position.FOLLOWS, leader.rank
        leader.present.add(node.rank)
        leader.running = False

  def _gather(self, node):
    node.patience -= 1
    self._drop_lost(node)
    if node.patience <= 0:
      if election.may_succeed(node.agreed, node.present):
        self._begin(node, node.term + 1)
      else:
        node.position, node.patience = Position.LOST, 2

  def _drop_lost(self, node):
    lost = {
      k
      for k in node.present - {node.rank}
      if not self.reaches(node.rank, k)
      or self.nodes[k].position is not Position.FOLLOWS
      or self.nodes[k].leader != node.rank
    }
    node.present -= lost
    if lost:
      node.running = False

  def _lead(self, node):
    self._drop_lost(node)
    if node.running:
      self._iterate(node)
      return
    term = node.term
    if election.needs_term(node.agreed, node.present):
      term += 1
    self._begin(node, term)

  def _begin(self, node, term):
    if term > node.term:
      if term in self.leases:
        node.is_alive = False  # Another one leads.
        return
      self.leases[term] = node.rank
    members = tuple(sorted(node.present & {*node.agreed}))
    newest = max((self.nodes[k].line for k in members), key=len)
    for other in self.nodes:  # Updates that all have are never undone.
      if other.line[:-1] and other.term < term and other.epoch <= node.epoch:
        known = other.line[: len(newest)]
        assert len(other.line) <= len(newest) + 1, 'updates are lost'
        assert known[:-1] == newest[: len(known)][:-1], 'two lines'
    epoch = node.epoch + 1
    for k in members:
      each = self.nodes[k]
      each.line, each.term, each.epoch = newest, term, epoch
      each.members = each.agreed = members
    node.position, node.running = Position.LEADS, True
    node.present = set(members)

  def _iterate(self, node):
    """Sums, and lets some of the members apply the sum."""
    members = [self.nodes[k] for k in node.members]
    if any(not each.is_alive or each.epoch != node.epoch for each in members):
      return
    if any(not self.reaches(node.rank, each.rank) for each in members):
      return
    if len({each.line for each in members}) == 1:
      assert node.term == max(self.leases), 'an old coordinator iterates'
      self.sum = (node.term, node.epoch, len(node.line))
    longest = max((each.line for each in members), key=len)
    if len({each.line for each in members}) == 1:
      longest = (*longest, (node.term, node.epoch))
    behind = [each for each in members if each.line != longest]
    for each in self.rng.sample(behind, self.rng.randint(1, len(behind))):
      each.line = longest


class RandomSchedulesTest(parameterized.TestCase):
  @settings(max_examples=150, deadline=None)
  @given(st.integers(0, 2**32), st.integers(2, 7), st.floats(0.0, 0.3))
  def test_one_line_of_history_and_one_coordinator_of_each_term(
    self, seed, size, rate
  ):
    rng = random.Random(seed)
    world = _World(size, rng)
    for _ in range(300):
      if rng.random() < rate:
        pair = frozenset(rng.sample(range(size), 2))
        world.cut ^= {pair}
      if rng.random() < rate / 20:
        rng.choice(world.nodes).is_alive = False
      if rng.random() < rate / 10:
        side = set(rng.sample(range(size), rng.randint(0, size)))
        world.cut = {
          frozenset((a, b)) for a in side for b in range(size) if b not in side
        }
      world.step(rng.choice(world.nodes))

  @settings(max_examples=60, deadline=None)
  @given(st.integers(0, 2**32), st.integers(2, 7))
  def test_at_least_half_of_the_members_continue_without_the_coordinator(
    self, seed, size
  ):
    rng = random.Random(seed)
    world = _World(size, rng)
    for _ in range(rng.randint(0, 40)):
      world.step(rng.choice(world.nodes))
    world.nodes[0].is_alive = False
    for rank in rng.sample(range(1, size), size // 2 - 1):
      world.nodes[rank].is_alive = False
    before = max(len(node.line) for node in world.nodes if node.is_alive)
    for _ in range(60 * size):
      world.step(rng.choice(world.nodes))
    leaders = [
      node
      for node in world.nodes
      if node.is_alive and node.position is Position.LEADS
    ]
    self.assertLen(leaders, 1)
    self.assertGreater(len(leaders[0].line), before)


def _standing(worker, position=Position.LOST, **fields):
  values = {'term': 1, 'membership_epoch': 3, 'version': 5, 'has_state': True}
  return Standing(worker=worker, position=position, **values | fields)


class DecisionTest(parameterized.TestCase):
  def _decide(self, own, answers, is_patient=True, members=(0, 1, 2, 3)):
    return election.decide(own, members, answers, is_patient=is_patient)

  def test_the_highest_version_leads_and_ties_go_to_the_lowest_rank(self):
    one, two, three = _standing(1), _standing(2), _standing(3, version=6)
    answers = {0: None, 2: two, 3: three}
    self.assertEqual(self._decide(one, answers), election.WAIT)
    self.assertTrue(self._decide(three, {0: None, 1: one, 2: two}).leads)
    decision = self._decide(one, {0: None, 2: two, 3: _standing(3)})
    self.assertEqual(decision.supporters, (1, 2, 3))

  def test_a_member_of_a_newer_epoch_leads_although_its_version_is_lower(self):
    # Members of an older epoch may have applied sums that count no more.
    newer, older = _standing(2, membership_epoch=4), _standing(1, version=9)
    for own, other, leads in ((newer, older, True), (older, newer, False)):
      answers = {0: None, other.worker: other, 3: None}
      decision = self._decide(own, answers, is_patient=False)
      self.assertEqual(decision.leads, leads)

  def test_a_member_that_knows_of_no_newer_term_does_not_lead(self):
    for newer in (Position.LOST, Position.FOLLOWS):
      answers = {0: None, 2: _standing(2, newer, term=2), 3: _standing(3)}
      decision = self._decide(_standing(1), answers, is_patient=False)
      self.assertEqual(decision, election.WAIT)

  def test_processes_that_were_no_members_do_not_support_a_candidate(self):
    answers = {0: None, 2: None, 3: None, 4: _standing(4), 5: _standing(5)}
    decision = self._decide(_standing(1), answers, is_patient=False)
    self.assertEqual(decision, election.WAIT)

  def test_the_leader_of_the_newest_term_is_joined(self):
    old = _standing(2, Position.LEADS, term=2, membership_epoch=9)
    new = _standing(3, Position.LEADS, term=3, membership_epoch=5)
    answers = {0: None, 2: old, 3: new}
    self.assertEqual(self._decide(_standing(1), answers).follows, 3)

  def test_a_member_without_the_coordinators_state_does_not_lead(self):
    one, two = _standing(1, has_state=False), _standing(2)
    for own, other, leads in ((one, two, False), (two, one, True)):
      answers = {0: None, other.worker: other, 3: None}
      decision = self._decide(own, answers, is_patient=False)
      self.assertEqual(decision.leads, leads)

  @parameterized.parameters((False, True), (True, False))
  def test_members_that_follow_the_coordinator_are_awaited_for_some_time(
    self, is_patient, leads
  ):
    answers = {0: None, 2: _standing(2), 3: _standing(3, Position.FOLLOWS)}
    decision = self._decide(_standing(1), answers, is_patient)
    self.assertEqual(decision.leads, leads)

  @parameterized.parameters((False, True), (True, False))
  def test_exactly_half_leave_the_other_half_some_time(self, is_patient, leads):
    answers = {0: None, 2: _standing(2), 3: None}
    decision = self._decide(_standing(1), answers, is_patient)
    self.assertEqual(decision.leads, leads)

  def test_less_than_half_never_lead(self):
    answers = {0: None, 2: None, 3: _standing(3, Position.FOLLOWS)}
    self.assertEqual(self._decide(_standing(1), answers, False), election.WAIT)

  @parameterized.parameters(
    (_standing(0, Position.LEADS), 0),
    (_standing(2, Position.LEADS, term=2, membership_epoch=4), 2),
    (_standing(2, Position.GATHERS), 2),
    (_standing(2, Position.GATHERS, membership_epoch=2), None),
    (_standing(2, Position.LEADS, term=0), None),
  )
  def test_a_coordinator_that_answers_is_joined(self, leader, follows):
    answers = {0: None, 2: None, 3: None, leader.worker: leader}
    decision = self._decide(_standing(1), answers, is_patient=False)
    self.assertEqual(decision.follows, follows)

  def test_a_member_of_a_newer_epoch_is_not_overtaken(self):
    newer = _standing(3, membership_epoch=4, has_state=False)
    answers = {0: None, 2: _standing(2), 3: newer}
    self.assertFalse(self._decide(_standing(1), answers).leads)


if __name__ == '__main__':
  absltest.main()
