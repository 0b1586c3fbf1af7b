"""Tests for the reception: who comes, goes and hangs, over raw streams."""

import contextlib
import functools
import queue
import time
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
from absl.testing import absltest

import data.stream
from batching import fixed
from cluster.distributed.reception import Reception
from cluster.distributed.runtime import DistributedRuntime
from cluster.distributed.served.orders import Orders
from cluster.distributed.served.server import Server, host
from cluster.lead import Lead
from cluster.transport.heart import Unmendable
from cluster.transport.streams import Listener, Security, connect
from learning.nothing import NoLearner
from outputs.console import Console
from outputs.files import RunFiles
from outputs.journal import Journal, Milestones
from sync import asp
from wire import dense
from wire.flat import Flat

_TIMEOUT_S = 1.0  # Of what is in this process.


class MembersTest(absltest.TestCase):
  """What the lead does when streams end at any moment; processes of ours."""

  def test_who_comes_back_before_its_end_was_noticed_goes_on(self):
    lead = self._lead()
    old = lead.member(0)
    lead.begin()
    old.pull()
    new = lead.member(0)
    lead.until(lambda: lead.ledger.lost)
    lead.step_for(0.3)
    new.pull()
    new.push()
    lead.until(lambda: lead.ledger.iterations == 1)
    self.assertEqual(old.control.receive().header['end'], 'left')
    self.assertEqual(lead.cluster.summary()['lives'], [2])
    self.assertLen(lead.ledger.lost, 1)

  def test_a_push_that_some_servers_have_is_given_up_at_all(self):
    lead = self._lead(num_servers=2)
    worker = lead.member(0)
    lead.begin()
    worker.pull()
    worker.push(servers=[0])
    worker.close()
    lead.until(lambda: lead.ledger.lost)
    self.assertEqual(lead.ledger.iterations, 0)
    again = lead.member(0)
    lead.step_for(0.3)
    again.pull()
    again.push()
    lead.until(lambda: lead.ledger.iterations == 1)
    lead.until(lambda: not any(server._payloads for server in lead.servers))

  def test_a_server_that_fails_ends_the_run(self):
    lead = self._lead()
    lead.member(0)
    lead.begin()
    with self.assertLogs('absl', 'ERROR'):
      lead.servers[0].order(99, [])
      with self.assertRaisesRegex(Unmendable, 'Server 0: .* orders 1, got 99'):
        lead.step_for(2.0)

  def test_who_waits_for_a_server_that_is_silent_is_told(self):
    lead = self._lead(num_servers=2, silent=True)
    lead.member(0)
    lead.begin()
    with ThreadPoolExecutor(1) as pool:
      read = pool.submit(lead.orders.snapshot())
      with self.assertRaisesRegex(Unmendable, 'Server 1 was silent'):
        read.result(timeout=5.0)
    with self.assertRaisesRegex(Unmendable, 'Server 1'):
      lead.orders.snapshot()
    with self.assertRaisesRegex(Unmendable, 'Server 1'):
      lead.step_for(2.0)

  def test_the_end_does_not_wait_for_who_hangs(self):
    lead = self._lead()
    lead.member(0)
    lead.begin()
    start = time.monotonic()
    lead.cluster.close()
    # The worker, the listener, and what this gives its handlers.
    self.assertLess(time.monotonic() - start, 2 * _TIMEOUT_S + 3.0)

  def _lead(self, **fields):
    lead = _Lead(**fields)
    self.addCleanup(lead.close)
    return lead


