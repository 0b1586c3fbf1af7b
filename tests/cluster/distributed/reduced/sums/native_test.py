"""Tests for sums by XLA: over devices of one process, and over processes.

Both have processes of their own, as XLA's devices are chosen when it starts.
"""

import functools
import itertools
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading
from unittest import mock

import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from jax.sharding import NamedSharding, PartitionSpec

from cluster.distributed.reduced.sums.native import NativeSum, join
from cluster.transport.heart import Unmendable
from learning import compilations
from learning.pool import Pool
from tests.support import processes
from tools import recompute
from wire.codec import Payload

_ROOT = pathlib.Path(__file__).parents[5]
_MODULE = 'tests.cluster.distributed.reduced.sums.native_test'
_DEVICES = 8
_SHAPES = ((3, 4), (700,), (5,), (40, 30), ())
_BOOKS = 6
_RANGES = (0.0, 2000.0, float('inf'))


def _numbers(seed):
  """Returns whole numbers, of which sums are exact in any order."""
  rng = np.random.default_rng(seed)
  whole = functools.partial(rng.integers, -1000, 1000)
  leaves = [np.asarray(whole(size=shape), np.float32) for shape in _SHAPES]
  return Payload(leaves, leaves[1:3]), whole(size=_BOOKS).astype(np.float32)


def _summed(range_bytes, dtype='float32'):
  """Returns what a process of several devices makes of their numbers."""
  dtype = np.dtype(dtype)
  every = [_numbers(seed) for seed in range(_DEVICES)]
  payload, _ = every[0]
  pool = Pool(
    payload.gradient,
    payload.stats,
    range(5),
    range_bytes=range_bytes,
    books=_BOOKS,
    dtype=dtype,
  )
  native = NativeSum(pool, jax.devices())
  split = NamedSharding(
    jax.sharding.Mesh(np.array(jax.devices()), ('workers',)),
    PartitionSpec('workers'),
  )
  parts = [native.ranges(*each) for each in every]
  shared = [
    jax.device_put(np.concatenate(part), split)
    for part in zip(*map(jax.device_get, parts), strict=True)
  ]
  text = native.program.lower(shared).compile().as_text()
  native.program(shared)
  before = compilations.count()
  ends = [np.asarray(each) for each in native.program(shared)]
  late = compilations.count() - before
  vector = np.concatenate(ends)

  def rounded(leaf):
    return leaf.astype(dtype).astype(np.float32)

  def total(*leaves):
    return np.sum(leaves, axis=0, dtype=np.float32)

  sums, books = jax.tree.map(total, *every)
  halves = [jax.tree.map(rounded, payload.gradient) for payload, _ in every]
  halves = jax.tree.map(rounded, jax.tree.map(total, *halves))
  changed = sum(map(np.any, map(np.not_equal, halves, sums.gradient)))
  expected = Payload(halves, sums.stats), books
  same = jax.tree.map(
    np.array_equal, (pool.payload(vector), pool.books(vector)), expected
  )
  return {
    'same': all(jax.tree.leaves(same)),
    'ranges': len(pool.ranges),
    'collectives': len(re.findall(r'= \S+ all-reduce(?:-start)?\(', text)),
    'changed': int(changed),
    'late': late,
  }


@functools.cache
def _found():
  """Returns what `_summed` has found, by bytes of a range."""
  done = subprocess.run(
    [sys.executable, '-m', _MODULE, 'summed'],
    env=os.environ
    | {'JAX_NUM_CPU_DEVICES': str(_DEVICES), 'JAX_PLATFORMS': 'cpu'},
    cwd=_ROOT,
    capture_output=True,
    text=True,
    timeout=100,
  )
  if done.returncode:
    raise AssertionError(done.stderr)
  return json.loads(done.stdout.splitlines()[-1])


