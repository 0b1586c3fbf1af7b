"""Tests of an executor whose own process fails it."""

import errno
import os
import socket
import threading
import time
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from cluster.allreduce.executor import (
  door,
  exchange,
  executor,
  generation,
  loop,
)
from cluster.allreduce.executor.errors import ExecutorFailed
from cluster.network.errors import TransportError
from tests.support import byte_peers, descriptors, executors

_SIZE, _CHUNK_BYTES = 8, 16


class _Case(executors.TestCase):
  def _membership(self, count=2, **kwargs):
    made = self.executor(0, chunk_bytes=_CHUNK_BYTES, **kwargs)
    return self._others(made, count)

  def _others(self, made, count=2, generation=0):
    membership = byte_peers.Membership(
      made, count, size=_SIZE, chunk_bytes=_CHUNK_BYTES
    )
    membership.generation = generation
    self.addCleanup(membership.close)
    return membership

  def _check_sound(self, membership):
    """Checks that the executor takes part in the next membership."""
    membership.form()
    numbers = np.arange(2 * _SIZE, dtype=np.float32).reshape(2, _SIZE)
    pool = numbers[0].copy()
    under_way = membership.executor.begin(0, pool, membership.ranges)
    under_way.ready(0)
    membership.take_part(0, numbers[1], numbers.sum(0))
    under_way.wait(executors.WAIT_S)
    np.testing.assert_array_equal(pool, numbers.sum(0))


class DescriptorsTest(_Case):
  def test_who_cannot_connect_says_so_and_can_do_it_later(self):
    membership = self._membership()
    group = membership.group._replace(generation=5)
    membership.generation = 5
    with descriptors.exhausted():
      start = time.monotonic()
      with self.assertRaisesRegex(ExecutorFailed, 'Too many open files') as got:
        membership.executor.form(group)
      self.assertLess(time.monotonic() - start, executors.WAIT_S / 2)
    self.assertEqual(got.exception.worker, 0)
    self._check_sound(membership)

  def test_connections_wait_while_none_can_be_accepted(self):
    made = self.executor(0)
    host, port = made.address.split(':')
    sleepers, sleep = [], time.sleep

    def noted(seconds):
      sleepers.append(threading.current_thread().name)
      sleep(seconds)

    with socket.socket() as sock:
      sock.settimeout(executors.WAIT_S)
      with (
        self.assertLogs(level='WARNING') as logs,
        mock.patch.object(time, 'sleep', noted),
        descriptors.exhausted(),
      ):
        sock.connect((host, int(port)))
        for _ in range(10):
          made.traffic()
          sleep(0.02)
      self.assertNotIn('executor-0', sleepers)
      self.assertLen(logs.output, 1)
      self.assertRegex(logs.output[0], 'no connection is accepted.*many open')
      sock.sendall(b'syncred1' + bytes(32))
      self.assertLen(sock.recv(64), 64)

  def test_who_can_accept_nobody_says_so_instead_of_blaming_others(self):
    membership = self._membership(timeout_s=1.0)
    group = membership.group._replace(generation=1)
    with socket.socket() as sock:
      sock.setblocking(False)
      forming = []
      thread = threading.Thread(
        target=lambda: forming.extend(
          executors.parallel([lambda: membership.executor.form(group, 20.0)])
        )
      )
      thread.start()
      membership.peers[1].accept()
      with descriptors.exhausted():
        sock.connect_ex(byte_peers.parts(membership.executor.address))
        thread.join()
    self.assertIsInstance(forming[0], ExecutorFailed)
    self.assertRegex(str(forming[0]), 'Too many open files')

  @parameterized.parameters(0, 1, 2)
  def test_none_is_made_with_too_few_and_nothing_is_left(self, left):
    before = len(os.listdir('/proc/self/fd'))
    with (
      descriptors.exhausted(left),
      self.assertRaisesRegex(TransportError, 'Too many open files'),
    ):
      executor.Executor(
        0, host=executors.HOST, security=executors.OPEN, timeout_s=1.0
      )
    self.assertEqual(len(os.listdir('/proc/self/fd')), before)


def _raise(error):
  def raising(*args, **kwargs):
    raise error

  return raising


def _raise_later(error):
  def raising(*args, **kwargs):
    raise error
    yield

  return raising


