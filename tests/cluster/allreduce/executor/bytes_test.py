"""Tests of an executor that receives arbitrary bytes from its peers.

The test acts as the peers: it chooses which bytes arrive in which order, and
when the executor begins an allreduce or has its own contribution.
"""

import select
import threading
import time
from unittest import mock

import hypothesis
import numpy as np
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from cluster.allreduce.executor import endpoints
from cluster.allreduce.executor.errors import Abandoned, Damaged
from tests.support import byte_peers, certificates, executors
from tests.support.byte_peers import DOWN, HEADER_BYTES, LEFT, UP
from topology.forests import dealing

_COUNT, _CHUNK_BYTES, _SIZE = 3, 8, 12  # Two numbers a chunk, two a root.
_SETTINGS = hypothesis.settings(
  deadline=None,
  max_examples=40,
  suppress_health_check=[*hypothesis.HealthCheck],
)
# Changes of a frame of worker 1: its part of a chunk that worker 0 sums.
_UP_FAULTS = {
  'layout': lambda f: f._replace(layout=f.layout ^ 1),
  'chunk beyond the buffer': lambda f: f._replace(chunk=10**6),
  'largest chunk': lambda f: f._replace(chunk=2**32 - 1),
  'chunk of a tree with another root': lambda f: f._replace(chunk=f.chunk + 1),
  'size below': lambda f: f._replace(body=f.body[:4]),
  'size 0': lambda f: f._replace(body=b''),
  'size above': lambda f: f._replace(body=f.body + bytes(4)),
  'half precision': lambda f: f._replace(dtype=1),
  'unknown dtype': lambda f: f._replace(dtype=9),
  'other direction': lambda f: f._replace(kind=DOWN),
  'unknown kind': lambda f: f._replace(kind=77),
  'later sum': lambda f: f._replace(iteration=f.iteration + 1),
  'other membership': lambda f: f._replace(
    membership_epoch=f.membership_epoch + 1
  ),
  'departure of another membership': lambda f: f._replace(
    membership_epoch=f.membership_epoch + 1, kind=LEFT
  ),
}  # fmt: skip


class _Case(executors.TestCase):
  def _membership(self, count=_COUNT, size=_SIZE, **kwargs):
    security = kwargs.setdefault('security', executors.OPEN)
    node = self.open_executor(0, security, chunk_bytes=_CHUNK_BYTES)
    membership = byte_peers.Membership(
      node, count, size=size, chunk_bytes=_CHUNK_BYTES, **kwargs
    )
    self.addCleanup(membership.close)
    return membership

  def _numbers(self, membership, seed=0):
    """Returns integers of each worker, float32 [workers, size]."""
    rng = np.random.default_rng(seed)
    shape = 1 + len(membership.peers), membership.size
    return rng.integers(-99, 99, shape).astype(np.float32)

  def _begin(self, membership, iteration, numbers, *, ready=True):
    buffer = numbers[0].copy()
    reduction = membership.executor.begin(iteration, buffer, membership.buckets)
    if ready:
      for index in range(len(membership.buckets)):
        reduction.ready(index)
    return buffer, reduction

  def _finish(self, membership, iteration, numbers, sent=()):
    """Has all peers send their remaining parts and sums."""
    total = numbers.sum(0)
    for index, peer in membership.peers.items():
      for chunk in membership.chunks(root=0):
        if (index, chunk) not in sent:
          fields = membership.fields(iteration, chunk, UP, numbers[index])
          peer.send(fields.pack())
      for chunk in membership.chunks(root=index):
        peer.await_part(iteration, chunk)
        fields = membership.fields(iteration, chunk, DOWN, total)
        peer.send(fields.pack())

  def _check_sound(self, membership):
    """Checks that the executor takes part in the next membership."""
    membership.form()
    numbers = self._numbers(membership, seed=membership.membership_epoch)
    buffer, reduction = self._begin(membership, 0, numbers)
    self._finish(membership, 0, numbers)
    reduction.wait(executors.WAIT_S)
    np.testing.assert_array_equal(buffer, numbers.sum(0))

  def _check_refused(self, membership, data, split, numbers):
    """Checks that worker 1 is blamed for bytes, some of which come early."""
    peer = membership.peers[1]
    peer.send(data[:split])
    peer.settle(membership.executor)
    _, reduction = self._begin(membership, 0, numbers)
    peer.send(data[split:])
    self._check_damaged(reduction, 1)

  def _check_damaged(self, reduction, worker):
    with self.assertRaises(Damaged) as raised:
      reduction.wait(executors.WAIT_S)
    self.assertEqual(raised.exception.worker, worker)


