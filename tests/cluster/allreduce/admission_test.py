"""Tests of the messages that the coordinator accepts from allreduce workers."""

from absl.testing import absltest, parameterized

from cluster.allreduce.admission import AllreduceReception
from cluster.network.streams import Closed, Security, connect
from cluster.process.deadlines import Deadlines, Jobs

_READY = {
  'ready': True,
  'executor': '127.0.0.1:1',
  'handover': '127.0.0.1:65535',
}
_REPORTS = (
  {'event': 'formed', 'generation': 0, 'version': 0, 'digest': 'a', 'sent': []},
  {
    'event': 'checked',
    'generation': 0,
    'version': 0,
    'digest': 'a',
    'sent': [],
  },
  {'event': 'stopped', 'generation': 1, 'version': 2, 'books': [0.5, 1]},
  {'event': 'broken', 'generation': 1, 'peer': None, 'reason': 'gone'},
  {'event': 'broken', 'generation': 1, 'peer': 0, 'reason': 'gone'},
)


class ReceptionTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    deadlines = Deadlines(timeout_s=5.0, start_s=5.0, windows=True)
    self.reception = AllreduceReception(
      num_workers=2,
      host='127.0.0.1',
      port=0,
      fingerprint='ours',
      security=Security(),
      timeout_s=5.0,
      start_s=5.0,
      jobs=Jobs(deadlines),
    )
    address = self.reception.listen()
    self.addCleanup(self.reception.close, finished=True)
    hello = {'worker': 1, 'fingerprint': 'ours', 'process': '0' * 32}
    self.stream = connect(address, hello, Security(), 5.0)
    self.addCleanup(self.stream.close)
    self.stream.receive()

  def _event(self):
    return self.reception.events.get(timeout=5.0)

  def test_the_stream_not_the_message_identifies_the_sender(self):
    wrong = {'worker': 0, 'life': 7, 'at': 1e9}
    for message in (_READY, *_REPORTS):
      self.stream.send(message | wrong)
      event = self._event()
      event.pop('stream', None)
      kind = {'event': 'ready'} if message is _READY else {}
      self.assertEqual(event, message | kind | {'worker': 1, 'life': 0})

  @parameterized.parameters(
    *(
      _READY | {'executor': f'127.0.0.1:{port}'}
      for port in (0, 65536, '9' * 9999)
    ),
    _READY | {'handover': '127.0.0.1'},
    *(message | {'generation': -1} for message in _REPORTS),
    {'event': 'stopped', 'generation': 1, 'version': 2, 'books': ['x']},
    {'event': 'completed', 'version': 0, 'books': []},
  )
  def test_invalid_messages_end_the_stream(self, **message):
    self.stream.send(message)
    event = self._event()
    self.assertEqual((event['event'], event['worker']), ('failed', 1))
    with self.assertRaises(Closed):
      self.stream.receive()


if __name__ == '__main__':
  absltest.main()
