"""Tests for servers that write and send while orders are carried out."""

import pathlib
import tempfile
import threading
import time
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl.testing import absltest

from cluster.membership.process import Settings
from cluster.network.messages import VersionPart
from cluster.network.port import Port
from cluster.network.streams import Security
from cluster.parameter_server import checkpoints as sharded
from cluster.parameter_server.admission import ParameterServerReception
from cluster.parameter_server.server import Server
from cluster.parameter_server.store import ShardedParameterStore
from cluster.parameter_server.versions import ShardVersions
from cluster.process.deadlines import Deadlines, Jobs
from learning.learner import TaskLearner
from learning.shard_codec import ShardCodec
from outputs import checkpoints, serialization
from wire import dense
from wire.codec import Payload

_SIZE = 1000
_LIMIT_S = 10.0


class _Coordinator:
  """Servers in this process, whose reports wait for `reads`."""

  def __init__(self, directory, num_servers, step=None):
    params = np.linspace(-1, 1, _SIZE, dtype=np.float32)
    wire = dense.make(dtype='float32')
    self.codec = ShardCodec(params, (), servers=num_servers, wire=wire)
    self.reads = threading.Event()
    self.store = ShardedParameterStore(
      codec=self.codec, schedule=None, num_workers=1
    )
    self.learners, self.servers = [], []
    deadlines = Deadlines(timeout_s=1.0, start_s=10.0, windows=False)
    reception = ParameterServerReception(
      store=self.store,
      num_workers=1,
      num_servers=num_servers,
      dedicated=True,
      settings=Settings(Port('127.0.0.1', 0, Security()), '', 1.0, 10.0, ''),
      restore=lambda: None,
      reserved={},
      deadlines=deadlines,
      jobs=Jobs(deadlines),
    )

    def reporter(index):
      def report(event, body):
        if isinstance(event, VersionPart):
          self.reads.wait(_LIMIT_S)
        reception.take_report(index, event, body)

      return report

    for index in range(num_servers):
      learner, held = _learner(self.codec.initial_shard(index)[0]), {}
      if step is not None:
        state = sharded.read_share(directory, step, 2, self.codec.sizes, index)
        held = state.pop('held')
        learner.restore(state)
      part = sharded.server_part(index)
      versions = ShardVersions(
        directory, part, held=held, report=reporter(index)
      )
      server = Server(
        index,
        learner=learner,
        codec=self.codec,
        versions=versions,
        report=reporter(index),
      )
      self.learners.append(learner)
      self.servers.append(server)
    self.store.attach(self.servers)

  def train(self, times):
    """Orders so many updates, and waits for them."""
    for _ in range(times):
      version = self.store.version
      for index, server in enumerate(self.servers):
        size = self.codec.sizes[index][0]
        gradient = jnp.full(size, 0.1 * (version + 1))
        server._payloads[0, -1] = Payload(gradient, ())
      self.store.add(version, 0, 8)
      self.store.commit(version)
      self.store.flush()
      deadline = time.monotonic() + _LIMIT_S
      while any(each.version <= version for each in self.learners):
        if time.monotonic() > deadline:
          raise AssertionError('Orders are held up.')
        time.sleep(0.001)

  def params(self):
    return np.concatenate([each.params for each in self.learners])

  def close(self):
    self.reads.set()
    for server in self.servers:
      server.close(0.0)


def _learner(params):
  return TaskLearner(
    params=jnp.array(params),
    stats=(),
    tx=optax.trace(0.9),
    schedule=lambda examples, updates: 0.1,
    reduction='sum',
    num_workers=1,
    worker_batch=8,
  )


class ShardVersionsTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.directory = pathlib.Path(tempfile.mkdtemp())

  def _coordinator(self, *args):
    coordinator = _Coordinator(self.directory, *args)
    self.addCleanup(coordinator.close)
    return coordinator

  def test_a_slow_reader_holds_up_no_orders_and_gets_the_right_version(self):
    coordinator = self._coordinator(2)
    coordinator.train(2)
    expected = coordinator.params()
    held = coordinator.store.hold()
    read = coordinator.store.read(held)
    coordinator.train(3)
    coordinator.store.free(held)
    coordinator.train(1)
    self.assertFalse(np.array_equal(coordinator.params(), expected))
    coordinator.reads.set()
    np.testing.assert_array_equal(read()[0], expected)

  def test_a_slow_disk_holds_up_no_orders_and_gets_the_right_version(self):
    coordinator = self._coordinator(2)
    coordinator.train(2)
    expected = _copy([each.state() for each in coordinator.learners])
    proceeds, save = threading.Event(), np.savez

    def slowly(*args, **kwargs):
      proceeds.wait(_LIMIT_S)
      save(*args, **kwargs)

    with mock.patch.object(np, 'savez', slowly):
      saved = coordinator.store.save(0)
      coordinator.train(4)  # Which use the optimiser's memory again.
      self.assertFalse(any(future.done() for future in saved))
      proceeds.set()
      for future in saved:
        future.result(_LIMIT_S)
    for state, got in zip(
      expected, sharded.read_servers(self.directory, 0, 2), strict=True
    ):
      self.assertEqual(got.pop('held'), {})
      jax.tree.map(np.testing.assert_array_equal, got, state)

  def test_held_versions_resume_with_other_numbers_of_servers(self):
    coordinator = self._coordinator(2)
    coordinator.train(1)
    expected = coordinator.params()
    held = coordinator.store.hold()
    coordinator.train(2)
    state = coordinator.store.state()
    for future in coordinator.store.save(0):
      future.result(_LIMIT_S)
    for servers in (1, 3):
      again = self._coordinator(servers, 0)
      again.store.restore(state)
      again.reads.set()
      np.testing.assert_array_equal(again.params(), coordinator.params())
      other = again.store.hold()
      self.assertNotEqual(other, held)
      read = again.store.read(held), again.store.read(other)
      np.testing.assert_array_equal(read[0]()[0], expected)
      np.testing.assert_array_equal(read[1]()[0], again.params())

  def test_a_full_disk_is_reported_to_the_coordinator(self):
    coordinator = self._coordinator(1)
    full = OSError(28, 'No space left on device')
    with (
      mock.patch.object(checkpoints, 'write', side_effect=full),
      self.assertRaisesRegex(OSError, 'Server 0: OSError: .*No space left'),
    ):
      coordinator.store.save(0)[0].result(_LIMIT_S)
    coordinator.train(1)

  def test_arrays_that_are_frozen_outlive_their_donation(self):
    # All of this relies on it.
    array = jnp.arange(1000.0)
    tree = serialization.freeze([array])
    used = jax.jit(lambda a: a * 2, donate_argnums=0)(array)
    np.testing.assert_array_equal(tree()['array0'], np.arange(1000.0))
    np.testing.assert_array_equal(used, 2 * np.arange(1000.0))


def _copy(tree):
  return jax.tree.map(np.array, tree)


if __name__ == '__main__':
  absltest.main()
