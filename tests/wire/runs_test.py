"""Tests of runs with residuals: no part of a gradient is lost."""

import functools
import tempfile

import jax
import numpy as np
from absl.testing import absltest, parameterized

import train
from tests.support import small, stopping

_SPARSE = {
  'wire__name': 'sparse',
  'wire__sparse__chunk': 16,
  'wire__sparse__sparsity': 0.8,
}
_WARMED = {
  'wire__sparse__warmup': (0.0, 0.5),
  'wire__sparse__warmup_epochs': 0.3,
}
_WIRES = {
  'sparse': _SPARSE | _WARMED,
  'lagging': _SPARSE | {'wire__sparse__select_lag': 1},
  'topk': {'wire__name': 'topk'},
  'lowrank': {'wire__name': 'lowrank', 'wire__lowrank__rank': 1},
  'quantised': {
    'wire__name': 'quantised',
    'wire__quantised__bits': 2,
    'wire__quantised__chunk': 16,
  },
  'random': {
    'wire__name': 'quantised',
    'wire__quantised__error_feedback': False,
  },
}


class _Watched:
  """Sums, in float64, of the vectors that a run encodes and decodes."""

  def __init__(self, **changed):
    self.pushed = self.arrived = self.lost = 0.0
    self.run = small.build(small.config(**changed))
    # Gradients of pushes that are on their way, by worker.
    self._under_way = {}
    runtime, store = self.run.runtime, self.run.runtime.coordinator.store
    encode = store.codec.encode

    def watch(states, payload, stage, scale):
      self._gradient = _flat(payload.gradient) / scale
      return encode(states, payload, stage, scale)

    store.codec.encode = watch
    finish, take_push = runtime._finish_computing, store.take_push
    leave = runtime._leave

    def note(index):
      finish(index)
      self._under_way[index] = self._gradient

    def take(worker, message, stage):
      finite = take_push(worker, message, stage)
      self.pushed += self._under_way.pop(worker)
      self.arrived += _flat(store._arrived[worker].gradient)
      return finite

    def lose(index):
      worker = runtime._workers[index]
      before = worker.codec if worker.before is None else worker.before[0]
      self.lost += self.sum_residuals(before)
      self._under_way.pop(index, None)
      leave(index)

    runtime._finish_computing, store.take_push = note, take
    runtime._leave = lose

  @staticmethod
  def sum_residuals(states):
    """Returns what is still to be sent, of all servers."""
    parts = [jax.tree.leaves(state.residual)[0] for state in states]
    return np.concatenate(parts).astype(np.float64)

  def sum_unsent(self):
    """Returns what all workers have not sent, of pushes that have arrived."""
    workers = self.run.runtime._workers
    return sum(
      self.sum_residuals(
        worker.codec if worker.before is None else worker.before[0]
      )
      for worker in workers
    )


def _flat(tree):
  leaves = [np.ravel(np.asarray(leaf)) for leaf in jax.tree.leaves(tree)]
  return np.concatenate(leaves).astype(np.float64)


@functools.cache
def _dense(**changed):
  run, _ = small.execute(optimizer__sgd__momentum=0.9, **changed)
  return jax.device_get(run.runtime.coordinator.store.learner.params)


class MassTest(parameterized.TestCase):
  @parameterized.parameters(
    ('bsp', 'sparse', 1.0),
    ('asp', 'lagging', 1.0),
    ('elastic', 'topk', 0.6),
    ('asp', 'lowrank', 1.0),
    ('ssp', 'quantised', 1.0),
  )
  def test_messages_and_residuals_together_are_all_gradients(
    self, scheme, wire, dies_s
  ):
    watched = _Watched(
      sync__name=scheme,
      route__server__servers=2,
      cluster__script=((dies_s, 'leave', 1), (dies_s + 0.2, 'join', 1)),
      cluster__network__worker_up_Bps=(2e4,),
      **_WIRES[wire],
    )
    summary = watched.run()
    self.assertEqual(summary['compilations'], 0)
    kept = watched.sum_unsent() + watched.lost
    scale = np.abs(watched.pushed).max()
    np.testing.assert_allclose(
      watched.arrived + kept, watched.pushed, atol=1e-5 * scale
    )
    self.assertGreater(np.abs(kept).max(), 1e-3 * scale)
    # The residual of a worker that dies is recorded as lost.
    rows = small.rows(watched.run, 'events.jsonl')
    (row,) = (row for row in rows if row['event'] == 'forgot')
    self.assertEqual((row['time'], row['worker']), (dies_s, 1))
    self.assertAlmostEqual(
      sum(row['l1'].values()), np.abs(watched.lost).sum(), delta=1e-6 * scale
    )
    layers = ('layers/0/bias', 'layers/0/kernel')
    self.assertContainsSubset(layers, {n.rpartition(':')[2] for n in row['l1']})


