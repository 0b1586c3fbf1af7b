"""Tests of listeners, and of runs, that are fuzzed."""

import pathlib
import queue
import tempfile
import threading

import numpy as np
import pytest
from absl.testing import absltest, parameterized

from cluster.network import streams as transport
from cluster.network.streams import Closed, Refused, Security
from tests.soak import fuzzing
from tests.support.streams import (
  HOST,
  PLAIN,
  TestCase,
  echo,
  random_bytes,
  read,
)

_TOKEN = 'a secret that both ends know'
_SECURITY = Security(token=_TOKEN)


class FuzzTest(TestCase):
  def test_a_stream_continues_among_invalid_frames(self):
    hellos = queue.SimpleQueue()

    def handle(stream, hello):
      if PLAIN.decode(hello) != 'ours':
        hellos.put(hello)
        raise Refused('not ours')
      echo(stream, hello)

    listener = self.listener(handle, _SECURITY)
    port = int(listener.address.rpartition(':')[2])
    stream = self.connect(listener, 'ours', _SECURITY)
    stop, wrong = threading.Event(), []

    def exchange():
      while not stop.is_set():
        body = random_bytes(10**5)
        stream.send('word', [body], body.size)
        if not np.array_equal(read(stream.receive(PLAIN)), body):
          wrong.append(body)

    exchanges = threading.Thread(target=exchange)
    exchanges.start()
    with self.assertLogs(level='WARNING') as logs:
      client = fuzzing.Fuzz([port], _TOKEN, seed=1)
      for _ in range(200):
        client.send()
      client.close()
    stop.set()
    exchanges.join()
    self.assertEmpty(wrong)
    self.assertEqual(client.sent.total(), 200)
    self.assertGreater(hellos.qsize(), 10)  # Some hellos have the token.
    self.assertLess(len(logs.output), 50)
    self.assertNotIn(_TOKEN, '\n'.join(logs.output))
    with self.assertRaises(Closed):
      transport.connect(f'{HOST}:1', None, _SECURITY, 0.1)
    self.connect(listener, 'ours', _SECURITY)

  def test_parameters_are_compared_bit_for_bit(self):
    one = {'array0': np.zeros(3, np.float32)}
    self.assertTrue(fuzzing.same(one, {'array0': np.zeros(3, np.float32)}))
    other = np.array([0, 0, -0.0], np.float32)
    self.assertFalse(fuzzing.same(one, {'array0': other}))
    self.assertFalse(fuzzing.same(one, {}))


@pytest.mark.soak
@pytest.mark.timeout(3600)
class RunsTest(parameterized.TestCase):
  @parameterized.named_parameters(('server', 'server'), ('forest', 'forest'))
  def test_a_fuzzed_run_ends_with_the_parameters_of_a_calm_one(self, route):
    out = pathlib.Path(tempfile.mkdtemp())
    outcome = fuzzing.execute(out, route, messages=10_000)
    print(outcome)
    self.assertTrue(outcome.equal)


if __name__ == '__main__':
  absltest.main()
