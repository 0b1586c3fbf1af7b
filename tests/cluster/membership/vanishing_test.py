"""Tests for servers whose workers vanish in the middle of a message."""

import contextlib
import json
import pathlib
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from absl.testing import absltest, parameterized

from cluster.membership import checked
from cluster.network.streams import Closed, Refused, Security, connect
from cluster.parameter_server.keeping import Keeping
from cluster.parameter_server.server import Server
from cluster.process.deadlines import Pace
from learning.nothing import NoLearner
from tests.support.relays import Relay
from wire import dense
from wire.flat import Flat

_FLOATS = 2 * 10**6
_WHO = {'fingerprint': 'x', 'process': '09af' * 8}
_LIMIT_S = 20.0  # The system alone would end a connection after a minute.
_REPORT = {
  'iteration': 0,
  'pulled_at': 0.0,
  'computed_at': 0.0,
  'compute_s': 0.0,
  'factors': [],
  'loss': None,
  'finite': True,
  'computed': 8,
  'compilations': 0,
  'recalled': False,
}


class VanishingTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    flat = Flat(
      np.zeros(_FLOATS, np.float32),
      (),
      servers=1,
      wire=dense.make(dtype='float32'),
    )
    self.told = queue.SimpleQueue()

    def report(event, body):
      self.told.put(event)

    self.server = Server(
      0,
      learner=NoLearner(*flat.initial(0)),
      flat=flat,
      keeping=Keeping(pathlib.Path('none'), 'server0', held={}, report=report),
      report=report,
    )
    self.server.open('127.0.0.1', Security())
    self.addCleanup(self.server.close, 0.0)

  def _worker(self, address, life=0):
    stream = connect(address, {'worker': 0, 'life': life}, Security(), 10.0)
    self.addCleanup(stream.close)
    stream.receive()
    return stream

  def _release(self, sequence, life=0):
    header = {
      'iteration': 0,
      'ranges': [],
      'examples': 8,
      'next': [],
      'stage': 0,
    }
    self.server.order(sequence, [['release', 0, life, header]])

  def test_a_push_that_stops_keeps_neither_thread_nor_memory(self):
    with Relay(self.server.address, most_bytes=10**6) as relay:
      stream = self._worker(relay.address)
      self._release(0)
      pull = stream.receive()
      pull.read(np.empty(pull.size_bytes, np.uint8))
      body = np.zeros(pull.size_bytes, np.uint8)
      halves = np.split(body, 8)

      def push():
        with contextlib.suppress(Closed):
          stream.send(_REPORT, halves, body.size)

      pusher = threading.Thread(target=push)
      pusher.start()
      self._until(lambda: relay.passed > 10**6)  # The rest is swallowed.
      self.assertLen(self.server._ports, 1)
      self.server.order(1, [['end', 0, 0]])
      self._is_free()
      pusher.join(_LIMIT_S)
      self.assertFalse(pusher.is_alive())
    self._goes_on(2)

  def test_who_never_reads_keeps_no_thread(self):
    with Relay(self.server.address) as relay:
      self._worker(relay.address)
      relay._reads = False
      self._release(0)
      time.sleep(0.3)
      self.server.order(1, [['end', 0, 0]])
      self._is_free()
    self._goes_on(2)

  def test_who_is_cancelled_stops_writing_to_nobody(self):
    chunk = np.zeros(2**22, np.uint8)
    with Relay(self.server.address) as relay:
      stream, other = (
        self._worker(relay.address),
        self._worker(relay.address, 1),
      )
      relay.stall()
      with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(stream.send, _REPORT, [chunk] * 32, 32 * chunk.size)
        time.sleep(1.0)
        self.assertFalse(sent.done())
        stream.cancel()
        self.assertIsInstance(sent.exception(_LIMIT_S), Closed)
      other.send(_REPORT)  # Its connection is another one.

  def test_nobody_takes_the_place_of_another(self):
    stream = self._worker(self.server.address, life=1)
    with self.assertRaisesRegex(Closed, 'worker 0 is here already'):
      self._worker(self.server.address, life=0)
    self._release(0, life=1)
    self.assertEqual(stream.receive().header['iteration'], 0)

  def test_who_connects_again_takes_the_place_of_its_lost_connection(self):
    lost = self._worker(self.server.address, life=1)
    stream = self._worker(self.server.address, life=1)
    with self.assertRaises(Closed):
      lost.receive()
    self._release(0, life=1)
    self.assertEqual(stream.receive().header['iteration'], 0)

  @parameterized.parameters(
    (None,),
    ([],),
    ({},),
    ({'worker': 0},),
    ({'worker': '0', 'life': 0},),
    ({'worker': -1, 'life': 0},),
    ({'worker': True, 'life': 0},),
    ({'worker': 0, 'life': 2**60},),
    ({'worker': 0, 'life': 0.0},),
  )
  def test_other_hellos_are_refused(self, hello):
    stream = connect(self.server.address, hello, Security(), 10.0)
    with self.assertRaisesRegex(Closed, 'expected a worker and its life'):
      stream.receive()
    stream.close()
    self.assertEmpty(self.server._ports)

  def _is_free(self):
    server = self.server._listener._server
    self._until(lambda: not server.open_streams())
    self.assertEmpty(self.server._ports)

  def _until(self, happened):
    deadline = time.monotonic() + _LIMIT_S
    while not happened():
      self.assertLess(time.monotonic(), deadline)
      time.sleep(0.01)

  def _goes_on(self, sequence):
    """The next life of the worker is served."""
    stream = self._worker(self.server.address, life=1)
    self._release(sequence, life=1)
    pull = stream.receive()
    pull.read(np.empty(pull.size_bytes, np.uint8))
    stream.send(_REPORT, [np.zeros(pull.size_bytes, np.uint8)], pull.size_bytes)
    while (event := self.told.get(timeout=_LIMIT_S))['event'] != 'arrived':
      self.assertEqual(event['event'], 'failed')
    self.assertEqual(event['life'], 1)


