"""Runs of reduced routes under the virtual clock, for tests."""

import functools

import jax
import numpy as np

from tests.support import small

CHUNK = 3 * 2**14  # Bytes of what one message carries.


def links(Bps):
  """Returns fields of a config: links of all workers, each way."""
  return {
    'cluster__network__worker_up_Bps': (Bps,),
    'cluster__network__worker_down_Bps': (Bps,),
  }


def constant(compute_s, workers):
  """Returns fields of a config: workers who compute for so long."""
  return {
    'cluster__workers': workers,
    'cluster__speed__fixed_s': compute_s,
    'cluster__speed__per_example_s': 0.0,
  }


def timed(size_bytes, **changed):
  """Returns a run of times and bytes alone that has ended, and its summary."""
  run = small.build(small.timing(size_bytes=size_bytes, **changed))
  return run, run()


def barriers(run):
  """Returns when updates were everywhere, beginning with 0."""
  rows = small.rows(run, 'metrics.jsonl')
  return [0.0] + [row['time'] for row in rows if row['kind'] == 'barrier']


def params(run):
  """Returns what a run has learned, as one vector."""
  leaves = jax.tree.leaves(run.runtime.coordinator.store.learner.params)
  return np.concatenate([np.ravel(leaf) for leaf in leaves])


@functools.cache
def served(**changed):
  """Returns what a run with one server has learned."""
  return params(small.trained(**changed)[0])
