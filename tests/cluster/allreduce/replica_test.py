"""Tests of a replica: its real executor and handover, a coordinator that is played."""

import pathlib
import queue
import tempfile
import threading
import time
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from batching import fixed
from cluster.allreduce import group, replica
from cluster.allreduce.admission import IterationCompleted
from cluster.allreduce.step_statistics import Books
from cluster.allreduce.sums.summing import HostSumming
from cluster.membership import session
from cluster.membership.process import Settings
from cluster.network import messages
from cluster.network.streams import Security
from cluster.probing import traffic
from cluster.process.faults import Faults
from learning import digest
from learning.nothing import NoGradient, NoLearner
from learning.pool import Pool
from route import links, ring
from tests.support import descriptors

_HOST, _WAIT_S = '127.0.0.1', 20.0


class _Heart:
  """That of a life which ends when a test says so."""

  def __init__(self, stream, *, receive, on_end, **_):
    self.ended, self.receive = threading.Event(), receive
    self._on_end = on_end
    self.end = messages.SessionEnd('over', '', True)
    stream.heart = self

  def coordinator_time(self, here):
    return here

  def finish(self):
    self.ended.set()
    self._on_end()


class _Learner(NoLearner):
  """One whose parameters are part of its state."""

  def state(self):
    return super().state() | {'params': self.params}

  def restore(self, state):
    super().restore(state)
    self.params = state['params']


class _Played:
  """A replica in a thread, and the coordinator that a test plays for it.

  Attributes:
    replica: The real one.
    said: What it has said.
    ready: What it has said of where it is.
  """

  def __init__(self, index, *, workers, gradient=None, adapt=False, faults=()):
    self.said, self.workers = queue.SimpleQueue(), workers
    self.hung = mock.Mock()
    books = Books(workers, 0)
    security = Security()
    pool = Pool((), (), (), blank=100, bucket_bytes=0, books=books.size)
    gradient = gradient or NoGradient()
    faults = Faults(
      faults,
      num_workers=workers,
      num_servers=1,
      directory=pathlib.Path(tempfile.mkdtemp()),
      interface='lo',
      timeout_s=1.0,
    )
    self.replica = replica.Replica(
      index,
      gradient=gradient,
      learner=_Learner((), ()),
      summing=HostSumming(
        index,
        workers=workers,
        gradient=gradient,
        pool=pool,
        host=_HOST,
        security=security,
        timeout_s=5.0,
        faults=faults,
      ),
      books=books,
      batching=fixed.make(num_workers=workers, worker_batch=8),
      speed=None,
      faults=faults,
      settings=Settings(_HOST, '', security, 5.0, 5.0, '', adapt=adapt),
      hung=self.hung,
      completed=self.said.put,
    )
    with (
      mock.patch.object(
        session, 'join', lambda *_, **__: (self, messages.WorkerAdmitted(0))
      ),
      mock.patch.object(session, 'Heartbeat', _Heart),
    ):
      self._thread = threading.Thread(target=self.replica, args=['coordinator'])
      self._thread.start()
      self.ready = self.hear(messages.ReplicaReady)

  def end(self):
    self.heart.finish()
    self._thread.join()

  # The stream, as the life of the replica sees it.

  def send(self, header):
    self.said.put(header)

  def cancel(self, *reason):
    """Nothing waits for it."""

  close = cancel

  def tell(self, message):
    self.heart.receive(message)

  def hear(self, kind, **fields):
    """Returns the next of what it says that is of a kind and has fields."""
    while True:
      said = self.said.get(timeout=_WAIT_S)
      if isinstance(said, kind) and all(
        getattr(said, name) == value for name, value in fields.items()
      ):
        return said

  def form(self, *others, generation=0, version=0, source=None):
    """Has it form a generation with others; does not wait."""
    own = (self, *others)
    cluster = links.believed('', self.workers)
    addresses = {p.replica.index: p.ready.executor for p in own}
    members = group.described(
      dict(sorted(addresses.items())),
      cluster.workers,
      cluster,
      ring.in_order(cluster),
    )
    order = messages.ConnectMembers(generation, version, source, members)
    for played in own:
      played.tell(order)

  def deal(self, version, ranges, *, generation=0):
    self.tell(
      messages.Assignment(
        epoch=generation,
        version=version,
        iteration=version,
        ranges=ranges,
        examples=8,
        total=8 * self.workers,
        members=[*range(self.workers)],
        stage=0,
        assigned_at=0.0,
      )
    )


