"""Tests for sums by XLA: over devices of one process, and over processes.

Both have processes of their own, as XLA's devices are chosen when it starts.
"""

import functools
import itertools
import json
import os
import re
import socket
import sys
import tempfile
import threading
import types
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import absltest, parameterized
from jax.sharding import NamedSharding, PartitionSpec

import train
from cluster.allreduce.sums import native
from cluster.allreduce.sums.native import CollectiveSum
from cluster.process import roles
from cluster.process.exits import Unmendable
from configs import default
from learning import compilations
from learning.layout import Layout
from system import net
from tests.support import accelerators, commands, processes, small
from tests.support.recomputing import recompute
from wire.codec import Payload

_MODULE = 'tests.cluster.allreduce.sums.native_test'
_DEVICES = 8
_SHAPES = ((3, 4), (700,), (5,), (40, 30), ())
_BOOKS = 6
_RANGES = (0.0, 2000.0, float('inf'))
# Worker 0 continues; worker 1 is refused once both have met.
_REFUSED = """
import sys
import time
from unittest import mock
from absl import flags
import main
import train
from cluster.allreduce.sums import native

index, port = map(int, sys.argv[1:])
flags.FLAGS(['main.py', '--config=configs/vgg16_bsp.py'])
native.join(f'127.0.0.1:{port - 1}', port, host='127.0.0.1', index=index,
            workers=2, devices=(), start_s=60.0, tls=None)
if index == 0:
  time.sleep(60.0)
with mock.patch.object(train, 'build', side_effect=ValueError('no such data')):
  main.main(['main.py'])
"""


def _numbers(seed):
  """Returns whole numbers, of which sums are exact in any order."""
  rng = np.random.default_rng(seed)
  whole = functools.partial(rng.integers, -1000, 1000)
  leaves = [np.asarray(whole(size=shape), np.float32) for shape in _SHAPES]
  return Payload(leaves, leaves[1:3]), whole(size=_BOOKS).astype(np.float32)


def _sum_numbers(bucket_bytes, dtype='float32', combine_bytes=0.0):
  """Returns what a process of several devices makes of their numbers."""
  dtype = np.dtype(dtype)
  every = [_numbers(seed) for seed in range(_DEVICES)]
  payload, _ = every[0]
  layout = Layout(
    payload.gradient,
    payload.stats,
    bucket_bytes=bucket_bytes,
    step_statistics=_BOOKS,
    dtype=dtype,
  )
  collective = CollectiveSum(layout, jax.devices(), combine_bytes=combine_bytes)
  split = NamedSharding(
    jax.sharding.Mesh(np.array(jax.devices()), ('workers',)),
    PartitionSpec('workers'),
  )
  parts = [collective.split(*each) for each in every]
  rows = [
    np.concatenate(part)
    for part in zip(*map(jax.device_get, parts), strict=True)
  ]
  shared = [jax.device_put(row, split) for row in rows]
  text = collective.program.lower(shared).compile().as_text()
  cuda = collective.program.trace(shared).lower(lowering_platforms=('cuda',))
  collective.program(shared)
  given = [jnp.copy(jax.device_put(row, split)) for row in rows]
  places = [part.unsafe_buffer_pointer() for part in _shards(given)]
  before = compilations.count()
  sums = collective.program(given)
  late = compilations.count() - before
  in_place = [part.unsafe_buffer_pointer() for part in _shards(sums)] == places
  ends = [np.asarray(each) for each in sums]
  if dtype != np.float32:
    ends = [
      end if end.dtype == np.float32 else end.view(dtype).astype(np.float32)
      for end in ends
    ]
  alike = all((end == end[:1]).all() for end in ends)
  vector = np.concatenate([end[0] for end in ends])

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
    np.array_equal,
    (layout.payload(vector), layout.step_statistics(vector)),
    expected,
  )
  return {
    'same': alike and all(jax.tree.leaves(same)),
    'ranges': len(layout.buckets),
    'cuda': len(re.findall('stablehlo.all_reduce', cuda.as_text())),
    'aliases': len(re.findall(r'may-alias|must-alias', text)),
    'in_place': in_place,
    'donated': all(part.is_deleted() for part in given),
    'collectives': len(re.findall(r'= \S+ all-reduce(?:-start)?\(', text)),
    'changed': int(changed),
    'late': late,
  }


def _shards(arrays):
  """Returns the rows of arrays, each on its device."""
  return [shard.data for array in arrays for shard in array.addressable_shards]


