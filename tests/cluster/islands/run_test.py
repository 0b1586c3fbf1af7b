"""Tests for runs of real processes whose workers are islands."""

import importlib
import os
import pathlib
import signal
import tempfile

import jax
import numpy as np
from absl.testing import absltest

from outputs import checkpoints
from tests.support import processes, small, together

_RING = {'cluster__workers': 2, 'route__name': 'ring'}
_SLOW = {
  'cluster__speed__injected': True,
  'cluster__speed__name': 'constant',
  'cluster__speed__fixed_s': 0.05,
  'cluster__speed__per_example_s': 0.0,
}
_STEPS = {
  'epochs': 0.5,
  'checkpoint__every_examples': 48,
  'batching__local_steps': 2,
  'optimizer__sgd__momentum': 0.9,
}


def _final_params(folder):
  """Returns the parameters in a run's newest checkpoint."""
  for name in ('batching.fixed', 'sync.bsp', 'train'):
    importlib.import_module(name)
  directory = folder / 'checkpoints'
  newest = checkpoints.steps(directory)[-1]
  state = checkpoints.read(directory, newest)[checkpoints.COORDINATOR]
  learner = state['runtime']['store']['learner']
  return jax.tree.leaves(learner['params'])


class RunTest(processes.TestCase):
  def test_islands_learn_what_plain_workers_learn(self):
    with processes.launch(
      workers=2,
      servers=0,
      hosts=2,
      cluster__island_sharding='fsdp',
      **_RING,
      **_STEPS,
    ) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    self._check_nothing_left(launch)
    self.assertEqual(launch.summary['late_compilations'], 0)
    folder = pathlib.Path(tempfile.mkdtemp(), 'plain')
    config = small.config(
      cluster__runtime='distributed',
      cluster__speed__slowdown=(1.0,),
      **_RING,
      **_STEPS,
    )
    together.run(config, folder)
    plain, islands = _final_params(folder), _final_params(launch.folder)
    for expected, found in zip(plain, islands, strict=True):
      np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)

  def test_an_island_dies_with_one_of_its_processes_and_rejoins(self):
    with processes.launch(
      workers=2, servers=0, hosts=2, epochs=1000.0, **_RING, **_SLOW
    ) as launch:
      launch.reach(10 * processes.BATCH)
      os.kill(launch.pid('worker:1.1'), signal.SIGKILL)
      launch.until('Worker 1 has rejoined')
      launch.until('Membership epoch .* begins: a worker joins')
      launch.signal(signal.SIGTERM)
      self.assertEqual(launch.wait(), 143, launch.text)
    self._check_nothing_left(launch)
    rows = launch.rows('launch.jsonl')
    started = [row['role'] for row in rows if row['event'] == 'start']
    self.assertEqual(
      {role: started.count(role) for role in started},
      {'worker:0': 1, 'worker:0.1': 1, 'worker:1': 2, 'worker:1.1': 2},
    )
    self.assertEqual(launch.summary['admissions'], [1, 2])
    self.assertEqual(launch.summary['late_compilations'], 0)


if __name__ == '__main__':
  absltest.main()
