"""Which devices of a host are a process's own.

XLA takes every GPU that it sees, and where several processes of a host see all
of them, each must name its own before.  What a scheduler has given to a task
alone it may take as it is.
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
  """Returns which of the GPUs that it sees a worker takes, from 0.

  Workers have the lowest ranks of a host, so that those of dedicated servers
  leave no gap.

  Args:
    environ: The environment.
    seen: How many it sees, more than 0.
    count: How many it is to have.

  Raises:
    ValueError: If there are too few, or if nothing tells which are its own;
      names the field.
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
  """Returns whether nobody else on this host sees the same GPUs."""
  if any(environ.get(name, '1') != '1' for name in _LOCAL_SIZES):
    return False  # Several processes are within a task.
  if 'JOB_COMPLETION_INDEX' in environ:  # A container has its own.
    return True
  each = environ.get('SLURM_GPUS_PER_TASK', '').rpartition(':')[2]
  together = environ.get('SLURM_GPUS_ON_NODE', '')
  return each == str(seen) or (together.isdigit() and seen < int(together))