class UpwardTest(_Case):
  """Frames with partial sums, which go up the tree."""

  def test_a_frame_may_be_split_anywhere_by_the_begin_of_its_sum(self):
    membership = self._membership()
    membership.form()
    (chunk, *_) = membership.chunks(root=0)
    for iteration in range(HEADER_BYTES + _CHUNK_BYTES + 1):
      numbers = self._numbers(membership, iteration)
      peer = membership.peers[1]
      fields = membership.fields(iteration, chunk, UP, numbers[1])
      data = fields.pack()
      peer.send(data[:iteration])
      peer.settle(membership.executor)
      buffer, reduction = self._begin(membership, iteration, numbers)
      peer.send(data[iteration:])
      self._finish(membership, iteration, numbers, sent={(1, chunk)})
      reduction.wait(executors.WAIT_S)
      np.testing.assert_array_equal(buffer, numbers.sum(0))

  @parameterized.named_parameters(
    (name.replace(' ', '_'), name) for name in _UP_FAULTS
  )
  def test_a_wrong_frame_is_refused_wherever_it_is_split(self, name):
    membership = self._membership()
    (chunk, *_) = membership.chunks(root=0)
    numbers = self._numbers(membership)
    whole = HEADER_BYTES + _CHUNK_BYTES
    for split in [*range(0, HEADER_BYTES, 7), *range(HEADER_BYTES, whole + 1)]:
      membership.form()
      fields = membership.fields(0, chunk, UP, numbers[1])
      data = _UP_FAULTS[name](fields).pack()
      self._check_refused(membership, data, split, numbers)
    self._check_sound(membership)

  def test_a_second_part_of_a_chunk_is_refused_wherever_it_is_split(self):
    membership = self._membership()
    (chunk, *_) = membership.chunks(root=0)
    numbers = self._numbers(membership)
    for split in range(0, 2 * (HEADER_BYTES + _CHUNK_BYTES) + 1, 3):
      membership.form()
      data = 2 * membership.fields(0, chunk, UP, numbers[1]).pack()
      self._check_refused(membership, data, split, numbers)
    self._check_sound(membership)

  def test_parts_of_the_next_sum_may_come_within_this_one(self):
    membership = self._membership(count=2, size=4)
    membership.form()
    peer, node = membership.peers[1], membership.executor
    (up,), (down,) = membership.chunks(root=0), membership.chunks(root=1)
    first, second = self._numbers(membership), self._numbers(membership, 1)
    buffer, reduction = self._begin(membership, 0, first)
    peer.await_part(0, down)
    # The last frame of this sum and the first of the next, split anywhere.
    data = membership.fields(0, up, UP, first[1]).pack()
    data += membership.fields(0, down, DOWN, first.sum(0)).pack()
    data += membership.fields(1, up, UP, second[1]).pack()
    for start in range(0, len(data), 11):
      peer.send(data[start : start + 11])
      peer.settle(node)
    reduction.wait(executors.WAIT_S)
    np.testing.assert_array_equal(buffer, first.sum(0))
    buffer, reduction = self._begin(membership, 1, second)
    self._finish(membership, 1, second, sent={(1, up)})
    reduction.wait(executors.WAIT_S)
    np.testing.assert_array_equal(buffer, second.sum(0))

  def test_a_peer_that_owes_a_part_may_not_send_one_of_the_next_sum(self):
    membership = self._membership()
    membership.form()
    (chunk, *_) = membership.chunks(root=0)
    numbers = self._numbers(membership)
    _, reduction = self._begin(membership, 0, numbers)
    fields = membership.fields(1, chunk, UP, numbers[1])
    membership.peers[1].send(fields.pack())
    self._check_damaged(reduction, 1)
    self._check_sound(membership)

  def test_an_empty_sum_does_not_disturb_the_next(self):
    membership = self._membership(count=2, size=4)
    membership.form()
    (up,) = membership.chunks(root=0)
    numbers = self._numbers(membership)
    peer = membership.peers[1]
    peer.send(membership.fields(5, up, UP, numbers[1]).pack())
    peer.settle(membership.executor)
    empty = membership.executor.begin(4, np.zeros(0, np.float32), [])
    empty.wait(executors.WAIT_S)
    buffer, reduction = self._begin(membership, 5, numbers)
    self._finish(membership, 5, numbers, sent={(1, up)})
    reduction.wait(executors.WAIT_S)
    np.testing.assert_array_equal(buffer, numbers.sum(0))

  @mock.patch.object(dealing, 'AHEAD_BYTES', 0)
  def test_the_peer_that_exceeds_its_window_is_blamed(self):
    membership = self._membership(size=400)
    membership.form()
    numbers = self._numbers(membership)
    chunks = membership.chunks(root=0)
    # As many as may be on the way at once from both peers.
    window = membership.program.roles.ahead_bytes // _CHUNK_BYTES
    for chunk in chunks[: 2 * window]:
      fields = membership.fields(0, chunk, UP, numbers[1])
      membership.peers[1].send(fields.pack())
    membership.peers[1].settle(membership.executor)
    fields = membership.fields(0, chunks[0], UP, numbers[2])
    membership.peers[2].send(fields.pack())
    membership.peers[2].settle(membership.executor)
    _, reduction = self._begin(membership, 0, numbers)
    self._check_damaged(reduction, 1)

  def test_all_parts_in_one_tls_record_are_received(self):
    security = certificates.make_security('')
    membership = self._membership(
      count=2, size=200, security=security, rate_Bps=10**9
    )
    membership.form()
    numbers = self._numbers(membership)
    buffer, reduction = self._begin(membership, 0, numbers)
    peer, chunks = membership.peers[1], membership.chunks(root=0)
    peer.send(
      b''.join(
        membership.fields(0, chunk, UP, numbers[1]).pack() for chunk in chunks
      )
    )
    peer.settle(membership.executor)
    self.assertEqual(peer.unread_bytes(membership.executor), 0)
    self._finish(membership, 0, numbers, {(1, chunk) for chunk in chunks})
    reduction.wait(executors.WAIT_S)
    np.testing.assert_array_equal(buffer, numbers.sum(0))


