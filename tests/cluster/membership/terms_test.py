"""Tests of a run's terms and identity, and of requests to other runs."""

import pathlib
import tempfile

from absl.testing import absltest

from cluster.allreduce.replication import Standby
from cluster.membership import succession
from cluster.membership.process import Settings
from cluster.membership.terms import Terms
from cluster.network.port import Port
from cluster.network.streams import Security


class TermsTest(absltest.TestCase):
  def _make_terms(self):
    return Terms(pathlib.Path(tempfile.mkdtemp()))

  def test_all_processes_of_a_run_have_one_identity_and_no_two_runs(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    first = Terms(folder).identify()
    self.assertEqual(Terms(folder).identify(), first)
    self.assertNotEqual(self._make_terms().identify(), first)
    self.assertEqual(Terms(folder).newest, 0)

  def _make_part(self, index, terms):
    port = Port('127.0.0.1', 0, Security())
    part = succession.Succession(
      index,
      settings=Settings(port, '', 5.0, 5.0, ''),
      terms=terms,
      standby=Standby(),
      version=lambda: 0,
    )
    self.addCleanup(part.close)
    return part

  def test_a_member_rejoins_the_coordinator_that_it_has_found(self):
    terms = self._make_terms()
    leader, other = self._make_part(0, terms), self._make_part(1, terms)
    self.assertEqual(other.locate('first:1'), 'first:1')
    leader.lead(3, 7, {0: leader.listen(), 1: other.listen()})
    address = leader.listen()
    self.assertEqual(other.locate('first:1'), address)
    # It has joined, and knows the same term; then its session ends.
    other.standby.membership = leader.membership
    self.assertEqual(other.locate('first:1'), address)
    terms.forget()  # The first coordinator starts from a checkpoint.
    self.assertEqual(other.locate('first:1'), 'first:1')

  def test_a_process_answers_requests_of_its_own_run_alone(self):
    terms = self._make_terms()
    part = self._make_part(2, terms)
    address = part.listen()
    own = succession.ask(address, terms.identify(), Security(), 5.0)
    self.assertEqual(own.worker, 2)
    other = self._make_terms().identify()
    self.assertIsNone(succession.ask(address, other, Security(), 5.0))


if __name__ == '__main__':
  absltest.main()
