"""Tests for cluster.network.heartbeat."""

import contextlib
import pathlib
import queue
import tempfile
import threading
import time
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from cluster.network import frames, messages, streams
from cluster.network import heartbeat as heartbeat_module
from cluster.network.connection import Connection
from cluster.network.heartbeat import BEATS, Heartbeat
from cluster.parameter_server.versions import ShardVersions
from tests.support.relays import Relay
from tests.support.streams import (
  OPEN,
  WAIT_S,
  TestCase,
  random_bytes,
  tcp_pair,
  wait_until,
)

_SILENT = 'no answer for 1 s'


class _Coordinator:
  """A stream to a coordinator that answers once, at a chosen bytecode.

  Attributes:
    steps: Bytecodes of the thread that sends heartbeats so far.
    late_beats: Heartbeats that this thread has sent since the answer.
    at_fourth: Its bytecodes when it sent its fourth heartbeat.
    waited_s: Its waits so far, seconds.
  """

  def __init__(self, answers_at=-1):
    self.steps = self.late_beats = self.at_fourth = 0
    self.waited_s = 0.0
    self._answers_at, self._beats, self._receives = answers_at, 0, 0
    self._sender = None  # The thread.
    self._answers, self._is_handled = queue.SimpleQueue(), threading.Event()
    self._has_answered = False
    self.heartbeat = Heartbeat(
      self,
      schema=messages.TO_SERVER,
      timeout_s=1.0,
      beat=messages.ServerHeartbeat,
      receive=lambda message: None,
      on_end=lambda: self._answers.put(None),
    )

  def run(self):
    """Runs the heartbeats until the coordinator is lost."""
    ended = self.heartbeat.ended
    with mock.patch.object(ended, 'wait', self._wait):
      threading.settrace(self._trace)
      try:
        self.heartbeat.start()
      finally:
        threading.settrace(None)
      if not self.heartbeat.join(WAIT_S):
        raise AssertionError('It is never lost.')

  def _wait(self, seconds):
    self._sender = self._sender or threading.get_ident()
    self.waited_s += seconds
    return self.heartbeat.ended.is_set()

  def _trace(self, frame, event, argument):
    del argument
    if frame.f_code.co_filename != heartbeat_module.__file__:
      return None
    frame.f_trace_opcodes = True
    if event == 'opcode' and threading.get_ident() == self._sender:
      self.steps += 1
      if self.steps == self._answers_at:
        self._answers.put(messages.HeartbeatReply(0.0, 0.0))
        self._is_handled.wait(WAIT_S)
        self._has_answered = True
    return self._trace

  def send(self, beat):
    del beat
    if threading.get_ident() == self._sender:
      self._beats += 1
      self.late_beats += self._has_answered
      if self._beats == 4:
        self.at_fourth = self.steps

  def receive(self, schema):
    del schema
    self._receives += 1
    if self._receives == 2:  # It has handled the answer.
      self._is_handled.set()
    answer = self._answers.get(timeout=WAIT_S)
    if answer is None:
      raise streams.Closed('the test has ended')
    return mock.Mock(header=answer)

  def limit_silence(self, timeout_s):
    """Returns at once: there is no connection."""

  def limit_unsent(self):
    """Returns at once: there is no connection."""