class DownwardTest(_Case):
  """Frames with sums, which go down the tree."""

  @parameterized.named_parameters(
    ('layout', lambda f: f._replace(layout=f.layout ^ 1)),
    ('beyond', lambda f: f._replace(chunk=10**6)),
    ('of_another_root', lambda f: f._replace(chunk=f.chunk + 1)),
    ('of_this_root', lambda f: f._replace(chunk=f.chunk - 1)),
    ('size_below', lambda f: f._replace(body=f.body[:4])),
    ('size_above', lambda f: f._replace(body=f.body + bytes(4))),
    ('dtype', lambda f: f._replace(dtype=2)),
    ('kind', lambda f: f._replace(kind=0)),
    ('up', lambda f: f._replace(kind=UP)),
    ('later_sum', lambda f: f._replace(iteration=1)),
    (
      'membership',
      lambda f: f._replace(membership_epoch=f.membership_epoch - 1),
    ),
  )
  def test_a_wrong_sum_is_refused(self, change):
    membership = self._membership()
    chunk = membership.chunks(root=1)[0]
    numbers = self._numbers(membership)
    for split in (0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 3):
      membership.form()
      peer = membership.peers[1]
      _, reduction = self._begin(membership, 0, numbers)
      peer.await_part(0, chunk)
      fields = membership.fields(0, chunk, DOWN, numbers.sum(0))
      data = change(fields).pack()
      peer.send(data[:split])
      peer.settle(membership.executor)
      peer.send(data[split:])
      self._check_damaged(reduction, 1)
    self._check_sound(membership)

  def test_a_sum_of_another_worker_is_refused(self):
    membership = self._membership()
    chunk = membership.chunks(root=1)[0]
    numbers = self._numbers(membership)
    membership.form()
    _, reduction = self._begin(membership, 0, numbers)
    membership.peers[1].await_part(0, chunk)
    fields = membership.fields(0, chunk, DOWN, numbers.sum(0))
    membership.peers[2].send(fields.pack())
    self._check_damaged(reduction, 2)
    self._check_sound(membership)

  def test_a_second_sum_is_refused(self):
    membership = self._membership()
    chunk = membership.chunks(root=1)[0]
    numbers = self._numbers(membership)
    membership.form()
    peer = membership.peers[1]
    _, reduction = self._begin(membership, 0, numbers)
    peer.await_part(0, chunk)
    data = membership.fields(0, chunk, DOWN, numbers.sum(0)).pack()
    peer.send(2 * data)
    self._check_damaged(reduction, 1)
    self._check_sound(membership)

  @parameterized.parameters(False, True)
  def test_a_sum_that_lacks_this_workers_part_is_refused(self, begun):
    membership = self._membership()
    chunk = membership.chunks(root=1)[0]
    numbers = self._numbers(membership)
    for split in range(HEADER_BYTES, HEADER_BYTES + _CHUNK_BYTES + 1):
      membership.form()
      peer = membership.peers[1]
      data = membership.fields(0, chunk, DOWN, numbers.sum(0)).pack()
      if begun:
        _, reduction = self._begin(membership, 0, numbers, ready=False)
      peer.send(data[:split])
      peer.settle(membership.executor)
      if begun:
        reduction.ready(0)
      else:
        _, reduction = self._begin(membership, 0, numbers)
      peer.send(data[split:])
      self._check_damaged(reduction, 1)
    self._check_sound(membership)

  def test_a_sum_of_a_part_that_waits_for_room_is_refused(self):
    membership = self._membership(count=2, size=400)
    numbers = self._numbers(membership)
    membership.form()
    peer = membership.peers[1]
    _, reduction = self._begin(membership, 0, numbers)
    # The window keeps parts of later chunks back until sums have come.
    chunk = membership.chunks(root=1)[-1]
    fields = membership.fields(0, chunk, DOWN, numbers.sum(0))
    peer.send(fields.pack())
    self._check_damaged(reduction, 1)


