"""Tests for cluster/process/devices.py: assignment of GPUs to processes."""

import os
import pathlib
import subprocess
import sys
import tempfile
from unittest import mock

import jax
from absl.testing import absltest, parameterized

import train
from cluster.process import devices, roles
from learning import placement
from tests.support import gpus, small

_MASK = 'CUDA_VISIBLE_DEVICES'
_MODULE = 'tests.cluster.process.devices_test'


class GpusTest(parameterized.TestCase):
  """Masks of the CUDA programming guide, and output of `nvidia-smi -L`."""

  @parameterized.parameters(
    ('', []),
    ('4', ['4']),
    ('4,5,6,7,0', ['4', '5', '6', '7', '0']),
    (' 1 , 0 ', ['1', '0']),
    # Nothing behind an index that there is not.
    ('-1', []),
    ('0,-1,1', ['0']),
    ('2,,1', ['2']),
    ('2,1,', ['2', '1']),
    # Words for none, such as SLURM's.
    ('NoDevFiles', []),
    ('none', []),
    ('GPU-8932f937,GPU-0a', ['GPU-8932f937', 'GPU-0a']),
    ('MIG-1,MIG-GPU-2/3/0', ['MIG-1', 'MIG-GPU-2/3/0']),
    # Names of one kind alone.
    ('GPU-8932f937,1', ['GPU-8932f937']),
    ('1,GPU-8932f937', ['1']),
  )
  def test_a_mask_is_read_as_cuda_reads_it(self, given, expected):
    with gpus.Host(gpus.list_output(8)).here():
      self.assertEqual(devices.gpus({_MASK: given}), expected)

  @parameterized.parameters('0,1,0', 'GPU-a,GPU-a', '0;1', 'gpu0')
  def test_a_mask_that_shows_no_gpu_by_mistake_is_refused(self, given):
    with (
      gpus.Host(gpus.list_output(8)).here(),
      self.assertRaisesRegex(
        ValueError, f'^{_MASK}: expected .*, got .{given}'
      ),
    ):
      devices.gpus({_MASK: given})

  @parameterized.parameters(
    (gpus.list_output(1), ['0']),
    (gpus.list_output(8), [*'01234567']),
    (gpus.list_output(11), [str(gpu) for gpu in range(11)]),
    (gpus.list_output(2, 2), [gpus.mig(g, p) for g in (0, 1) for p in (0, 1)]),
    # Some are divided, others are not.
    (
      f'{gpus.list_output(1, 1)}\n{gpus.list_output(2).splitlines()[1]}',
      [gpus.mig(0, 0), '1'],
    ),
  )
  def test_without_a_mask_nvidia_smi_lists_them(self, output, expected):
    with gpus.Host(output).here():
      self.assertEqual(devices.gpus({}), expected)
      self.assertEqual(devices.gpus({'JAX_PLATFORMS': 'cuda,cpu'}), expected)
      for platforms in ('cpu', 'cpu,cuda', 'tpu'):
        self.assertEmpty(devices.gpus({'JAX_PLATFORMS': platforms}))

  def test_a_host_without_gpus_has_none(self):
    with gpus.Host('No devices were found', code=6).here():
      self.assertEmpty(devices.gpus({}))
    with gpus.Host(cuda=False).here():
      self.assertEmpty(devices.gpus({}))
      devices.require_cuda({})

  def test_a_container_without_nvidia_smi_has_the_gpus_of_its_device_nodes(
    self,
  ):
    host = gpus.Host()
    for name in ('nvidia3', 'nvidia10', 'nvidiactl', 'nvidia-uvm'):
      host.has_node(name)
    with host.here():
      self.assertEqual(devices.gpus({}), ['0', '1'])

  def test_an_error_of_nvidia_smi_is_not_taken_for_no_gpus(self):
    message = 'nvidia-smi -L: expected a list of GPUs .* got .no driver'
    with gpus.Host('no driver', code=9).here():
      with self.assertRaisesRegex(ValueError, message):
        devices.gpus({})
      limit = mock.patch.object(
        subprocess, 'run', side_effect=subprocess.TimeoutExpired('it', 60)
      )
      with limit, self.assertRaisesRegex(TimeoutError, 'nvidia-smi -L takes'):
        devices.gpus({})

  def test_a_mask_of_jax_alone_is_refused(self):
    own = {'JAX_CUDA_VISIBLE_DEVICES': '1'}
    message = f'JAX_CUDA_VISIBLE_DEVICES: expected nothing, as {_MASK}'
    with gpus.Host(gpus.list_output(2)).here():
      with self.assertRaisesRegex(ValueError, message):
        devices.gpus(own)
      self.assertLen(devices.gpus({'JAX_CUDA_VISIBLE_DEVICES': 'all'}), 2)

  @parameterized.parameters(
    (gpus.list_output(2), {}, 'as nvidia-smi lists 2 GPUs '),
    (gpus.list_output(8), {_MASK: '3'}, f'as {_MASK} names 1 GPU '),
  )
  def test_gpus_of_a_jax_without_cuda_are_named(self, output, own, message):
    with gpus.Host(output, cuda=False).here():
      for check in (devices.gpus, devices.require_cuda):
        with self.assertRaisesRegex(
          ValueError, f'jax: expected CUDA support, {message}.*requirements.txt'
        ):
          check(own)
        check(own | {'JAX_PLATFORMS': 'cpu'})
        check(own | {_MASK: ''})

  def test_plugins_are_found_without_starting_them(self):
    code = (
      'from cluster.process import devices; import os, sys; '
      'print(devices.has_cuda(os.environ), "jax" in sys.modules)'
    )
    host = gpus.Host()
    done = subprocess.run(
      [sys.executable, '-c', code],
      env=host.variables(),
      capture_output=True,
      text=True,
      check=True,
    )
    self.assertEqual(done.stdout, 'True False\n')
    named = {'PJRT_NAMES_AND_LIBRARY_PATHS': 'cuda:/plugin.so'}
    self.assertTrue(devices.has_cuda(named))
    with (
      mock.patch.object(sys, 'path', [str(gpus.ROOT)]),
      mock.patch.dict(sys.modules),
    ):
      sys.modules.pop('jax_plugins', None)
      self.assertFalse(devices.has_cuda({}))


