"""Tests of a run's terms and identity, and of requests to other runs."""

import os
import pathlib
import tempfile
import threading
from unittest import mock

from absl.testing import absltest

from cluster.allreduce.replication import Standby
from cluster.membership import succession
from cluster.membership.process import Settings
from cluster.membership.terms import Place, Terms
from cluster.network.errors import Closed
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

  def test_a_term_has_the_first_process_that_takes_it(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    first, second = Terms(folder), Terms(folder)
    self.assertTrue(first.take(1, 0))
    self.assertFalse(second.take(1, 3))
    self.assertFalse(first.take(1, 0))
    self.assertEqual((folder / 'terms' / '1').read_text(), 'worker 0\n')
    self.assertEqual(second.newest, 1)
    self.assertTrue(second.take(2, 3))
    self.assertEqual(first.newest, 2)

  def test_one_of_many_processes_takes_a_term(self):
    folder, count = pathlib.Path(tempfile.mkdtemp()), 8
    together, taken = threading.Barrier(count), []

    def take(worker):
      terms = Terms(folder)
      for term in range(1, 21):
        together.wait()
        if terms.take(term, worker):
          taken.append(term)

    threads = [
      threading.Thread(target=take, args=[worker]) for worker in range(count)
    ]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
    self.assertEqual(sorted(taken), [*range(1, 21)])

  def test_a_term_that_was_taken_survives_a_crash_of_the_host(self):
    folder, stored = pathlib.Path(tempfile.mkdtemp()), []
    sync = os.fsync

    def record(handle):
      # What a folder lists is stored once the folder itself is.
      where = pathlib.Path(os.readlink(f'/proc/self/fd/{handle}'))
      if where.is_dir():
        stored.extend(path.name for path in where.iterdir())
      sync(handle)

    with mock.patch.object(os, 'fsync', record):
      self.assertTrue(Terms(folder).take(4, 0))
    self.assertIn('4', stored)

  def test_the_newest_term_is_the_highest_number(self):
    terms = self._make_terms()
    terms.identify()  # Its file is in the folder, and is no term.
    for term in (2, 10, 9):
      self.assertTrue(terms.take(term, 0))
    self.assertEqual(terms.newest, 10)

  def _make_part(self, index, terms, timeout_s=5.0):
    port = Port('127.0.0.1', 0, Security())
    part = succession.Succession(
      index,
      settings=Settings(port, '', timeout_s, 5.0, ''),
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

  def test_a_published_coordinator_is_found_until_it_is_forgotten(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    self.assertIsNone(Terms(folder).find())
    place = Place(3, 1, '1.1.1.1:5', {1: '1.1.1.1:5', 10: '1.1.1.2:6'})
    Terms(folder).publish(place)
    self.assertEqual(Terms(folder).find(), place)
    Terms(folder).forget()
    self.assertIsNone(Terms(folder).find())

  def test_the_lost_coordinator_is_not_found_again_in_the_folder(self):
    terms = self._make_terms()
    part = self._make_part(1, terms, timeout_s=0.1)
    part.listen()
    gone = '127.0.0.1:1'
    part.standby.membership = succession.Membership(3, 7, {0: gone, 1: ''})
    terms.publish(Place(3, 0, gone, {0: gone}))
    with self.assertRaisesRegex(Closed, 'No coordinator within'):
      part.find_coordinator()
    terms.publish(Place(4, 2, 'next:1', {}))
    self.assertEqual(part.find_coordinator(), 'next:1')

  def test_an_answer_under_the_rank_of_another_member_counts_as_none(self):
    terms = self._make_terms()
    part, liar = self._make_part(1, terms, 0.1), self._make_part(7, terms)
    part.listen()
    addresses = {0: liar.listen(), 1: ''}
    liar.lead(3, 7, addresses)
    terms.forget()
    part.standby.membership = succession.Membership(3, 7, addresses)
    with self.assertRaisesRegex(Closed, 'No coordinator within'):
      part.find_coordinator()

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
