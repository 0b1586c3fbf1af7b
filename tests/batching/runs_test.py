"""Tests for batching in virtual and real runs.

They compare parameters with SGD on the pooled batch, batches with speeds, and
measurements with those that the workers report.
"""

import contextlib
import csv
import json
import pathlib
import signal
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from analysis import runs
from batching import lb_bsp
from bench.predictors import batches
from cluster.speed import driving
from configs import default
from data.dataset import Dataset, Split
from data.stream import Stream
from models.task import Task
from predict import ema
from tests.support import processes, small

_RATE = 2.0**-6
_WORKERS, _BATCH = 4, 8
_EXAMPLES = 384
_ROUNDS = 100
_CHANGING = {
  'sync__name': 'bsp',
  'batching__name': 'lb_bsp',
  'batching__lb_bsp__predictor__name': 'ema',
  'batching__lb_bsp__threshold': 0.0,
  'cluster__workers': _WORKERS,
  'cluster__speed__name': 'regime',
  'cluster__speed__slowdown': (1.0, 1.3, 2.0, 3.1),
  'cluster__speed__regime__stay': 0.8,
}


def _pushes(path):
  return [e for e in runs.read_events(path) if e['event'] == 'push']


def _rounds(path, total=None):
  """Returns the batches of each superstep, by worker.

  Fails if a worker's batches differ within a superstep, or if their sum is not
  `total` in a superstep in which no worker has left.
  """
  found, left = [{}], False
  for event in runs.read_events(path):
    batch = found[-1]
    if event['event'] == 'push':
      size = batch.setdefault(event['worker'], event['examples'])
      assert total is None or size == event['examples'], (batch, event)
    left |= event['event'] in ('leave', 'start')
    if event['decision'].get('barrier'):
      assert total is None or left or sum(batch.values()) == total, batch
      found.append({})
      left = False
  return found[:-1] if not found[-1] else found


def _task(dtype):
  """Returns a small network, nonlinear in its parameters, and its data."""
  rng = np.random.default_rng(0)
  params = {
    'first': rng.normal(size=(6, 5)).astype(dtype) / 2,
    'second': rng.normal(size=5).astype(dtype) / 2,
  }
  inputs = rng.normal(size=(_EXAMPLES, 6)).astype(dtype)
  targets = np.sin(inputs.sum(axis=1)).astype(dtype)

  def losses(params, inputs, targets):
    hidden = jnp.tanh(inputs @ params['first'])
    return (hidden @ params['second'] - targets) ** 2

  task = Task(
    jax.tree.map(jnp.asarray, params),
    lambda params, inputs, targets, key: (losses(params, inputs, targets), ()),
    lambda params, stats, inputs, targets: losses(params, inputs, targets) < 1,
  )
  split = Split(inputs, targets)
  return task, Dataset(split, split), losses


def _train(task, dataset, **changed):
  config = small.config(
    batching__worker_batch=_BATCH,
    optimizer__learning_rate=_RATE,
    data__ahead=0,
    epochs=_ROUNDS * _WORKERS * _BATCH / _EXAMPLES,
    **_CHANGING | changed,
  )
  config.model = default.get_config().model
  config.data = default.get_config().data
  config.data.ahead = 0
  run = small.build(config, task=task, dataset=dataset)
  return run, run()


