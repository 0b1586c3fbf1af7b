"""Tests of a replica with its real executor, and a simulated coordinator."""

import pathlib
import queue
import tempfile
import threading
import time
from unittest import mock

import msgspec
import numpy as np
from absl.testing import absltest, parameterized

from batching import fixed
from cluster.allreduce.admission import IterationCompleted
from cluster.allreduce.executor import membership
from cluster.allreduce.faults import FaultyHostReducer, FaultyReplica
from cluster.allreduce.step_statistics import StatisticsLayout
from cluster.membership import handover, session
from cluster.membership.process import Settings
from cluster.network import messages
from cluster.network.errors import InvalidMessage
from cluster.network.port import Port
from cluster.network.streams import Security
from cluster.probing import rates
from cluster.process.exits import Exit
from cluster.process.faults import Faults
from learning import digest
from learning.layout import Layout
from learning.timing_only import TimingOnlyGradient, TimingOnlyLearner
from route import links, ring
from tests.support import descriptors, relays

_HOST, _WAIT_S = '127.0.0.1', 20.0


class _Heartbeat:
  """Heartbeat of a session that the test ends."""

  def __init__(self, stream, *, receive, on_end, **_):
    self.ended, self._receive = threading.Event(), receive
    self._on_end, self._has_called = on_end, threading.Event()
    self.invalid, self.exits = None, threading.Event()
    self.end = messages.SessionEnd('over', '', True)
    stream.heartbeat = self

  def start(self):
    """Returns at once: the test calls the functions of the session."""

  def join(self, limit_s):
    self.exits.set()
    return self._has_called.wait(limit_s)

  def coordinator_time(self, here):
    return here

  def receive(self, message):
    try:
      self._receive(message)
    except InvalidMessage as error:
      self.invalid = error
      self.finish()

  def finish(self):
    self.ended.set()
    self._on_end()
    self._has_called.set()


class _Learner(TimingOnlyLearner):
  """A learner whose parameters are part of its state."""

  def state(self):
    return super().state() | {'params': self.params}

  def restore(self, state):
    super().restore(state)
    self.params = state['params']


class _ReplicaThread:
  """A replica in a thread, and the coordinator's end of its stream.

  Attributes:
    replica: The real replica.
    sent: Messages and events that it has sent.
    ready: Its first message, with its addresses.
  """

  def __init__(self, index, *, workers, gradient=None, adapt=False, faults=()):
    self.sent, self.workers = queue.SimpleQueue(), workers
    self.hung = mock.Mock()
    layout = StatisticsLayout(workers, 0)
    port = Port(_HOST, 0, Security())
    buffer_layout = Layout(
      (), blank=100, bucket_bytes=0, step_statistics=layout.size
    )
    gradient = gradient or TimingOnlyGradient()
    faults = Faults(
      faults,
      num_workers=workers,
      num_servers=1,
      directory=pathlib.Path(tempfile.mkdtemp()),
      interface='lo',
      timeout_s=1.0,
    )
    self.replica = FaultyReplica(
      index,
      gradient=gradient,
      learner=_Learner((), ()),
      reducer=FaultyHostReducer(
        index,
        workers=workers,
        gradient=gradient,
        layout=buffer_layout,
        port=port,
        timeout_s=5.0,
        faults=faults,
      ),
      layout=layout,
      stages=1,
      batching=fixed.make(num_workers=workers, worker_batch=8),
      speed=None,
      faults=faults,
      settings=Settings(port, '', 5.0, 5.0, '', adapt=adapt),
      on_hang=self.hung,
    )
    with (
      mock.patch.object(
        session, 'join', lambda *_, **__: (self, messages.WorkerAdmitted(0))
      ),
      mock.patch.object(session, 'Heartbeat', _Heartbeat),
    ):
      self.exit = None
      self._thread = threading.Thread(target=self._run)
      self._thread.start()
      self.ready = self.receive(messages.ReplicaReady)

  def _run(self):
    try:
      self.replica('coordinator', completed=self.sent.put)
    except Exit as ended:
      self.exit = ended

  def wait_for_exit(self):
    """Returns the exception that ends the process; its session goes on."""
    self.heartbeat.exits.wait(_WAIT_S)
    self.end()
    return self.exit

  def end(self):
    self.heartbeat.finish()
    self._thread.join()

  # Methods of the stream, for the session of the replica.

  def send(self, message):
    self.sent.put(message)

  def cancel(self, *reason):
    """Returns at once: no thread waits for the stream."""

  close = cancel

  def send_message(self, message):
    self.heartbeat.receive(message)

  def receive(self, kind, **fields):
    """Returns the next message of a kind whose fields have some values."""
    while True:
      message = self.sent.get(timeout=_WAIT_S)
      if isinstance(message, kind) and all(
        getattr(message, name) == value for name, value in fields.items()
      ):
        return message

  def form(self, *others, epoch=0, version=0, sources=()):
    """Orders the replica to connect to others; does not wait."""
    members = (self, *others)
    cluster = links.read_cluster('', self.workers)
    addresses = {p.replica.index: p.ready.address for p in members}
    described = membership.describe(
      membership.Membership(
        epoch,
        dict(sorted(addresses.items())),
        ring.build_in_order(cluster),
        {cluster.workers[index]: index for index in sorted(addresses)},
      ),
      cluster,
    )
    order = messages.ConnectMembers(epoch, version, sources, described)
    for node in members:
      node.send_message(order)

  def assign(self, version, ranges, *, epoch=0, **changes):
    assignment = messages.Assignment(
      membership_epoch=epoch,
      version=version,
      iteration=version,
      ranges=ranges,
      examples=8,
      total=8 * self.workers,
      members=[*range(self.workers)],
      stage=0,
      assigned_at=0.0,
    )
    self.send_message(msgspec.structs.replace(assignment, **changes))


