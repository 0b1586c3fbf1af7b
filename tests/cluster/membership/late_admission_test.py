"""Tests for ranks, each of which one process holds while others wait."""

import contextlib
import functools
import itertools
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

from absl.testing import absltest, parameterized

from cluster.allreduce.admission import AllreduceReception
from cluster.membership import joining, session
from cluster.membership.events import WorkerJoined, WorkerLost
from cluster.membership.members import Incarnation, Rank
from cluster.membership.process import Settings
from cluster.network import messages
from cluster.network.port import Port
from cluster.network.streams import (
  Closed,
  Security,
  TransportError,
  connect,
  push_service,
)
from cluster.process.deadlines import Deadlines, Jobs
from cluster.process.exits import DRAINED, LOST, Unmendable
from system import clock
from tests.support import coordinators, processes
from tests.support.listeners import Listener

_TIMEOUT_S = coordinators.TIMEOUT_S
_ONE, _OTHER = '1' * 32, '2' * 32
_HELD = (
  r'worker {} is held by the process at 127\.0\.0\.1:\d+, incarnation {}, '
  r'whose last message came \d+\.\d s ago'
)


class _TestCase(parameterized.TestCase):
  def _coordinator(self, **fields):
    coordinator = coordinators.Coordinator(**fields)
    self.addCleanup(coordinator.close)
    return coordinator

  def _greeting(self, address, process, *, worker=None, server=None):
    """Returns a stream of a process and the coordinator's first message."""
    if server is None:
      hello = messages.WorkerHello(worker, process, 'ours')
      schema = messages.WORKER_ADMISSION
    else:
      hello = messages.ServerHello(server, process, 'ours')
      schema = messages.SERVER_ADMISSION
    stream = connect(address, hello, Security(), 10.0)
    self.addCleanup(stream.close)
    self.addCleanup(stream.cancel)
    return stream, stream.receive(schema).header

  def _is_admitted(self, coordinator, process, worker):
    _, greeting = self._greeting(coordinator.address, process, worker=worker)
    return isinstance(greeting, messages.WorkerAdmitted)

  def _until(self, happened):
    end = time.monotonic() + coordinators.START_S
    while not happened():
      self.assertLess(time.monotonic(), end)
      time.sleep(0.01)


