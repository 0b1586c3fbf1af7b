"""Tests of virtual runs whose fragments synchronise in turn."""

import itertools
import json
import pathlib
import tempfile

import numpy as np
from absl.testing import absltest, parameterized

import train
from tests.support import fragments, small, stopping


def _build(folder=None, **fields):
  task, dataset = fragments.make_task()
  workdir = folder or f'{tempfile.mkdtemp()}/run'
  config = fragments.config(**fields)
  return train.build(config, workdir=workdir, task=task, dataset=dataset)


def _params(run):
  return fragments.flat(run.runtime.coordinator.store.learner.params)


class ScheduleTest(parameterized.TestCase):
  @parameterized.parameters(
    {'route__fragments': 2},
    {'route__fragments': 4, 'route__blend': 0.25},
    {
      'route__fragments': 2,
      'route__overlap_steps': 1,
      'route__blend': 0.5,
    },
    {'route__fragments': 2, 'route__overlap_steps': 2},
    {'route__overlap_steps': 3, 'route__blend': 0.5},
  )
  def test_parameters_are_those_of_a_loop_in_numpy(self, **fields):
    run, ranges = _build(**fields), {}
    with fragments.recording(ranges):
      summary = run()
    self.assertEqual(summary['compilations'], 0)
    self.assertEqual(summary['examples'], 96)
    coordinator = run.runtime.coordinator
    pushed = [range(*each) for several in ranges.values() for each in several]
    self.assertEqual(sorted(itertools.chain(*pushed)), [*range(96)])
    pushes = run.runtime.pushes
    # An iteration has the steps from one fragment to the next.
    count = fields.get('route__fragments', 1)
    last = max(version for version, _ in ranges) + 1
    self.assertEqual(last, 96 // 2 // (4 * fragments.BATCH // count))
    expected = fragments.train(
      fragments.config(**fields),
      ranges,
      coordinator._stream.indices,
      pushes.fragments.leaves,
    )
    np.testing.assert_allclose(_params(run), expected, 1e-4, 1e-5)

  def test_bytes_of_an_example_are_those_of_whole_displacements(self):
    found = [_build(route__fragments=count)()['bytes'] for count in (1, 2)]
    self.assertEqual(found[0], found[1])

  def test_a_resumed_run_equals_a_straight_one(self):
    fields = {
      'route__fragments': 2,
      'route__overlap_steps': 1,
      'route__blend': 0.5,
      'checkpoint__every_examples': 10**9,
      'cluster__script': ((0.1, 'leave', 1), (0.2, 'join', 1)),
    }
    straight = _build(**fields)
    summary = straight()
    folder = f'{tempfile.mkdtemp()}/run'
    run = _build(folder, **fields)
    with self.assertRaises(stopping.Killed):
      stopping.stop(run, saved_at=[13], killed_at=17)
    run = _build(folder, **fields)
    run()
    np.testing.assert_array_equal(_params(run), _params(straight))
    (new,) = summary['new_states']
    self.assertEqual(new['worker'], 1)


class TimeTest(parameterized.TestCase):
  @parameterized.parameters(0, 4, 8)
  def test_transfers_overlap_with_the_last_steps(self, overlap_steps):
    # 32 local steps of 20 ms; a quarter of 4 MB takes 1 s on a ring of two.
    config = small.timing(
      size_bytes=4 * 10**6,
      num_train=2 * 8 * 32 * 4,
      batching__worker_batch=8,
      batching__local_steps=32,
      cluster__workers=2,
      cluster__speed__slowdown=(1.0,),
      cluster__speed__fixed_s=0.16,
      cluster__speed__per_example_s=0.0,
      cluster__network__worker_up_Bps=(1e7,),
      cluster__network__worker_down_Bps=(1e7,),
      route__name='ring',
      route__fragments=4,
      route__overlap_steps=overlap_steps,
      epochs=1.0,
    )
    run = small.build(config)
    run()
    summary = json.loads(
      (pathlib.Path(run.files.workdir) / 'summary.json').read_text()
    )
    # 16 iterations: each computes for 160 ms, and its sum takes 100 ms.
    exposed_s = max(0.1 - overlap_steps * 0.02, 0.0)
    self.assertAlmostEqual(
      summary['virtual_s'], 16 * (0.16 + exposed_s), delta=0.02
    )


class RejectionTest(parameterized.TestCase):
  @parameterized.parameters(
    ({'route__fragments': 3}, 'config.route.fragments: expected a divisor of'),
    (
      {'route__fragments': 8, 'batching__local_steps': 8},
      'config.route.fragments: expected at most 4, the leaves of the model',
    ),
    (
      {'route__fragments': 2, 'route__overlap_steps': 3},
      'config.route.overlap_steps: expected 0 to 2, the local steps from one',
    ),
    (
      {'route__blend': 0.5, 'batching__local_steps': 1, 'outer__name': 'sgd'},
      'config.route.blend: expected the default 0.0, as .*local_steps is 1',
    ),
    (
      {'route__fragments': 2, 'sync__name': 'quorum'},
      "config.sync.name: expected 'bsp', as config.route.fragments is 2.*"
      'a push that is late under Quorum is of another one',
    ),
    (
      {'route__fragments': 2, 'route__name': 'server'},
      "config.route.name: expected a route of hosts such as 'ring', .*whole",
    ),
    (
      {'route__fragments': 2, 'route__name': 'native'},
      "config.route.name: expected a route of hosts such as 'ring', .*XLA",
    ),
    (
      {'route__fragments': 2, 'wire__name': 'topk'},
      "config.wire.name: expected 'dense', as config.route.fragments is 2",
    ),
    (
      {'route__fragments': 2, 'batching__name': 'lb_bsp'},
      "config.batching.name: expected 'fixed', as config.route.fragments",
    ),
    (
      {'route__fragments': 2, 'outer__name': 'delayed_nesterov'},
      "config.outer.name: expected 'sgd' or 'nesterov', as",
    ),
    (
      {'route__fragments': 2, 'cluster__hosts_per_worker': 2},
      'config.cluster.hosts_per_worker: expected 1, as config.route.fragments',
    ),
    (
      {'route__fragments': 2, 'route__bucket_bytes': 'auto'},
      'config.route.bucket_bytes: expected a number, as config.route.fragm',
    ),
  )
  def test_rejects(self, fields, message):
    if fields.get('outer__name'):
      fields |= {
        'outer__nesterov__momentum': 0.9,
        'outer__learning_rate': 1.0,
      }
    if fields.get('batching__local_steps') == 1:
      fields |= {'outer__learning_rate': 1.0}
    with self.assertRaisesRegex(ValueError, message):
      _build(**fields)


if __name__ == '__main__':
  absltest.main()
