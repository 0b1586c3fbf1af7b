"""Tests of local steps with parameter servers on real hosts."""

import json
import pathlib
import signal
import tempfile

import jax
import numpy as np
from absl.testing import absltest, parameterized

from tests.support import accounts, processes, small, together
from tests.support.recomputing import recompute

_ADAMW = {'optimizer__name': 'adamw', 'optimizer__learning_rate': 0.01}
_STEPS = {
  **_ADAMW,
  'batching__local_steps': 3,
  'outer__name': 'nesterov',
  'outer__learning_rate': 0.5,
}


def _together(**fields):
  """Returns the folder and the summary of a run in this process."""
  folder = pathlib.Path(tempfile.mkdtemp(), 'run')
  config = small.config(
    **{
      'cluster__runtime': 'distributed',
      'cluster__workers': 2,
      'cluster__speed__slowdown': (1.0,),
      'checkpoint__every_examples': 96,
      'route__server__servers': 2,
      **fields,
    }
  )
  together.run(config, folder)
  return folder, json.loads((folder / 'summary.json').read_text())


def _saved(folder):
  """Returns the parameters of the newest checkpoint."""
  _, servers = processes.newest(folder)
  return np.concatenate([state['params'] for state in servers])


def _virtual(**fields):
  """Returns the parameters at the end of a virtual run."""
  run, _ = small.execute(**{'cluster__speed__slowdown': (1.0,)} | fields)
  leaves = jax.tree.leaves(run.runtime.coordinator.store.learner.params)
  return np.concatenate([np.ravel(leaf) for leaf in leaves])


class SameTest(parameterized.TestCase):
  @parameterized.parameters(
    _STEPS,
    # The rate drops between two iterations.
    {**_STEPS, 'schedule__name': 'step', 'schedule__step__epochs': (1.0,)},
    {**_STEPS, 'optimizer__clip_norm': 0.1},
    {**_STEPS, 'route__server__pipelined': True},
    {'optimizer__name': 'muon', 'batching__local_steps': 2},
  )
  def test_a_synchronous_run_learns_as_the_virtual_one(self, **fields):
    folder, summary = _together(**fields, epochs=3.0)
    self.assertEqual(summary['late_compilations'], 0)
    self.assertEqual(recompute.difference(folder), 0.0)
    pipelined = fields.get('route__server__pipelined', False)
    found = _saved(folder)
    if pipelined:  # The virtual run differs in the order of pieces alone.
      fields = {k: v for k, v in fields.items() if 'pipelined' not in k}
    expected = _virtual(**fields, cluster__workers=2, epochs=3.0)
    np.testing.assert_allclose(found, expected, 1e-5, 2e-6)

  def test_one_worker_trains_as_without_local_steps(self):
    fields = {**_ADAMW, 'cluster__workers': 1, 'route__server__servers': 1}
    folder, summary = _together(**fields, batching__local_steps=4)
    self.assertEqual(summary['updates'], 2 * 192 // 8 // 4)
    # Displacements of the wrong sign would climb.
    expected = _virtual(**_ADAMW, cluster__workers=1)
    np.testing.assert_allclose(_saved(folder), expected, 1e-4, 1e-6)

  @parameterized.parameters(
    {'sync__name': 'asp'},
    {
      'sync__name': 'ssp',
      'wire__name': 'sparse',
      'wire__sparse__chunk': 16,
      'wire__sparse__correction': 'none',
    },
    {'sync__name': 'elastic', 'wire__name': 'topk'},
    {'sync__name': 'quorum', 'wire__dense__dtype': 'bfloat16'},
    {'wire__name': 'lowrank', 'wire__lowrank__rank': 1},
    {
      'sync__name': 'asp',
      'wire__name': 'quantised',
      'wire__quantised__bits': 2,
      'wire__quantised__chunk': 64,
    },
    {'wire__name': 'quantised', 'wire__quantised__bits': 4},
  )
  def test_other_schemes_and_wires_can_be_computed_again(self, **fields):
    folder, summary = _together(
      **_STEPS,
      **fields,
      cluster__speed__injected=True,
      cluster__speed__fixed_s=0.004,
      cluster__speed__per_example_s=0.0,
    )
    self.assertEqual(summary['late_compilations'], 0)
    self.assertEqual(summary['lost_states'], [])
    for check in accounts.accounts(folder):
      self.assertTrue(check.holds, check)
    self.assertEqual(recompute.difference(folder), 0.0)

  def test_a_run_without_a_model_counts_examples_of_all_steps(self):
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    config = small.timing(
      cluster__runtime='distributed',
      cluster__workers=2,
      cluster__speed__slowdown=(1.0,),
      batching__local_steps=3,
    )
    together.run(config, folder)
    summary = json.loads((folder / 'summary.json').read_text())
    self.assertEqual(summary['examples'], 384)
    self.assertEqual(summary['iterations'], 384 // 24)


class ProcessTest(processes.TestCase):
  def test_states_survive_a_restart_and_are_listed_with_a_death(self):
    fields = {
      **_STEPS,
      'sync__name': 'asp',
      'epochs': 7.0,
      'cluster__speed__injected': True,
      'cluster__speed__fixed_s': 0.02,
      'cluster__speed__per_example_s': 0.0,
    }
    faults = ((1, 6, 'die', 'compute'),)
    with processes.launch(
      workers=2, **fields, cluster__faults=faults
    ) as launch:
      launch.until('Worker 1 is lost')
      launch.reach(3 * 192)
      launch.signal(signal.SIGTERM)
      self.assertEqual(launch.wait(), 143, launch.text)
    self.assertEqual(recompute.difference(launch.folder), 0.0)
    with processes.launch(workers=2, folder=launch.folder, **fields) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    summary = launch.summary
    self.assertEqual(recompute.difference(launch.folder), 0.0)
    self.assertEqual(summary['late_compilations'], 0)
    self.assertEqual([lost['worker'] for lost in summary['lost_states']], [1])
    self.check(launch)


if __name__ == '__main__':
  absltest.main()
