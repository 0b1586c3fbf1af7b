"""Tests that no server waits for dead workers, whose pieces become void."""

import numpy as np
import pytest
from absl.testing import absltest, parameterized

from cluster.pipelining import MAX_PIECES
from tests.support import piped
from wire.codec import Payload

_SOME = (0, 30, 61, 63)


class LostTest(parameterized.TestCase):
  @parameterized.parameters(*_SOME)
  def test_a_death_after_some_pieces_voids_them(self, pieces):
    self._check_one(pieces)

  @parameterized.parameters(*sorted({*range(MAX_PIECES)} - {*_SOME}))
  @pytest.mark.soak
  def test_a_death_after_any_number_of_pieces_voids_them(self, pieces):
    self._check_one(pieces)

  def _check_one(self, pieces):
    cluster = self._cluster(workers=3, servers=1)
    cluster.die(2, after=[pieces])
    cluster.until_version(3)
    cluster.check(self, lost=1)
    self.assertEqual(cluster.accounting.lost[0].iteration, 1)

  def test_a_push_counts_if_its_worker_dies_after_all_pieces(self):
    cluster = self._cluster(workers=3, servers=1)
    cluster.die(2, after=[MAX_PIECES])
    cluster.until_version(3)
    cluster.check(self, lost=1)
    self.assertLen(cluster.pushes_of[1], 3)
    self.assertEqual(cluster.accounting.lost[0].iteration, 2)

  def test_pieces_that_the_coordinator_does_not_know_of_are_void(self):
    cluster = self._cluster(workers=3, servers=2)
    cluster.die(2, after=[MAX_PIECES, MAX_PIECES], unseen=[1])
    cluster.until_version(3)
    cluster.check(self, lost=1)

  @parameterized.parameters((MAX_PIECES, 0), (63, 5))
  def test_a_death_is_handled_if_some_servers_have_more_pieces(self, *pieces):
    cluster = self._cluster(workers=3, servers=2)
    cluster.die(2, after=pieces)
    cluster.until_version(3)
    cluster.check(self, lost=1)

  @parameterized.parameters((62, 63), (3, 62))
  def test_two_workers_may_die_in_one_superstep(self, one, other):
    cluster = self._cluster(workers=4, servers=1)
    cluster.die(1, after=[one])
    cluster.die(3, after=[other])
    cluster.until_version(3)
    cluster.check(self, lost=2)

  @parameterized.parameters(0, 62)
  def test_the_last_living_worker_may_die_and_rejoin(self, pieces):
    cluster = self._cluster(workers=1, servers=2)
    cluster.die(0, after=[pieces, pieces], rejoins=True)
    cluster.until_version(3)
    cluster.check(self, lost=1)

  def test_all_workers_may_die_and_rejoin_at_once(self):
    cluster = self._cluster(workers=2, servers=2)
    cluster.die(0, after=[62, 62], rejoins=True)
    cluster.die(1, after=[MAX_PIECES, 62], rejoins=True)
    cluster.until_version(3)
    cluster.check(self, lost=2)

  def test_a_worker_that_rejoins_takes_part_in_later_supersteps(self):
    cluster = self._cluster(workers=3, servers=2)
    cluster.die(1, after=[62, 0], rejoins=True)
    cluster.until_version(3)
    cluster.until(lambda: cluster.coordinator.workers[1].phase is not None)
    cluster.until_version(cluster.store.version + 3)
    cluster.check(self, lost=1)

  @parameterized.parameters(0, 1)
  def test_a_death_is_handled_in_shares_of_one_piece(self, pieces):
    cluster = self._cluster(workers=3, servers=2, size=2)
    cluster.die(2, after=[pieces, 0])
    cluster.until_version(3)
    cluster.check(self, lost=1)

  def test_a_checkpoint_during_a_death_holds_only_counted_pushes(self):
    cluster = self._cluster(workers=3, servers=2)
    # Both others count, and all pieces but two are ahead.
    cluster.die(2, after=[62, 62], before_death=cluster.save)
    cluster.until_version(3)
    cluster.check(self, lost=1)
    version, states = cluster.saved
    again = cluster.whole(version)
    for update, pushes in cluster.pushes_at_save.items():
      total = cluster.total(pushes)
      again.add(update, Payload(total, ()), piped.BATCH * len(pushes))
      again.commit(update)
    for index, state in enumerate(states):
      restored = cluster.pieces(index)
      restored.restore(state)
      self.assertEqual(restored.version, version)
      restored.commit(version)
      piped.assert_close(restored.params, cluster.share(again.params, index))
      sent = np.concatenate(restored.outgoing()).view(np.float32)
      np.testing.assert_array_equal(sent, restored.params)

  def test_a_worker_whose_stream_to_one_server_is_cut_rejoins(self):
    cluster = self._cluster(workers=3, servers=3)
    cluster.die(1, after=[20, 10, 15], rejoins=True, cut=[1])
    cluster.until_version(3)
    cluster.until(lambda: cluster.coordinator.workers[1].phase is not None)
    cluster.until_version(cluster.store.version + 3)
    cluster.check(self, lost=1)

  def test_a_death_with_a_server_in_each_worker_is_handled(self):
    cluster = self._cluster(workers=4, servers=4)
    cluster.die(3, after=[64 // 4, 7, 0, 15], unseen=[0])
    cluster.until_version(3)
    cluster.check(self, lost=1)

  def test_a_slow_worker_delays_the_others_and_loses_nothing(self):
    cluster = self._cluster(workers=3, servers=3, pauses_s={2: 0.005})
    cluster.until_version(3)
    cluster.check(self, lost=0)
    self.assertEqual([len(cluster.pushes_of[k]) for k in range(3)], 3 * [3])

  @parameterized.parameters(False, True)
  def test_a_push_that_is_not_finite_is_skipped_on_all_servers(self, dies):
    overflows = [(0, 1), (2, 2)]
    cluster = self._cluster(workers=3, servers=3, overflows=overflows)
    if dies:
      cluster.die(1, after=[3, 9, 0])
    cluster.until_version(4)
    cluster.check(self, lost=int(dies))
    self.assertLen(cluster.skipped, len(overflows))

  def _cluster(self, **fields):
    cluster = piped.Cluster(**fields)
    self.addCleanup(cluster.close)
    return cluster


if __name__ == '__main__':
  absltest.main()
