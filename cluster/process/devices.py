"""Lists the GPUs of a host, and assigns them to the processes on it.

XLA uses every GPU that it sees, and three quarters of the memory of each.  If
several processes of a host see all of its GPUs, each must select its own before
XLA starts; if they share GPUs, each must have a share of the memory.  GPUs that
a scheduler has given to one task alone need no selection.

JAX is not imported here: launchers and sweeps need to know the GPUs only.
"""

import errno
import importlib.util
import pathlib
import pkgutil
import re
import shutil
import subprocess
from collections.abc import Mapping, MutableMapping, Sequence
from importlib import metadata

from configs.checks import require

MASK = 'CUDA_VISIBLE_DEVICES'
_COUNT = 'config.cluster.devices_per_worker'
_SHARE = 'config.cluster.workers_per_gpu'
_JAX_MASK = 'JAX_CUDA_VISIBLE_DEVICES'
_NO_GPU = 'JAX_PLATFORMS=cpu uses none'
# Variables of the rank of a process among those of its host, or among those
# that see the same GPUs, by launcher.
_LOCAL_RANKS = (
  'SYNCOPATE_LOCAL_RANK',
  'LOCAL_RANK',  # torchrun
  'OMPI_COMM_WORLD_LOCAL_RANK',
  'MPI_LOCALRANKID',  # MPICH, Intel MPI
  'PMI_LOCAL_RANK',  # Cray MPICH
  'SLURM_LOCALID',
)
# Variables of the number of processes that a launcher has started on a host; a
# scheduler's task may be the "host".
_LOCAL_SIZES = (
  'LOCAL_WORLD_SIZE',
  'OMPI_COMM_WORLD_LOCAL_SIZE',
  'MPI_LOCALNRANKS',
)
# Names in a mask: an index, a UUID or the beginning of one, a MIG device.
_NAMES = re.compile(r'(\d{1,4})|(GPU-)[0-9A-Za-z-]+|(MIG-)[0-9A-Za-z/-]+')
_NONE = ('', 'none', 'void', 'nodevfiles')  # SLURM: NoDevFiles.
_MIG = 'MIG-'
# XLA preallocates this share of a GPU's memory by default.  The rest is for
# CUDA itself, which needs up to half a gigabyte for each process.
_PREALLOCATED = 0.75
FRACTION = 'XLA_CLIENT_MEM_FRACTION'
_FRACTIONS = (FRACTION, 'XLA_PYTHON_CLIENT_MEM_FRACTION')
_PREALLOCATE = 'XLA_PYTHON_CLIENT_PREALLOCATE'
_DEVICE_NODES = pathlib.Path('/dev')


def gpus(environ: Mapping[str, str]) -> list[str]:
  """Returns the GPUs of a process, as CUDA_VISIBLE_DEVICES would name them.

  CUDA_VISIBLE_DEVICES is read as CUDA reads it (CUDA programming guide, "CUDA
  environment variables"): an index below 0 ends the list, and so does a name of
  another kind than the first one.  Without it nvidia-smi lists the GPUs, and
  where that is missing, as in some containers, /dev does.  If a GPU is divided
  (MIG), its parts are listed in its place.

  Args:
    environ: The environment.

  Raises:
    ValueError: If GPUs are there that JAX cannot use, if nvidia-smi does not
      list them, or if CUDA_VISIBLE_DEVICES is malformed.
    TimeoutError: If nvidia-smi does not end.
  """
  platforms = environ.get('JAX_PLATFORMS', '')
  if platforms and platforms.split(',')[0] not in ('cuda', 'gpu'):
    return []
  if (given := environ.get(MASK)) is not None:
    found, source = _parse_mask(given), f'{MASK} names'
  elif shutil.which('nvidia-smi'):
    found, source = _query_nvidia_smi(), 'nvidia-smi lists'
  else:
    count = len([*_DEVICE_NODES.glob('nvidia[0-9]*')])
    found, source = [str(index) for index in range(count)], '/dev has'
  if found:
    text = environ.get(_JAX_MASK, 'all')
    expected = f'nothing, as {MASK} says which GPUs are used'
    require(text == 'all', _JAX_MASK, expected, text)
    support = (
      f'CUDA support, as {source} {count_in_words(len(found))} '
      f'(pip install -r requirements.txt has it; {_NO_GPU})'
    )
    require(has_cuda(environ), 'jax', support, 'an installation without it')
  return found