class PooledTest(parameterized.TestCase):
  @parameterized.parameters(
    (np.float32, 1e-5, False), (np.float32, 1e-5, True), (np.float64, 1e-12)
  )
  def test_parameters_are_those_of_one_machine_with_the_pooled_batch(
    self, dtype, tolerance, pipelined=False
  ):
    wide = dtype == np.float64
    with jax.enable_x64(True) if wide else contextlib.nullcontext():
      task, dataset, losses = _task(dtype)
      run, summary = _train(task, dataset, route__server__pipelined=pipelined)
      expected = self._one_machine(task, dataset, losses)
      got = run.runtime.coordinator.store.learner.params

    rounds = _rounds(run.files.workdir)
    self.assertLen(rounds, _ROUNDS)
    self.assertGreater(len({tuple(sorted(r.items())) for r in rounds}), 20)
    self.assertEqual(summary['compilations'], 0)
    for name, value in expected.items():
      self.assertEqual(got[name].dtype, dtype)
      self.assertFalse(np.allclose(value, task.params[name], rtol=0.01))
      error = np.linalg.norm(got[name] - value) / np.linalg.norm(value)
      self.assertLess(error, tolerance)

  def _one_machine(self, task, dataset, losses):
    """Returns parameters after SGD on the pooled batch of each superstep."""
    stream = Stream(num_examples=_EXAMPLES, seed=0, ahead=0)
    mean = jax.jit(jax.grad(lambda *given: jnp.mean(losses(*given))))
    params = task.params
    for _ in range(_ROUNDS):
      rows = stream.indices(stream.take(0, _WORKERS * _BATCH))
      stream.done(0)
      gradient = mean(
        params, dataset.train.inputs[rows], dataset.train.targets[rows]
      )
      params = jax.tree.map(
        lambda p, g: p - _RATE * _WORKERS * g, params, gradient
      )
    return params