class WorkersTest(_TestCase):
  """Streams with heartbeats of a test, to a parameter server's coordinator."""

  def test_another_process_is_refused_while_the_first_sends_heartbeats(self):
    coordinator = self._coordinator()
    first = coordinator.member(0)
    coordinator.begin()
    first.pull()
    end = time.monotonic() + 2.5 * _TIMEOUT_S
    refused = 0
    while time.monotonic() < end:
      first.beat(['compute', 0, 0])
      coordinator.step_for(_TIMEOUT_S / 5)
      _, greeting = self._greeting(coordinator.address, _ONE, worker=0)
      self.assertRegex(greeting.reason, _HELD.format(0, 0))
      refused += 1
    self.assertGreater(refused, 3)
    first.push()
    coordinator.until(lambda: coordinator.accounting.iterations == 1)
    self.assertEmpty(coordinator.accounting.lost)
    self.assertEqual(coordinator.cluster.summary()['admissions'], [1])

  def test_the_same_process_rejoins_at_once_at_the_start(self):
    coordinator = self._coordinator()
    old, greeting = self._greeting(coordinator.address, _ONE, worker=0)
    self.assertEqual(greeting, messages.WorkerAdmitted(0))
    start = time.monotonic()
    _, greeting = self._greeting(coordinator.address, _ONE, worker=0)
    self.assertEqual(greeting, messages.WorkerAdmitted(1))
    self.assertLess(time.monotonic() - start, _TIMEOUT_S)
    old.receive(messages.TO_WORKER)  # Addresses.
    old.send(messages.WorkerReady())
    end = old.receive(messages.TO_WORKER).header
    self.assertEqual(end.kind, 'left')
    coordinator.member(0, process=_ONE)
    coordinator.begin()
    self.assertEqual(coordinator.reception.members[0].incarnation, 2)

  def test_the_end_of_a_stream_frees_the_rank_at_once(self):
    coordinator = self._coordinator()
    coordinator.member(0).close()
    start = time.monotonic()
    self._until(lambda: self._comes(coordinator, _ONE))
    self.assertLess(time.monotonic() - start, 0.9 * _TIMEOUT_S)

  def test_silence_frees_the_rank(self):
    coordinator = self._coordinator()
    coordinator.member(0)
    start = time.monotonic()
    self._until(lambda: self._comes(coordinator, _ONE))
    self.assertBetween(
      time.monotonic() - start, 0.9 * _TIMEOUT_S, 3 * _TIMEOUT_S
    )

  def test_messages_of_a_replaced_process_are_ignored(self):
    coordinator = self._coordinator()
    old = coordinator.member(0)
    coordinator.begin()
    old.pull()
    # The process is stopped, and so is the coordinator's thread.
    time.sleep(1.2 * _TIMEOUT_S)
    new = coordinator.member(0, process=_ONE)
    old.push()  # The process continues.
    old.beat(['compute', 0, 1])
    coordinator.until(lambda: coordinator.accounting.lost)
    coordinator.during(new.pull)
    new.push()
    coordinator.until(lambda: coordinator.accounting.iterations >= 1)
    self.assertEqual(coordinator.accounting.iterations, 1)
    self.assertLen(coordinator.accounting.lost, 1)
    self.assertEqual(_end(old).kind, 'left')
    # Neither at the coordinator nor at a server is there a place for it.
    new.beat(['transfer', 1, 0])
    _, greeting = self._greeting(
      coordinator.address, coordinators.PROCESS, worker=0
    )
    self.assertRegex(greeting.reason, _HELD.format(0, 1))
    (server,) = coordinator.servers
    hello = messages.WorkerConnection(0, 0, coordinators.PROCESS)
    stream = connect(
      server.address, hello, Security(), 10.0, service=push_service(0)
    )
    self.addCleanup(stream.close)
    with self.assertRaisesRegex(Closed, 'incarnation 0 of worker 0 is over'):
      stream.receive(messages.PIECE_SIZES)

  def test_an_evicted_process_frees_the_rank(self):
    coordinator = self._coordinator()
    old = coordinator.member(0)
    coordinator.begin()
    old.pull()

    def lost():
      old.beat(['transfer', 0, 0])  # Alive, without progress.
      return coordinator.accounting.lost

    coordinator.until(lost)
    new = coordinator.member(0, process=_ONE)
    coordinator.during(new.pull)
    new.push()
    coordinator.until(lambda: coordinator.accounting.iterations == 1)
    self.assertEqual(coordinator.reception.members[0].incarnation, 1)

  def test_a_process_that_is_not_ready_in_time_frees_the_rank(self):
    coordinator = self._coordinator(num_workers=2, start_s=1.5)
    with contextlib.suppress(Unmendable):
      stream, _ = self._greeting(coordinator.address, _ONE, worker=0)
      start = time.monotonic()
      while not isinstance(
        said := stream.receive(messages.TO_WORKER).header, messages.SessionEnd
      ):
        stream.send(messages.WorkerHeartbeat(0.0, ('transfer', -1, 0)))
      self.assertIn('not ready within 1.5 s', said.reason)
      self.assertTrue(self._comes(coordinator, _OTHER))
      self.assertGreater(time.monotonic() - start, 1.0)
      coordinator.begin()

  def test_a_second_worker_process_gives_up_and_costs_nothing(self):
    coordinator = self._coordinator(num_workers=2)
    workers = [coordinator.work(0), coordinator.work(1)]
    coordinator.begin()
    coordinator.until(lambda: coordinator.accounting.iterations >= 10)
    with self.assertLogs('absl') as logs:
      other = coordinator.work(1, process=_OTHER, start_s=2.5 * _TIMEOUT_S)
      coordinator.until(other.done)
    with self.assertRaises(SystemExit) as ended:
      other.result()
    self.assertEqual(ended.exception.code, LOST)
    self.assertRegex(
      str(logs.output), 'Worker 1 gives up: ' + _HELD.format(1, 0)
    )
    tries = [line for line in logs.output if 'Tries again' in line]
    self.assertLen(tries, 1)
    coordinator.until(lambda: coordinator.accounting.iterations >= 20)
    self.assertEmpty(coordinator.accounting.lost)
    self.assertEqual(coordinator.cluster.summary()['admissions'], [1, 1])
    coordinator.cluster.close()
    for worker in workers:
      self.assertIs(worker.result(timeout=coordinators.START_S), False)

  def test_a_waiting_process_is_admitted_once_the_holder_has_left(self):
    coordinator = self._coordinator()
    holder = coordinator.member(0)
    coordinator.begin()
    holder.pull()
    with self.assertLogs('absl') as logs:
      other = coordinator.work(0, process=_OTHER)

      def waits():
        holder.beat(['compute', 0, 0])
        return 'Tries again' in str(logs.output)

      coordinator.until(waits)
    for _ in range(5):
      holder.beat(['compute', 0, 0])
      coordinator.step_for(_TIMEOUT_S / 5)
    holder.close()
    start = time.monotonic()
    coordinator.until(lambda: coordinator.accounting.iterations >= 1)
    self.assertLess(time.monotonic() - start, 2 * _TIMEOUT_S)
    self.assertEqual(coordinator.cluster.summary()['admissions'], [2])
    coordinator.cluster.close()
    self.assertIs(other.result(timeout=coordinators.START_S), False)

  def test_refusals_are_logged_at_a_limited_rate(self):
    coordinator = self._coordinator()
    holder = coordinator.member(0)
    with self.assertLogs('absl', 'WARNING') as logs:
      for _ in range(20):
        holder.beat(['compute', 0, 0])
        self._greeting(coordinator.address, _ONE, worker=0)
    self.assertLen(logs.output, 1)
    self.assertRegex(logs.output[0], 'refused for now: ' + _HELD.format(0, 0))

  def _comes(self, coordinator, process):
    return self._is_admitted(coordinator, process, 0)

  def assertBetween(self, value, low, high):
    self.assertGreaterEqual(value, low)
    self.assertLessEqual(value, high)


