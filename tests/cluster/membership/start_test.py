"""Tests for the start of a run: processes that are late, lost, and rejoin.

A run begins once all processes have joined, whatever happens before, and no
process that is alive has to be restarted.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from unittest import mock

import pytest
from absl.testing import absltest, parameterized

from cluster.membership import event_loop
from cluster.membership.events import WorkerLost
from cluster.membership.roster import Roster
from cluster.network import messages
from cluster.network.streams import Port, Security, connect, push_service
from cluster.process.exits import Unmendable
from learning.timing_only import TimingOnlyGradient
from tests.support import coordinators, launches, processes, requires
from tests.support.link import Link
from tests.support.listeners import Listener

_CUT_S = 2.5 * coordinators.TIMEOUT_S


class _Slow(TimingOnlyGradient):
  """A gradient that compiles until a test ends it."""

  def __init__(self):
    self.compiling = threading.Event()
    self.go = threading.Event()

  def warm_up(self, params, examples, *, changing):
    self.compiling.set()
    self.go.wait(coordinators.START_S)
    return super().warm_up(params, examples, changing=changing)


class StartTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.links = []
    self._stack = self.enterContext(contextlib.ExitStack())  # Left last.

  def _coordinator(self, **fields):
    coordinator = coordinators.Coordinator(route_to=self._way, **fields)
    self.addCleanup(coordinator.close)
    return coordinator

  def _way(self, address):
    """Returns a way of its own for each that asks."""
    link = self._stack.enter_context(Link(address))
    self.links.append(link)
    return link.address

  def _check_runs(self, coordinator, workers, incarnations):
    coordinator.begin()
    coordinator.until(
      lambda: coordinator.accounting.iterations >= 5 * len(workers)
    )
    self.assertEqual(coordinator.cluster.summary()['admissions'], incarnations)
    self.assertEmpty(coordinator.accounting.lost)
    coordinator.cluster.close()
    for worker in workers:
      self.assertIs(worker.result(timeout=coordinators.START_S), False)

  def test_a_worker_that_is_lost_just_before_the_start_leaves_after_it(self):
    coordinator = self._coordinator(num_workers=1)
    coordinator.member(0)
    recorder = coordinator.cluster.coordinator.recorder
    with mock.patch.object(recorder, 'record_decision') as record:
      reception, before = coordinator.reception, time.monotonic()
      coordinator.begin()
      incarnation = reception.members[0].incarnation
      reception.events.put(
        WorkerLost(at=before, worker=0, incarnation=incarnation, reason='lost')
      )
      coordinator.until(lambda: len(record.call_args_list) == 2)
    (start, started, _), (leave, left, _) = (
      call.args for call in record.call_args_list
    )
    self.assertEqual((start, leave), ('start', 'leave'))
    # Rows of the time of the start are those of workers that were absent.
    self.assertGreater(left['time'], started['time'])
    self.assertLen(coordinator.accounting.lost, 1)

  @parameterized.parameters('drop', 'cut')
  def test_a_worker_that_is_lost_while_it_compiles_rejoins(self, how):
    slow = _Slow()
    coordinator = self._coordinator(num_workers=2)
    workers = [coordinator.work(0), coordinator.work(1, slow)]
    slow.compiling.wait(coordinators.START_S)
    self._break(self.links[1], how)
    slow.go.set()
    self._check_runs(coordinator, workers, [1, 2])

  @parameterized.parameters('drop', 'cut')
  def test_a_worker_that_is_lost_while_it_waits_rejoins(self, how):
    coordinator = self._coordinator(num_workers=2)
    first = coordinator.work(0)
    members = coordinator.reception.members
    self._wait(lambda: members[0].stream)
    lost = members[0].stream
    self._lose(self.links[0], how)
    self._wait(lambda: members[0].stream is not lost)
    self._check_runs(coordinator, [first, coordinator.work(1)], [2, 1])

  @parameterized.parameters('drop', 'cut')
  def test_a_server_that_is_lost_rejoins(self, how):
    coordinator = self._coordinator(num_servers=3, hosted=[2])
    worker = coordinator.work(0)
    servers = coordinator.reception._remote
    self._wait(lambda: servers)
    lost = servers[2]
    self._lose(self.links[0], how)
    self._wait(lambda: servers.get(2) is not lost)
    hosted = coordinator.host(1)
    self._check_runs(coordinator, [worker], [1])
    self.assertIs(hosted.result(timeout=coordinators.START_S), False)
    # Nothing was made or compiled again.
    self.assertLen(coordinator.servers, 3)

  def test_workers_reconnect_to_the_new_process_of_a_server(self):
    coordinator = self._coordinator(num_workers=2, num_servers=2, hosted=())
    worker = coordinator.work(0)
    gone = self._stranger(coordinator, 1)
    gone.send(messages.ServerAddress('127.0.0.1:1'))  # Nothing listens there.
    coordinators.accept_worker(gone)
    self._wait(
      lambda: any(
        each.has_addresses for each in coordinator.reception._incarnations
      )
    )
    gone.close()
    coordinator.host(1)
    self._check_runs(coordinator, [worker, coordinator.work(1)], [2, 1])

  def test_a_late_server_cannot_replace_one_of_a_running_run(self):
    coordinator = self._coordinator(num_servers=2)
    worker = coordinator.work(0)
    coordinator.begin()
    held = 'server 1 is held by the process at 127.0.0.1:.*, incarnation 0'
    stream = self._connect(coordinator, 1, process='1' * 32)
    taken = stream.receive(messages.SERVER_ADMISSION).header
    self.assertRegex(taken.reason, held)
    self._check_runs_on(coordinator, worker)

  def _check_runs_on(self, coordinator, worker):
    coordinator.until(lambda: coordinator.accounting.iterations >= 5)
    coordinator.cluster.close()
    worker.result(timeout=coordinators.START_S)

  def test_servers_discard_lost_incarnations(self):
    coordinator = self._coordinator(num_workers=2)
    coordinator.work(0)
    for _ in range(3):
      coordinator.member(1).close()
    coordinator.member(1)
    coordinator.begin()
    coordinator.until(lambda: coordinator.accounting.iterations >= 5)
    coordinator.until(lambda: len(coordinator.servers[0]._ports) <= 2)

  def test_missing_processes_are_described(self):
    coordinator = self._coordinator(
      num_workers=3, num_servers=2, hosted=(), start_s=6.0
    )
    slow = _Slow()
    coordinator.work(0, slow)
    self._wait(lambda: 'compiling' in coordinator.reception.missing())
    hello = messages.WorkerHello(1, '1' * 32, 'ours')
    stream = connect(coordinator.address, hello, Security(), 10.0)
    self._wait(lambda: 'worker 1: conn' in coordinator.reception.missing())
    stream.cancel()
    stream.close()
    self._wait(lambda: 'lost since' in coordinator.reception.missing())
    lines = coordinator.reception.missing().splitlines()
    slow.go.set()
    self.assertLen(lines, 4)
    at = r'connected from 127.0.0.1:\d+ at \d\d:\d\d:\d\d, incarnation 0'
    for line, expected in zip(
      lines,
      (
        'server 1: never seen',
        rf'worker 0: {at}; compiling since \d+ s(; silent for \d+ s)?',
        rf'worker 1: {at}; lost since \d+ s: .*',
        'worker 2: never seen',
      ),
      strict=True,
    ):
      self.assertRegex(line, f'^  {expected}$')

  def test_a_worker_retries_an_unreachable_server(self):
    coordinator = self._coordinator(num_servers=2, hosted=())

    def answer(stream, hello):
      del hello
      stream.send(messages.PieceSizes([]))
      stream.receive(messages.PUSH)

    port = Port('127.0.0.1', 0, Security())
    listener = Listener(port, answer, service=push_service(1))
    self._stack.callback(listener.close, 0.0)
    link = self._stack.enter_context(Link(listener.address))
    link.cut()
    server = self._stranger(coordinator, 1)
    server.send(messages.ServerAddress(link.address))
    coordinator.work(0)
    coordinators.accept_worker(server)
    self._wait(lambda: 'connected to 1 of 2' in coordinator.reception.missing())
    for _ in range(10):  # Longer than an attempt.
      time.sleep(coordinators.TIMEOUT_S / 5)
      server.send(messages.ServerHeartbeat(0.0))
    link.mend()
    coordinator.begin()
    self.assertEqual(coordinator.cluster.summary()['admissions'], [1])

  @mock.patch.object(event_loop, '_LOG_INTERVAL_S', 0.1)
  def test_the_start_has_a_limit_and_names_missing_processes(self):
    with self.assertLogs('absl', 'INFO') as logs:
      coordinator = self._coordinator(num_workers=2, start_s=3.0)
      self._wait(lambda: 'run waits for' in str(logs.output))
    self.assertIn('worker 0: never seen', str(logs.output))
    with self.assertRaisesRegex(
      Unmendable, r'Not all were there within 3 s:\n  worker 0: never seen'
    ):
      coordinator.begin()

  def test_servers_that_read_a_large_checkpoint_have_longer(self):
    # At 10 MB/s, 20 s more than the start's limit.
    coordinator = self._coordinator(
      num_servers=2, hosted=(), start_s=1.0, restored_bytes=2 * 10**8
    )
    self._wait(lambda: coordinator.servers and coordinator.servers[0].address)
    self.assertEqual(coordinator.reception.transfer_s(), 0.0)
    server = self._stranger(coordinator, 1)
    coordinator.work(0, start_s=coordinators.START_S)
    end = time.monotonic() + 3.0
    while time.monotonic() < end:
      time.sleep(coordinators.TIMEOUT_S / 5)
      server.send(messages.ServerHeartbeat(0.0))
    self.assertGreaterEqual(coordinator.reception.transfer_s(), 20.0)
    server.send(messages.ServerAddress(coordinator.servers[0].address))
    self._wait(lambda: 'server 1' not in coordinator.reception.missing())
    self.assertFalse(coordinator._warm.done())
    self.assertNotIn('lost', coordinator.reception.missing())

  def test_a_server_that_is_missing_is_not_waited_for_longer(self):
    coordinator = self._coordinator(
      num_servers=2, hosted=(), start_s=1.0, restored_bytes=10**12
    )
    with self.assertRaisesRegex(Unmendable, 'within 1 s:\n.*server 1: never'):
      coordinator.begin()

  def _stranger(self, coordinator, index):
    stream = self._connect(coordinator, index)
    stream.receive(messages.SERVER_ADMISSION)
    return stream

  def _connect(self, coordinator, index, process='0' * 32):
    hello = messages.ServerHello(index, process, 'ours')
    stream = connect(coordinator.address, hello, Security(), 10.0)
    self.addCleanup(stream.close)
    self.addCleanup(stream.cancel)
    return stream

  def _lose(self, link, how):
    """Breaks a link; waits until the process behind it has reconnected."""
    made = link.connections
    self._break(link, how)
    self._wait(lambda: link.connections > made)

  def _break(self, link, how):
    if how == 'drop':
      link.drop()
      return
    link.cut()
    threading.Timer(_CUT_S, link.mend).start()

  def _wait(self, condition):
    end = time.monotonic() + coordinators.START_S
    while not condition():
      if time.monotonic() > end:
        raise AssertionError('The event did not happen in time.')
      time.sleep(0.01)


class LaunchedTest(processes.TestCase):
  def test_a_run_starts_despite_a_stopped_and_a_killed_worker(self):
    fields = {'epochs': 2.0, 'cluster__timeout_s': 2.0}
    with processes.launch(
      workers=2, dedicated=True, model=False, **fields
    ) as launch:
      launch.until('Coordinator at')
      stopped, killed = (launch.pid(f'worker:{n}') for n in (0, 1))
      os.kill(stopped, signal.SIGSTOP)
      os.kill(killed, signal.SIGKILL)
      time.sleep(5.0)
      os.kill(stopped, signal.SIGCONT)
      self.assertEqual(launch.wait(), 0, launch.text)
    self.check(launch)
    roles = {'server:0': 1, 'worker:0': 1, 'worker:1': 2}
    self.assertEqual(launches.starts(launch.rows('launch.jsonl')), roles)
    self.assertEmpty(launch.summary['lost'])


class LabTest(processes.TestCase):
  def setUp(self):
    super().setUp()
    requires.lab()

  @pytest.mark.soak
  def test_a_run_starts_despite_a_cut_link(self):
    with processes.launch(
      before=(sys.executable, '-m', 'tools.lab', '--hosts=3', '--'),
      workers=2,
      dedicated=True,
      model=False,
      epochs=2.0,
      cluster__timeout_s=2.0,
      cluster__interface='eth0',
    ) as launch:
      launch.until('Coordinator at')
      name = re.search('SYNCOPATE_LAB=(syn-[0-9a-f]+)', launch.text)[1]
      link = f'ip -n {name}-switch link set host2'.split()
      subprocess.run([*link, 'down'], check=True)
      time.sleep(6.0)
      subprocess.run([*link, 'up'], check=True)
      mended = time.time()
      began = launch.until('Outputs are in')
      launch.signal(signal.SIGTERM)
      launch.wait()
    self.check(launch)
    self.assertEqual(launch.summary['ended'], 'finished')
    self.assertEmpty(launch.summary['lost'])
    starts = launches.starts(launch.rows('launch.jsonl'))
    self.assertEqual(set(starts.values()), {1})
    self.assertLess(began - mended, 30)


class RosterTest(absltest.TestCase):
  def test_a_line_describes_the_last_activity(self):
    now = [100.0]
    roster = Roster(lambda: now[0])
    roster.record_admission('worker 1', 0, 'a:1')
    now[0] += 5
    roster.record_message('worker 1', 0, 'compiling')
    now[0] += 7
    roster.record_admission('worker 2', 3, 'b:2')
    roster.record_loss('worker 2', 2, 'an older incarnation')
    line, other = roster.describe(['worker 1', 'worker 2'], 4.0).splitlines()
    self.assertRegex(
      line, r'a:1 at .*, incarnation 0; compiling since 7 s; silent for 7'
    )
    self.assertRegex(other, r'b:2 at .*, incarnation 3; connecting since 0 s$')
    roster.record_loss('worker 2', 3, 'cut')
    now[0] += 2
    self.assertEndsWith(
      roster.describe(['worker 2'], 4.0), 'lost since 2 s: cut'
    )

  def test_lines_of_hundreds_of_processes_are_counted(self):
    names = [f'worker {n}' for n in range(300)]
    lines = Roster().describe(names, 1.0).splitlines()
    self.assertEqual(lines[0], '  worker 0: never seen')
    self.assertEqual(lines[16:], ['  and 284 others'])


if __name__ == '__main__':
  absltest.main()