class VirtualTest(parameterized.TestCase):
  def test_equal_speeds_give_the_parameters_of_bsp(self):
    equal = {'cluster__speed__slowdown': (1.0,), 'sync__name': 'bsp'}
    fixed, _ = small.execute(**equal)
    balanced, _ = small.execute(**equal, batching__name='lb_bsp')

    for one, other in zip(
      jax.tree.leaves(fixed.runtime.coordinator.store.learner.params),
      jax.tree.leaves(balanced.runtime.coordinator.store.learner.params),
      strict=True,
    ):
      np.testing.assert_array_equal(one, other)

  def test_batches_are_proportional_to_speeds(self):
    run, _ = small.execute(
      **_CHANGING
      | {
        'cluster__speed__name': 'constant',
        'cluster__speed__regime__stay': 0.98,
        'cluster__speed__slowdown': (1.0, 1.0, 2.0, 3.0),
        'cluster__speed__fixed_s': 0.0,
        'batching__worker_batch': 17,
        'data__ahead': 1,
        'epochs': 4.0,
      }
    )
    last = _rounds(run.files.workdir)[-1]
    self.assertEqual(last, {0: 24, 1: 24, 2: 12, 3: 8})

  @parameterized.parameters('bsp', 'elastic')
  def test_the_global_batch_stays_while_workers_leave_and_rejoin(self, scheme):
    script = ((0.2, 'leave', 1), (2.0, 'join', 1), (4.0, 'leave', 3))
    fields = {'sync__name': scheme, 'cluster__script': script, 'epochs': 50.0}
    run, _ = small.execute(**_CHANGING | fields)

    rounds = _rounds(run.files.workdir, _WORKERS * _BATCH)
    members = {tuple(sorted(batch)) for batch in rounds}
    self.assertContainsSubset({(0, 1, 2, 3), (0, 2, 3), (0, 1, 2)}, members)

  def test_rows_report_batches_and_predictions_without_history(self):
    run, _ = small.execute(
      **_CHANGING | {'batching__lb_bsp__predictor__name': 'narx'}
    )
    rows = small.rows(run, 'metrics.jsonl')
    barriers = [row for row in rows if row['kind'] == 'barrier']
    before, *after = [row['predictor_fallback'] for row in barriers]
    self.assertEqual((before, *after[:3]), (0, *3 * [_WORKERS]))
    for row, batch in zip(barriers, _rounds(run.files.workdir), strict=True):
      self.assertEqual(row['batch_least'], min(batch.values()))
      self.assertEqual(row['batch_largest'], max(batch.values()))

  @parameterized.product(
    fields=[
      {'sync__name': 'r2sp'},
      {'sync__name': 'r2sp', 'cluster__network__server_up_Bps': (1e5,)},
      {'sync__name': 'bsp'},
      {'sync__name': 'bsp', 'route__name': 'ring'},
      {'sync__name': 'ssp'},
    ],
    speed=['constant', 'lognormal'],
  )
  def test_tuned_batches_of_r2sp_have_the_time_of_the_slowest(
    self, fields, speed
  ):
    config = small.timing(
      batching__name='r2sp', cluster__speed__name=speed, epochs=60.0, **fields
    )
    run = small.build(config)
    run()
    last = {p['worker']: p['examples'] for p in _pushes(run.files.workdir)}
    self.assertEqual(last[2], 8)
    # 0.02 s and 0.0025 s per example, multiplied by 1, 1.3 and 3.1.
    for worker, slower in ((0, 1.0), (1, 1.3)):
      expected = (3.1 * (0.02 + 0.0025 * 8) / slower - 0.02) / 0.0025
      self.assertBetween(last[worker] / expected, 0.93, 1.07)

  def test_batches_of_r2sp_as_released_grow_except_the_slowest(self):
    run = small.build(
      small.timing(
        sync__name='r2sp', batching__name='r2sp_released', epochs=12.0
      )
    )
    run()
    last = {p['worker']: p['examples'] for p in _pushes(run.files.workdir)}
    self.assertEqual(last[2], 8)
    self.assertGreater(last[0], 8)

  @parameterized.parameters('asp', 'ssp', 'dssp', 'r2sp')
  def test_batching_that_needs_barriers_is_rejected_without_them(self, scheme):
    message = (
      "config.batching.name: expected one of .'fixed', 'r2sp', "
      f"'r2sp_released'., as config.sync.name '{scheme}' "
      "has no barriers, got 'lb_bsp'"
    )
    with self.assertRaisesRegex(ValueError, message):
      small.build(small.config(sync__name=scheme, batching__name='lb_bsp'))

  def test_fields_of_an_unused_predictor_are_rejected(self):
    field = 'config.batching.lb_bsp.predictor'
    with self.assertRaisesRegex(ValueError, field):
      small.build(
        small.config(batching__lb_bsp__predictor__name='ema', sync__name='bsp')
      )

  @parameterized.parameters(
    ({'smoothing': 0.5}, r'lb_bsp_gpu.smoothing: expected the default 0.2'),
    ({'curves': '/no/file'}, r'lb_bsp_gpu.curves: /no/file.*No such file'),
    ({'curves': 'x', 'step': 9}, r'lb_bsp_gpu.step: expected the default 4'),
  )
  def test_fields_of_the_other_rule_and_bad_files_are_rejected(
    self, fields, message
  ):
    fields = {f'batching__lb_bsp_gpu__{k}': v for k, v in fields.items()}
    with self.assertRaisesRegex(ValueError, f'config.batching.{message}'):
      small.build(
        small.config(sync__name='bsp', batching__name='lb_bsp_gpu', **fields)
      )

  @parameterized.parameters(False, True)
  def test_gpus_with_flat_times_finish_together(self, with_curves):
    speed = {'fixed_s': 0.02, 'per_example_s': 0.002, 'least_s': 0.05}
    speed = {f'cluster__speed__{k}': v for k, v in speed.items()}
    fields = {'batching__lb_bsp_gpu__window': 1, 'epochs': 30.0}
    if with_curves:
      path = pathlib.Path(tempfile.mkdtemp(), 'curve.json')
      curve = {'flat_s': 0.05, 'intercept_s': 0.02, 'slope_s': 0.002}
      content = {'version': 1, 'curve': curve | {'most': None}}
      path.write_text(json.dumps(content))
      fields = {'batching__lb_bsp_gpu__curves': str(path), 'epochs': 5.0}
    run, _ = small.execute(
      sync__name='bsp',
      batching__name='lb_bsp_gpu',
      batching__worker_batch=20,
      data__ahead=1,
      **speed,
      **fields,
    )
    last = _rounds(run.files.workdir)[-1]
    self.assertEqual(sum(last.values()), 60)
    compute_s = [
      slower * max(0.05, 0.02 + 0.002 * last[worker])
      for worker, slower in enumerate((1.0, 1.3, 3.1))
    ]
    # The best is 0.155 s: up to 15 examples the slowest worker takes its least
    # time.  Without curves the threshold of 5 % ends the trials earlier.
    self.assertLess(max(compute_s), 0.156 if with_curves else 1.1 * 0.155)

  def test_speeds_and_factors_of_a_recording_are_replayed(self):
    path = pathlib.Path(tempfile.mkdtemp(), 'trace.csv')
    with path.open('w', newline='') as file:
      writer = csv.writer(file)
      writer.writerow(['worker', 'iteration', 'compute_s', 'cpu'])
      for worker in range(2):
        for k in range(40):
          writer.writerow([worker, k, 1.0 + worker + k % 2, worker + k / 64])
    run, _ = small.execute(
      **_CHANGING
      | {
        'cluster__workers': 2,
        'batching__lb_bsp__predictor__name': 'narx',
        'cluster__speed__name': 'trace',
        'cluster__speed__slowdown': (1.0,),
        'cluster__speed__regime__stay': 0.98,
        'cluster__speed__trace__path': str(path),
        'cluster__speed__trace__order_column': 'iteration',
        'cluster__speed__trace__value_column': 'compute_s',
        'cluster__speed__trace__driving_columns': 'cpu',
      }
    )
    last = _rounds(run.files.workdir)[-1]
    self.assertGreater(last[0], last[1])
    history = run.runtime.coordinator.batching.predictor.history
    for worker in range(2):
      known = history.rows[worker, : history.count[worker], 1]
      self.assertGreater(len(known), 15)
      expected = worker + np.arange(len(known)) / 64
      np.testing.assert_array_equal(known, expected)


