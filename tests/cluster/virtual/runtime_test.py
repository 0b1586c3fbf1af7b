"""Tests for the virtual runtime, through config and train."""

import collections
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from analysis import runs
from data.stream import Stream
from sync import asp, bsp, dssp, elastic, r2sp, record, ssp
from tests.support import small

_BYTES = 1768  # Sizes of the model of small.config.
_SCHEMES = ('bsp', 'asp', 'ssp', 'dssp', 'elastic', 'r2sp', 'quorum')


def _leaves(params):
  return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])


def _gradient(run):
  """Returns the mean gradient over some training examples, by plain JAX."""
  train, task = run.runtime.pushes.train, run.runtime.pushes.task

  @jax.jit
  @jax.grad
  def gradient(params, inputs, targets):
    each, _ = task.loss(params, inputs, targets, jax.random.key(0))
    return jnp.mean(each)

  return lambda params, indices: gradient(
    params, *(part[indices] for part in train)
  )


def _step(params, gradient, rate):
  return jax.tree.map(lambda p, g: p - rate * g, params, gradient)


def _starting_params(**changed):
  return small.build(
    small.config(**changed)
  ).runtime.coordinator.store.learner.params


@functools.cache
def _eventful(scheme):
  """Returns a run that a worker leaves and rejoins, and its summary."""
  return small.execute(
    sync__name=scheme,
    cluster__speed__name='lognormal',
    cluster__script=((0.5, 'leave', 1), (1.1, 'join', 1)),
    optimizer__sgd__momentum=0.9,
  )


