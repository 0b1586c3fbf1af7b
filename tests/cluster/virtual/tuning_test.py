"""Tests for cluster.virtual.tuning, against sweeps of simulated runs."""

import dataclasses
import functools
import json
import math
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest, parameterized
from ml_collections import ConfigDict

import train
from cluster.virtual import tuning
from configs import default, sections, timing
from learning import build as learning
from learning.learning import Overlap
from route import ring
from wire import dense

_MB = 10**6
_LAYERS, _COMPUTE_S = 64, 0.1


def _config(bucket_bytes, **fields) -> ConfigDict:
  """Returns a run of 64 layers of 1 MB that become ready evenly in 0.1 s."""
  config = timing.config(
    timing.fields(
      workers=4,
      iterations=3,
      size_bytes=_LAYERS * _MB,
      compute_s=_COMPUTE_S,
    ),
    timing.links(1e9),
    {
      'sync.name': 'bsp',
      'route.name': 'ring',
      'route.bucket_bytes': bucket_bytes,
      'cluster.network.worker_latency_s': (0.0,),
      'cluster.network.range_s': 0.002,
    },
  )
  rows = [
    {'name': str(n), 'bytes': _MB, 'ready': (n + 1) / _LAYERS}
    for n in range(_LAYERS)
  ]
  path = pathlib.Path(tempfile.mkdtemp(), 'layers.json')
  path.write_text(json.dumps({'version': 1, 'layers': rows}))
  config.cluster.speed.layers = str(path)
  config.update_from_flattened_dict(fields)
  return config


def _time_s(config: ConfigDict) -> float:
  return train.build(config, workdir=f'{tempfile.mkdtemp()}/run')()['time_s']


def _predict(overlap, dtype, Gbps, **fields):
  """Returns the size chosen for real hosts, and predicted times by size."""
  config = _config('auto', **fields)
  config.cluster.runtime = 'distributed'
  choose = functools.partial(sections.choose_section, config)
  plan = ring.make(cluster=f'star({[Gbps] * 4})').plan(
    None,
    num_workers=4,
    distributed=True,
    divisible=True,
    bucket_bytes=None,
    overlap=overlap != Overlap.NONE,
  )
  learned = dataclasses.replace(
    learning.make(config, choose, None, None, 1),
    find_overlap=lambda wanted: (overlap, ''),
  )
  with mock.patch.object(tuning.logging, 'info') as log:
    wire = dense.make(dtype=dtype)
    chosen = tuning.choose_bucket_bytes(
      config, choose, plan, learned, wire
    ).bucket_bytes
  rows = [call.args[1:3] for call in log.call_args_list if len(call.args) > 3]
  return chosen, dict(rows)


class TuningTest(parameterized.TestCase):
  def test_finds_the_best_size_between_the_extremes(self):
    sweep = {
      size: _time_s(_config(size))
      for size in (0.0, *(n * _MB * 1.0 for n in (2, 4, 8, 16, 32)), math.inf)
    }
    best = min(sweep.values())
    self.assertGreater(min(sweep[0.0], sweep[math.inf]), 1.05 * best)
    with self.assertLogs('absl', 'INFO') as logs:
      found = _time_s(_config('auto'))

    self.assertLessEqual(found, 1.05 * best)
    (chosen,) = (line for line in logs.output if line.endswith('taken'))
    self.assertAlmostEqual(float(chosen.split()[-3]), found / 3, places=4)

  def test_buckets_of_lagged_chunks_are_whole_chunks(self):
    # 6.4 of 64 MB are sent: 100 of 1,000 chunks.
    fields = {
      'wire.name': 'sparse',
      'wire.sparse.chunk': 16000,
      'wire.sparse.select_lag': 1,
      'cluster.network.worker_up_Bps': (1e8,),
      'cluster.network.worker_down_Bps': (1e8,),
    }
    sweep = {
      size: _time_s(_config(size, **fields))
      for size in (0.0, 4 * 64000.0, 16 * 64000.0, math.inf)
    }
    best = min(sweep.values())
    self.assertGreater(min(sweep[0.0], sweep[math.inf]), 1.02 * best)
    chosen = train.check(_config('auto', **fields))['route']['bucket_bytes']
    self.assertEqual(chosen % 64000, 0)
    self.assertLessEqual(_time_s(_config(chosen, **fields)), 1.02 * best)

  def test_the_resolved_config_has_the_chosen_size(self):
    resolved = train.check(_config('auto'))
    chosen = resolved['route']['bucket_bytes']
    self.assertTrue(0 < chosen < _LAYERS * _MB, chosen)
    again = train.check(_config(chosen))
    self.assertEqual(again['route']['bucket_bytes'], chosen)
    whole = train.check(_config('inf'))['route']['bucket_bytes']
    self.assertEqual(whole, math.inf)

  def test_each_bucket_occupies_links_for_its_fixed_cost(self):
    # Nothing overlaps: 2 (n - 1) / n of all bytes, and 4 or 64 buckets.
    bytes_s = 2 * 3 / 4 * _LAYERS * _MB / 1e9
    for size, count in ((16.0 * _MB, 4), (0.0, _LAYERS)):
      found = _time_s(_config(size, **{'route.overlap': False})) / 3
      expected = _COMPUTE_S + bytes_s + count * 0.002
      self.assertAlmostEqual(found, expected, delta=6 * 49152 / 1e9 + 1e-9)

  # Buckets cost 0.1 ms each; copying all takes 5.3 ms.
  @parameterized.parameters(('float32', 8), ('bfloat16', 4))
  def test_real_hosts_with_accelerators_send_after_the_backward_pass(
    self, dtype, Gbps
  ):
    fields = {'cluster.network.range_s': 1e-4, 'cluster.speed.fixed_s': 0.05}
    during, early_s = _predict(Overlap.BACKWARD, dtype, Gbps, **fields)
    copies, late_s = _predict(Overlap.COPIES, dtype, Gbps, **fields)
    none, none_s = _predict(Overlap.NONE, dtype, Gbps, **fields)

    self.assertEqual(none, math.inf)
    self.assertLess(during, copies)
    self.assertLess(copies, math.inf)
    self.assertEqual(late_s.keys(), early_s.keys())
    for size, each_s in late_s.items():
      # Once the first range has landed, links never rest.
      layers = min(math.ceil(size / _MB), _LAYERS) if size < math.inf else 64
      waits_s = each_s - none_s[size]
      self.assertAlmostEqual(waits_s, layers * _MB / 12e9, delta=1e-6)
      self.assertLess(early_s[size], each_s)

  @parameterized.parameters(
    ({'route.name': 'native'}, 'a number, as what XLA does'),
    ({'wire.name': 'sparse'}, 'a number, as sparse sends nothing before all'),
    (
      {
        'wire.name': 'sparse',
        'wire.sparse.select_lag': 1,
        'route.overlap': False,
      },
      'a number, as sparse sends nothing before all',
    ),
    ({'route.name': 'server'}, 'is ignored because'),
  )
  def test_rejects(self, fields, message):
    config = _config('auto', **fields)
    if config.route.name in ('native', 'server'):
      config.cluster.speed.layers = ''
      config.cluster.network.range_s = 0.0
    with self.assertRaisesRegex(
      ValueError, f'config.route.bucket_bytes: .*{message}'
    ):
      train.check(config)

  def test_servers_have_no_fixed_cost_of_buckets(self):
    config = default.get_config()
    config.cluster.network.range_s = 0.1
    with self.assertRaisesRegex(
      ValueError, 'config.cluster.network.range_s: .* is ignored because'
    ):
      train.check(config)


if __name__ == '__main__':
  absltest.main()
