"""A worker ends if the coordinator or a server sends what cannot be true."""

import contextlib
import pathlib
import tempfile

import msgspec
import numpy as np
from absl.testing import absltest, parameterized

from batching import fixed
from cluster.membership.worker_states import ResidualHistory
from cluster.network import messages
from cluster.network.errors import TransportError
from cluster.network.port import Port
from cluster.network.streams import Security, push_service
from cluster.parameter_server.server import Server
from cluster.parameter_server.store import ShardedParameterStore
from cluster.parameter_server.versions import ShardVersions
from cluster.parameter_server.worker import Worker
from cluster.process.exits import Exit
from learning.shard_codec import ShardCodec
from learning.timing_only import TimingOnlyGradient, TimingOnlyLearner
from tests.support import coordinators
from tests.support.listeners import Listener
from wire import dense

_BYTES = 4 * 16
_PULL = messages.Pull(
  iteration=0,
  ranges=((0, 8),),
  examples=8,
  scale=1.0,
  upcoming=(),
  stage=0,
  residual=(None, None, ()),
)


def _codec():
  return ShardCodec(
    np.zeros(16, np.float32), (), servers=1, wire=dense.make(dtype='float32')
  )


class WorkerTest(parameterized.TestCase):
  """A real worker, whose coordinator and server say what a test wants."""

  def _serve(self, orders, sizes=(), pull=_PULL, size_bytes=_BYTES):
    """Returns the address of a coordinator and of its server."""
    port = Port('127.0.0.1', 0, Security())
    self.sessions = 0

    def control(stream, hello):
      del hello
      self.sessions += 1
      if self.sessions > 1:  # A test that fails ends, too.
        stream.send(messages.Rejected('This worker has joined before.'))
        return
      stream.send(messages.WorkerAdmitted(0))
      for order in orders or [messages.ServerAddresses([listener.address])]:
        stream.send(order)
      with contextlib.suppress(TransportError):
        while True:
          message = stream.receive(messages.FROM_WORKER).header
          if isinstance(message, messages.WorkerHeartbeat):
            stream.send(messages.HeartbeatReply(message.sent, 0.0))

    def push(stream, hello):
      del hello
      stream.send(messages.PieceSizes(list(sizes)))
      body = np.zeros(size_bytes, np.uint8)
      with contextlib.suppress(TransportError):
        stream.send(messages.Released(pull), [body], body.size)
        stream.receive(messages.PUSH)

    listener = Listener(port, control)
    server = Listener(port, push, service=push_service(0))
    for each in (listener, server):
      self.addCleanup(each.close, 0.0)
    return listener.address

  def _check(self, text, orders=(), **fields):
    codec, pushes = _codec(), TimingOnlyGradient()
    folder = pathlib.Path(tempfile.mkdtemp())
    worker = Worker(
      0,
      pushes=pushes,
      codec=codec,
      batching=fixed.make(num_workers=1, worker_batch=8),
      residuals=ResidualHistory(
        codec, 0, folder, init_optimizer=lambda: pushes.init(codec.params)
      ),
      speed=None,
      settings=coordinators.make_settings(timeout_s=5.0),
      on_hang=print,
    )
    with self.assertRaises(Exit) as caught:
      worker(self._serve(orders, **fields))
    self.assertRegex(str(caught.exception.code), f'invalid message: {text}')

  @parameterized.parameters(
    (messages.ServerAddresses([]), 'addresses: expected 1 servers'),
    (messages.ServerAddresses(['1.1.1.1:1'] * 2), 'addresses: expected 1'),
    (messages.HostServer(1), 'server: expected one of 1'),
  )
  def test_an_order_that_cannot_be_true_ends_the_process(self, order, text):
    self._check(text, [order])

  @parameterized.parameters(
    ({'sizes': [3]}, 'sizes: expected 64 bytes'),
    ({'size_bytes': _BYTES - 1}, 'size: expected 64 bytes'),
    ({'size_bytes': _BYTES + 1}, 'size: expected 64 bytes'),
  )
  def test_a_server_of_other_sizes_ends_the_process(self, fields, text):
    self._check(text, **fields)

  @parameterized.parameters(
    ({'stage': 1}, 'stage: expected one of 1'),
    ({'examples': 7}, 'ranges: expected 7 examples'),
    ({'ranges': ((8, 0),)}, 'ranges: expected first positions'),
    ({'ranges': (), 'examples': 0}, 'examples: expected 1 to 8'),
    ({'ranges': ((0, 9),), 'examples': 9}, 'examples: expected 1 to 8'),
    ({'upcoming': ((16, 8),)}, 'upcoming: expected first positions'),
    ({'upcoming': ((8, 17),)}, 'upcoming: expected at most 8 examples'),
    ({'iteration': 2**32}, 'iteration: expected below'),
  )
  def test_an_iteration_that_cannot_be_true_ends_the_process(
    self, changes, text
  ):
    self._check(text, pull=msgspec.structs.replace(_PULL, **changes))


class ServerTest(parameterized.TestCase):
  @parameterized.parameters(
    (messages.Add(0, 0, 0, 8, 8.0, 1.0), 'worker: expected'),
    (messages.Add(0, 0, 0, 8, 8.5, 1.0), 'weight: expected at most 8'),
    (messages.SendVersion(1, 5), 'version: expected'),
    (messages.Drop(5), 'version: expected'),
  )
  def test_an_order_that_cannot_be_true_is_explained(self, order, text):
    codec, reports = _codec(), []
    store = ShardedParameterStore(codec=codec, schedule=None, num_workers=1)
    report = lambda message, body: reports.append(message)  # noqa: E731
    server = Server(
      0,
      learner=TimingOnlyLearner(*codec.initial_shard(0)),
      codec=codec,
      versions=ShardVersions(
        pathlib.Path(tempfile.mkdtemp()), 'server0', held={}, report=report
      ),
      report=report,
    )
    store.attach([server])
    server.order(0, [order])
    server.close(10.0)
    (failed,) = reports
    self.assertRegex(failed.reason, f'InvalidMessage: {text}')


if __name__ == '__main__':
  absltest.main()
