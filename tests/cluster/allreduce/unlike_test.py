"""Tests for replicas on unlike processors: real processes, two ISA levels.

XLA fuses multiplications and additions from AVX2 on.  A process that is limited
to AVX therefore rounds differently, as other processors do.
"""

import pathlib

import pytest
from absl.testing import absltest, parameterized

from learning import drift
from tests.support import accelerators, processes, replays, requires
from tests.support.recomputing import recompute

_FLAGS = pathlib.Path('/proc/cpuinfo').read_text().split()
_ITERATIONS, _WORKERS, _BATCH, _EXAMPLES = 200, 2, 8, 192
_LIMITED = {'worker:1': '--xla_cpu_max_isa=AVX'}
_FIELDS = {
  'sgd': {  # Momentum, clipping, and batches that change.
    'optimizer__sgd__momentum': 0.9,
    'optimizer__sgd__weight_decay': 1e-4,
    'optimizer__clip_norm': 1.0,
    'batching__name': 'lb_bsp',
  },
  'adamw': {
    'optimizer__name': 'adamw',
    'optimizer__learning_rate': 1e-3,
    'checkpoint__every_examples': 1200,
  },
  'batch_norm': {
    'optimizer__sgd__momentum': 0.9,
    'data__synthetic__pixels': 32,
    'model__name': 'alexnet',
    'model__mlp__hidden': (128,),
    'model__alexnet__width': 1 / 32,
    'model__alexnet__norm': 'batch',
  },
}
_QUICK = (('ring', 'sgd'), ('native', 'sgd'))
_ALL = tuple((r, f) for r in ('ring', 'forest', 'native') for f in _FIELDS)


class UnlikeTest(processes.TestCase, parameterized.TestCase):
  def _launch(self, iterations=_ITERATIONS, **fields):
    of_an_epoch = _EXAMPLES / (_WORKERS * _BATCH)
    return processes.launch(
      **{
        'workers': _WORKERS,
        'servers': 0,
        'epochs': iterations / of_an_epoch,
        'eval_every': iterations / 4 / of_an_epoch,
        'checkpoint__every_examples': 0,
        'log_every': 10**6,
        **fields,
      }
    )

  @parameterized.parameters(*_QUICK)
  def test_replicas_train_and_are_repaired(self, route, fields):
    self._check(route, fields, _ITERATIONS)

  @parameterized.parameters(*_ALL)
  @pytest.mark.soak
  def test_every_route_with_every_optimizer(self, route, fields):
    self._check(route, fields, _ITERATIONS)

  def _check(self, route, fields, iterations):
    requires.host('fma' in _FLAGS, 'It has no fused multiply-add.')
    if route == 'native':
      accelerators.skip_if_fake(accelerators.NATIVE)
    with self._launch(
      iterations, route__name=route, xla_flags=_LIMITED, **_FIELDS[fields]
    ) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    summary = launch.summary
    self.assertEqual(summary['ended'], 'finished', launch.text)
    self.assertGreaterEqual(summary['updates'], iterations)
    native = route == 'native'
    fake = accelerators.is_fake()
    overlap = 'copies' if fake else 'backward'
    self.assertEqual(summary['overlap'], 'none' if native else overlap)
    sentence = 'after' if native or fake else 'bucket by bucket while'
    self.assertLen(launch.times(f'{sentence} the backward pass'), _WORKERS)
    self.assertEqual(summary['admissions'], [1, 1])
    self.assertEmpty(summary['lost'])
    self.assertEqual(summary['late_compilations'], 0, launch.text)
    rows = [r for r in launch.rows('events.jsonl') if r['event'] == 'drift']
    self.assertLen(launch.times('begins with the state of worker 0'), 1)
    self.assertNotEmpty(rows, launch.text)
    for row in rows:
      self.assertEqual((row['worker'], row['reference']), (1, [0]))
      self.assertFalse(row['corrupt'])
      self.assertBetween(row['difference'], 1e-12, drift.BOUND / 100)
    self.assertEqual(
      summary['drift'],
      {
        'repairs': len(rows),
        'corrupt': 0,
        'largest': max(row['difference'] for row in rows),
      },
    )

    replays.check(self, launch.folder)
    if 'checkpoint__every_examples' in _FIELDS[fields]:
      with self.assertRaisesRegex(ValueError, 'like processors.*worker 1'):
        recompute.difference(launch.folder)

  def test_replicas_on_like_processors_stay_equal(self):
    with self._launch(route__name='ring', **_FIELDS['sgd']) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    drifted = {'repairs': 0, 'corrupt': 0, 'largest': 0.0}
    self.assertEqual(launch.summary['drift'], drifted)
    self.assertEmpty(launch.times('begins with the state of'))

  @parameterized.parameters(0, 2)
  def test_a_replica_with_a_flipped_bit_is_replaced(self, corrupt):
    with self._launch(
      60,
      workers=3,
      route__name='ring',
      cluster__faults=((corrupt, 20, 'flip'),),
    ) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    rows = [r for r in launch.rows('events.jsonl') if r['event'] == 'drift']
    self.assertEqual(
      [(r['worker'], r['corrupt']) for r in rows], [(corrupt, True)]
    )
    lives = [1, 1, 1]
    lives[corrupt] += (
      corrupt > 0
    )  # The coordinator's state is replaced in place.
    summary = launch.summary
    self.assertEqual(summary['admissions'], lives)
    self.assertEqual(summary['drift']['corrupt'], 1)
    self.assertEqual(summary['ended'], 'finished')
    self.assertIn(f'Worker {corrupt} is corrupt', launch.text)

  def test_a_flipped_bit_restarts_all_where_xla_sums(self):
    accelerators.skip_if_fake(accelerators.NATIVE)
    with self._launch(
      40,
      route__name='native',
      checkpoint__every_examples=96,
      cluster__faults=((1, 20, 'flip'),),
    ) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    self.assertIn('Replicas differ by more than rounding', launch.text)
    self.assertEqual(launch.summary['ended'], 'finished')
    starts = [r for r in launch.rows('launch.jsonl') if r['event'] == 'start']
    self.assertLen(starts, 4)


if __name__ == '__main__':
  absltest.main()
