"""Tests of the order in which a worker's session calls and ends."""

import threading
from unittest import mock

from absl.testing import absltest, parameterized

from cluster.membership import session as session_module
from cluster.membership.process import Settings
from cluster.membership.session import Session
from cluster.network import messages
from cluster.network.errors import Closed
from cluster.network.port import Port
from cluster.network.streams import Security
from cluster.parameter_server.session import ParameterServerSession

_WAIT_S = 20.0


class _Stream:
  """A stream on which one message arrives, or none; then it is silent."""

  def __init__(self, *arriving):
    self.sent, self.cancelled = [], threading.Event()
    self._arriving = list(arriving)

  def send(self, message, *body):
    del body
    if self.cancelled.is_set():
      raise Closed('cancelled')
    self.sent.append(message)

  def receive(self, schema):
    del schema
    if self._arriving:
      return mock.Mock(header=self._arriving.pop(0))
    self.cancelled.wait(_WAIT_S)
    raise Closed('cancelled')

  def cancel(self, reason=''):
    del reason
    self.cancelled.set()

  def close(self, reason=''):
    """Returns at once: there is no connection."""

  def limit_silence(self, timeout_s):
    """Returns at once: there is no connection."""

  limit_unsent = close


class SessionTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self._hung, self._port = [], Port('127.0.0.1', 0, Security())

  def _open(self, stream, make=Session, *, timeout_s=_WAIT_S, **functions):
    """Returns a session that is not entered yet."""
    admitted = messages.WorkerAdmitted(0)
    if make is Session:
      functions = {
        'schema': messages.TO_REPLICA,
        'receive': lambda message: None,
        'on_end': lambda: None,
        **functions,
      }
    with mock.patch.object(
      session_module, 'join', lambda *_, **__: (stream, admitted)
    ):
      return make(
        '',
        0,
        Settings(self._port, '', timeout_s, 5.0, ''),
        progress=lambda: ('transfer', 0, 0),
        **{'on_hang': self._hung.append, **functions},
      )

  def _run_threads_first(self, happened):
    """Makes threads that start run until they wait or something happens."""
    start = threading.Thread.start

    def start_and_wait(thread):
      start(thread)
      for _ in range(20):
        if thread.is_alive() and not happened():
          thread.join(0.01)

    return mock.patch.object(threading.Thread, 'start', start_and_wait)

  def test_a_worker_hangs_whose_coordinator_is_lost_at_once(self):
    stream = _Stream()
    stream.cancel()
    with (
      self._run_threads_first(lambda: self._hung),
      self._open(stream, timeout_s=0.05) as session,
    ):
      self.assertTrue(session.heartbeat.ended.wait(_WAIT_S))
      self.assertEqual(self._hung, ['lost'])

  @parameterized.parameters(('over', False), ('drained', False), ('left', True))
  def test_errors_of_streams_are_logged_unless_the_run_is_over(
    self, kind, is_logged
  ):
    end = messages.SessionEnd(kind, 'finished')
    expect = self.assertLogs if is_logged else self.assertNoLogs
    with (
      expect('absl', 'INFO'),
      self._open(_Stream(end)) as session,
      session.suppress_errors(),
    ):
      self.assertTrue(session.heartbeat.ended.wait(_WAIT_S))
      raise Closed('cancelled')

  @parameterized.parameters(
    ('over', 'finished', True, 'ends, as the run has finished'),
    ('over', 'stopped', False, 'ends, as the run has ended (stopped)'),
    ('left', 'it hangs', False, 'was evicted: it hangs'),
    ('lost', 'no answer', False, 'has lost the coordinator: no answer'),
  )
  def test_the_end_of_a_session_is_told_in_words(
    self, kind, reason, is_finished, text
  ):
    end = messages.SessionEnd(kind, reason, is_finished)
    self.assertEqual(end.describe(), text)

  def test_a_request_that_arrives_at_once_is_answered(self):
    stream, answer = _Stream(messages.SaveResidual(3, (0, None, []))), object()
    with (
      self._run_threads_first(lambda: answer in stream.sent),
      self._open(
        stream,
        ParameterServerSession,
        save=lambda request, send: send(answer),
        evaluate=lambda request, send: None,
        mirror=lambda request, send: None,
        push_bytes=[],
      ),
    ):
      self.assertIn(answer, stream.sent)

  @parameterized.parameters('receive', 'on_end')
  def test_nothing_is_called_once_the_session_is_over(self, name):
    stream = _Stream(messages.ReleaseState(None))
    called, over, late = threading.Event(), threading.Event(), []

    def call(*_):
      called.set()
      stream.cancelled.wait(_WAIT_S)
      late.append(over.wait(0.1))

    with self._open(stream, **{name: call}):
      if name == 'receive':
        self.assertTrue(called.wait(_WAIT_S))
    over.set()
    self.assertEqual(late, [False])

  def test_a_worker_hangs_if_a_message_is_handled_forever(self):
    called, over = threading.Event(), threading.Event()
    self.addCleanup(over.set)

    def call(message):
      del message
      called.set()
      over.wait(_WAIT_S)

    with self._open(
      _Stream(messages.ReleaseState(None)), receive=call, timeout_s=0.5
    ):
      self.assertTrue(called.wait(_WAIT_S))
    self.assertLen(self._hung, 1)


if __name__ == '__main__':
  absltest.main()
