"""Tests for virtual servers that use the links of workers' hosts."""

import numpy as np
from absl.testing import absltest, parameterized

from cluster.pipelining import pieces_per_share
from tests.support import small

_BYTES = 4 * 12 * 64 * 63 * 8  # A multiple of all shares' pieces.
_B = 1e6
_COMPUTE_S = 0.1
_ONE_S = _BYTES / _B  # S/B.


_OWN = {  # As they are by default.
  'cluster__network__server_up_Bps': (125e6,),
  'cluster__network__server_down_Bps': (125e6,),
  'cluster__network__server_latency_s': (1e-4,),
}


def _round_s(**changed):
  if changed.setdefault('cluster__network__servers_in_workers', True):
    changed = _OWN | changed
  fields = {
    'cluster__speed__slowdown': (1.0,),
    'cluster__speed__fixed_s': _COMPUTE_S,
    'cluster__speed__per_example_s': 0.0,
    'cluster__network__worker_up_Bps': (_B,),
    'cluster__network__worker_down_Bps': (_B,),
  }
  run = small.build(small.timing(size_bytes=_BYTES, **fields | changed))
  run()
  rows = small.rows(run, 'metrics.jsonl')
  barriers = [row['time'] for row in rows if row['kind'] == 'barrier']
  return np.diff(barriers)


class PlacementTest(parameterized.TestCase):
  """Closed forms: see route.server."""

  @parameterized.parameters((1, 1), (4, 1), (4, 2), (4, 3), (4, 4))
  def test_a_superstep_is_as_long_as_its_busiest_link(self, workers, servers):
    all_have_one = servers == workers
    own = 1 - 1 / servers if all_have_one else 1
    one_way = max(own, (workers - 1) / servers)
    expected = _COMPUTE_S + 2 * one_way * _ONE_S
    got = _round_s(
      cluster__workers=workers,
      route__server__servers=servers,
    )
    np.testing.assert_allclose(got, expected, rtol=1e-9)

  @parameterized.parameters(1, 2, 3, 4)
  def test_pipelined_both_directions_are_busy_at_once(self, servers):
    got = _round_s(
      cluster__workers=4,
      route__server__servers=servers,
      route__server__pipelined=True,
    )
    bound = _COMPUTE_S + (4 + servers - 2) / servers * _ONE_S
    # The pulls of a share's last piece cannot overlap.
    piece_s = 3 * _ONE_S / servers / pieces_per_share(servers, _BYTES)
    self.assertGreaterEqual(got.min(), bound - 1e-9)
    self.assertLessEqual(got.max(), bound + piece_s + 1e-9)

  def test_servers_in_workers_without_limits_change_nothing(self):
    infinite = {
      'cluster__network__worker_up_Bps': (float('inf'),),
      'cluster__network__worker_down_Bps': (float('inf'),),
      'cluster__workers': 3,
      'route__server__servers': 2,
    }
    np.testing.assert_array_equal(
      _round_s(**infinite),
      _round_s(cluster__network__servers_in_workers=False, **infinite),
    )

  def test_fields_without_effect_are_refused(self):
    field = 'config.cluster.network.servers_in_workers: .* at most 3 servers'
    with self.assertRaisesRegex(ValueError, field):
      _round_s(cluster__workers=3, route__server__servers=4)
    field = 'config.cluster.network.server_up_Bps: .*servers_in_workers is True'
    with self.assertRaisesRegex(ValueError, field):
      _round_s(cluster__workers=3, cluster__network__server_up_Bps=(7.0,))


if __name__ == '__main__':
  absltest.main()
