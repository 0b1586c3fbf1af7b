"""Assigns the GPUs of a host to the processes on it.

XLA uses every GPU that it sees.  If several processes of a host see all of its
GPUs, each must select its own before XLA starts.  GPUs that a scheduler has
given to one task alone need no selection.
"""

import re
import shutil
import subprocess
from collections.abc import Mapping

from configs.checks import require

_FIELD = 'config.cluster.devices_per_worker'
# The rank of a process among those of its host, or among those that see the
# same GPUs, by whoever has started it.
_LOCAL_RANKS = (
  'SYNCOPATE_LOCAL_RANK',
  'LOCAL_RANK',  # torchrun
  'OMPI_COMM_WORLD_LOCAL_RANK',
  'MPI_LOCALRANKID',  # MPICH, Intel MPI
  'PMI_LOCAL_RANK',  # Cray MPICH
  'SLURM_LOCALID',
)
# How many processes launchers have started on a host, which a scheduler's task
# may be.
_LOCAL_SIZES = (
  'LOCAL_WORLD_SIZE',
  'OMPI_COMM_WORLD_LOCAL_SIZE',
  'MPI_LOCALNRANKS',
)


def gpus(environ: Mapping[str, str]) -> list[str]:
  """Returns the GPUs that a process sees, as CUDA_VISIBLE_DEVICES names them.

  Args:
    environ: The environment.

  Raises:
    ValueError: If nvidia-smi, which is asked where the environment says
      nothing, does not know.
  """
  if environ.get('JAX_PLATFORMS') == 'cpu':
    return []
  if (given := environ.get('CUDA_VISIBLE_DEVICES')) is not None:
    return [gpu for gpu in given.split(',') if gpu not in ('', '-1')]
  if shutil.which('nvidia-smi') is None:
    return []
  line = ['nvidia-smi', '-L']
  done = subprocess.run(line, capture_output=True, text=True, timeout=60)
  said = (done.stdout + done.stderr).strip()
  listed = 'a list of GPUs (JAX_PLATFORMS=cpu uses none)'
  require(done.returncode == 0, ' '.join(line), listed, said)
  return re.findall(r'^GPU (\d+):', done.stdout, re.MULTILINE)


def own(environ: Mapping[str, str], seen: int, *, count: int) -> range:
  """Returns the positions, from 0, of a worker's GPUs among those it sees.

  Workers have the lowest local ranks of a host, so that dedicated servers,
  which need no GPU, leave no gap.

  Args:
    environ: The environment.
    seen: Number of GPUs that the worker sees, more than 0.
    count: Number of GPUs that the worker uses.

  Raises:
    ValueError: If there are too few GPUs, or if the environment does not tell
      the local rank; names the field.
  """
  require(count <= seen, _FIELD, f'at most {seen}, the GPUs seen here', count)
  if seen == count or _alone(environ, seen):
    return range(count)
  variable = next((name for name in _LOCAL_RANKS if environ.get(name)), '')
  told = (
    f'all of the {seen} GPUs seen here, or CUDA_VISIBLE_DEVICES or '
    f'{_LOCAL_RANKS[0]} to tell which are those of this process'
  )
  require(bool(variable), _FIELD, told, count)
  text = environ[variable]
  valid = text.isascii() and text.isdigit() and len(text) < 10
  require(valid, variable, 'a number, at least 0', text)
  rank = int(text)
  most = f'at most {seen // (rank + 1)}, as {variable} is {rank} and {seen} '
  fits = (rank + 1) * count <= seen
  require(fits, _FIELD, f'{most}GPUs are seen here', count)
  return range(rank * count, (rank + 1) * count)


def _alone(environ: Mapping[str, str], seen: int) -> bool:
  """Returns whether no other process of the run sees the same GPUs."""
  if any(environ.get(name, '1') != '1' for name in _LOCAL_SIZES):
    return False  # Several processes are within a task.
  if 'JOB_COMPLETION_INDEX' in environ:  # A container has its own.
    return True
  each = environ.get('SLURM_GPUS_PER_TASK', '').rpartition(':')[2]
  together = environ.get('SLURM_GPUS_ON_NODE', '')
  return each == str(seen) or (together.isdigit() and seen < int(together))