class _Lead:
  """A lead and its servers in this process; members are streams of ours."""

  def __init__(self, *, num_servers=1, silent=False):
    self.servers = []
    self._members = []
    self._address = queue.Queue()
    self._flat = Flat(
      np.zeros(16, np.float32),
      (),
      servers=num_servers,
      wire=dense.make(dtype='float32'),
    )
    self.orders = Orders(flat=self._flat, schedule=None, num_workers=1)
    journal = Journal(
      milestones=Milestones(10**6, 10**6, 10**6, 10**6, ()),
      holder=self.orders,
      evaluate=None,
      files=mock.create_autospec(RunFiles, instance=True),
      console=Console(target=10**6, clock='real'),
    )
    self.ledger = journal.ledger
    lead = Lead(
      scheme=asp.make(num_workers=1),
      batching=fixed.make(num_workers=1, worker_batch=8),
      holder=self.orders,
      stream=data.stream.Stream(num_examples=10**6, seed=0, ahead=0),
      journal=journal,
      num_workers=1,
    )
    reception = Reception(
      orders=self.orders,
      num_workers=1,
      num_servers=num_servers,
      host='127.0.0.1',
      port=0,
      greeting=dict,
      fingerprint='ours',
      security=Security(),
      timeout_s=_TIMEOUT_S,
    )
    self.cluster = DistributedRuntime(
      lead=lead,
      orders=self.orders,
      reception=reception,
      server=functools.partial(self._server, 0),
      num_servers=num_servers,
      announce=self._address.put,
      timeout_s=_TIMEOUT_S,
      local=None,
    )
    self._pool = ThreadPoolExecutor(3)
    self._closing = contextlib.ExitStack()
    self._warm = self._pool.submit(self.cluster.warm_up)
    self.address = self._address.get(timeout=10.0)
    if num_servers == 2:
      self._other = self._pool.submit(self._silent if silent else self._host)

  def _server(self, index, report, greeting):
    del greeting
    server = Server(
      index,
      learner=NoLearner(*self._flat.initial(index)),
      flat=self._flat,
      checkpoints=None,
      report=report,
    )
    self.servers.append(server)
    return server

  def _host(self):
    host(
      1,
      functools.partial(self._server, 1),
      lead=lambda: self.address,
      address='127.0.0.1',
      fingerprint='ours',
      security=Security(),
      timeout_s=_TIMEOUT_S,
    )

  def _silent(self):
    hello = {'server': 1, 'fingerprint': 'ours'}
    stream = connect(self.address, hello, Security(), 10.0)
    self._members.append(stream)
    stream.receive()

    # Somewhere that answers.
    def answer(stream, hello):
      stream.send({'pieces': []})
      stream.receive()

    listener = Listener('127.0.0.1', 0, answer, Security())
    self._closing.callback(listener.close, 0.0)
    stream.send({'address': listener.address})

  def member(self, index):
    member = _Worker(self.address, index)
    self._members.append(member)
    return member

  def begin(self):
    self._warm.result(timeout=10.0)
    self.cluster.start()

  def step_for(self, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
      self.cluster.step()

  def until(self, happened):
    end = time.monotonic() + 10.0
    while not happened():
      if time.monotonic() > end:
        raise AssertionError('It has not happened.')
      self.cluster.step()

  def close(self):
    for member in self._members:
      member.close()
    self._closing.close()
    self.cluster.close()
    self._pool.shutdown()


class _Worker:
  """The streams of a worker, without a worker behind them."""

  def __init__(self, address, index):
    hello = {'worker': index, 'fingerprint': 'ours'}
    self.control = connect(address, hello, Security(), 10.0)
    welcome = self.control.receive().header
    key = {'worker': index, 'life': welcome['life']}
    self._streams = [
      connect(each, key, Security(), 10.0) for each in welcome['servers']
    ]
    for stream in self._streams:
      stream.receive()
    self.control.send({'ready': True})

  def pull(self):
    self._sizes = []
    for stream in self._streams:
      message = stream.receive()
      message.read(np.empty(message.size_bytes, np.uint8))
      self._sizes.append(message.size_bytes)
      self._iteration = message.header['iteration']

  def push(self, servers=(0, 1)):
    report = {'iteration': self._iteration, 'loss': None, 'finite': True}
    report |= {'pulled_at': 0.0, 'computed_at': 0.0, 'compute_s': 0.0}
    report |= {'computed': 8, 'compilations': 0, 'factors': ()}
    for index in servers[: len(self._streams)]:
      body = np.zeros(self._sizes[index], np.uint8)
      self._streams[index].send(report, [body], body.size)

  def close(self):
    for stream in (self.control, *self._streams):
      stream.cancel()
      stream.close()


if __name__ == '__main__':
  absltest.main()
