"""Tests of local steps of replicas on real hosts."""

import json
import pathlib
import signal
import tempfile
from unittest import mock

import jax
import numpy as np
import optax
import pytest
from absl.testing import absltest, parameterized

import analysis
from analysis import runs
from learning import build
from learning.iteration import Iteration
from learning.local_steps import LocalSteps
from outputs import checkpoints
from tests.support import processes, replays, small, together
from tests.support.recomputing import recompute

_ADAMW = {'optimizer__name': 'adamw', 'optimizer__learning_rate': 0.01}
_STEPS = {
  **_ADAMW,
  'batching__local_steps': 2,
  'outer__name': 'nesterov',
  'outer__learning_rate': 0.5,
}


def _config(kind=small.config, **fields):
  return kind(
    **{
      'cluster__runtime': 'distributed',
      'cluster__workers': 3,
      'cluster__speed__slowdown': (1.0,),
      'checkpoint__every_examples': 96,
      'route__name': 'ring',
      **fields,
    }
  )


def _together(config):
  """Returns the folder, the replicas' parameters and the summary of a run."""
  folder = pathlib.Path(tempfile.mkdtemp(), 'run')
  together.run(config, folder)
  return folder, json.loads((folder / 'summary.json').read_text())


def _flat(tree):
  return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def _saved(folder):
  """Returns the parameters of the newest checkpoint."""
  directory = folder / 'checkpoints'
  number = checkpoints.steps(directory)[-1]
  state = checkpoints.read(directory, number)
  store = state[checkpoints.COORDINATOR]['runtime']['store']
  return _flat(store['learner']['params'])