class BenchTest(absltest.TestCase):
  def test_constant_speeds_reach_almost_their_sum(self):
    slowdown = (1.0, 1.0, 2.0, 3.0)
    folder = pathlib.Path(tempfile.mkdtemp())
    reached, in_lab = batches.measure_rates(
      folder, 'bsp', 'lb_bsp', slowdown, lab=False
    )
    alone = sum(1 / (batches.EXAMPLE_S * each) for each in slowdown)
    self.assertGreaterEqual(reached / alone, 0.95)
    self.assertIsNone(in_lab)

  def test_rounds_of_the_benchmark_are_those_of_the_runtime(self):
    run, summary = small.execute(**_CHANGING)
    speed = run.runtime._speed
    batching = lb_bsp.make(
      num_workers=_WORKERS,
      worker_batch=_BATCH,
      predictor=ema.make(
        num_workers=_WORKERS,
        num_factors=1,
        seed=0,
        **default.get_config().batching.lb_bsp.predictor.ema,
      ),
      least=1,
      most=(),
      threshold=0.0,
    )
    rounds = summary['iterations'] // _WORKERS
    pace = batches.simulate(batching, speed, rounds)
    expected = summary['examples'] / summary['time_s']
    self.assertAlmostEqual(pace / expected, 1.0, places=9)