class DenseTest(parameterized.TestCase):
  @parameterized.parameters('none', 'masked')
  def test_no_sparsity_equals_dense_momentum_bit_for_bit(self, correction):
    run, summary = small.execute(
      optimizer__sgd__momentum=0.9,
      wire__name='sparse',
      wire__sparse__chunk=16,
      wire__sparse__sparsity=0.0,
      wire__sparse__correction=correction,
    )
    jax.tree.map(
      np.testing.assert_array_equal,
      run.runtime.coordinator.store.learner.params,
      _dense(),
    )
    each = summary['bytes'] / summary['iterations']
    self.assertEqual(each, 2 * small.size_bytes(run))

  def test_local_momentum_equals_that_of_the_optimiser(self):
    run, _ = small.execute(
      wire__name='sparse',
      wire__sparse__chunk=16,
      wire__sparse__sparsity=0.0,
      wire__sparse__correction='local',
      wire__sparse__momentum=0.9,
    )
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5),
      run.runtime.coordinator.store.learner.params,
      _dense(),
    )


class RunTest(parameterized.TestCase):
  @parameterized.parameters('sparse', 'quantised', 'random')
  def test_a_resumed_run_gives_the_results_of_an_uninterrupted_one(self, wire):
    fields = _WIRES[wire]
    expected, steps = stopping.straight('asp', epochs=2.0, **fields)
    config = stopping.eventful('asp', epochs=2.0, **fields)
    workdir = f'{tempfile.mkdtemp()}/run'
    run = train.build(config, workdir=workdir)
    with self.assertRaises(stopping.Killed):
      stopping.stop(run, saved_at=[steps // 3], killed_at=steps // 2)
    run = train.build(config, workdir=workdir)
    self.assertEqual(run()['compilations'], 0)
    got = stopping.results(run)
    for one, other in zip(got['params'], expected['params'], strict=True):
      np.testing.assert_array_equal(one, other)
    for name in ('summary', 'events'):
      self.assertEqual(got[name], expected[name])

  def test_bytes_follow_the_stages_of_warm_up(self):
    config = small.timing(
      size_bytes=4 * 100,
      cluster__workers=1,
      cluster__speed__slowdown=(1.0,),
      wire__name='sparse',
      wire__sparse__chunk=5,
      wire__sparse__sparsity=0.8,
      wire__sparse__warmup=(0.0, 0.5),
      wire__sparse__warmup_epochs=0.5,
    )
    summary = small.build(config)()
    # 24 iterations an epoch of 192 examples: 12 dense, 12 of 10 chunks of 20,
    # and 24 of 4, each with its index.
    self.assertEqual(summary['iterations'], 48)
    pushes = 12 * 400 + 12 * 4 * 10 * 6 + 24 * 4 * 4 * 6
    self.assertEqual(summary['bytes'], 48 * 400 + pushes)

  @parameterized.parameters(8, 4, 2)
  def test_bytes_and_transfer_times_follow_the_bits(self, bits):
    # One worker, two servers of 51 and 50 numbers, 4 examples in a batch.
    config = small.timing(
      size_bytes=4 * 101,
      num_train=64,
      epochs=1.0,
      cluster__workers=1,
      cluster__speed__slowdown=(1.0,),
      cluster__speed__fixed_s=0.01,
      cluster__speed__per_example_s=0.0,
      cluster__network__worker_up_Bps=(1000.0,),
      route__server__servers=2,
      wire__name='quantised',
      wire__quantised__bits=bits,
      wire__quantised__chunk=20,
    )
    summary = small.build(config)()
    push = -(-51 * bits // 8) + -(-50 * bits // 8) + 4 * (3 + 3)
    self.assertEqual(summary['iterations'], 8)
    self.assertEqual(summary['bytes'], 8 * (404 + push))
    self.assertAlmostEqual(summary['time_s'], 8 * (0.01 + push / 1000))

  @parameterized.parameters(
    (
      _SPARSE | {'wire__sparse__chunk': 10**4},
      'config.wire.sparse.chunk: expected at most 442, .*, got 10000',
    ),
    (
      {
        **_SPARSE,
        'optimizer__sgd__momentum': 0.9,
        'wire__sparse__correction': 'local',
        'wire__sparse__momentum': 0.9,
      },
      "config.optimizer: expected 'sgd' .*momentum, as .*workers apply it",
    ),
    (
      {'wire__name': 'topk', 'route__server__servers': 443},
      'config.route.server.servers: expected at most 442, .* got 443',
    ),
  )
  def test_rejects_settings_out_of_range(self, changed, message):
    with self.assertRaisesRegex(ValueError, message):
      small.build(small.config(**changed))

  def test_rejects_lowrank_without_a_model(self):
    message = 'config.wire.lowrank.rank: expected vectors with matrices'
    with self.assertRaisesRegex(ValueError, message):
      small.build(small.timing(wire__name='lowrank'))


if __name__ == '__main__':
  absltest.main()