class WindowTest(_Case):
  """Parts that are sent before the peer's sums have come."""

  def test_each_membership_measures_its_round_trip_anew(self):
    membership = self._membership(count=2, size=400, rate_Bps=4000)
    peer = membership.peers[1]
    numbers = self._numbers(membership)

    def count_parts():
      before = -1
      while before < (before := len(peer.frames())):
        time.sleep(0.1)  # Until no more are sent.
      return before

    membership.form()
    self._begin(membership, 0, numbers)
    first = count_parts()
    time.sleep(0.2)  # The sum takes long.
    chunk = membership.chunks(root=1)[0]
    peer.send(membership.fields(0, chunk, DOWN, numbers.sum(0)).pack())
    executors.wait_until(lambda: len(peer.frames()) > 3 * first)
    peer.hang_up()  # It dies in the middle.
    membership.form()
    self._begin(membership, 0, numbers)
    self.assertEqual(count_parts(), first)

  def test_a_tree_of_short_round_trips_does_not_limit_one_of_long_ones(self):
    membership = self._membership(count=3, size=600, rate_Bps=4000)
    numbers = self._numbers(membership)
    peers = membership.peers

    def count_parts():
      return sum(len(peer.frames()) for peer in peers.values())

    def answer(root):
      chunk = membership.chunks(root=root)[0]
      peers[root].await_part(0, chunk)
      fields = membership.fields(0, chunk, DOWN, numbers.sum(0))
      peers[root].send(fields.pack())

    membership.form()
    self._begin(membership, 0, numbers)
    answer(1)
    time.sleep(0.3)
    first = count_parts()
    answer(2)
    executors.wait_until(lambda: count_parts() > 3 * first)