def _of_many(dtype, combine_bytes):
  """Returns the collectives of 97 ranges of 1 MiB, lowered for CUDA."""
  dtype = np.dtype(dtype)
  leaves = [jax.ShapeDtypeStruct((512, 512), np.float32)] * 97
  layout = Layout(
    leaves,
    (),
    bucket_bytes=2**20,
    step_statistics=_BOOKS,
    dtype=dtype,
  )
  collective = CollectiveSum(layout, jax.devices(), combine_bytes=combine_bytes)
  sizes = [each.end - each.start for each in collective.buckets]
  shared = [
    jax.ShapeDtypeStruct(
      (_DEVICES, size), np.float32 if each.dtype == np.float32 else np.uint16
    )
    for size, each in zip(sizes, collective.buckets, strict=True)
  ]
  text = collective.program.trace(shared).lower(lowering_platforms=('cuda',))
  kinds = 'all_reduce', 'all_to_all', 'all_gather'
  return [text.as_text().count(f'stablehlo.{kind}') for kind in kinds]


@functools.cache
def _run_sums():
  """Returns what `_sum_numbers` has found, by bytes of a range."""
  env = {'JAX_NUM_CPU_DEVICES': str(_DEVICES), 'JAX_PLATFORMS': 'cpu'}
  done = small.python('-m', _MODULE, 'summed', **env)
  if done.returncode:
    raise AssertionError(done.stderr)
  return json.loads(done.stdout.splitlines()[-1])


class ProgramTest(parameterized.TestCase):
  # Tensor by tensor, and what comes after them; some; all in one; joined.
  @parameterized.parameters(
    ('0.0', 6, 6), ('2000.0', 3, 3), ('inf', 1, 1), ('combined', 6, 2)
  )
  def test_each_bucket_is_one_collective_and_sums_are_exact(
    self, bucket_bytes, ranges, buckets
  ):
    wanted = {'same': True, 'ranges': ranges, 'changed': 0, 'late': 0}
    wanted |= {'collectives': buckets, 'cuda': buckets}
    # Each on its own device, in the memory of what was given.
    wanted |= {'aliases': buckets, 'in_place': True, 'donated': True}
    self.assertEqual(_run_sums()[bucket_bytes], wanted)

  @parameterized.parameters('bfloat16', 'float16')
  def test_half_precision_is_summed_in_float32_and_rounded_once(self, dtype):
    # Statistics keep their dtype, in a bucket of their own.
    wanted = {'same': True, 'ranges': 4, 'collectives': 1, 'late': 0}
    wanted |= {'cuda': 1, 'aliases': 4, 'in_place': True, 'donated': True}
    found = _run_sums()[dtype]
    self.assertGreater(found.pop('changed'), 2)
    self.assertEqual(found, wanted)

  def test_gpus_use_few_collectives_for_an_update(self):
    found = _run_sums()['many']
    # All-reduces, all-to-alls and all-gathers of 97 MiB; statistics
    # are never rounded.
    self.assertEqual(found['float32 0'], [98, 0, 0])
    self.assertEqual(found['float32 default'], [4, 0, 0])
    self.assertEqual(found['bfloat16 default'], [1, 2, 2])


def _join(address, port, **options):
  native.join(address, port, host='127.0.0.1', devices=(), tls=None, **options)


class JoinTest(absltest.TestCase):
  def test_rejects_the_port_after_the_last(self):
    with self.assertRaisesRegex(ValueError, 'route.native.port: .* 65535'):
      _join('127.0.0.1:65535', 0, index=0, workers=1, start_s=1.0)

  @mock.patch.object(jax.distributed, 'initialize')
  def test_join_waits_for_a_run_with_another_process_of_its_rank(self, meet):
    with socket.create_server(('127.0.0.1', 0)) as coordinator:
      address = '127.0.0.1:{1}'.format(*coordinator.getsockname())
      with self.assertRaisesRegex(Unmendable, 'worker 1 is held by another'):
        _join(address, 0, index=1, workers=2, start_s=1.5)
      meet.assert_not_called()
      ending = threading.Timer(1.0, coordinator.close)
      ending.start()
      _join(address, 0, index=1, workers=2, start_s=20.0)
      self.assertTrue(ending.finished.is_set())
    meet.assert_called_once()

  def test_a_refused_process_ends_while_others_continue(self):
    (port,) = roles.free_ports(1)
    command = [sys.executable, '-c', _REFUSED]
    first, second = (
      commands.start([*command, str(k), str(port)], env=accelerators.cpu())
      for k in range(2)
    )
    with first as other, second as refused:
      self.assertEqual(refused.wait(), 1, refused.text)
      self.assertIsNone(other.code)
    self.assertIn('Refused: no such data', refused.text)


