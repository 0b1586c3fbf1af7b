"""Tests of the messages of replicas to the coordinator over real streams."""

import msgspec
from absl.testing import absltest, parameterized

from cluster.allreduce.admission import AllreduceReception
from cluster.membership.events import WorkerJoined, WorkerLost, WorkerMessage
from cluster.membership.process import Settings
from cluster.network import messages
from cluster.network.port import Port
from cluster.network.streams import Closed, Security, connect
from cluster.process.deadlines import Deadlines, Jobs

_READY = messages.ReplicaReady('127.0.0.1:65535', [])
_MESSAGES = (
  messages.Connected(0, 0, 'a', []),
  messages.StateDigest(0, 0, 'a', [(1, 5, 0.5)]),
  messages.EpochStopped(1, 2, [0.5, 1.0]),
  messages.ConnectionLost(1, None, 'gone'),
  messages.ConnectionLost(1, 0, 'gone'),
)


class ReceptionTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    deadlines = Deadlines(timeout_s=5.0, start_s=5.0, windows=True)
    self.reception = AllreduceReception(
      num_workers=2,
      settings=Settings(Port('127.0.0.1', 0, Security()), 'ours', 5.0, 5.0, ''),
      jobs=Jobs(deadlines),
    )
    address = self.reception.listen()
    self.addCleanup(self.reception.close, finished=True)
    hello = messages.WorkerHello(1, '0' * 32, 'ours')
    self.stream = connect(address, hello, Security(), 5.0)
    self.addCleanup(self.stream.close)
    self.stream.receive(messages.WORKER_ADMISSION)

  def _event(self):
    return self.reception.events.get(timeout=5.0)

  def test_messages_become_events_of_their_sender(self):
    self.stream.send(_READY)
    event = self._event()
    self.assertIsInstance(event, WorkerJoined)
    self.assertEqual((event.worker, event.incarnation), (1, 0))
    self.assertEqual(event.ready, _READY)
    for message in _MESSAGES:
      self.stream.send(message)
      event = WorkerMessage(worker=1, incarnation=0, message=message)
      self.assertEqual(self._event(), event)

  @parameterized.parameters(
    *((_READY, {'address': f'127.0.0.1:{p}'}) for p in (0, 65536, '9' * 99)),
    (_READY, {'address': '127.0.0.1'}),
    *((message, {'membership_epoch': -1}) for message in _MESSAGES),
    *((message, {'worker': 0}) for message in _MESSAGES),
    (_MESSAGES[2], {'statistics': ['x']}),
    (_MESSAGES[0], {'type': 'IterationCompleted'}),
  )
  def test_another_message_ends_the_stream(self, message, wrong):
    with self.assertLogs('absl', 'WARNING') as logs:
      self.stream.send(msgspec.to_builtins(message) | wrong)
      event = self._event()
      self.assertIsInstance(event, WorkerLost)
      self.assertEqual(event.worker, 1)
      with self.assertRaisesRegex(Closed, 'sent another message'):
        self.stream.receive(messages.TO_REPLICA)
    self.assertRegex(logs.output[0], r'refused: sent another message: .*`\$')


if __name__ == '__main__':
  absltest.main()