class NetworkTimeTest(parameterized.TestCase):
  """Closed forms of an iteration's time, with one server of B bytes/s."""

  @parameterized.parameters(1, 4, 8)
  def test_bsp_takes_compute_plus_every_transfer_twice(self, workers):
    run = self._run_timed(workers, 0.1, sync__name='bsp', epochs=1.0)

    barriers = list(small.rows(run, 'metrics.jsonl'))
    times = [0.0] + [r['time'] for r in barriers if r['kind'] == 'barrier']
    expected = 0.1 + 2 * workers * _BYTES / 1e6
    np.testing.assert_allclose(np.diff(times), expected, rtol=1e-9)

  @parameterized.product(workers=[4, 8], compute_s=[0.01, 0.05, 0.2])
  def test_r2sp_comes_near_its_bound(self, workers, compute_s):
    run = self._run_timed(workers, compute_s, sync__name='r2sp', epochs=20.0)

    pushes = [
      r for r in small.rows(run, 'events.jsonl') if r['event'] == 'push'
    ]
    times = [row['time'] for row in pushes if row['worker'] == 0]
    settled = times[len(times) // 2 :]
    mean_s = (settled[-1] - settled[0]) / (len(settled) - 1)
    transfer_s = _BYTES / 1e6
    bound_s = max(compute_s + 2 * transfer_s, workers * transfer_s)
    self.assertBetween(mean_s, bound_s * (1 - 1e-9), bound_s * 1.15)

  def _run_timed(self, workers, compute_s, **changed):
    """Returns a run that has ended: links are shared, nothing is learned."""
    fields = {
      'cluster__workers': workers,
      'cluster__speed__slowdown': (1.0,),
      'cluster__speed__fixed_s': compute_s,
      'cluster__speed__per_example_s': 0.0,
      'cluster__network__server_up_Bps': (1e6,),
      'cluster__network__server_down_Bps': (1e6,),
      'cluster__network__worker_up_Bps': (1e6,),
      'cluster__network__worker_down_Bps': (1e6,),
    }
    run = small.build(small.timing(size_bytes=_BYTES, **fields | changed))
    run()
    return run


class GradientVersionTest(parameterized.TestCase):
  """The parameters of a run, recomputed from its record by plain JAX."""

  @parameterized.parameters(
    *((name, 'sum') for name in _SCHEMES), ('elastic', 'barrier_mean')
  )
  def test_every_gradient_is_of_the_version_that_was_pulled(
    self, name, reduction
  ):
    changed = {
      'sync__name': name,
      'cluster__speed__name': 'lognormal',
      'optimizer__reduction': reduction,
    }
    run, summary = small.execute(**changed)
    self.assertEqual(summary['ended'], 'finished')

    averages = reduction == 'barrier_mean'
    params = self._replay(run, _starting_params(**changed), averages)

    np.testing.assert_allclose(
      _leaves(run.runtime.coordinator.store.learner.params),
      _leaves(params),
      rtol=1e-5,
      atol=1e-6,
    )

  def _replay(self, run, params, averages):
    stream = Stream(num_examples=192, seed=0, ahead=2)
    mean = _gradient(run)
    pulled, taken = {}, {}
    sums = collections.defaultdict(list)
    for row in runs.read_events(run.files.workdir):
      said = row['decision']
      if row['event'] == 'push':
        worker = row['worker']
        stream.done(worker)
        indices = stream.indices(taken[worker])
        sums[said['into']].append(mean(pulled[worker], indices))
      for update in said.get('commit', ()):
        gradients = sums.pop(update)
        for gradient in gradients:
          each = len(gradients) if averages else 1
          params = _step(params, gradient, 0.01 / each)
      for worker in said.get('release', ()):
        pulled[worker] = params
        taken[worker] = stream.take(worker, 8)
    return params

  @parameterized.parameters(*_SCHEMES)
  def test_one_worker_is_sequential_sgd(self, name):
    one = {'cluster__workers': 1, 'cluster__speed__slowdown': (1.0,)}
    own = {'sync__quorum__minimum': 1} if name == 'quorum' else {}
    run, _ = small.execute(sync__name=name, **own, **one)

    params = _starting_params(**one)
    stream = Stream(num_examples=192, seed=0, ahead=2)
    mean = _gradient(run)
    for _ in range(2 * 192 // 8):
      gradient = mean(params, stream.indices(stream.take(0, 8)))
      stream.done(0)
      params = _step(params, gradient, 0.01)
    np.testing.assert_allclose(
      _leaves(run.runtime.coordinator.store.learner.params),
      _leaves(params),
      rtol=1e-5,
      atol=1e-6,
    )


class EquivalenceTest(parameterized.TestCase):
  def _params(self, **changed):
    return _leaves(
      small.execute(**changed)[0].runtime.coordinator.store.learner.params
    )

  def test_ssp_of_bound_0_is_bsp_with_sums(self):
    np.testing.assert_allclose(
      self._params(sync__name='ssp', sync__ssp__bound=0),
      self._params(sync__name='bsp'),
      rtol=1e-5,
      atol=1e-6,
    )

  def test_dssp_with_an_empty_range_is_ssp(self):
    ranged = {'sync__dssp__low': 2, 'sync__dssp__high': 2}
    np.testing.assert_array_equal(
      self._params(sync__name='dssp', **ranged),
      self._params(sync__name='ssp', sync__ssp__bound=2),
    )

  def test_ssp_with_a_bound_never_reached_is_asp(self):
    np.testing.assert_array_equal(
      self._params(sync__name='ssp', sync__ssp__bound=10**6),
      self._params(sync__name='asp'),
    )

  def test_mean_reduction_divides_the_step_by_n(self):
    np.testing.assert_allclose(
      self._params(optimizer__reduction='mean', optimizer__learning_rate=0.03),
      self._params(optimizer__learning_rate=0.01),
      rtol=1e-5,
      atol=1e-6,
    )


class RepetitionTest(parameterized.TestCase):
  @parameterized.parameters(*_SCHEMES)
  def test_two_runs_of_one_seed_differ_in_wall_times_only(self, name):
    (first, one), (second, two) = _eventful(name), _eventful.__wrapped__(name)

    for name in ('events.jsonl', 'trace.json', 'manifest.json'):
      texts = [
        (run.files.workdir / name).read_bytes() for run in (first, second)
      ]
      self.assertEqual(*texts)
    metrics = [small.rows(run, 'metrics.jsonl') for run in (first, second)]
    self.assertEqual(
      *[[small.timeless(row) for row in rows] for rows in metrics]
    )
    self.assertEqual(small.timeless(one), small.timeless(two))
    np.testing.assert_array_equal(
      _leaves(first.runtime.coordinator.store.learner.params),
      _leaves(second.runtime.coordinator.store.learner.params),
    )

  @parameterized.parameters(
    (bsp, {}),
    (asp, {}),
    (ssp, {'bound': 3}),
    (dssp, {'low': 3, 'high': 15}),
    (elastic, {'lookahead': 15, 'monitor_pushes': 2}),
    (r2sp, {'relaxation': 0.8, 'smoothing': 0.1}),
  )
  def test_the_recorded_events_give_the_recorded_decisions(self, module, own):
    run, _ = _eventful(module.__name__.split('.')[1])

    scheme = module.make(num_workers=3, **own)
    rows = list(runs.read_events(run.files.workdir))
    for recorded, replayed in record.replay(scheme, rows):
      self.assertEqual(recorded, replayed)
    self.assertGreater(len(rows), 48)


class AugmentationTest(parameterized.TestCase):
  def test_augmentation_changes_training_and_repeats_with_the_seed(self):
    params = [
      _leaves(
        small.execute(**changed)[0].runtime.coordinator.store.learner.params
      )
      for changed in (
        {},
        {'data__crop_padding': 1},
        {'data__crop_padding': 1},
        {'data__flip': True},
      )
    ]
    np.testing.assert_array_equal(params[1], params[2])
    self.assertFalse(np.array_equal(params[0], params[1]))
    self.assertFalse(np.array_equal(params[0], params[3]))


class SimultaneousTest(parameterized.TestCase):
  @parameterized.parameters(*_SCHEMES)
  def test_simultaneous_events_are_ordered_by_kind_and_then_by_worker(
    self, name
  ):
    run, _ = small.execute(
      sync__name=name,
      cluster__speed__fixed_s=0.25,
      cluster__speed__per_example_s=0.0,
      cluster__speed__slowdown=(1.0, 1.0, 2.0),
      cluster__script=(
        (0.5, 'leave', 1),
        (1.0, 'join', 1),
        (1.0, 'leave', 2),
        (1.5, 'join', 2),
        (1.5, 'leave', 0),
        (2.0, 'join', 0),
      ),
    )
    kinds = ('start', 'leave', 'join', 'push', 'wake')
    keys = [
      (row['time'], kinds.index(row['event']), row.get('worker', -1))
      for row in runs.read_events(run.files.workdir)
    ]
    self.assertEqual(keys, sorted(keys))
    times = [time for time, kind, _ in keys if kind in (1, 2)]
    self.assertEqual(times, [0.5, 1.0, 1.0, 1.5, 1.5, 2.0])
    self.assertIn((0.5, kinds.index('push'), 2), keys)


class DeathTest(parameterized.TestCase):
  @parameterized.parameters(*_SCHEMES)
  def test_a_run_survives_deaths_and_returns(self, name):
    _, summary = small.execute(
      sync__name=name,
      cluster__script=(
        (0.1, 'leave', 0),
        (0.3, 'leave', 1),
        (0.3, 'leave', 2),
        (0.8, 'join', 2),
        (0.9, 'join', 0),
      ),
      cluster__network__server_up_Bps=(1e6,),
    )
    self.assertEqual(summary['ended'], 'finished')

  def test_a_worker_that_dies_while_it_pushes_frees_the_link(self):
    changed = {
      'cluster__workers': 2,
      'cluster__speed__slowdown': (1.0,),
      'cluster__speed__fixed_s': 0.1,
      'cluster__speed__per_example_s': 0.0,
      'cluster__network__server_down_Bps': (1e6,),
    }
    size = small.size_bytes(small.build(small.config(**changed)))
    half = 0.1 + size / 1e6  # Both have pushed half of their bytes.
    run, summary = small.execute(
      **changed, cluster__script=((half, 'leave', 1), (9.0, 'join', 1))
    )

    first = next(
      row
      for row in small.rows(run, 'metrics.jsonl')
      if row['kind'] == 'barrier'
    )
    self.assertAlmostEqual(first['time'], half + size / 2 / 1e6)
    self.assertEqual(summary['script_unreached'], [(9.0, 'join', 1)])

  @parameterized.parameters(*_SCHEMES)
  def test_a_run_without_workers_ends_with_an_error(self, name):
    script = tuple((0.1, 'leave', worker) for worker in range(3))
    run = small.build(small.config(sync__name=name, cluster__script=script))
    with self.assertRaisesRegex(RuntimeError, 'Nothing can happen after 0.1 s'):
      run()
    summary = json.loads((run.files.workdir / 'summary.json').read_text())
    self.assertIn('Nothing can happen', summary['ended'])

  def test_a_loss_that_is_not_finite_names_worker_and_iteration(self):
    config = small.config(optimizer__learning_rate=1e30)
    run = small.build(config)
    with self.assertRaisesRegex(
      FloatingPointError, 'loss of worker 0, iteration [12], is'
    ):
      run()
    summary = json.loads((run.files.workdir / 'summary.json').read_text())
    self.assertIn('expected a finite number', summary['ended'])


if __name__ == '__main__':
  absltest.main()