class HeartbeatTest(TestCase):
  def test_a_coordinator_that_does_not_read_a_long_message_is_lost(self):
    over, lost = threading.Event(), threading.Event()
    self.addCleanup(over.set)
    stream = self.connect(
      self.listener(lambda stream, hello: over.wait(WAIT_S))
    )
    body = random_bytes(2**25)

    def send():
      with contextlib.suppress(streams.Closed):
        stream.send(
          messages.Activity('saves'), streams.chunked([body]), body.size
        )

    sender = threading.Thread(target=send)
    sender.start()
    heartbeat = Heartbeat(
      stream,
      schema=messages.TO_SERVER,
      timeout_s=1.0,
      beat=messages.ServerHeartbeat,
      receive=lambda message: None,
      on_end=lost.set,
    )
    heartbeat.start()
    self.assertTrue(lost.wait(WAIT_S / 2))
    self.assertEqual(heartbeat.end.kind, 'lost')
    sender.join()

  @parameterized.parameters(
    (10, False),  # Within a header.
    (40, False),  # Within a message.
    (0, True),
    (10, True),
  )
  def test_a_coordinator_that_stops_or_is_slow_within_a_frame_is_lost(
    self, size, drips
  ):
    near, far = tcp_pair()
    self.addCleanup(far.close)
    lost, text = threading.Event(), b'x' * 1000
    data = frames.pack_header(frames.TEXT, 0, text) + text
    far.sendall(data[:size])
    stream = streams.Stream(Connection(near, 'peer'))
    self.addCleanup(stream.cancel)
    start = time.monotonic()
    heartbeat = Heartbeat(
      stream,
      schema=messages.TO_SERVER,
      timeout_s=1.0,
      beat=messages.ServerHeartbeat,
      receive=lambda message: None,
      on_end=lost.set,
    )
    heartbeat.start()
    while drips and not lost.wait(0.05) and size < len(data):
      far.sendall(data[size : size + 1])
      size += 1
    self.assertTrue(lost.wait(WAIT_S))
    self.assertLess(time.monotonic() - start, WAIT_S / 2)
    self.assertEqual(heartbeat.end, messages.SessionEnd('lost', _SILENT))

  def test_a_coordinator_is_lost_after_the_timeout_and_not_later(self):
    silent = _Coordinator()
    silent.run()
    self.assertEqual(silent.heartbeat.end.kind, 'lost')
    self.assertAlmostEqual(silent.waited_s, 1.0)

  def test_an_answer_counts_at_whatever_moment_it_arrives(self):
    silent = _Coordinator()
    silent.run()
    self.assertGreater(silent.at_fourth, 40)
    for moment in range(1, silent.at_fourth):
      answering = _Coordinator(answers_at=moment)
      answering.run()
      self.assertGreaterEqual(answering.late_beats, BEATS - 1, moment)

  def test_heartbeats_wait_little_behind_a_version_on_a_slow_link(self):
    size, timeout_s, waits_s = 4_000_000, 2.0, []

    def serve(stream, hello):
      received = 0
      while received < size:
        message = stream.receive(messages.FROM_SERVER)
        if isinstance(message.header, messages.ServerHeartbeat):
          waits_s.append(time.monotonic() - message.header.sent)
          stream.send(messages.HeartbeatReply(message.header.sent, 0.0))
        received += sum(chunk.size for chunk in message.chunks)
      stream.send(messages.SessionEnd('over', ''))

    with Relay(self.listener(serve).address, rate_Bps=1e6) as relay:
      stream = streams.connect(relay.address, None, OPEN, WAIT_S)
      self.addCleanup(stream.close)
      heartbeat = Heartbeat(
        stream,
        schema=messages.TO_SERVER,
        timeout_s=timeout_s,
        beat=messages.ServerHeartbeat,
        receive=lambda message: None,
        on_end=lambda: None,
      )
      heartbeat.start()
      versions = ShardVersions(
        pathlib.Path(tempfile.mkdtemp()),
        'server1',
        held={0: (np.zeros(size // 4, np.float32), ())},
        report=lambda part, body: stream.send(
          part, body, sum(each.size for each in body)
        ),
      )
      versions.send(0, 0)
      self.assertTrue(heartbeat.ended.wait(2 * WAIT_S))
    self.assertEqual(heartbeat.end.kind, 'over')
    self.assertGreater(len(waits_s), 5)
    self.assertLess(max(waits_s), timeout_s / 2)

  def test_a_session_that_ends_twice_keeps_its_first_end(self):
    # The coordinator ends it at the moment at which it counts as lost.
    noticed, over, ends = threading.Event(), threading.Event(), []

    def serve(stream, hello):
      noticed.wait(WAIT_S)
      stream.send(messages.SessionEnd('over', ''))
      over.wait(WAIT_S)

    heartbeat = Heartbeat(
      self.connect(self.listener(serve)),
      schema=messages.TO_SERVER,
      timeout_s=1.0,
      beat=messages.ServerHeartbeat,
      receive=lambda message: None,
      on_end=lambda: ends.append(heartbeat.end.kind),
    )
    set_ended = heartbeat.ended.set

    def set_late():
      noticed.set()
      time.sleep(0.5)
      set_ended()

    self.addCleanup(over.set)
    self.enter_context(mock.patch.object(heartbeat.ended, 'set', set_late))
    heartbeat.start()
    wait_until(lambda: ends)
    time.sleep(0.5)
    self.assertEqual(ends, ['lost'])
    self.assertEqual(heartbeat.end.kind, 'lost')

  def test_a_message_that_cannot_be_handled_ends_the_session(self):
    def serve(stream, hello):
      stream.send(messages.Orders(0, ()))
      stream.receive(messages.FROM_SERVER)
      stream.receive(messages.FROM_SERVER)

    def fail(message):
      raise KeyError(message)

    ended = threading.Event()
    hook = self.enter_context(mock.patch.object(threading, 'excepthook'))
    heartbeat = Heartbeat(
      self.connect(self.listener(serve)),
      schema=messages.TO_SERVER,
      timeout_s=60.0,
      beat=messages.ServerHeartbeat,
      receive=fail,
      on_end=ended.set,
    )
    heartbeat.start()
    self.assertTrue(ended.wait(WAIT_S))
    self.assertEqual(heartbeat.end.kind, 'lost')
    wait_until(lambda: hook.called)


if __name__ == '__main__':
  absltest.main()