class MemoryTest(parameterized.TestCase):
  @parameterized.parameters(range(1, 40))
  def test_shares_leave_as_much_as_one_process_does(self, share):
    found = devices.memory({}, share)
    if share == 1:
      self.assertEmpty(found)
    else:
      fraction = float(found['XLA_CLIENT_MEM_FRACTION'])
      self.assertBetween(fraction * share, 0.7, 0.75)

  @parameterized.parameters(
    ({'XLA_CLIENT_MEM_FRACTION': '.1'},),
    # JAX refuses both together.
    ({'XLA_PYTHON_CLIENT_MEM_FRACTION': '.1'},),
    ({'XLA_PYTHON_CLIENT_PREALLOCATE': 'false'},),
  )
  def test_variables_that_a_user_has_set_stay(self, environ):
    self.assertEmpty(devices.memory(environ, 4))
    self.assertNotEmpty(
      devices.memory({'XLA_PYTHON_CLIENT_PREALLOCATE': 'true'}, 4)
    )


class OwnTest(parameterized.TestCase):
  @parameterized.product(
    variable=(
      'SLURM_LOCALID',
      'OMPI_COMM_WORLD_LOCAL_RANK',
      'SYNCOPATE_LOCAL_RANK',
      'LOCAL_RANK',
      'MPI_LOCALRANKID',
      'PMI_LOCAL_RANK',
    ),
    count=(1, 2, 4),
  )
  def test_tasks_that_see_all_gpus_take_different_ones(self, variable, count):
    tasks = 8 // count
    # SLURM says of how many GPUs the step has on the host: all.
    slurm = {'SLURM_GPUS_ON_NODE': '8'}
    taken = [
      devices.select(slurm | {variable: str(rank)}, 8, count=count)
      for rank in range(tasks)
    ]
    self.assertEqual(sorted(n for own in taken for n in own), [*range(8)])

  @parameterized.parameters(
    # As many as it needs, by whatever choice.
    ({}, 2, 2),
    ({'SLURM_LOCALID': '3', _MASK: '6,7'}, 2, 2),
    ({'LOCAL_RANK': '3', 'LOCAL_WORLD_SIZE': '4', _MASK: '3'}, 1, 1),
    # More, but for this task alone.
    ({'SLURM_LOCALID': '3', 'SLURM_GPUS_ON_NODE': '8'}, 2, 1),
    ({'SLURM_LOCALID': '3', 'SLURM_GPUS_PER_TASK': 'a100:4'}, 4, 2),
    ({'JOB_COMPLETION_INDEX': '5'}, 8, 4),
  )
  def test_a_worker_takes_all_gpus_of_a_task_that_sees_its_own_only(
    self, environ, seen, count
  ):
    self.assertEqual(devices.select(environ, seen, count=count), range(count))

  @parameterized.parameters(
    ({}, 1, 2, r'at most 1, the GPUs seen here \(.*\), got 2'),
    ({}, 8, 1, 'all of the 8 GPUs seen here, or CUDA_VISIBLE_DEVICES or SYNC'),
  )
  def test_too_few_or_unknown_gpus_are_refused(
    self, environ, seen, count, message
  ):
    field = 'config.cluster.devices_per_worker'
    with self.assertRaisesRegex(ValueError, f'{field}: expected {message}'):
      devices.select(environ, seen, count=count)

  @parameterized.parameters(
    # Nobody has a GPU to himself: no mask, or one of the whole host.
    ({'SLURM_LOCALID': '3'}, 1, 1, 1, 1, 4),
    (
      {'SLURM_LOCALID': '3', 'SLURM_GPUS_ON_NODE': '1', _MASK: '0'},
      1,
      1,
      1,
      1,
      4,
    ),
    ({'LOCAL_RANK': '3', 'LOCAL_WORLD_SIZE': '4'}, 1, 1, 1, 1, 4),
    ({'SYNCOPATE_LOCAL_RANK': '1', _MASK: '5'}, 1, 1, 1, 1, 2),
    ({'SLURM_LOCALID': '3', 'SLURM_GPUS_ON_NODE': '4'}, 4, 2, 1, 2, 2),
    ({'LOCAL_RANK': '8'}, 8, 1, 1, 8, 2),
    # Not as many share one.
    ({'LOCAL_RANK': '6'}, 2, 1, 3, 6, 4),
  )
  def test_the_error_for_workers_without_a_gpu_names_the_remedies(
    self, environ, seen, count, share, places, needed
  ):
    variable, rank = next(iter(environ.items()))
    message = (
      f'^{variable}: expected less than {places}, as {seen} GPU.* seen here, '
      f'config.cluster.devices_per_worker is {count} and .*per_gpu is {share} '
      f'.*fewer workers .* let {needed} or more share a GPU with '
      f'config.cluster.workers_per_gpu, .*JAX_PLATFORMS=cpu.*, got {rank}'
    )
    with self.assertRaisesRegex(ValueError, message):
      devices.select(environ, seen, count=count, share=share)

  @parameterized.product(
    seen=(1, 2, 8), count=(1, 2), share=(1, 2, 4), hosts=(1, 2)
  )
  def test_workers_that_share_gpus_are_spread_evenly(
    self, seen, count, share, hosts
  ):
    places = seen // count
    for _ in range(hosts):  # Local ranks begin on each.
      taken = [
        devices.select(
          {'SLURM_LOCALID': str(rank)}, seen, count=count, share=share
        )
        for rank in range(places * share)
      ]
      groups = [range(at, at + count) for at in range(0, places * count, count)]
      for group in groups:
        self.assertEqual(taken.count(group), share)
      # No GPU has two workers before each has one.
      self.assertCountEqual(taken[:places], groups)

  @parameterized.parameters(
    ({'LOCAL_RANK': '2', 'LOCAL_WORLD_SIZE': '4'},),
    ({'OMPI_COMM_WORLD_LOCAL_RANK': '2', 'OMPI_COMM_WORLD_LOCAL_SIZE': '4'},),
    ({'MPI_LOCALRANKID': '2', 'MPI_LOCALNRANKS': '4'},),
  )
  def test_processes_that_share_a_task_take_different_ones(self, environ):
    for task in (
      {'SLURM_GPUS_PER_TASK': '4', 'SLURM_LOCALID': '0'},
      {'SLURM_GPUS_ON_NODE': '8', 'SLURM_LOCALID': '0'},
      {'JOB_COMPLETION_INDEX': '1'},
    ):
      self.assertEqual(devices.select(task | environ, 4, count=1), range(2, 3))

  def test_a_rank_is_a_number(self):
    with self.assertRaisesRegex(ValueError, 'SLURM_LOCALID: expected a number'):
      devices.select({'SLURM_LOCALID': 'x'}, 8, count=1)