def require_cuda(environ: Mapping[str, str]) -> None:
  """Checks that JAX can use the GPUs of this host, if there are any.

  JAX without CUDA would compute on the CPU, many times slower.  JAX with CUDA
  refuses by itself to start without the GPUs.

  Args:
    environ: The environment.

  Raises:
    ValueError: If JAX cannot use them.
    TimeoutError: If nvidia-smi does not end.
  """
  if not has_cuda(environ):
    gpus(environ)


def has_cuda(environ: Mapping[str, str]) -> bool:
  """Returns whether JAX has a CUDA plugin; starts no backend.

  Plugins are found as JAX finds them: by entry points, in the namespace
  `jax_plugins`, and in PJRT_NAMES_AND_LIBRARY_PATHS.

  Args:
    environ: The environment.
  """
  names = [each.value for each in metadata.entry_points(group='jax_plugins')]
  spec = importlib.util.find_spec('jax_plugins')
  folders = spec and spec.submodule_search_locations
  names += [module.name for module in pkgutil.iter_modules(folders or [])]
  names.append(environ.get('PJRT_NAMES_AND_LIBRARY_PATHS', ''))
  return any('cuda' in name for name in names)


def mask(environ: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
  """Returns variables with which a process sees only some of its GPUs.

  Args:
    environ: The environment in which `gpus` has found them.
    names: Names of the GPUs that stay visible.
  """
  found = {MASK: ','.join(names)}
  if MASK not in environ:
    found['CUDA_DEVICE_ORDER'] = 'PCI_BUS_ID'  # The order of nvidia-smi.
  return found


def memory(environ: Mapping[str, str], share: int) -> dict[str, str]:
  """Returns variables with which processes share a GPU's memory evenly.

  Args:
    environ: The environment; its own settings of the memory have precedence.
    share: Number of processes on each GPU, at least 1.
  """
  on_demand = environ.get(_PREALLOCATE) in ('false', 'False', '0')
  if share == 1 or on_demand or any(environ.get(each) for each in _FRACTIONS):
    return {}
  # Rounded down.
  return {FRACTION: f'{int(_PREALLOCATED / share * 10000) / 10000:.4f}'}


def claim(
  environ: MutableMapping[str, str],
  names: Sequence[str],
  *,
  count: int,
  share: int,
) -> range:
  """Selects the GPUs of this process, before XLA starts.

  Sets what CUDA and XLA read from the environment when they start: the memory
  of a share, and the name of a MIG device, as CUDA shows a process one alone.

  Args:
    environ: The environment of this process.
    names: The GPUs that it sees, at least one.
    count: Number of GPUs that it uses.
    share: Number of processes on each GPU.

  Returns:
    The positions of its GPUs among those that CUDA shows to it.

  Raises:
    ValueError: As `select`; or if the process would use several MIG devices.
  """
  found = select(environ, len(names), count=count, share=share)
  environ.update(memory(environ, share))
  if not any(name.startswith(_MIG) for name in names):
    return found
  expected = '1, as CUDA shows a process one MIG device'
  require(count == 1, _COUNT, expected, count)
  environ.update(mask(environ, [names[found.start]]))
  environ[_LOCAL_RANKS[0]] = '0'  # No other process sees it.
  return range(1)


def select(
  environ: Mapping[str, str], seen: int, *, count: int, share: int = 1
) -> range:
  """Returns the positions, from 0, of a worker's GPUs among those it sees.

  Workers have the lowest local ranks of a host, so that dedicated servers,
  which need no GPU, leave no gap.

  Args:
    environ: The environment.
    seen: Number of GPUs that the worker sees, more than 0.
    count: Number of GPUs that the worker uses.
    share: Number of workers on each GPU.

  Raises:
    ValueError: If there are too few GPUs, or if the environment does not tell
      the local rank; names the field.
  """
  expected = f'at most {seen}, the GPUs seen here ({_NO_GPU})'
  require(count <= seen, _COUNT, expected, count)
  variable = next((name for name in _LOCAL_RANKS if environ.get(name)), '')
  fits = seen == count and not (variable and _are_shared(environ, seen))
  if fits or _are_exclusive(environ, seen):
    return range(count)
  expected = (
    f'all of the {seen} GPUs seen here, or {MASK} or '
    f'{_LOCAL_RANKS[0]} to tell which are those of this process'
  )
  require(bool(variable), _COUNT, expected, count)
  text = environ[variable]
  valid = text.isascii() and text.isdigit() and len(text) < 10
  require(valid, variable, 'a number, at least 0', text)
  rank, places = int(text), seen // count
  expected = (
    f'less than {places * share}, as {count_in_words(seen)} '
    f'{"is" if seen == 1 else "are"} seen here, {_COUNT} is {count} and '
    f'{_SHARE} is {share} (start fewer workers on this host, let '
    f'{rank // places + 1} or more share a GPU with {_SHARE}, or use none '
    'with JAX_PLATFORMS=cpu)'
  )
  require(rank < places * share, variable, expected, rank)
  first = rank % places * count
  return range(first, first + count)


def _are_shared(environ: Mapping[str, str], seen: int) -> bool:
  """Returns whether all processes of the host see the GPUs of this one.

  Without a mask they do.  A mask may have been set for this process alone, by a
  wrapper of its command, unless SLURM says that the host has no more GPUs.
  """
  if environ.get(_LOCAL_RANKS[0]) or MASK not in environ:
    return True
  return environ.get('SLURM_GPUS_ON_NODE') == str(seen)


def _are_exclusive(environ: Mapping[str, str], seen: int) -> bool:
  """Returns whether no other process of the run sees the same GPUs."""
  if any(environ.get(name, '1') != '1' for name in _LOCAL_SIZES):
    return False  # Several processes share a task.
  if 'JOB_COMPLETION_INDEX' in environ:  # A container has GPUs of its own.
    return True
  per_task = environ.get('SLURM_GPUS_PER_TASK', '').rpartition(':')[2]
  on_node = environ.get('SLURM_GPUS_ON_NODE', '')
  return per_task == str(seen) or (on_node.isdigit() and seen < int(on_node))


def _parse_mask(value: str) -> list[str]:
  """Returns the GPUs that a value of CUDA_VISIBLE_DEVICES names."""
  found: list[str] = []
  kinds: set[str | None] = set()
  for name in map(str.strip, value.split(',')):
    if name.lower() in _NONE or re.fullmatch(r'-\d+', name):
      break
    match = _NAMES.fullmatch(name)
    expected = 'indices or names of GPUs (GPU-..., MIG-...), -1 for no more'
    require(match is not None, MASK, expected, value)
    kinds.add(match and (match[2] or match[3]))
    if len(kinds) > 1:
      break
    found.append(name)
  expected = 'different GPUs, as CUDA shows none otherwise'
  require(len(set(found)) == len(found), MASK, expected, value)
  return found


def _query_nvidia_smi() -> list[str]:
  """Returns the GPUs that nvidia-smi lists; of a divided one, its parts."""
  command = ['nvidia-smi', '-L']
  try:
    result = subprocess.run(
      command, capture_output=True, text=True, timeout=60, check=False
    )
  except subprocess.TimeoutExpired as error:
    raise TimeoutError(
      errno.ETIMEDOUT,
      f'{" ".join(command)} takes more than {error.timeout:g} s',
    ) from error
  output = (result.stdout + result.stderr).strip()
  if 'No devices' in output:
    return []
  expected = f'a list of GPUs ({_NO_GPU})'
  require(result.returncode == 0, ' '.join(command), expected, output)
  mig_devices: dict[str, list[str]] = {}  # By GPU.
  for line in result.stdout.splitlines():
    if match := re.match(r'GPU (\d+):', line):
      mig_devices[match[1]] = []
    elif match := re.match(r'\s+MIG .*UUID: (MIG-[^)\s]+)', line):
      mig_devices[[*mig_devices][-1]].append(match[1])
  return [name for gpu, parts in mig_devices.items() for name in parts or [gpu]]


def count_in_words(number: int) -> str:
  """Returns a number of GPUs in words."""
  return f'{number} GPU{"" if number == 1 else "s"}'
