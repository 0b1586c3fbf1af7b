"""Tests for cluster/distributed/devices.py: who takes which GPUs."""

import os
import pathlib
import tempfile
from unittest import mock

import jax
from absl.testing import absltest, parameterized

import train
from cluster.distributed import devices
from tests.support import small

_NVIDIA = """#!/bin/sh
for n in 0 1 2 3 4 5 6 7; do echo "GPU $n: H100 (UUID: GPU-$n)"; done
"""


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
  def test_tasks_that_see_all_take_different_ones(self, variable, count):
    tasks = 8 // count
    # SLURM says of how many GPUs the step has on the host: all.
    slurm = {'SLURM_GPUS_ON_NODE': '8'}
    taken = [
      devices.own(slurm | {variable: str(rank)}, 8, count=count)
      for rank in range(tasks)
    ]
    self.assertEqual(sorted(n for own in taken for n in own), [*range(8)])

  @parameterized.parameters(
    # As many as it needs, whoever has chosen them.
    ({}, 2, 2),
    ({'SLURM_LOCALID': '3'}, 2, 2),
    # More, but for this task alone.
    ({'SLURM_LOCALID': '3', 'SLURM_GPUS_ON_NODE': '8'}, 2, 1),
    ({'SLURM_LOCALID': '3', 'SLURM_GPUS_PER_TASK': 'a100:4'}, 4, 2),
    ({'JOB_COMPLETION_INDEX': '5'}, 8, 4),
  )
  def test_what_a_scheduler_gives_a_task_alone_is_its_own(
    self, environ, seen, count
  ):
    self.assertEqual(devices.own(environ, seen, count=count), range(count))

  @parameterized.parameters(
    ({}, 1, 2, 'at most 1, the GPUs seen here, got 2'),
    ({}, 8, 1, 'all of the 8 GPUs seen here, or CUDA_VISIBLE_DEVICES or SYNC'),
    (
      {'SLURM_LOCALID': '3', 'SLURM_GPUS_ON_NODE': '4'},
      4,
      2,
      'at most 1, as SLURM_LOCALID is 3 and 4 GPUs are seen here, got 2',
    ),
  )
  def test_too_few_or_unknown_ones_are_refused(
    self, environ, seen, count, message
  ):
    field = 'config.cluster.devices_per_worker'
    with self.assertRaisesRegex(ValueError, f'{field}: expected {message}'):
      devices.own(environ, seen, count=count)

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
      self.assertEqual(devices.own(task | environ, 4, count=1), range(2, 3))

  def test_a_rank_is_a_number(self):
    with self.assertRaisesRegex(ValueError, 'SLURM_LOCALID: expected a number'):
      devices.own({'SLURM_LOCALID': 'x'}, 8, count=1)


class MeetTest(parameterized.TestCase):
  """What processes of a run do with it; no GPU is here."""

  def setUp(self):
    super().setUp()
    folder = pathlib.Path(tempfile.mkdtemp())
    tool = folder / 'nvidia-smi'
    tool.write_text(_NVIDIA)
    tool.chmod(0o755)
    self.environ = {
      'PATH': f'{folder}:{os.environ["PATH"]}',
      'JAX_PLATFORMS': '',
      'SLURM_JOB_ID': '7',
      'SLURM_NTASKS': '4',
      'SLURM_JOB_NODELIST': 'n1',
      'SLURM_TASKS_PER_NODE': '4',
      'SLURM_GPUS_ON_NODE': '8',
      'SYNCOPATE_LEAD': 'n1:1',
    }
    self.token = folder / 'token'
    self.token.write_text('a secret of sixteen or more')
    self.token.chmod(0o600)

  def _build(self, rank, **environ):
    config = small.config(
      cluster__runtime='distributed',
      cluster__workers=2,
      cluster__devices_per_worker=2,
      cluster__token_file=str(self.token),
      cluster__speed__slowdown=(1.0,),
      route__server__servers=2,
      route__server__dedicated=True,
    )
    place = {'SLURM_PROCID': str(rank), 'SLURM_LOCALID': str(rank)}
    with (
      mock.patch.dict(os.environ, self.environ | place | environ),
      mock.patch.object(jax.config, 'update') as updated,
    ):
      os.environ.pop('CUDA_VISIBLE_DEVICES', None)
      try:
        train.build(config, workdir=f'{tempfile.mkdtemp()}/run')
      finally:
        self.updated = [call.args for call in updated.call_args_list]

  def test_a_worker_names_its_own_before_xla_starts(self):
    # XLA of this process has started long ago, with one CPU device.
    field = 'config.cluster.devices_per_worker'
    with self.assertRaisesRegex(ValueError, f'{field}: .* devices of this pro'):
      self._build(1)
    self.assertEqual(self.updated, [('jax_cuda_visible_devices', '2,3')])

  def test_dedicated_servers_use_none_and_count_none(self):
    self._build(3)
    self.assertEqual(self.updated, [('jax_platforms', 'cpu')])


if __name__ == '__main__':
  absltest.main()