class MeetTest(parameterized.TestCase):
  """GPUs that processes of a run claim; this host has none."""

  def setUp(self):
    super().setUp()
    folder = pathlib.Path(tempfile.mkdtemp())
    self.host = gpus.Host(gpus.list_output(8))
    self.environ = {
      'SLURM_JOB_ID': '7',
      'SLURM_NTASKS': '4',
      'SLURM_JOB_NODELIST': 'n1',
      'SLURM_TASKS_PER_NODE': '4',
      'SLURM_GPUS_ON_NODE': '8',
      'SYNCOPATE_COORDINATOR': 'n1:1',
    }
    self.token = folder / 'token'
    self.token.write_text('a secret of sixteen or more')
    self.token.chmod(0o600)

  def _build(self, rank, *, count=2, share=1, **environ):
    config = small.config(
      cluster__runtime='distributed',
      cluster__workers=2,
      cluster__devices_per_worker=count,
      cluster__workers_per_gpu=share,
      cluster__token_file=str(self.token),
      cluster__speed__slowdown=(1.0,),
      route__server__servers=2,
      route__server__dedicated=True,
    )
    place = {'SLURM_PROCID': str(rank), 'SLURM_LOCALID': str(rank)}
    with (
      self.host.here(**(self.environ | place | environ)),
      mock.patch.object(placement, 'is_cpu_only', return_value=False),
      mock.patch.object(jax.config, 'update') as updated,
    ):
      try:
        train.build(config, workdir=f'{tempfile.mkdtemp()}/run')
      finally:
        self.memory = os.environ.get('XLA_CLIENT_MEM_FRACTION')
        self.mask = os.environ.get(_MASK)
        self.updated = [call.args for call in updated.call_args_list]

  def test_a_worker_selects_its_gpus_before_xla_starts(self):
    # XLA of this process has started long ago, with one CPU device.
    field = 'config.cluster.devices_per_worker'
    with self.assertRaisesRegex(ValueError, f'{field}: .* devices of this pro'):
      self._build(1)
    self.assertEqual(self.updated, [('jax_cuda_visible_devices', '2,3')])

  def test_dedicated_servers_use_no_gpu(self):
    self._build(3)
    self.assertEqual(self.updated, [('jax_platforms', 'cpu')])

  def test_workers_that_share_have_a_part_of_the_memory(self):
    self.host = gpus.Host(gpus.list_output(1))
    self._build(1, count=1, share=2, SLURM_GPUS_ON_NODE='1')
    self.assertEqual(self.memory, '0.3750')
    self._build(1, count=1, share=2, XLA_CLIENT_MEM_FRACTION='.2')
    self.assertEqual(self.memory, '.2')
    with self.assertRaisesRegex(ValueError, 'SLURM_LOCALID: .* got 1'):
      self._build(1, count=1, SLURM_GPUS_ON_NODE='1')

  def test_a_mig_device_is_selected_by_name(self):
    self.host = gpus.Host(gpus.list_output(1, 7))
    self._build(1, count=1, SLURM_GPUS_ON_NODE='7')
    self.assertEqual(self.mask, gpus.mig(0, 1))
    self.assertEqual(self.updated, [('jax_cuda_visible_devices', '0')])
    with self.assertRaisesRegex(ValueError, 'devices_per_worker: .* one MIG'):
      self._build(1, count=2)

  def test_a_share_of_no_gpu_is_refused(self):
    self.host = gpus.Host()
    field = 'config.cluster.workers_per_gpu'
    with self.assertRaisesRegex(ValueError, f'{field}: .* no GPU .* got 4'):
      self._build(1, count=1, share=4)