class ServersTest(_TestCase):
  @parameterized.parameters(False, True)
  def test_another_process_is_refused(self, begun):
    coordinator = self._coordinator(num_servers=2, timeout_s=10.0)
    worker = coordinator.work(0)
    self._until(lambda: coordinator.reception._remote)
    if begun:
      coordinator.begin()
      coordinator.until(lambda: coordinator.accounting.iterations >= 3)
    held = r'server 1 is held by the process at 127.0.0.1:\d+, incarnation 0'
    _, greeting = self._greeting(coordinator.address, _ONE, server=1)
    self.assertRegex(greeting.reason, held)
    other = coordinator.host(1, process=_OTHER, start_s=0.5)
    with self.assertRaisesRegex(Unmendable, 'Server 1 gives up: ' + held):
      coordinator.during(
        functools.partial(other.result, timeout=coordinators.START_S)
      )
    if not begun:
      coordinator.begin()
    coordinator.until(lambda: coordinator.accounting.iterations >= 10)
    self.assertLen(coordinator.servers, 2)  # The other one has made none.
    coordinator.cluster.close()
    self.assertIs(worker.result(timeout=coordinators.START_S), False)

  def test_a_silent_server_is_replaced_at_the_start_and_cannot_rejoin(self):
    coordinator = self._coordinator(num_servers=2, hosted=())
    worker = coordinator.work(0)
    old, _ = self._greeting(coordinator.address, _ONE, server=1)
    time.sleep(1.2 * _TIMEOUT_S)
    coordinator.host(1)
    coordinator.begin()
    with self.assertRaises(TransportError):
      while True:
        old.receive(messages.TO_SERVER)
    coordinator.until(lambda: coordinator.accounting.iterations >= 5)
    _, greeting = self._greeting(coordinator.address, _ONE, server=1)
    self.assertRegex(greeting.reason, 'server 1 is held by')
    coordinator.cluster.close()
    self.assertIs(worker.result(timeout=coordinators.START_S), False)

  def test_a_worker_and_its_server_are_one_process(self):
    coordinator = self._coordinator(
      num_workers=2, num_servers=2, hosted=(), dedicated=False, start_s=4.0
    )
    self._greeting(coordinator.address, _ONE, worker=1)
    held = r'{} 1 is held by the process at 127.0.0.1:\d+, incarnation 0'
    _, greeting = self._greeting(coordinator.address, _OTHER, server=1)
    self.assertRegex(greeting.reason, held.format('worker'))
    stream, greeting = self._greeting(coordinator.address, _ONE, server=1)
    self.assertIsInstance(greeting, messages.ServerAdmitted)
    worker, greeting = self._greeting(coordinator.address, _ONE, worker=1)
    self.assertEqual(greeting, messages.WorkerAdmitted(1))
    worker.cancel()
    worker.close()
    self._until(lambda: coordinator.reception.members[1].holder is None)
    _, greeting = self._greeting(coordinator.address, _OTHER, worker=1)
    self.assertRegex(greeting.reason, held.format('server'))
    stream.cancel()
    stream.close()
    self._until(lambda: self._is_admitted(coordinator, _OTHER, 1))