class SameTest(parameterized.TestCase):
  @parameterized.parameters(
    _STEPS,
    {**_STEPS, 'route__name': 'double_tree', 'route__overlap': True},
    # The rate drops between two iterations.
    {**_STEPS, 'schedule__name': 'step', 'schedule__step__epochs': (1.0,)},
  )
  def test_a_run_learns_as_the_virtual_one(self, **fields):
    folder, summary = _together(_config(**fields, epochs=3.0))
    self.assertEqual(summary['late_compilations'], 0)
    self.assertEqual(summary['lost_states'], [])
    self.assertEqual(summary['new_states'], [])
    self.assertEqual(recompute.difference(folder), 0.0)
    replays.check(self, folder)
    fields |= {'cluster__workers': 3, 'cluster__speed__slowdown': (1.0,)}
    run, _ = small.execute(**fields, epochs=3.0)
    expected = _flat(run.runtime.coordinator.store.learner.params)
    np.testing.assert_allclose(_saved(folder), expected, 1e-4, 2e-6)

  def test_averages_of_sgd_equal_a_loop_over_optax(self):
    fields = {
      'optimizer__learning_rate': 0.05,
      'optimizer__sgd__momentum': 0.9,
      'batching__local_steps': 2,
      'cluster__workers': 2,
      'epochs': 1.0,
    }
    config = _config(**fields)
    ranges = {}
    with _record_ranges(ranges):
      folder, _ = _together(config)
    expected = _local_sgd(config, ranges, 0.05, 0.9)
    np.testing.assert_allclose(_saved(folder), expected, 1e-4, 1e-6)

  @parameterized.parameters(
    {'wire__dense__dtype': 'bfloat16'},
    {'wire__name': 'lowrank'},
    {
      'wire__name': 'sparse',
      'wire__sparse__chunk': 16,
      'wire__sparse__correction': 'none',
    },
  )
  def test_runs_of_other_wires_can_be_computed_again(self, **fields):
    folder, summary = _together(_config(**_STEPS, **fields))
    self.assertEqual(summary['late_compilations'], 0)
    self.assertEqual(recompute.difference(folder), 0.0)

  @parameterized.parameters('ring', 'server')
  def test_workers_take_steps_by_their_speed(self, route):
    config = _config(
      **_STEPS,
      route__name=route,
      batching__name='lb_bsp',
      batching__lb_bsp__unit='steps',
      batching__lb_bsp__predictor__name='ema',
      cluster__speed__injected=True,
      cluster__speed__fixed_s=0.0,
      cluster__speed__per_example_s=0.001,
      cluster__speed__slowdown=(1.0, 1.0, 6.0),
      epochs=6.0,
    )
    folder, summary = _together(config)
    self.assertEqual(summary['late_compilations'], 0)
    rows = [r for r in runs.read_events(folder) if r['event'] == 'push']
    self.assertEqual({row['examples'] % 8 for row in rows}, {0})
    # 6 steps by speeds of 1, 1 and 1 / 6.
    last = {row['worker']: row['examples'] // 8 for row in rows[-3:]}
    self.assertEqual(last[2], 1)
    self.assertLessEqual(abs(last[0] - last[1]), 1)
    replays.check(self, folder)

  def test_a_run_without_a_model_counts_examples_of_all_steps(self):
    config = _config(
      small.timing,
      batching__local_steps=2,
      cluster__speed__injected=True,
      cluster__speed__fixed_s=0.0,
      cluster__speed__per_example_s=0.001,
    )
    folder, summary = _together(config)
    self.assertEqual(summary['iterations'], 384 // 16)
    rows = analysis.read(folder).read_event_rows()
    pushes = [row for row in rows if row['event'] == 'push']
    self.assertEqual({row['examples'] for row in pushes}, {16})
    self.assertGreater(min(row['compute_s'] for row in pushes), 0.0159)


def _record_ranges(found):
  """Returns a patch that records the examples of each push of LocalSteps."""
  push = LocalSteps.push

  def recording(self, params, iteration, state):
    found[iteration.number, iteration.worker] = iteration.ranges
    return push(self, params, iteration, state)

  return mock.patch.object(LocalSteps, 'push', recording)


def _local_sgd(config, ranges, rate, momentum):
  """Returns the parameters of local SGD, in one loop over Optax.

  Args:
    config: Config of the run.
    ranges: Positions of the examples, by iteration and worker; whole steps.
    rate: Learning rate.
    momentum: Decay of the momentum.
  """
  learned, batch = build.from_config(config), config.batching.worker_batch
  workers, params = range(config.cluster.workers), learned.params
  tx = optax.sgd(rate, momentum)
  states = [tx.init(params) for _ in workers]
  for iteration in range(learned.num_train // batch // 2 // len(workers)):
    copies = [params for _ in workers]
    for worker in workers:
      positions = np.concatenate(
        [np.arange(*each) for each in ranges[iteration, worker]]
      )
      for step, part in enumerate(np.split(positions, 2)):
        each = tuple((int(k), int(k) + 1) for k in part)
        payload, _ = learned.gradient(
          copies[worker],
          Iteration(each, worker=worker, number=iteration),
          step=step,
        )
        mean = jax.tree.map(lambda leaf: leaf / batch, payload.gradient)
        updates, states[worker] = tx.update(mean, states[worker])
        copies[worker] = optax.apply_updates(copies[worker], updates)
    params = jax.tree.map(lambda *each: sum(each) / len(each), *copies)
  return _flat(params)


class ProcessTest(parameterized.TestCase, processes.TestCase):
  def test_states_survive_epochs_and_restarts_and_are_listed_with_a_death(self):
    fields = {
      **_STEPS,
      'route__name': 'ring',
      'epochs': 40.0,
      'cluster__timeout_s': 2.0,
      'cluster__speed__injected': True,
      'cluster__speed__fixed_s': 0.02,
      'cluster__speed__per_example_s': 0.0,
      'log_every': 10**6,
    }
    faults = ((1, 6, 'die', 'compute'),)
    with processes.launch(
      workers=3, servers=0, **fields, cluster__faults=faults
    ) as launch:
      launch.until('Membership epoch 2 begins: a worker joins')
      rows = len(launch.rows('events.jsonl'))
      launch.reach(launch.rows('metrics.jsonl')[-1]['examples'] + 300)
      launch.signal(signal.SIGTERM)
      self.assertEqual(launch.wait(), 143, launch.text)
    self.assertGreater(rows, 6)
    self.assertEqual(recompute.difference(launch.folder), 0.0)
    found = checkpoints.part_names(
      launch.folder / 'checkpoints',
      checkpoints.steps(launch.folder / 'checkpoints')[-1],
    )
    self.assertEqual(found, ['coordinator', 'worker0', 'worker1', 'worker2'])
    before = launch.summary['examples']
    with processes.launch(
      workers=3, servers=0, folder=launch.folder, **fields
    ) as launch:
      launch.reach(before + 300)
      launch.signal(signal.SIGTERM)
      self.assertEqual(launch.wait(), 143, launch.text)
    summary = launch.summary
    self.assertEqual(recompute.difference(launch.folder), 0.0)
    self.assertEqual(summary['late_compilations'], 0)
    self.assertEqual([lost['worker'] for lost in summary['lost_states']], [1])
    self.assertEqual([new['worker'] for new in summary['new_states']], [1])

  @pytest.mark.soak
  def test_states_survive_their_coordinator(self):
    with processes.launch(
      workers=3,
      servers=0,
      **_STEPS,
      route__name='ring',
      epochs=60.0,
      cluster__timeout_s=2.0,
      cluster__speed__injected=True,
      cluster__speed__fixed_s=0.02,
      cluster__speed__per_example_s=0.0,
      cluster__faults=((0, 20, 'die', 'compute'),),
    ) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    self.assertIn('This process coordinates the run in term 2', launch.text)
    summary = launch.summary
    self.assertEqual(recompute.difference(launch.folder), 0.0)
    self.assertEqual([lost['worker'] for lost in summary['lost_states']], [0])
    self.assertEqual([new['worker'] for new in summary['new_states']], [0])

  @pytest.mark.soak
  def test_displacements_are_summed_by_xla(self):
    fields = {**_STEPS, 'optimizer__name': 'sgd', 'route__name': 'native'}
    with processes.launch(workers=2, servers=0, **fields) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    self.assertEqual(launch.summary['late_compilations'], 0)
    found = recompute.compare(launch.folder)
    self.assertLessEqual(found.difference, found.tolerance)

  def test_states_of_workers_that_xla_joins_survive_a_restart(self):
    fields = {
      **_STEPS,
      'route__name': 'native',
      'epochs': 12.0,
      'cluster__speed__injected': True,
      'cluster__speed__fixed_s': 0.02,
      'cluster__speed__per_example_s': 0.0,
    }
    with processes.launch(workers=2, servers=0, **fields) as launch:
      launch.reach(200)
      launch.signal(signal.SIGTERM)
      self.assertEqual(launch.wait(), 143, launch.text)
    directory = launch.folder / 'checkpoints'
    found = checkpoints.part_names(directory, checkpoints.steps(directory)[-1])
    self.assertEqual(found, ['coordinator', 'worker0', 'worker1'])
    with processes.launch(
      workers=2, servers=0, folder=launch.folder, **fields
    ) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    self._check_states_of_xla(launch)

  @parameterized.parameters(
    {'optimizer__name': 'sgd', 'optimizer__sgd__momentum': 0.9},
    {'optimizer__name': 'muon'},
  )
  @pytest.mark.soak
  def test_states_of_workers_that_xla_joins_survive_a_death(self, **fields):
    fields = {
      **_STEPS,
      **fields,
      'route__name': 'native',
      'epochs': 6.0,
      'cluster__faults': ((1, 12, 'die', 'compute'),),
    }
    with processes.launch(workers=2, servers=0, **fields) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    starts = [r for r in launch.rows('events.jsonl') if r['event'] == 'start']
    self.assertLen(starts, 2)
    self._check_states_of_xla(launch)

  def _check_states_of_xla(self, launch):
    """Checks that all workers have continued with their states."""
    summary = launch.summary
    self.assertEqual(summary['late_compilations'], 0)
    self.assertEqual(summary['lost_states'], [])
    self.assertEqual(summary['new_states'], [])
    found = recompute.compare(launch.folder)
    self.assertLessEqual(found.difference, found.tolerance)


if __name__ == '__main__':
  absltest.main()