class ReplicaTest(parameterized.TestCase):
  def _played(self, index=0, *, workers=1, **fields):
    played = _Played(index, workers=workers, **fields)
    self.addCleanup(played.end)
    return played

  def test_who_follows_links_tells_what_was_sent(self):
    with mock.patch.object(traffic.Telling.__init__, '__defaults__', (0.01,)):
      both = [self._played(k, workers=2, adapt=True) for k in range(2)]
    both[0].form(both[1])
    for played in both:
      played.hear(messages.Connected)
      played.deal(0, ((0, 8),))
    for played in both:
      played.hear(IterationCompleted)
    # Earlier ones tell of no connection yet, or of one that was made.
    sent = []
    while not sent or sent[0][1] < 4 * 100:
      sent = both[0].hear(messages.TrafficReport).sent
    self.assertEqual([worker for worker, _, _ in sent], [1])

  def test_who_has_no_descriptors_left_says_so_and_forms_the_next(self):
    both = [self._played(k, workers=2) for k in range(2)]
    with descriptors.exhausted():
      both[0].form(both[1])
      for index, played in enumerate(both):
        said = played.hear(messages.ConnectionLost)
        self.assertEqual((said.peer, said.epoch), (index, 0))
        self.assertRegex(said.reason, 'Too many open files')
    both[0].form(both[1], generation=1)
    for played in both:
      played.hear(messages.Connected)

  def test_who_has_learned_for_another_lead_begins_anew(self):
    both = [self._played(k, workers=2) for k in range(2)]
    both[1].replica.learner.version = 7
    both[0].form(both[1], source=(0, both[0].ready.handover))
    formed = [played.hear(messages.Connected) for played in both]
    self.assertEqual([said.version for said in formed], [0, 0])
    self.assertEqual(formed[0].digest, formed[1].digest)

  def test_an_initial_state_is_taken_over_from_one_replica(self):
    both = [self._played(k, workers=2) for k in range(2)]
    learners = [played.replica.learner for played in both]
    for value, learner in enumerate(learners):  # As processors initialise.
      learner.params = {'w': np.float32([1, 1 + value * 2**-23])}
    both[0].form(both[1], source=(0, both[0].ready.handover))
    formed = [played.hear(messages.Connected) for played in both]
    self.assertEqual(formed[0].digest, formed[1].digest)
    np.testing.assert_array_equal(learners[1].params['w'], [1, 1])

  def test_a_process_without_its_source_reports_it(self):
    both = [self._played(k, workers=2) for k in range(2)]
    both[0].form(both[1], source=(0, f'{_HOST}:1'))  # Nothing listens there.
    broken = both[1].hear(messages.ConnectionLost)
    self.assertEqual(broken.peer, 0)

  @parameterized.parameters(
    (2**-23, False, True), (0.5, False, False), (0.5, True, True)
  )
  def test_a_state_is_compared_with_the_reference(self, apart, replace, same):
    both = [self._played(k, workers=2) for k in range(2)]
    both[0].form(both[1], source=(0, both[0].ready.handover))
    for played in both:
      played.hear(messages.Connected)
    learners = [played.replica.learner for played in both]
    for value, learner in enumerate(learners):
      learner.params = {'w': np.float32([1 + value * apart, 0])}
      played = both[value]
      played.replica._digested = None
      played.tell(messages.CheckState(0))
    digests = [p.hear(messages.StateDigest).digest for p in both]
    self.assertNotEqual(*digests)
    both[1].tell(
      messages.CompareState(
        epoch=0,
        version=0,
        source=(0, both[0].ready.handover),
        replaces=replace,
      )
    )
    compared = both[1].hear(messages.StateCompared)
    self.assertAlmostEqual(compared.difference, apart)
    self.assertEqual(compared.digest == digests[0], same)
    self.assertEqual(learners[1].params['w'][0] == 1, same)

  def test_a_flipped_bit_changes_the_digest(self):
    faults = ((0, 1, 'flip'),)
    played = self._played(faults=faults)
    played.replica.learner.params = {'w': np.float32([0.5, 0.25])}
    played.form()
    played.hear(messages.Connected)
    for version, expected in enumerate(([0.5, 0.25], [0.5 / 16, 0.25])):
      played.deal(version, ((8 * version, 8 * version + 8),))
      played.hear(IterationCompleted)
      params = played.replica.learner.params['w']
      self.assertEqual(params.tolist(), expected)
      played.tell(messages.CheckState(0))
      told = played.hear(messages.StateDigest).digest
      state = {'learner': played.replica.learner.state(), 'common': ()}
      self.assertEqual(told, digest.digest(state))

  def test_one_thread_at_a_time_gathers_examples(self):
    gradient = _Slow()
    played = self._played(gradient=gradient)
    played.form()
    played.hear(messages.Connected)
    for version in range(3):
      played.deal(version, ((8 * version, 8 * version + 8),))
    for version in range(3):
      played.hear(IterationCompleted, version=version)
    self.assertEqual(gradient.most, 1)
    self.assertEqual(
      [*dict.fromkeys(gradient.gathered)],
      [((8 * k, 8 * k + 8),) for k in (0, 1, 2)],
    )

  def test_who_waits_for_xla_ends_soon_but_for_a_run_that_has_finished(self):
    for finished in (True, False):
      played = _Played(0, workers=1)
      summing, waits = played.replica._summing, threading.Event()
      played.form()
      played.hear(messages.Connected)
      total = summing.total
      with (
        mock.patch.object(summing, 'heeds', False),
        mock.patch.object(
          summing, 'total', lambda total=total, on=waits: on.wait() and total()
        ),
        mock.patch.object(
          played.heart, 'end', messages.SessionEnd('over', '', finished)
        ),
      ):
        played.deal(0, ((0, 8),))
        while not played.replica._together:
          time.sleep(0.01)
        ending = threading.Thread(target=played.heart.finish)
        began = time.monotonic()
        ending.start()
        ending.join(2.5)  # Of 5 that a life may take to end.
        self.assertEqual(played.hung.called, not finished)
        if not finished:
          played.hung.assert_called_once_with('over')
          self.assertLess(time.monotonic() - began, 2.5)
        waits.set()
        ending.join()
        played._thread.join()


class _Slow(NoGradient):
  """Notes which examples are gathered, by how many threads at a time."""

  def __init__(self):
    self.gathered, self.most, self._now = [], 0, 0

  def prepare(self, ranges):
    self.gathered.append(ranges)
    self._now += 1
    self.most = max(self.most, self._now)
    time.sleep(0.05)
    self._now -= 1


if __name__ == '__main__':
  absltest.main()