class AllreduceTest(_TestCase):
  """Streams with heartbeats of a test, to an allreduce's coordinator."""

  def _reception(self, workers=2, **fields):
    deadlines = Deadlines(timeout_s=30.0, start_s=30.0, windows=True)
    reception = AllreduceReception(
      num_workers=workers,
      settings=Settings(
        Port('127.0.0.1', 0, Security()), 'ours', 30.0, 30.0, ''
      ),
      jobs=Jobs(deadlines),
      **fields,
    )
    self.addCleanup(reception.close, finished=True)
    return reception, reception.listen()

  def test_one_of_two_simultaneous_processes_is_admitted(self):
    reception, address = self._reception(workers=8)
    together = threading.Barrier(16)
    hellos = [
      messages.WorkerHello(n // 2, f'{n:032x}', 'ours') for n in range(16)
    ]

    def come(hello):
      together.wait()
      stream = connect(address, hello, Security(), 30.0)
      return stream, stream.receive(messages.WORKER_ADMISSION).header

    with ThreadPoolExecutor(16) as pool:
      came = list(pool.map(come, hellos))
    for worker in range(8):
      kinds = {type(each) for _, each in came[2 * worker : 2 * worker + 2]}
      self.assertEqual(kinds, {messages.WorkerAdmitted, messages.RankTaken})
    self.assertEqual(
      [member.admissions for member in reception.members], 8 * [1]
    )
    for stream, _ in came:
      stream.cancel()
      stream.close()

  def test_the_rank_of_the_coordinators_worker_is_reserved(self):
    _, address = self._reception(reserved={0: _ONE})
    stream, greeting = self._greeting(address, _OTHER, worker=0)
    held = 'worker 0 is in the process of the coordinator'
    self.assertEqual(greeting, messages.RankTaken(held))
    stream.close()
    stream, greeting = self._greeting(address, _ONE, worker=0)
    self.assertEqual(greeting, messages.WorkerAdmitted(0))
    stream.cancel()

  @parameterized.parameters(
    (messages.WorkerHello(2, _ONE, 'ours'), 'got worker 2'),
    (messages.ServerHello(1, _ONE, 'ours'), 'got server 1'),
    (messages.WorkerHello(0, _ONE, 'theirs'), 'config: expected the same'),
    (
      messages.WorkerHello(0, _ONE, 'ours', messages.Versions(jax='0.9.1')),
      'JAX 0.9.1 instead of',
    ),
    ({'type': 'WorkerHello', 'worker': 0}, 'missing required field'),
    ({'worker': 0, 'process': _ONE}, 'sent another hello'),
    (None, 'sent another hello'),
  )
  def test_another_hello_is_refused_for_good(self, hello, reason):
    reception, address = self._reception(workers=2)
    with self.assertLogs('absl', 'WARNING') as logs:
      stream = connect(address, hello, Security(), 10.0)
      self.addCleanup(stream.close)
      answer = stream.receive(messages.WORKER_ADMISSION).header
      self.assertIsInstance(answer, messages.Rejected)
      self.assertIn(reason, answer.reason)
      self._until(lambda: reason in str(logs.output))
    self.assertTrue(all(not member.admissions for member in reception.members))

  def test_messages_of_an_old_incarnation_are_ignored(self):
    reception, address = self._reception()
    ready = messages.ReplicaReady('127.0.0.1:1')
    old, _ = self._greeting(address, _ONE, worker=1)
    old.send(ready)
    self.assertIsInstance(reception.events.get(timeout=5.0), WorkerJoined)
    _, greeting = self._greeting(address, _OTHER, worker=1)
    self.assertRegex(greeting.reason, _HELD.format(1, 0))
    new, greeting = self._greeting(address, _ONE, worker=1)
    self.assertEqual(greeting, messages.WorkerAdmitted(1))
    lost = reception.events.get(timeout=5.0)
    self.assertIsInstance(lost, WorkerLost)
    self.assertEqual(lost.incarnation, 0)
    for message in (
      ready,
      messages.ConnectionLost(0, 0, 'x'),
      messages.EpochStopped(1, 2, []),
    ):
      old.send(message)
      end = old.receive(messages.TO_REPLICA).header
      self.assertEqual(end.kind, 'left')
    new.send(ready)
    event = reception.events.get(timeout=5.0)
    self.assertIsInstance(event, WorkerJoined)
    self.assertEqual(event.incarnation, 1)
    for stream in (old, new):
      stream.cancel()


class JoiningTest(_TestCase):
  def test_attempts_back_off_and_then_end(self):
    for start_s, admits in ((3.0, False), (20.0, True)):
      with self.subTest(admits=admits):
        came = []

        def handle(stream, hello, came=came, admits=admits):
          del hello
          came.append(time.monotonic())
          last = admits and len(came) == 6
          stream.send(
            messages.WorkerAdmitted(0)
            if last
            else messages.RankTaken('by another')
          )

        with Listener(Port('127.0.0.1', 0, Security()), handle) as listener:
          start = time.monotonic()
          join = self._join(listener.address, start_s)
          if admits:
            _, greeting = join()
            self.assertEqual(greeting, messages.WorkerAdmitted(0))
          else:
            with self.assertRaisesRegex(joining.RankHeld, 'by another'):
              join()
            self.assertLess(time.monotonic() - start, start_s + 0.5)
        gaps = [b - a for a, b in itertools.pairwise(came)]
        self.assertBetween(len(came), 5, 12)
        self.assertLess(gaps[0], 0.2 + 0.5)
        for n, gap in enumerate(gaps):
          self.assertGreater(gap, 0.5 * min(0.2 * 2**n, 0.5))

  def test_a_last_attempt_without_time_does_not_hide_the_holder(self):
    answers, over = itertools.count(), threading.Event()
    self.addCleanup(over.set)

    def handle(stream, hello):
      del hello
      if next(answers):  # Too late for another answer.
        over.wait()
      stream.send(messages.RankTaken('by another'))

    with Listener(Port('127.0.0.1', 0, Security()), handle) as listener:
      join = self._join(listener.address, 0.5)
      with self.assertRaisesRegex(joining.RankHeld, 'by another'):
        join()
      over.set()
    self.assertEqual(next(answers), 2)

  def test_processes_do_not_retry_together(self):
    with (
      mock.patch.object(joining, 'connect'),
      mock.patch.object(
        joining, '_receive_admission', side_effect=joining.RankHeld('x')
      ),
      mock.patch.object(clock, 'sleep') as slept,
      mock.patch.object(clock, 'monotonic', side_effect=range(10**6)),
      self.assertRaises(joining.RankHeld),
    ):
      self._join('', 1000.0)()
    waits = [call.args[0] for call in slept.call_args_list]
    self.assertGreater(len(waits), 100)
    self.assertGreater(len({*waits}), len(waits) - 2)
    self.assertLessEqual(max(waits), 0.5)
    self.assertGreaterEqual(min(waits), 0.1)

  @parameterized.parameters((False, LOST), (True, DRAINED))
  def test_a_held_rank_exits_with_the_code_for_a_restart(self, drains, code):
    with (
      self.assertRaises(SystemExit) as ended,
      session.exit_on_error(1, lambda: drains),
    ):
      raise joining.RankHeld('worker 1 is held')
    self.assertEqual(ended.exception.code, code)

  def test_a_process_that_wants_to_leave_does_not_wait_for_a_coordinator(self):
    with Listener(Port('127.0.0.1', 0, Security()), lambda *_: None) as closed:
      address = closed.address
    is_leaving = threading.Event()
    threading.Timer(1.0, is_leaving.set).start()
    start = time.monotonic()
    with self.assertRaises(TransportError):
      self._join(address, 600.0, is_leaving.is_set)()
    self.assertBetween(time.monotonic() - start, 3.5, 8.0)

  def test_a_process_follows_a_coordinator_that_has_moved(self):
    with Listener(Port('127.0.0.1', 0, Security()), lambda *_: None) as closed:
      address = [closed.address]

    def admit(stream, hello):
      stream.send(messages.WorkerAdmitted(7))
      stream.receive(messages.FROM_WORKER)

    with Listener(Port('127.0.0.1', 0, Security()), admit) as moved:
      threading.Timer(1.0, address.__setitem__, args=(0, moved.address)).start()
      start = time.monotonic()
      stream, admission = self._join(lambda: address[0], 60.0, timeout_s=50.0)()
      self.assertBetween(time.monotonic() - start, 0.9, 10.0)
      joining.drop(stream)
    self.assertEqual(admission.incarnation, 7)

  def _join(self, address, start_s, is_leaving=lambda: False, timeout_s=1.0):
    return lambda: joining.join(
      address,
      messages.WorkerHello(0, _ONE, ''),
      messages.WORKER_ADMISSION,
      security=Security(),
      timeout_s=timeout_s,
      start_s=start_s,
      is_leaving=is_leaving,
    )

  def assertBetween(self, value, low, high):
    self.assertGreaterEqual(value, low)
    self.assertLessEqual(value, high)


def _end(member):
  """Returns the end of a worker's session, skipping answers to heartbeats."""
  while not isinstance(message := member.next(), messages.SessionEnd):
    pass
  return message


class RankTest(parameterized.TestCase):
  @parameterized.parameters(
    (_OTHER, 5.0, False, True),
    (_OTHER, 5.1, False, False),
    (_OTHER, 5.1, True, True),
    (_ONE, 0.0, True, False),
  )
  def test_a_process_blocks_others_from_its_rank_until_it_is_silent(
    self, process, silent_s, final, blocked
  ):
    holder = Incarnation(mock.Mock(), 0, _ONE, 0, last_heartbeat=100.0)
    rank = Rank(1, holder, final)
    self.assertIs(rank.blocks(process, 100.0 + silent_s, 5.0), blocked)
    self.assertFalse(Rank(1, None, final).blocks(process, 0.0, 5.0))


class LaunchedTest(processes.TestCase, parameterized.TestCase):
  """Real processes, of which two have --role=worker:1."""

  @parameterized.parameters(
    {'servers': 1},
    {'servers': 0, 'route__name': 'ring'},
  )
  def test_a_second_process_is_refused_and_costs_nothing(self, **fields):
    with processes.launch(
      workers=2,
      model=False,
      epochs=1000.0,
      cluster__timeout_s=2.0,
      cluster__speed__injected=True,
      cluster__speed__name='constant',
      cluster__speed__fixed_s=0.05,
      cluster__speed__per_example_s=0.0,
      **fields,
    ) as launch:
      launch.until('epoch ')
      with processes.again(launch, 'worker:1') as second:
        second.until('Tries again')
        self._until_rows(launch, 80)  # In 2 s, 4 s without the updates.
        self.assertIsNone(second.code, second.text)
      launch.signal(signal.SIGTERM)
      self.assertEqual(launch.wait(), 143, launch.text)
    self._check_nothing_left(launch)
    self.assertRegex(second.text, 'for up to .* s: ' + _HELD.format(1, 0))
    self.assertRegex(launch.text, 'refused for now: ' + _HELD.format(1, 0))
    kinds = {row['event'] for row in launch.rows('events.jsonl')}
    self.assertNoCommonElements(kinds, {'leave', 'join'})
    self.assertEqual(launch.summary['admissions'], [1, 1])
    self.assertEmpty(launch.summary['lost'])

  def _until_rows(self, launch, rows):
    """Waits for rows of events beyond those that there are."""
    rows += len(launch.rows('events.jsonl'))
    end = time.monotonic() + coordinators.START_S
    while len(launch.rows('events.jsonl')) < rows:
      self.assertLess(time.monotonic(), end, launch.text)
      time.sleep(0.05)


if __name__ == '__main__':
  absltest.main()
