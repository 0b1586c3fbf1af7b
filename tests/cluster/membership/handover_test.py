"""Tests for the transfer of states between processes."""

import contextlib
import dataclasses
import pickle
import socket
import threading
import time
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from cluster.membership import handover
from cluster.network import messages
from cluster.network.handshake import Security
from cluster.network.port import Port
from cluster.network.streams import STATES
from learning.digest import digest
from outputs import serialization
from tests.support import relays
from tests.support.listeners import Listener

_TREE = {
  'params': {
    'a': np.arange(7, dtype=np.float32).reshape(7, 1) / 3,
    'b': np.zeros((0, 3), np.float32),
    'c': np.float32(0.1),
    'd': jnp.arange(5, dtype=jnp.bfloat16),
    'e': jnp.float32(3.5),
  },
  'count': np.int32(4),
  'version': 3,
  'big': jnp.arange(5_000_000, dtype=jnp.float32),
}


@dataclasses.dataclass
class _Opaque:
  is_state = True

  array: jax.Array


class HandoverTest(parameterized.TestCase):
  def _source(self, tree=_TREE, ready=lambda: None):
    """Returns the address of a source of a state at version 3."""
    found = digest(tree)

    def find(request):
      ready()
      if request.version != 3:
        raise LookupError(f'expected to have version {request.version}, got 3')
      return tree, found

    source = handover.Handover(Port('127.0.0.1', 0, Security()), find, 5.0)
    self.addCleanup(source.close)
    return source.address

  def _fetch(self, *addresses, version=3, timeout_s=5.0, **fields):
    sources = [*enumerate(addresses)]
    return handover.fetch(sources, version, Security(), timeout_s, **fields)

  def _assert_same(self, state):
    self.assertEqual(digest(state), digest(_TREE))
    expected, got = (jax.tree.structure(each) for each in (_TREE, state))
    self.assertEqual(got, expected)
    kinds = [*map(type, jax.tree.leaves(state))]
    self.assertEqual(kinds, [*map(type, jax.tree.leaves(_TREE))])

  @parameterized.parameters(1, 2, 4, 6)
  def test_a_fetched_state_is_equal_bit_for_bit(self, sources):
    steps = []
    state, found = self._fetch(
      *(self._source() for _ in range(sources)), step=lambda: steps.append(1)
    )
    self.assertEqual(found, digest(_TREE))
    self._assert_same(state)
    self.assertGreaterEqual(len(steps), 20_000_000 >> 18)

  def test_a_copy_is_equal_and_independent(self):
    copy = handover.copy_state(_TREE)
    self._assert_same(copy)
    self.assertFalse(
      np.shares_memory(copy['params']['a'], _TREE['params']['a'])
    )

  def test_a_fetched_state_can_be_donated(self):
    state, _ = self._fetch(self._source())
    add = jax.jit(lambda array: array + 1, donate_argnums=0)
    np.testing.assert_array_equal(add(state['big']), _TREE['big'] + 1)

  def test_sources_send_in_proportion_to_their_rates(self):
    with (
      relays.Relay(self._source(), back_Bps=2e6) as slow,
      relays.Relay(self._source(), back_Bps=16e6) as fast,
    ):
      start = time.monotonic()
      state, _ = self._fetch(slow.address, fast.address)
      took_s = time.monotonic() - start
    self._assert_same(state)
    self.assertLess(took_s, 5.0)  # 10 s from the slow one alone.

  def test_the_ranges_of_a_source_that_dies_come_from_another_one(self):
    with (
      relays.Relay(self._source(), back_Bps=4e6) as dying,
      relays.Relay(self._source(), back_Bps=10e6) as other,
    ):
      timer = threading.Timer(0.5, dying.__exit__)
      timer.start()
      self.addCleanup(timer.join)
      state, _ = self._fetch(dying.address, other.address)
    self._assert_same(state)

  def test_the_ranges_of_a_stuck_source_come_from_another_one(self):
    with (
      mock.patch.object(handover, '_SLOW_S', 0.2),
      relays.Relay(self._source(), back_Bps=2e4) as stuck,
    ):
      start = time.monotonic()
      state, _ = self._fetch(stuck.address, self._source(), timeout_s=60.0)
      self.assertLess(time.monotonic() - start, 20.0)
    self._assert_same(state)

  @parameterized.parameters(True, False)
  def test_a_source_that_cannot_be_reached_holds_nothing_up(self, is_silent):
    gone = socket.create_server(('127.0.0.1', 0))
    host, port = gone.getsockname()
    if is_silent:  # It listens, and never answers.
      self.addCleanup(gone.close)
    else:
      gone.close()
    start = time.monotonic()
    state, _ = self._fetch(
      f'{host}:{port}', self._source(), f'{host}:{port}', timeout_s=60.0
    )
    self.assertLess(time.monotonic() - start, 20.0)
    self._assert_same(state)

  def test_an_error_of_the_caller_is_raised(self):
    def fail():
      raise ArithmeticError('a step')

    with self.assertRaisesRegex(ArithmeticError, 'a step'):
      self._fetch(self._source(), step=fail)

  def test_a_source_with_another_state_is_not_used(self):
    other = _TREE | {'big': _TREE['big'] + 1}
    for _ in range(3):
      state, found = self._fetch(self._source(), self._source(other))
      self.assertEqual(digest(state), found)
      self.assertIn(found, (digest(_TREE), digest(other)))

  def _liar(self, answer, size_bytes=0, asked=lambda: None, plain=b''):
    """Returns the address of a source that answers with a message only."""

    def handle(stream, hello):
      del hello
      body = np.zeros(min(size_bytes, 10), np.uint8)
      if plain:
        body = np.frombuffer(plain, np.uint8)
      with contextlib.suppress(ValueError):  # It announces more than it has.
        size = len(plain) or size_bytes
        stream.send(answer, [body] if body.size else (), size)
      while True:
        stream.receive(messages.RANGE_REQUEST)
        asked()

    port = Port('127.0.0.1', 0, Security())
    listener = Listener(port, handle, service=STATES)
    self.addCleanup(listener.close, 0.0)
    return listener.address

  @parameterized.parameters(
    ('float32', [2**52]),
    ('float32', [2**52, 2**52]),
    ('float32', [2**52, 0]),
    ('float32', [1] * 1000),
    ('object', [1]),
    ('V9999999999999', [1]),
    ('no dtype', [1]),
    ('S', [2**40]),
  )
  def test_a_source_of_an_absurd_state_is_not_used(self, dtype, shape):
    absurd = self._liar(messages.StateArrays([('a', dtype, shape)], 'absurd'))
    with self.assertRaisesRegex(handover.SourceLost, 'expected'):
      self._fetch(absurd)
    state, _ = self._fetch(absurd, self._source())
    self._assert_same(state)

  def test_plain_data_of_an_absurd_size_is_not_allocated(self):
    absurd = self._liar(messages.StateArrays([], 'absurd'), 2**50)
    with self.assertRaisesRegex(handover.SourceLost, 'bytes'):
      self._fetch(absurd)
    state, _ = self._fetch(absurd, self._source())
    self._assert_same(state)

  @parameterized.parameters(
    (pickle.dumps({'a': 1}),),
    (b'no state',),
    *(
      serialization.dump([handover.ArrayPlace(number, True)])[:1]
      for number in (1, -1, 2**60, True, None, 'x', 0.0)
    ),
    serialization.dump({'a': 1, 2: 3})[:1],  # Keys without an order.
  )
  def test_a_source_of_crafted_plain_data_is_not_used(self, plain):
    answer = messages.StateArrays([('a', 'float32', [2])], 'crafted')
    crafted = self._liar(answer, plain=plain)
    with self.assertRaisesRegex(handover.SourceLost, 'sent no state|places'):
      self._fetch(crafted)
    state, _ = self._fetch(crafted, self._source())
    self._assert_same(state)

  def test_another_state_is_used_once_no_source_of_the_first_is_left(self):
    fits = [('a', 'float32', [2**20])]
    was_asked = threading.Event()
    plain, _ = serialization.dump([handover.ArrayPlace(0, True)])
    silent = self._liar(
      messages.StateArrays(fits, 'x'), asked=was_asked.set, plain=plain
    )
    late = self._source(ready=lambda: was_asked.wait(5.0))
    state, found = self._fetch(silent, late, timeout_s=1.0)
    self.assertTrue(was_asked.is_set())
    self.assertEqual(found, digest(_TREE))
    self._assert_same(state)

  @parameterized.parameters('', 'another')
  def test_a_source_that_claims_to_have_the_same_state_is_not_believed(
    self, known
  ):
    with self.assertRaises(handover.SourceLost):
      self._fetch(self._liar(messages.SameState('mine')), known=known)

  def test_a_slow_transfer_with_progress_completes(self):
    steps = []
    with relays.Relay(self._source(), back_Bps=8e6) as relay:
      start = time.monotonic()
      self._fetch(relay.address, timeout_s=1.0, step=lambda: steps.append(1))
      self.assertGreater(time.monotonic() - start, 1.5)
    self.assertGreater(len(steps), 50)

  def test_a_known_state_is_not_transferred(self):
    for known, comes in ((digest(_TREE), False), ('other', True)):
      state, found = self._fetch(self._source(), self._source(), known=known)
      self.assertEqual(state is not None, comes)
      self.assertEqual(found, digest(_TREE))

  def test_another_version_is_refused(self):
    with self.assertRaisesRegex(
      handover.SourceLost, 'expected to have version 4'
    ) as lost:
      self._fetch(self._source(), version=4)
    self.assertEqual(lost.exception.worker, 0)

  def test_a_source_that_has_left_is_detected_in_time(self):
    with contextlib.closing(
      handover.Handover(Port('127.0.0.1', 0, Security()), None, 5.0)
    ) as source:
      address = source.address
    start = time.monotonic()
    with self.assertRaises(handover.SourceLost):
      self._fetch(address, timeout_s=0.3)
    self.assertLess(time.monotonic() - start, 10.0)

  def test_an_array_outside_the_pytree_is_an_error(self):
    with self.assertRaisesRegex(TypeError, 'arrays in a pytree'):
      handover.copy_state({'a': _Opaque(jnp.zeros(3))})


if __name__ == '__main__':
  absltest.main()