class ProgramTest(parameterized.TestCase):
  # Tensor by tensor, and what comes after them; some; all in one.
  @parameterized.parameters(('0.0', 6), ('2000.0', 3), ('inf', 1))
  def test_every_range_is_one_collective_and_sums_are_exact(
    self, range_bytes, ranges
  ):
    wanted = {'same': True, 'ranges': ranges, 'collectives': ranges, 'late': 0}
    self.assertEqual(_found()[range_bytes], wanted | {'changed': 0})

  @parameterized.parameters('bfloat16', 'float16')
  def test_halves_are_summed_in_float32_and_rounded_once(self, dtype):
    # Statistics and books stay as they are, in a range of their own.
    wanted = {'same': True, 'ranges': 4, 'collectives': 1, 'late': 0}
    found = _found()[dtype]
    self.assertGreater(found.pop('changed'), 2)
    self.assertEqual(found, wanted)


class JoinTest(absltest.TestCase):
  def test_there_is_no_port_after_the_last(self):
    with self.assertRaisesRegex(ValueError, 'route.native.port: .* 65535'):
      join('127.0.0.1:65535', 0, index=0, workers=1, devices=(), start_s=1.0)

  @mock.patch.object(jax.distributed, 'initialize')
  def test_a_run_that_has_begun_with_another_process_is_waited_for(self, meet):
    with socket.create_server(('127.0.0.1', 0)) as lead:
      address = '127.0.0.1:{1}'.format(*lead.getsockname())
      with self.assertRaisesRegex(Unmendable, 'worker 1 is held by another'):
        join(address, 0, index=1, workers=2, devices=(), start_s=1.5)
      meet.assert_not_called()
      ending = threading.Timer(1.0, lead.close)
      ending.start()
      join(address, 0, index=1, workers=2, devices=(), start_s=20.0)
      self.assertTrue(ending.finished.is_set())
    meet.assert_called_once()


class ProcessesTest(parameterized.TestCase):
  def test_replicas_are_the_same_and_nothing_is_compiled_late(self):
    self._check(workers=2)

  @pytest.mark.soak
  def test_so_are_eight(self):
    self._check(workers=8)

  @pytest.mark.soak
  def test_they_skip_together_what_overflows(self):
    with processes.launched(
      workers=2,
      servers=0,
      route__name='native',
      epochs=2.0,
      precision__dtype='float16',
      precision__loss_scaling='dynamic',
      precision__grow_after=4,
      wire__dense__dtype='float16',
    ) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
      # Replicas that differ at an evaluation end the run.
      summary = launch.summary
    self.assertEqual(summary['ended'], 'finished')
    self.assertEqual(summary['late_compilations'], 0)
    pushed = summary['examples'] + summary['skipped_examples']
    self.assertEqual(pushed, 8 * summary['iterations'])
    self.assertEqual(summary['skipped_examples'], 8 * summary['skipped'])
    scales = [
      (row['loss_scale'], row['skipped'])
      for row in launch.rows('metrics.jsonl')
      if row['kind'] == 'barrier'
    ]
    steps = list(itertools.pairwise(scales))
    for (before, some), (after, more) in steps:
      # Both workers' pushes are skipped, or none.
      self.assertIn((after / before, more - some), ((0.5, 2), (1, 0), (2, 0)))
    self.assertEqual(
      {after / before for (before, _), (after, _) in steps}, {0.5, 1, 2}
    )

  def _check(self, workers):
    with processes.launched(
      workers=workers, servers=0, route__name='native', epochs=2.0
    ) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
      # Replicas that differ at an evaluation end the run.
      self.assertEqual(launch.summary['ended'], 'finished')
      self.assertEqual(launch.summary['late_compilations'], 0)
      self.assertEqual(launch.summary['staleness_max'], 0)
    # XLA sums in an order of its own.
    apart, tolerance, why = recompute.compared(launch.folder)
    self.assertLessEqual(apart, tolerance)
    self.assertBetween(tolerance, 1e-8, 1e-4)
    self.assertRegex(why, 'for each of 24 updates' if workers == 2 else '')


if __name__ == '__main__':
  if sys.argv[1:] == ['summed']:
    found = {str(each): _summed(each) for each in _RANGES}
    found |= {each: _summed(2000.0, each) for each in ('bfloat16', 'float16')}
    print(json.dumps(found))
  else:
    absltest.main()
