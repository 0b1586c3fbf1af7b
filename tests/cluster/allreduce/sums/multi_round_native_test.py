"""Tests of half precision in XLA's sums: of one worker, and against a ring."""

import functools
import importlib

import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from cluster.allreduce.sums.multi_round_native import NativeMultiRoundReducer
from learning.layout import Layout
from outputs import checkpoints
from tests.support import processes
from wire import sparse
from wire.codec import Payload
from wire.multi_round import MultiRoundAllreduce

_PARAMS = {'a': np.zeros((5, 4), np.float32), 'b': np.zeros(7, np.float32)}
_STATISTICS = 3
_SPARSE = {
  'sparsity': 0.6,
  'chunk': 4,
  'correction': 'masked',
  'momentum': 0.0,
  'warmup': (),
  'warmup_epochs': 1.0,
}


class SingleWorkerTest(parameterized.TestCase):
  @parameterized.product(dtype=('bfloat16', 'float16'), select_lag=(0, 1))
  def test_rounding_errors_of_chunks_stay_in_the_residual(
    self, dtype, select_lag
  ):
    wire = sparse.make(**_SPARSE, dtype=dtype, select_lag=select_lag)
    layout = Layout(
      _PARAMS,
      (),
      order=(1, 0),
      bucket_bytes=0,
      step_statistics=_STATISTICS,
      multiple=4,
    )
    multi_round = MultiRoundAllreduce(
      wire, layout.gradient_size, layout.matrices(), uses_numpy=False
    )
    like = Payload(_PARAMS, ())
    worker = NativeMultiRoundReducer(
      *(None, layout, like),
      step_statistics=_STATISTICS,
      workers=1,
      combine_bytes=0.0,
      multi_round=multi_round,
      index=0,
    )
    states, lost = {0: multi_round.init(0)}, 0.0
    rng = np.random.default_rng(0)
    for version in range(1, 4):
      gradient = jax.tree.map(
        lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), _PARAMS
      )
      numbers = rng.normal(size=_STATISTICS).astype(np.float32)
      payload, statistics, rounds = worker.reduce(
        worker.place(Payload(gradient, ())), numbers, 0, 1.0
      )
      rounds.finish(version)

      vectors = {0: layout.flatten(gradient)}
      reduced, states = multi_round.reduce(states, vectors, stage=0, scale=1.0)
      jax.tree.map(
        np.testing.assert_array_equal,
        payload.gradient,
        layout.unflatten(np.asarray(reduced.vector)),
      )
      jax.tree.map(
        np.testing.assert_array_equal, worker.codec_state.state, states[0]
      )
      np.testing.assert_array_equal(statistics, numbers)
      # Numbers that were sent have left rounding errors.
      sent = np.asarray(reduced.vector) != 0
      lost += float(
        np.abs(np.asarray(states[0].residual['unsent'])[sent]).sum()
      )
    self.assertGreater(lost, 0)


class ProcessesTest(processes.TestCase, parameterized.TestCase):
  @parameterized.parameters(
    ({'wire__dense__dtype': 'bfloat16'}, {'wire__dense__dtype': 'float32'}),
    (
      {'wire__name': 'sparse', 'wire__sparse__dtype': 'bfloat16'},
      {'wire__name': 'sparse'},
    ),
  )
  @pytest.mark.soak
  def test_replicas_are_equal_and_as_those_of_a_ring(self, halves, whole):
    native, other, exact = (
      _train(route, **fields)
      for route, fields in (
        ('native', halves),
        ('ring', halves),
        ('ring', whole),
      )
    )
    first = _train('ring', **whole, epochs=0.1)
    moved = max(map(_apart, exact, first))
    apart = functools.partial(map, _apart)
    # A rounding of a part, of another, and of the sum.
    rounding = 3 * 2.0**-8 * moved
    self.assertLessEqual(max(apart(native, other)), rounding)
    self.assertBetween(max(apart(native, exact)), 1e-9, 2 * rounding)


def _apart(one, other):
  return float(np.abs(one - other).max())


def _train(route, *, epochs=0.75, **fields):
  """Returns the parameters of the end of a run of two workers."""
  if fields.get('wire__name') == 'sparse':
    fields |= {'wire__sparse__chunk': 16, 'wire__sparse__sparsity': 0.5}
  with processes.launch(
    workers=2,
    servers=0,
    route__name=route,
    epochs=epochs,
    checkpoint__every_examples=16,
    eval_every=0.25,
    **fields,
  ) as launch:
    # Replicas that differ at an evaluation end the run.
    if launch.wait() or launch.summary['ended'] != 'finished':
      raise AssertionError(launch.text)
  for name in ('optax', 'batching.fixed', 'sync.bsp', 'train'):
    importlib.import_module(name)  # Checkpoints hold their classes.
  directory = launch.folder / 'checkpoints'
  parts = checkpoints.read(directory, checkpoints.steps(directory)[-1])
  learner = parts[checkpoints.COORDINATOR]['runtime']['store']['learner']
  return jax.tree.leaves(learner['params'])


if __name__ == '__main__':
  absltest.main()
