"""Tests of fragments that synchronise in turn on real hosts."""

import json
import pathlib
import signal
import tempfile

import jax
import numpy as np
from absl.testing import absltest

from outputs import checkpoints
from tests.support import fragments, processes, replays, small, together
from tests.support.recomputing import recompute

_FIELDS = {
  'batching__local_steps': 4,
  'data__ahead': 0,
  'optimizer__name': 'adamw',
  'optimizer__learning_rate': 0.01,
  'outer__name': 'nesterov',
  'outer__learning_rate': 0.5,
  'route__name': 'ring',
  'route__fragments': 2,
  'route__overlap_steps': 1,
  'route__blend': 0.5,
}
_REAL = {
  'cluster__runtime': 'distributed',
  'checkpoint__every_examples': 96,
}


def _saved(folder):
  """Returns the parameters of the newest checkpoint."""
  directory = folder / 'checkpoints'
  number = checkpoints.steps(directory)[-1]
  state = checkpoints.read(directory, number)
  store = state[checkpoints.COORDINATOR]['runtime']['store']
  return fragments.flat(store['learner']['params'])


class SameTest(absltest.TestCase):
  def test_parameters_are_those_of_a_loop_in_numpy(self):
    fields = {
      'route__fragments': 2,
      'route__overlap_steps': 1,
      'route__blend': 0.5,
    }
    config = fragments.config(**fields, **_REAL)
    task, dataset = fragments.make_task()
    folder, ranges = pathlib.Path(tempfile.mkdtemp(), 'run'), {}
    with fragments.recording(ranges):
      parts = together.run(config, folder, task=task, dataset=dataset)
    summary = json.loads((folder / 'summary.json').read_text())
    self.assertEqual(summary['late_compilations'], 0)
    self.assertEqual(summary['overlap'], 'steps')
    self.assertEqual(summary['examples'], 96)
    learned = parts[1].parts.learned
    expected = fragments.train(
      config, ranges, learned.stream.indices, learned.fragments.leaves
    )
    np.testing.assert_allclose(_saved(folder), expected, 1e-4, 1e-5)

  def test_a_run_learns_as_the_virtual_one_and_can_be_computed_again(self):
    workers = {'cluster__workers': 2, 'cluster__speed__slowdown': (1.0,)}
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    together.run(small.config(**_FIELDS, **_REAL, **workers), folder)
    self.assertEqual(recompute.difference(folder), 0.0)
    replays.check(self, folder)
    run, _ = small.execute(**_FIELDS, **workers)
    found = jax.tree.leaves(run.runtime.coordinator.store.learner.params)
    np.testing.assert_allclose(
      _saved(folder), fragments.flat(found), 1e-4, 2e-6
    )

  def test_a_run_without_a_model_sums_a_fragment_in_each_iteration(self):
    config = small.timing(
      **_REAL,
      size_bytes=4 * 1000,
      num_train=2 * 16 * 4,
      batching__worker_batch=2,
      batching__local_steps=8,
      data__ahead=0,
      route__name='ring',
      route__fragments=4,
      route__overlap_steps=1,
      cluster__workers=2,
      cluster__speed__injected=True,
      cluster__speed__slowdown=(1.0,),
      cluster__speed__fixed_s=0.01,
      cluster__speed__per_example_s=0.0,
      epochs=1.0,
    )
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    together.run(config, folder)
    summary = json.loads((folder / 'summary.json').read_text())
    self.assertEqual((summary['updates'], summary['examples']), (16, 128))
    # Both workers send each quarter of the model, and step statistics.
    each = summary['bytes'] / 16 / 2
    self.assertBetween(each, 1000, 1000 + 512)


class ProcessTest(processes.TestCase):
  def test_own_parameters_survive_a_death_and_a_restart(self):
    fields = {
      **_FIELDS,
      'epochs': 30.0,
      'cluster__timeout_s': 5.0,
      'cluster__speed__injected': True,
      'cluster__speed__fixed_s': 0.02,
      'cluster__speed__per_example_s': 0.0,
      'log_every': 10**6,
    }
    faults = ((1, 6, 'die', 'compute'),)
    with processes.launch(
      workers=2, servers=0, **fields, cluster__faults=faults
    ) as launch:
      launch.until('Membership epoch 2 begins: a worker joins')
      launch.reach(launch.rows('metrics.jsonl')[-1]['examples'] + 300)
      launch.signal(signal.SIGTERM)
      self.assertEqual(launch.wait(), 143, launch.text)
    self.assertEqual(recompute.difference(launch.folder), 0.0)
    with processes.launch(
      workers=2, servers=0, folder=launch.folder, **fields
    ) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    summary = launch.summary
    self.assertEqual(recompute.difference(launch.folder), 0.0)
    self.assertEqual(summary['late_compilations'], 0)
    self.assertEqual([lost['worker'] for lost in summary['lost_states']], [1])


if __name__ == '__main__':
  absltest.main()
