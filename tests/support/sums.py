"""Virtual runs with an allreduce, for tests."""

import functools

import jax
import numpy as np

from tests.support import small

CHUNK = 3 * 2**14  # Payload of a message, bytes.


def links(Bps):
  """Returns config fields of equal links of all workers, in both directions."""
  return {
    'cluster__network__worker_up_Bps': (Bps,),
    'cluster__network__worker_down_Bps': (Bps,),
  }


def constant(compute_s, workers):
  """Returns config fields of workers with a constant computing time."""
  return {
    'cluster__workers': workers,
    'cluster__speed__fixed_s': compute_s,
    'cluster__speed__per_example_s': 0.0,
  }


def execute_timing(size_bytes, **changed):
  """Executes a timing-only run; returns it and its summary."""
  run = small.build(small.timing(size_bytes=size_bytes, **changed))
  return run, run()


def barriers(run):
  """Returns the times of completed updates, after a leading 0."""
  rows = small.rows(run, 'metrics.jsonl')
  return [0.0] + [row['time'] for row in rows if row['kind'] == 'barrier']


def params(run):
  """Returns the parameters of a run as one vector."""
  leaves = jax.tree.leaves(run.runtime.coordinator.store.learner.params)
  return np.concatenate([np.ravel(leaf) for leaf in leaves])


@functools.cache
def server_params(**changed):
  """Returns the parameters of a finished run with one server."""
  return params(small.execute(**changed)[0])