class UnexpectedTest(_Case):
  """Errors in the thread that no code of it expects."""

  @parameterized.parameters(
    (exchange.Exchange, 'arrived'),
    (exchange.Exchange, 'check'),
    (exchange.Exchange, 'take'),
    (exchange.Exchange, 'sent'),
    (exchange.Exchange, 'ready'),
    (exchange.Exchange, '_add'),
    (generation.Generation, 'begin'),
    (generation.Generation, 'flush'),
    (generation.Reader, 'read'),
    (generation.Writer, 'write'),
  )
  def test_a_sum_that_fails_here_says_why(self, place, name):
    membership = self._membership()
    membership.form()
    numbers = np.ones(_SIZE, np.float32)
    with (
      self.assertLogs(level='ERROR'),
      mock.patch.object(place, name, _raise(RuntimeError('no such thing'))),
    ):
      under_way = membership.executor.begin(0, numbers, membership.ranges)
      under_way.ready(0)
      chunk = membership.chunks(root=0)[0]
      up = membership.fields(0, chunk, byte_peers.UP, numbers)
      membership.peers[1].send(up.packed())
      with self.assertRaisesRegex(
        ExecutorFailed, 'RuntimeError: no such thing'
      ):
        under_way.wait(executors.WAIT_S)
    with self.assertRaises(ExecutorFailed):  # Until there is another one.
      membership.executor.begin(1, numbers, membership.ranges).wait(1.0)
    self._check_sound(membership)

  @parameterized.parameters(
    (generation.Generation, 'add_in'),
    (generation.Generation, 'add_out'),
    (generation.Generation, 'check_formed'),
    (door.Door, 'connect'),
    (door.Door, 'claim'),
    (door.Door, '_known'),
    (door.Door, '_accept'),
    (door.Door, 'tick'),
    (door.links, 'answer'),
    (door.links, 'ask'),
    (executor, 'Hello'),
  )
  def test_a_membership_that_fails_here_says_why(self, place, name):
    membership = self._membership()
    error = RuntimeError('no such thing')
    raising = _raise_later if place is door.links else _raise
    with (
      self.assertLogs(level='ERROR'),
      mock.patch.object(place, name, raising(error)),
    ):
      if name == '_accept':  # What was registered is the method of before.
        membership.executor._loop.ask(membership.executor._door.open)
      group = membership.group._replace(generation=1)
      meet = threading.Thread(
        target=executors.parallel,
        args=[[lambda: membership.peers[1].meet(membership.executor, 1)]],
      )
      meet.start()
      with self.assertRaisesRegex(
        ExecutorFailed, 'RuntimeError: no such thing'
      ):
        membership.executor.form(group)
      membership.close()
      meet.join()
      membership.close()  # What it has connected meanwhile.
    self._check_sound(self._others(membership.executor, generation=1))

  def test_who_cannot_watch_a_connection_says_so(self):
    membership = self._membership()
    group = membership.group._replace(generation=1)
    membership.generation = 1
    error = OSError(errno.ENOSPC, 'No space left on device')
    with (
      mock.patch.object(loop.Loop, 'watch', _raise(error)),
      self.assertRaisesRegex(ExecutorFailed, 'No space left on device'),
    ):
      membership.executor.form(group)
    self._check_sound(self._others(membership.executor, generation=1))

  def test_the_end_of_the_thread_is_told_to_all_who_wait_and_come(self):
    membership = self._membership()
    made = membership.executor
    membership.form()
    numbers = np.ones(_SIZE, np.float32)
    with (
      self.assertLogs(level='ERROR'),
      mock.patch.object(loop.os, 'eventfd_read', _raise(OSError('gone'))),
    ):
      under_way = made.begin(0, numbers, membership.ranges)
      with self.assertRaisesRegex(ExecutorFailed, 'OSError: gone'):
        under_way.wait(executors.WAIT_S)
    group = membership.group._replace(generation=9)
    for _ in range(2):
      with self.assertRaisesRegex(ExecutorFailed, 'OSError: gone'):
        made.form(group)
      with self.assertRaisesRegex(ExecutorFailed, 'OSError: gone'):
        made.begin(1, numbers, membership.ranges)
    counts = [made.unanswered() for _ in range(3)]
    self.assertEqual(np.diff(counts).tolist(), [1, 1])  # Which beats notice.
    made.abandon()
    made.traffic()

  def test_an_error_between_memberships_does_not_end_the_thread(self):
    made = self.executor(0)
    with self.assertLogs(level='ERROR'):
      made._loop.ask(_raise(KeyError('nobody waits')))
    executors.until(lambda: made.unanswered() <= 1)


if __name__ == '__main__':
  absltest.main()