class CheckedTest(parameterized.TestCase):
  @parameterized.parameters(
    *(({**_WHO, 'worker': w},) for w in (-1, 2, '0', None, True, 0.0)),
    *(({**_WHO, 'server': s},) for s in (-1, 0, 3, '1', None, True)),
    *(
      ({**_WHO, 'worker': 0, 'process': process},)
      for process in (None, '', 'A' * 32, '0' * 31, '0' * 33, [], 1)
    ),
    ({**_WHO, 'fingerprint': 1, 'worker': 0},),
    ({'worker': 0},),
    ({'fingerprint': 'x', 'worker': 0},),
    (_WHO,),
    ({**_WHO, 'worker': 0, 'server': 1},),
    ('worker',),
    (None,),
  )
  def test_hellos_of_nobody_are_refused(self, said):
    with self.assertRaises(Refused):
      checked.hello(said, workers=2, servers=3)

  def test_hellos_of_all_are_taken(self):
    for said in ({'worker': 0}, {'worker': 1}, {'server': 1}, {'server': 2}):
      said = said | _WHO
      self.assertEqual(checked.hello(said, workers=2, servers=3), said)

  def test_every_field_of_a_report_is_checked(self):
    self.assertEqual(checked.wrong_in_report(_REPORT), '')
    for name in _REPORT:
      for value in ('x', [None], {}, -1 if name == 'computed' else 'y'):
        self.assertIn(name, checked.wrong_in_report(_REPORT | {name: value}))
      left = {k: v for k, v in _REPORT.items() if k != name}
      self.assertIn(name, checked.wrong_in_report(left))
    self.assertNotEmpty(checked.wrong_in_report(None))

  def test_what_workers_and_servers_say_is_taken(self):
    key, pace = {'worker': 0, 'life': 2}, Pace()
    for begun in (False, True):
      if begun:
        pace.begin(3)
        pace.compute()
        pace.step()
      beat = _sent({'beat': 0.5} | pace.told())
      self.assertEqual(checked.words(beat, 'peer', checked.OF_WORKERS), beat)
    for said in ({'doing': 'connected to 1 of 2 servers'}, {'ready': True}):
      self.assertEqual(checked.words(said, 'peer', checked.OF_WORKERS), said)
    orders = {'obeyed': 3, 'order': 'add', 'since_s': 0.1, 'usual_s': None}
    for said in (
      {'doing': 'compiling'},
      {'address': '127.0.0.1:80'},
      {'beat': 0.5},
      {'beat': 1, 'orders': orders},
      {'beat': 1, 'orders': orders | {'order': '', 'usual_s': 0.5}},
      {'event': 'arrived'} | key | _REPORT,
      {'event': 'failed', 'reason': 'Closed: x'} | key,
      {'event': 'unmendable', 'reason': 'x\n' * 2000},
      {'event': 'snapshot', 'id': 1, 'size_bytes': 8},
      {'event': 'saved', 'id': 1},
      {'event': 'saved', 'id': 1, 'error': 'OSError: full'},
    ):
      self.assertEqual(checked.of_server(said, 'peer'), said)

  @parameterized.parameters(
    *((said,) for said in (None, [], {}, 'ready', {'ready': False})),
    ({'event': 'x'},),
    ({'event': []},),
    ({'event': 'arrived', 'worker': 0, 'life': 0},),
    ({'beat': 'x'},),
    ({'beat': 1e999},),
    ({'beat': 10**400},),
    ({'beat': 0, 'ready': True},),
    *(
      ({'beat': 0, 'pace': pace},)
      for pace in ([], 'abc', ['x', 0, 0], ['compute', 0.5, 0], ['compute', 1])
    ),
    *(({'beat': 0, 'orders': orders},) for orders in ([], {}, {'order': 0})),
    *(({'address': address},) for address in (1, 'x', '0.0.0.0:1', '1.2.3.4:')),
    *(({'doing': doing},) for doing in (1, 'x' * 10**4, 'a\nb')),
  )
  def test_words_of_nobody_end_the_stream(self, said):
    with self.assertRaises(Closed):
      checked.words(said, 'peer', checked.OF_WORKERS)
    if not isinstance(said, dict) or not said.keys() & {'pace', 'ready'}:
      with self.assertRaises(Closed):
        checked.of_server(said, 'peer')

  def test_beats_of_workers_say_how_far_they_are(self):
    with self.assertRaises(Closed):
      checked.words({'beat': 0.5}, 'peer', checked.OF_WORKERS)


def _sent(said):
  return json.loads(json.dumps(said))


if __name__ == '__main__':
  absltest.main()