class MainTest(absltest.TestCase):
  def _run(self, host, *flags, **environ):
    words = ['main.py', '--config=configs/vgg16_bsp.py', *flags]
    return subprocess.run(
      [sys.executable, *words, f'--workdir={tempfile.mkdtemp()}/run'],
      cwd=gpus.ROOT,
      env=host.variables(**environ),
      capture_output=True,
      text=True,
      timeout=100,
    )

  def test_a_model_is_not_trained_beside_gpus_by_a_jax_without_cuda(self):
    host = gpus.Host(gpus.list_output(2), cuda=False)
    done = self._run(host, '--config.epochs=0.01')
    self.assertEqual(done.returncode, 1)
    message = 'Refused: jax: expected CUDA support, as nvidia-smi lists 2 GPUs'
    self.assertIn(message, done.stderr)
    self.assertIn('JAX_PLATFORMS=cpu', done.stderr)
    none = ('--config.model.name=none', '--config.epochs=0.01')
    done = self._run(host, *none)
    self.assertEqual(done.returncode, 0, done.stderr)


def _native(**fields):
  """Returns the config of a run of one worker, which XLA would sum."""
  return small.config(
    cluster__runtime='distributed',
    cluster__workers=1,
    cluster__speed__slowdown=(1.0,),
    route__name='native',
    **fields,
  )


