"""Tests that updates on accelerators use the memory of gradients again.

The accelerator is fake, in a separate process.
"""

import hashlib
import json
import sys

import jax
import numpy as np
import optax
from absl.testing import absltest, parameterized

from cluster.network import memory
from learning.layout import Layout
from learning.learner import TaskLearner
from tests.support import accelerators, small
from wire.codec import Payload

_MODULE = 'tests.learning.donation_test'
_RUNS = {
  'asp': {'sync__name': 'asp'},
  'bsp': {'sync__name': 'bsp', 'optimizer__name': 'adamw'},
  'topk': {'sync__name': 'ssp', 'wire__name': 'topk'},
  'sparse': {
    'sync__name': 'bsp',
    'route__name': 'ring',
    'wire__name': 'sparse',
    'wire__sparse__chunk': 16,
  },
}


def _tree(seed):
  rng = np.random.default_rng(seed)
  shapes = {'a': (30, 2), 'b': (4,)}
  return {
    name: rng.normal(size=shape).astype(np.float32)
    for name, shape in shapes.items()
  }


def _learner():
  return TaskLearner(
    params=jax.device_put(_tree(0)),
    stats={'mean': jax.device_put(np.ones(3, np.float32))},
    tx=optax.sgd(1.0, momentum=0.9),
    schedule=lambda examples, updates: 0.1,
    reduction='sum',
    num_workers=1,
    worker_batch=8,
  )


def _digest(tree):
  leaves = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]
  return hashlib.sha256(b''.join(leaves)).hexdigest()


def _apply_updates():
  """Returns the results of updates by payload and by buffer, and deletions."""
  learner, other = _learner(), _learner()
  stats = {'mean': np.full(3, 5.0, np.float32)}
  layout = Layout(
    _tree(0), stats, order=(1, 0), bucket_bytes=0, step_statistics=0
  )
  given, pulled, kept = [], [learner.params], True
  for seed in range(1, 4):
    payload = jax.device_put(Payload(_tree(seed), stats))
    vector = memory.aligned(4 * layout.size).view(np.float32)  # Is not copied.
    vector[:] = layout.pack(payload, np.zeros(0, np.float32))
    before = vector.copy()
    learner.add(learner.version, payload, 8)
    learner.commit(learner.version)
    other.apply(layout.payload(vector), 8, pushes=1)
    kept = kept and np.array_equal(vector, before)
    given += jax.tree.leaves(payload)
    pulled.append(learner.params)
  return {
    'deleted': sum(leaf.is_deleted() for leaf in given) / len(given),
    'kept': kept,  # The buffer is not written to.
    'digest': _digest(pulled),  # A pulled version stays valid.
    'same': _digest(learner.state()) == _digest(other.state()),
  }


def _results():
  found = {'updated': _apply_updates()}
  for name, fields in _RUNS.items():
    run, summary = small.execute(epochs=1.0, **fields)
    learner = run.runtime.coordinator.store.learner
    found[name] = _digest((learner.params, learner.stats))
    found[f'{name} compilations'] = summary['compilations']
  return found


class DonationTest(parameterized.TestCase):
  def test_results_are_those_of_the_cpu_and_gradients_are_deleted(self):
    accelerators.skip_if_fake('this process is to have the CPU.')
    environ = accelerators.environment()
    done = small.python('-W', 'error', '-m', _MODULE, 'found', **environ)
    self.assertEqual(done.returncode, 0, done.stderr)
    fake = json.loads(done.stdout.splitlines()[-1])
    cpu = _results()
    deleted = fake['updated'].pop('deleted'), cpu['updated'].pop('deleted')
    self.assertEqual(deleted, (1, 0))
    self.assertTrue(fake['updated']['kept'])
    self.assertTrue(fake['updated']['same'])
    self.assertEqual(fake, cpu)


if __name__ == '__main__':
  if sys.argv[1:] == ['found']:
    print(json.dumps(_results()))
  else:
    absltest.main()