class RealTest(processes.TestCase):
  def test_batches_follow_the_speeds_and_the_global_batch_stays(self):
    self._check_batches(resumes=False)

  @pytest.mark.soak
  def test_a_resumed_run_keeps_its_measurements(self):
    self._check_batches(resumes=True)

  def _check_batches(self, *, resumes):
    fields = {
      'sync__name': 'bsp',
      'batching__name': 'lb_bsp',
      'batching__lb_bsp__predictor__name': 'arima',
      'cluster__speed__injected': True,
      'cluster__speed__fixed_s': 0.0,
      'cluster__speed__per_example_s': 0.01,
      'cluster__speed__slowdown': (1.0, 3.0),
      'cluster__faults': ((1, 8, 'die'),),
      'batching__worker_batch': 14,
      'model': False,
      'checkpoint__every_examples': 420,
      'data__ahead': 1,
      'epochs': 100.0,
    }
    with processes.launch(workers=2, **fields) as launch:
      launch.until('Worker 1 has rejoined')
      launch.reach(launch.rows('metrics.jsonl')[-1]['examples'] + 5 * 28)
      launch.signal(signal.SIGTERM)
      launch.wait()
    self.check(launch)
    count = self._history(launch).count.copy()

    rounds = _rounds(launch.folder, total=28)
    self.assertEqual(rounds[6], {0: 21, 1: 7})
    self.assertIn([0], [sorted(batch) for batch in rounds])
    self.assertEqual(rounds[-2].keys(), {0, 1})
    if not resumes:
      return

    before = launch.summary['examples']
    with processes.launch(workers=2, folder=launch.folder, **fields) as launch:
      launch.reach(before + 5 * 28)
      launch.signal(signal.SIGTERM)
      launch.wait()
    self.check(launch)
    _rounds(launch.folder, total=28)
    self.assertTrue((self._history(launch).count > count).all())

  def test_tuned_batches_of_r2sp_have_the_time_of_the_slowest(self):
    self.check(self._run_tuning(sync__name='r2sp'))

  @pytest.mark.soak
  def test_tuned_batches_have_the_time_of_the_slowest_over_a_ring(self):
    self._run_tuning(sync__name='bsp', route__name='ring', servers=0)

  def _run_tuning(self, **fields):
    """Runs two workers to the end, the second 3 times slower."""
    fields |= {
      'batching__name': 'r2sp',
      'batching__r2sp__window': 5,
      'batching__worker_batch': 10,
      'cluster__speed__injected': True,
      'cluster__speed__fixed_s': 0.0,
      'cluster__speed__per_example_s': 0.005,
      'cluster__speed__slowdown': (1.0, 3.0),
      'model': False,
      'data__ahead': 1,
      'epochs': 1200 / 192,
    }
    with processes.launch(workers=2, **fields) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    pushes = _pushes(launch.folder)
    last = {p['worker']: p['examples'] for p in pushes}
    self.assertEqual(last[1], 10)
    # An example of worker 1 takes three times as long.  Spare time counts as
    # none up to 2 + 2 sqrt(ln 2) standard errors, and a message may take the
    # time of an example or two.
    ends_s = [p['time'] for p in pushes if p['worker'] == 1]
    iterations_s = np.diff(ends_s[len(ends_s) // 2 :])
    error = iterations_s.std() / iterations_s.mean()
    error *= np.sqrt(2 / len(iterations_s))
    errors = 3 + 2 + 2 * np.sqrt(np.log(2))
    self.assertAlmostEqual(last[0], 30, delta=2 + 30 * errors * error)
    return launch

  def test_real_workers_report_driving_factors(self):
    fields = {'sync__name': 'bsp', 'batching__name': 'lb_bsp', 'epochs': 2.5}
    fields['batching__lb_bsp__predictor__narx__needed'] = 60  # Averages alone.
    with processes.launch(workers=1, model=False, **fields) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    self.check(launch)

    history = self._history(launch)
    self.assertEqual(history.known.shape, (1, 1 + len(driving.NAMES)))
    np.testing.assert_array_equal(history.known.T, 3 * [history.count])
    self.assertGreater(history.count.min(), 50)

  def _history(self, launch):
    """Returns the predictor's history in the newest checkpoint."""
    state, _ = processes.newest(launch.folder)
    return state['runtime']['coordinator']['batching'].predictor.history


if __name__ == '__main__':
  absltest.main()