def _begin(devices_per_worker: str, coordinator: str) -> None:
  """Begins a run of one worker, whose processes a scheduler has started."""
  config = _native(cluster__devices_per_worker=int(devices_per_worker))
  where = {'role': 'worker:0', 'coordinator': coordinator}
  train.build(config, workdir=f'{tempfile.mkdtemp()}/run', process=where)
  os._exit(0)


class NativeTest(parameterized.TestCase):
  @parameterized.named_parameters(
    (
      'slurm',
      {
        'SLURM_JOB_ID': '7',
        'SLURM_STEP_NODELIST': 'n1',
        'SLURM_NTASKS': '8',
        'SLURM_PROCID': '3',
        'SLURM_STEP_NUM_NODES': '1',
        'SLURM_LOCALID': '3',
        'SLURM_GPUS_ON_NODE': '8',
      },
      '2',
      '6,7',
    ),
    (
      'open_mpi_with_a_mask_for_each',
      {
        'OMPI_MCA_orte_hnp_uri': '1531576320.0;tcp://127.0.0.1:34911',
        'OMPI_COMM_WORLD_SIZE': '8',
        'OMPI_COMM_WORLD_RANK': '2',
        'OMPI_COMM_WORLD_LOCAL_RANK': '2',
        _MASK: '5',
      },
      '1',
      '0',
    ),
  )
  def test_jax_takes_the_gpus_of_the_worker(self, environ, count, expected):
    host = gpus.Host(gpus.list_output(8))
    coordinator = f'127.0.0.1:{roles.free_ports(1)[0]}'
    done = subprocess.run(
      [sys.executable, '-m', _MODULE, count, coordinator],
      cwd=gpus.ROOT,
      env=host.variables(JAX_NUM_CPU_DEVICES=count, **environ),
      capture_output=True,
      text=True,
      timeout=100,
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    (seen,) = host.startups()
    self.assertEqual(seen['positions'], expected)

  def test_a_gpu_is_not_shared_where_nccl_sums(self):
    message = "workers_per_gpu: expected 1, as config.route.name is 'native'"
    with self.assertRaisesRegex(ValueError, message):
      train.build(
        _native(cluster__workers_per_gpu=2),
        workdir=f'{tempfile.mkdtemp()}/run',
        process={'role': 'worker:0', 'coordinator': '127.0.0.1:1'},
      )


if __name__ == '__main__':
  _begin(*sys.argv[1:])