class ReplicaTest(parameterized.TestCase):
  def _open_replica(self, index=0, *, workers=1, **fields):
    node = _ReplicaThread(index, workers=workers, **fields)
    self.addCleanup(node.end)
    return node

  @parameterized.parameters(
    ({'ranges': ((0, 9),)}, 'ranges: expected 8 examples'),
    ({'ranges': ((8, 0),)}, 'ranges: expected first positions'),
    ({'ranges': (), 'examples': 0}, 'examples: expected 1 to 8'),
    ({'ranges': ((0, 9),), 'examples': 9}, 'examples: expected 1 to 8'),
    ({'total': 7}, 'total: expected at least 8'),
    ({'members': [0, 1]}, 'members: expected worker 0 among 1'),
    ({'members': []}, 'members: expected worker 0 among 1'),
    ({'stage': 1}, 'stage: expected one of 1'),
    ({'iteration': 2**32}, 'iteration: expected below'),
    ({'version': 1, 'ranges': ((8, 0),)}, 'ranges: expected first positions'),
  )
  def test_an_assignment_that_cannot_be_true_ends_the_process(
    self, changes, text
  ):
    node = self._open_replica()
    node.form()
    node.receive(messages.Connected)
    # One of a later version is checked, too: its examples are prepared ahead.
    node.assign(**{'version': 0, 'ranges': ((0, 8),), **changes})
    ended = node.wait_for_exit()
    self.assertRegex(str(ended.code), text)

  @parameterized.parameters(
    ({'names': {'other': 0}}, 'names: expected those of'),
    ({'addresses': {1: f'{_HOST}:1'}}, 'addresses: expected those of'),
    ({'forest': msgspec.Raw(b'\xa1x')}, 'forest: '),
  )
  def test_a_forest_that_cannot_be_true_ends_the_process(self, changes, text):
    node = self._open_replica()
    cluster, address = links.read_cluster('', 1), node.ready.address
    described = membership.describe(
      membership.Membership(
        *(0, {0: address}, ring.build_in_order(cluster)),
        {cluster.workers[0]: 0},
      ),
      cluster,
    )
    described = msgspec.structs.replace(described, **changes)
    node.send_message(messages.ConnectMembers(0, 0, (), described))
    ended = node.wait_for_exit()
    self.assertRegex(str(ended.code), text)

  def test_an_epoch_without_a_forest_ends_the_process(self):
    node = self._open_replica()
    node.send_message(messages.ConnectMembers(0, 0))
    ended = node.wait_for_exit()
    self.assertRegex(str(ended.code), 'members: expected a forest')

  def test_a_replica_reports_its_traffic_if_links_are_followed(self):
    with mock.patch.object(
      rates.TrafficReporter.__init__, '__defaults__', (0.01,)
    ):
      nodes = [self._open_replica(k, workers=2, adapt=True) for k in range(2)]
    nodes[0].form(nodes[1])
    for node in nodes:
      node.receive(messages.Connected)
      node.assign(0, ((0, 8),))
    for node in nodes:
      node.receive(IterationCompleted)
    # Earlier reports have no connection yet, or one that was just opened.
    sent = []
    while not sent or sent[0][1] < 4 * 100:
      sent = nodes[0].receive(messages.TrafficReport).sent
    self.assertEqual([worker for worker, _, _ in sent], [1])

  def test_a_replica_without_descriptors_reports_it_and_joins_the_next_epoch(
    self,
  ):
    nodes = [self._open_replica(k, workers=2) for k in range(2)]
    with descriptors.exhaust():
      nodes[0].form(nodes[1])
      for index, node in enumerate(nodes):
        message = node.receive(messages.ConnectionLost)
        lost = message.peer, message.membership_epoch
        self.assertEqual(lost, (index, 0))
        self.assertRegex(message.reason, 'Too many open files')
    nodes[0].form(nodes[1], epoch=1)
    for node in nodes:
      node.receive(messages.Connected)

  def test_the_state_of_an_earlier_coordinator_is_replaced(self):
    nodes = [self._open_replica(k, workers=2) for k in range(2)]
    nodes[1].replica.learner.version = 7
    nodes[0].form(nodes[1], sources=[(0, nodes[0].ready.address)])
    formed = [node.receive(messages.Connected) for node in nodes]
    self.assertEqual([message.version for message in formed], [0, 0])
    self.assertEqual(formed[0].digest, formed[1].digest)

  def test_all_replicas_adopt_the_initial_state_of_one(self):
    nodes = [self._open_replica(k, workers=2) for k in range(2)]
    learners = [node.replica.learner for node in nodes]
    # Unlike processors initialise different last bits.
    for value, learner in enumerate(learners):
      learner.params = {'w': np.float32([1, 1 + value * 2**-23])}
    nodes[0].form(nodes[1], sources=[(0, nodes[0].ready.address)])
    formed = [node.receive(messages.Connected) for node in nodes]
    self.assertEqual(formed[0].digest, formed[1].digest)
    np.testing.assert_array_equal(learners[1].params['w'], [1, 1])

  def test_a_process_without_its_source_reports_it(self):
    nodes = [self._open_replica(k, workers=2) for k in range(2)]
    nodes[0].form(
      nodes[1], sources=[(0, f'{_HOST}:1')]
    )  # No process listens there.
    lost = nodes[1].receive(messages.ConnectionLost)
    self.assertEqual(lost.peer, 0)

  @parameterized.parameters(
    (2**-23, False, True), (0.5, False, False), (0.5, True, True)
  )
  def test_a_state_is_compared_with_the_reference(
    self, difference, replace, same
  ):
    nodes = [self._open_replica(k, workers=2) for k in range(2)]
    nodes[0].form(nodes[1], sources=[(0, nodes[0].ready.address)])
    for node in nodes:
      node.receive(messages.Connected)
    learners = [node.replica.learner for node in nodes]
    for value, learner in enumerate(learners):
      learner.params = {'w': np.float32([1 + value * difference, 0])}
      node = nodes[value]
      node.replica._known_digest = None
      node.send_message(messages.CheckState(0))
    digests = [p.receive(messages.StateDigest).digest for p in nodes]
    self.assertNotEqual(*digests)
    nodes[1].send_message(
      messages.CompareState(
        membership_epoch=0,
        version=0,
        sources=[(0, f'{_HOST}:1'), (0, nodes[0].ready.address)],
        replaces=replace,
      )
    )
    compared = nodes[1].receive(messages.StateCompared)
    self.assertAlmostEqual(compared.difference, difference)
    self.assertEqual(compared.digest == digests[0], same)
    self.assertEqual(learners[1].params['w'][0] == 1, same)

  def _start_catching_up(self, address=''):
    """Returns a source at version 2, and a replica that fetches version 1."""
    nodes = [self._open_replica(k, workers=2) for k in range(2)]
    source = nodes[0]
    source.workers = 1
    source.replica.learner.params = {'w': np.arange(1e6, dtype=np.float32)}
    source.form()
    source.receive(messages.Connected)
    source.assign(0, ((0, 8),))
    source.send_message(messages.RetainState(1))
    source.assign(1, ((8, 16),))
    source.receive(IterationCompleted, version=1)
    sources = [(0, address or source.ready.address)]
    nodes[1].send_message(messages.CatchUp(1, None, sources))
    return nodes

  def test_a_replica_catches_up_with_one_that_continues(self):
    source, joiner = self._start_catching_up()
    self.assertEqual(joiner.receive(messages.CaughtUp), messages.CaughtUp(1))
    learner = joiner.replica.learner
    self.assertEqual((learner.version, learner.examples), (1, 8))
    sources = [(0, source.ready.address)]
    joiner.send_message(messages.CatchUp(2, 1, sources))
    self.assertEqual(joiner.receive(messages.CaughtUp), messages.CaughtUp(2))
    self.assertEqual(
      digest.digest(learner.state()),
      digest.digest(source.replica.learner.state()),
    )
    self.assertGreater(source.replica._retention.size_bytes, 4e6)
    source.send_message(messages.ReleaseState(None))
    joiner.send_message(messages.CatchUp(2, None, sources))
    report = joiner.receive(messages.CaughtUp)
    self.assertRegex(report.problem, 'expected to retain the state')
    self.assertEqual(source.replica._retention.size_bytes, 0)

  def test_the_end_of_the_run_ends_a_slow_fetch(self):
    nodes = self._start_catching_up(f'{_HOST}:1')  # No process listens there.
    self.assertTrue(nodes[1].receive(messages.CaughtUp).problem)
    with relays.Relay(nodes[0].ready.address, back_Bps=4e5) as relay:
      order = messages.CatchUp(1, None, [(0, relay.address)])
      nodes[1].send_message(order)
      before = nodes[1].replica._report_progress()
      while nodes[1].replica._report_progress()[2] < before[2] + 2:
        time.sleep(0.01)
      start = time.monotonic()
      nodes[1].end()
      self.assertLess(time.monotonic() - start, 3.0)  # 10 s for the state.
    self.assertEqual(nodes[1].replica.learner.version, 0)

  def test_a_flipped_bit_changes_the_digest(self):
    faults = ((0, 1, 'flip'),)
    node = self._open_replica(faults=faults)
    node.replica.learner.params = {'w': np.float32([0.5, 0.25])}
    node.form()
    node.receive(messages.Connected)
    for version, expected in enumerate(([0.5, 0.25], [0.5 / 16, 0.25])):
      node.assign(version, ((8 * version, 8 * version + 8),))
      node.receive(IterationCompleted)
      params = node.replica.learner.params['w']
      self.assertEqual(params.tolist(), expected)
      node.send_message(messages.CheckState(0))
      reported = node.receive(messages.StateDigest).digest
      state = {'learner': node.replica.learner.state(), 'replicated': ()}
      self.assertEqual(reported, digest.digest(state))

  def test_one_thread_at_a_time_prepares_examples(self):
    gradient = _SlowGradient()
    node = self._open_replica(gradient=gradient)
    node.form()
    node.receive(messages.Connected)
    for version in range(3):
      node.assign(version, ((8 * version, 8 * version + 8),))
    for version in range(3):
      node.receive(IterationCompleted, version=version)
    self.assertEqual(gradient.most, 1)
    self.assertEqual(
      [*dict.fromkeys(gradient.gathered)],
      [((8 * k, 8 * k + 8),) for k in (0, 1, 2)],
    )

  def test_a_replica_that_waits_for_xla_is_ended_unless_the_run_has_finished(
    self,
  ):
    for finished in (True, False):
      node = _ReplicaThread(0, workers=1)
      reducer, waits = node.replica._reducer, threading.Event()
      node.form()
      node.receive(messages.Connected)
      total = reducer.total
      with (
        mock.patch.object(reducer, 'can_abandon', False),
        mock.patch.object(
          reducer, 'total', lambda total=total, on=waits: on.wait() and total()
        ),
        mock.patch.object(
          node.heartbeat, 'end', messages.SessionEnd('over', '', finished)
        ),
      ):
        node.assign(0, ((0, 8),))
        while not node.replica._may_wait_for_others:
          time.sleep(0.01)
        ending = threading.Thread(target=node.heartbeat.finish)
        began = time.monotonic()
        ending.start()
        ending.join(2.5)  # Less than the 5 s that a session may take to end.
        self.assertEqual(node.hung.called, not finished)
        if not finished:
          node.hung.assert_called_once_with('over')
          self.assertLess(time.monotonic() - began, 2.5)
        waits.set()
        ending.join()
        node._thread.join()

  def test_a_state_that_is_fetched_is_of_one_version(self):
    node = self._open_replica()
    learner = node.replica.learner = _HalfAppliedLearner()
    node.form()
    node.receive(messages.Connected)
    node.assign(0, ((0, 8),))
    self.assertTrue(learner.is_half_applied.wait(_WAIT_S))
    state, expected = handover.fetch(
      [(0, node.ready.address)], 1, Security(), _WAIT_S
    )
    self.assertEqual(digest.digest(state), expected)
    learned = state['learner']
    self.assertEqual((learned['version'], learned['examples']), (1, 8))
    node.receive(IterationCompleted)

  def test_an_epoch_that_is_formed_after_the_session_has_ended_is_abandoned(
    self,
  ):
    node, absent = (self._open_replica(k, workers=2) for k in range(2))
    reducer, took_s = node.replica._reducer, []
    form, ending = reducer.form, threading.Thread(target=node.heartbeat.finish)

    def form_late(*arguments):
      with mock.patch.object(reducer, 'abandon', wraps=reducer.abandon) as told:
        ending.start()
        while not told.called:
          time.sleep(0.01)
      began = time.monotonic()
      try:
        form(*arguments)
      finally:
        took_s.append(time.monotonic() - began)

    with (
      mock.patch.object(reducer, 'form', form_late),
      mock.patch.object(absent, 'send_message'),
    ):
      node.form(absent)
      node._thread.join(_WAIT_S)
    ending.join()
    self.assertLess(took_s[0], 2.5)  # Others have 5 s to connect.

  def test_the_end_of_a_session_does_not_reach_the_next_one(self):
    with (
      mock.patch.object(
        session, 'join', lambda *_, **__: (node, messages.WorkerAdmitted(0))
      ),
      mock.patch.object(session, 'Heartbeat', _Heartbeat),
    ):
      node = self._open_replica()
      reducer, late, left = node.replica._reducer, [], threading.Event()
      abandon = reducer.abandon

      def abandon_late(**arguments):
        if threading.current_thread() is not ending:  # Nobody waits for it.
          left.wait(_WAIT_S)
        abandon(**arguments)
        late.append(threading.current_thread())

      before = node.heartbeat
      before.end = messages.SessionEnd('left', '')
      ending = threading.Thread(target=before.finish)
      with mock.patch.object(reducer, 'abandon', abandon_late):
        ending.start()
        node.ready = node.receive(messages.ReplicaReady)
        node.form()
        node.receive(messages.Connected)
        left.set()
        ending.join()
        while not late:
          time.sleep(0.01)
    node.assign(0, ((0, 8),))
    node.receive(IterationCompleted)


class _HalfAppliedLearner(_Learner):
  """A learner that another thread tries to read while it applies a sum."""

  def __init__(self):
    super().__init__((), ())
    self.is_half_applied, self._is_read = threading.Event(), threading.Event()

  def apply(self, payload, examples, **counts):
    self.version += 1
    self.is_half_applied.set()
    self._is_read.wait(0.3)
    self.examples += examples

  def state(self):
    found = super().state()
    if self.is_half_applied.is_set():
      self._is_read.set()
    return found


class _SlowGradient(TimingOnlyGradient):
  """Records the prepared examples, and the number of concurrent threads."""

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
