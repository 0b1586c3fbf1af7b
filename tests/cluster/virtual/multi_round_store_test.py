"""Tests of virtual runs with a multi-round allreduce."""

import functools
import tempfile
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest, parameterized

import train
from tests.support import small, stopping, sums

_SPARSE = {
  'route__name': 'ring',
  'wire__name': 'sparse',
  'wire__sparse__chunk': 16,
  'wire__sparse__sparsity': 0.8,
}


def _flat(tree):
  leaves = [np.ravel(np.asarray(leaf)) for leaf in jax.tree.leaves(tree)]
  return np.concatenate(leaves).astype(np.float64)


@functools.cache
def _dense():
  run, summary = small.execute(route__name='ring', optimizer__sgd__momentum=0.9)
  return jax.device_get(run.runtime.coordinator.store.learner.params), summary


class DenseTest(parameterized.TestCase):
  @parameterized.parameters('none', 'masked')
  def test_no_sparsity_equals_dense_momentum_bit_for_bit(self, correction):
    run, summary = small.execute(
      optimizer__sgd__momentum=0.9,
      **_SPARSE
      | {
        'wire__sparse__sparsity': 0.0,
        'wire__sparse__correction': correction,
      },
    )
    expected, dense = _dense()
    jax.tree.map(
      np.testing.assert_array_equal,
      run.runtime.coordinator.store.learner.params,
      expected,
    )
    # Leaves begin at multiples of 16 numbers.
    numbers = sum(
      -(-leaf.size // 16) * 16 for leaf in jax.tree.leaves(expected)
    )
    self.assertEqual(summary['bytes'], 16 * 4 * 4 * numbers)
    self.assertEqual(dense['bytes'], 16 * 2 * 2 * small.size_bytes(run))


class MassTest(parameterized.TestCase):
  @parameterized.parameters(
    ({'wire__sparse__warmup': (0.0, 0.5), 'wire__sparse__warmup_epochs': 0.3},),
    ({'wire__sparse__select_lag': 1, 'wire__sparse__correction': 'none'},),
    ({'wire__name': 'lowrank', 'wire__lowrank__rank': 1},),
  )
  def test_sums_and_residuals_together_are_all_gradients(self, changed):
    fields = _SPARSE | changed
    if changed.get('wire__name') == 'lowrank':
      fields = {'route__name': 'ring'} | changed
    run = small.build(
      small.config(
        cluster__script=((0.6, 'leave', 1), (0.8, 'join', 1)), **fields
      )
    )
    store, learner = (
      run.runtime.coordinator.store,
      run.runtime.coordinator.store.learner,
    )
    total = dict.fromkeys(('pushed', 'reduced', 'lost'), 0.0)

    def count(name, function, of):
      def counted(*args, **named):
        total[name] = total[name] + of(*args)
        return function(*args, **named)

      return counted

    def pushes(update):
      each = store._pushes[update].values()
      return sum(_flat(push.gradient) for push, *_ in each)

    def residual(worker, *_):
      vector = jax.tree.leaves(store._states[worker].residual)[0]
      return _flat(store._layout.unflatten(np.asarray(vector)))

    with (
      mock.patch.object(store, 'commit', count('pushed', store.commit, pushes)),
      mock.patch.object(
        learner,
        'add',
        count('reduced', learner.add, lambda _, p, *__: _flat(p.gradient)),
      ),
      mock.patch.object(store, 'forget', count('lost', store.forget, residual)),
    ):
      summary = run()
    self.assertEqual(summary['compilations'], 0)
    unsent = sum(map(residual, range(3))) + total['lost']
    scale = np.abs(total['pushed']).max()
    np.testing.assert_allclose(
      total['reduced'] + unsent, total['pushed'], atol=1e-5 * scale
    )
    self.assertGreater(np.abs(unsent).max(), 1e-3 * scale)
    (row,) = (
      row for row in small.rows(run, 'events.jsonl') if row['event'] == 'forgot'
    )
    self.assertEqual((row['time'], row['worker']), (0.6, 1))
    self.assertAlmostEqual(
      sum(row['l1'].values()), np.abs(total['lost']).sum(), delta=1e-6 * scale
    )


class RunTest(parameterized.TestCase):
  def test_a_resumed_run_gives_the_results_of_an_uninterrupted_one(self):
    fields = _SPARSE | {'wire__sparse__select_lag': 1}
    expected, steps = stopping.straight('bsp', epochs=2.0, **fields)
    config = stopping.eventful('bsp', epochs=2.0, **fields)
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

  def test_rounds_are_sent_one_after_the_other(self):
    # 64 chunks of 1,024 numbers, of which 16 are sent: norms, then values.
    def seconds(**changed):
      _, summary = sums.execute_timing(
        4 * 65536,
        route__name='ring',
        route__overlap=False,
        cluster__speed__slowdown=(1.0,),
        epochs=0.5,
        **sums.constant(1.0, 2),
        **sums.links(1e6),
        **changed,
      )
      return summary

    fields = {
      'wire__name': 'sparse',
      'wire__sparse__chunk': 1024,
      'wire__sparse__sparsity': 0.75,
    }
    updates = seconds(**fields)
    each = updates['bytes'] / updates['updates']
    self.assertEqual(each, 2 * 4 * (64 + 16 * 1024))
    norms, values = (
      seconds(model__none__size_bytes=size)['virtual_s'] / updates['updates']
      for size in (4 * 64, 4 * 16 * 1024)
    )
    took = updates['virtual_s'] / updates['updates']
    # A second of computing is in both.
    self.assertAlmostEqual(took, norms + values - 1.0, places=6)

  def test_a_streamable_prefix_is_sent_while_workers_compute(self):
    # The last 2/3 of 1 s compute 64 chunks; 16 of them are sent.
    def seconds(overlap, bucket_bytes):
      _, summary = sums.execute_timing(
        4 * 64 * 1536,
        route__name='ring',
        route__overlap=overlap,
        route__bucket_bytes=bucket_bytes,
        wire__name='sparse',
        wire__sparse__chunk=1536,
        wire__sparse__sparsity=0.75,
        wire__sparse__select_lag=1,
        cluster__speed__slowdown=(1.0,),
        epochs=0.5,
        **sums.constant(1.0, 2),
        **sums.links(3e5),
      )
      each = summary['bytes'] / summary['updates']
      self.assertEqual(each, 2 * 4 * (64 + 16 * 1536))
      return summary['virtual_s'] / summary['updates']

    # Two workers send all of it, half at a time, each way: a third of a second.
    alone_s = seconds(False, 1.0)
    self.assertAlmostEqual(alone_s - 1, 4 * (64 + 16 * 1536) / 3e5, delta=0.02)
    beside_s = seconds(True, 4 * 6144)
    # All but the last four chunks were sent before.  These are one message to
    # the other worker and back.
    self.assertAlmostEqual(beside_s - 1, 2 * 4 * 6144 / 3e5, delta=0.005)

  def test_bytes_follow_the_stages_of_warm_up(self):
    summary = small.build(
      small.timing(
        size_bytes=4 * 96,
        cluster__speed__slowdown=(1.0,),
        **_SPARSE
        | {
          'wire__sparse__warmup': (0.0, 0.5),
          'wire__sparse__warmup_epochs': 0.5,
        },
      )
    )()
    # 8 updates an epoch: 4 of all, 4 of 3 chunks of 6, and 8 of 2 chunks, the
    # latter two after norms; each number crosses 4 links of a ring of 3.
    self.assertEqual(summary['updates'], 16)
    numbers = 4 * 96 + 4 * (6 + 3 * 16) + 8 * (6 + 2 * 16)
    self.assertEqual(summary['bytes'], 4 * 4 * numbers)

  @parameterized.parameters((0, False), (1, True), (1, False))
  def test_half_precision_halves_the_bytes_of_values(self, lag, overlap):
    def sent(dtype):
      _, summary = sums.execute_timing(
        4 * 65536,
        route__name='ring',
        route__overlap=overlap,
        wire__name='sparse',
        wire__sparse__dtype=dtype,
        wire__sparse__chunk=1024,
        wire__sparse__sparsity=0.75,
        wire__sparse__select_lag=lag,
        epochs=0.5,
        **sums.links(1e6),
      )
      return summary['bytes'] / summary['updates'] / 4  # Links of a ring.

    self.assertEqual(sent('float32'), 64 * 4 + 16 * 1024 * 4)
    self.assertEqual(sent('bfloat16'), 64 * 4 + 16 * 1024 * 2)

  @parameterized.parameters('topk', 'quantised')
  def test_rejects_wires_without_an_allreduce(self, wire):
    message = (
      "config.route.name: expected 'server', as messages of "
      f'{wire} are not summed on their way, got .*ring'
    )
    with self.assertRaisesRegex(ValueError, message):
      small.build(small.config(route__name='ring', wire__name=wire))


if __name__ == '__main__':
  absltest.main()