class DeparturesTest(_Case):
  """Last frames of workers that leave."""

  @parameterized.parameters('send', 'answer')
  def test_a_departure_may_be_split_anywhere(self, way):
    membership = self._membership(count=2, size=4)
    for split in range(0, HEADER_BYTES + 1, 5):
      membership.form()
      numbers = self._numbers(membership)
      _, reduction = self._begin(membership, 0, numbers)
      peer = membership.peers[1]
      left = byte_peers.Fields(
        membership.membership_epoch, 0, 0, 0, LEFT, 0, b''
      )
      data = left.pack()
      getattr(peer, way)(data[:split])
      peer.settle(membership.executor)
      getattr(peer, way)(data[split:])
      with self.assertRaisesRegex(Abandoned, 'worker 1 has left'):
        reduction.wait(executors.WAIT_S)

  def test_a_departure_is_read_although_sending_fails_before(self):
    membership = self._membership(count=2, size=4)
    membership.form()
    node, release = membership.executor, threading.Event()
    node._loop.post(lambda: release.wait(executors.WAIT_S))
    numbers = self._numbers(membership)
    with mock.patch.object(
      endpoints.Writer, 'write', side_effect=BrokenPipeError
    ):
      _, reduction = self._begin(membership, 0, numbers)
      left = byte_peers.Fields(
        membership.membership_epoch, 0, 0, 0, LEFT, 0, b''
      )
      membership.peers[1].answer(left.pack())
      (lane,) = executors.lanes(node)
      sock = lane.connections()[-1].sock  # That sends.
      executors.wait_until(lambda: select.select([sock], [], [], 0)[0])
      release.set()
      with self.assertRaisesRegex(Abandoned, 'worker 1 has left'):
        reduction.wait(executors.WAIT_S)

  def test_a_receiver_that_sends_a_part_is_damaged(self):
    membership = self._membership(count=2, size=4)
    membership.form()
    numbers = self._numbers(membership)
    _, reduction = self._begin(membership, 0, numbers)
    chunk = membership.chunks(root=0)[0]
    fields = membership.fields(0, chunk, UP, numbers[1])
    membership.peers[1].answer(fields.pack())
    self._check_damaged(reduction, 1)


class AnyOrderTest(_Case):
  """Two peers whose bytes arrive in any order that TCP allows."""

  @_SETTINGS
  @hypothesis.given(data=st.data())
  def test_sums_are_right_or_the_sender_of_a_wrong_frame_is_named(self, data):
    if not hasattr(self, '_shared'):
      self._shared = self._membership()
    membership = self._shared
    membership.form()
    node, peers = membership.executor, membership.peers
    draw = data.draw
    fault = draw(st.sampled_from([None, *_UP_FAULTS, 'twice']), 'fault')
    guilty = draw(st.sampled_from([1, 2]), 'guilty')
    numbers = self._numbers(membership, draw(st.integers(0, 99)))
    chunks = membership.chunks(root=0)
    ways = {}
    for index, peer in peers.items():
      order = draw(st.permutations(chunks))
      frames = [membership.fields(0, k, UP, numbers[index]) for k in order]
      if fault and index == guilty:
        place = draw(st.integers(0, len(frames) - 1), 'place')
        if fault == 'twice':
          frames.insert(place, frames[place])
        elif fault == 'chunk of a tree with another root':
          other = membership.chunks(root=3 - index)[0]
          frames[place] = frames[place]._replace(chunk=other)
        else:
          frames[place] = _UP_FAULTS[fault](frames[place])
      ways[index] = b''.join(frame.pack() for frame in frames)
      del peer
    begun = False
    while any(ways.values()) or not begun:
      moves = [index for index, rest in ways.items() if rest]
      move = draw(st.sampled_from([*moves, *([] if begun else ['begin'])]))
      if move == 'begin':
        buffer, reduction = self._begin(membership, 0, numbers)
        begun = True
        continue
      count = draw(st.sampled_from([1, 8, 40, 47, 48, 49, 56, 57, 500]))
      peers[move].send(ways[move][:count])
      ways[move] = ways[move][count:]
      if draw(st.booleans()):
        peers[move].settle(node)
    if fault:
      self._check_damaged(reduction, guilty)
    else:
      sent = {(index, chunk) for index in peers for chunk in chunks}
      self._finish(membership, 0, numbers, sent)
      reduction.wait(executors.WAIT_S)
      np.testing.assert_array_equal(buffer, numbers.sum(0))


if __name__ == '__main__':
  absltest.main()