class DevicesTest(parameterized.TestCase):
  def test_rejects_processes_that_xla_does_not_join(self):
    config = small.config(
      cluster__runtime='distributed',
      cluster__workers=2,
      cluster__speed__slowdown=(1.0,),
      route__name='native',
    )
    folder = f'{tempfile.mkdtemp()}/run'
    rank = {'SLURM_JOB_ID': '7', 'SLURM_STEP_ID': '0', 'SLURM_PROCID': '0'}
    rank |= {'SLURM_STEP_NUM_TASKS': '2', 'JAX_PLATFORMS': 'cpu'}
    message = 'config.cluster.workers: expected 1, as XLA .* platform .*, got 2'
    found = []

    def join(*args, **kwargs):  # As if nothing came of it.
      del args, kwargs
      found.append(os.environ['NCCL_SOCKET_IFNAME'])

    with (
      mock.patch.dict(os.environ, rank),
      mock.patch.object(native, 'join', join),
      self.assertRaisesRegex(ValueError, message),
    ):
      os.environ.pop('NCCL_SOCKET_IFNAME', None)
      train.build(config, workdir=folder)
    self.assertEqual(found, ['=lo'])  # Known before XLA's processes meet.

  def test_devices_of_each_process_count_once(self):
    made = [
      types.SimpleNamespace(id=number, process_index=process)
      for number, process in ((3, 1), (0, 0), (2, 1), (1, 0), (4, 2))
    ]
    with mock.patch.object(jax, 'devices', lambda: made):
      found = native.devices(3)
      with self.assertRaisesRegex(ValueError, 'expected 3, as XLA .* got 4'):
        native.devices(4)
    self.assertEqual([each.id for each in found], [0, 2, 4])


class InterfaceTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    addresses = {
      'lo': ['127.0.0.1'],
      'eth0': ['10.0.0.7'],
      'eth01': ['172.16.0.7'],
    }
    self.enterContext(
      mock.patch.object(net, 'interface_addresses', lambda: addresses)
    )
    self.environ = self.enterContext(mock.patch.dict(os.environ))
    self.environ.pop('NCCL_SOCKET_IFNAME', None)

  @parameterized.parameters(
    ('lo', '=lo'), ('eth0', '=eth0'), ('10.0.0.0/8', '=eth0')
  )
  def test_nccl_uses_the_interface_of_the_config(self, interface, expected):
    with self.assertNoLogs('absl', 'WARNING'):
      native.use_interface(interface)
    self.assertEqual(os.environ['NCCL_SOCKET_IFNAME'], expected)

  @parameterized.parameters(
    ('=eth0', False),
    ('eth', False),
    ('ib,eth0', False),
    ('=ib0,eth0', False),
    ('^docker,lo', False),
    ('^=eth', False),
    ('=eth', True),
    ('eth1', True),
    ('=eth01', True),
    ('^eth', True),
    ('^=lo,eth0', True),
  )
  def test_the_users_interface_wins_and_a_contradiction_is_logged(
    self, own, told
  ):
    self.environ['NCCL_SOCKET_IFNAME'] = own
    if told:
      with self.assertLogs('absl', 'WARNING') as logs:
        native.use_interface('10.0.0.0/8')
      self.assertIn(f"is '{own}'", logs.output[0])
      self.assertIn("interface='10.0.0.0/8'", logs.output[0])
    else:
      with self.assertNoLogs('absl', 'WARNING'):
        native.use_interface('10.0.0.0/8')
    self.assertEqual(os.environ['NCCL_SOCKET_IFNAME'], own)

  def test_rejects_unknown_interfaces(self):
    with self.assertRaisesRegex(ValueError, "interface: .* got 'eth7'"):
      native.use_interface('eth7')


class ProcessesTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    accelerators.skip_if_fake(accelerators.NATIVE)

  def test_replicas_are_equal_and_nothing_is_compiled_late(self):
    self._check(workers=2)

  @pytest.mark.soak
  def test_eight_replicas_are_equal(self):
    self._check(workers=8)

  @pytest.mark.soak
  def test_replicas_skip_overflows_together(self):
    with processes.launch(
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
    with processes.launch(
      workers=workers, servers=0, route__name='native', epochs=2.0
    ) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
      # Replicas that differ at an evaluation end the run.
      self.assertEqual(launch.summary['ended'], 'finished')
      self.assertEqual(launch.summary['late_compilations'], 0)
      self.assertEqual(launch.summary['staleness_max'], 0)
    # XLA sums in an order of its own.
    apart, tolerance, why = recompute.compare(launch.folder)
    self.assertLessEqual(apart, tolerance)
    self.assertBetween(tolerance, 1e-8, 1e-4)
    self.assertRegex(why, 'for each of 24 updates' if workers == 2 else '')


if __name__ == '__main__':
  if sys.argv[1:] == ['summed']:
    found = {str(each): _sum_numbers(each) for each in _RANGES}
    found |= {
      each: _sum_numbers(2000.0, each) for each in ('bfloat16', 'float16')
    }
    found['combined'] = _sum_numbers(0.0, combine_bytes=4000.0)
    size = default.get_config().route.native.combine_bytes
    found['many'] = {
      'float32 0': _of_many('float32', 0),
      'float32 default': _of_many('float32', size),
      'bfloat16 default': _of_many('bfloat16', size),
    }
    print(json.dumps(found))
  else:
    absltest.main()
