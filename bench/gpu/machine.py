"""Finds the accelerator of this machine, in a process that ends afterwards.

  python -m bench.gpu.machine

writes a line of JSON: command, machine, versions and code, as in manifests,
`platform`, the default one of JAX, and `driver`, from nvidia-smi.  The process
that runs the jobs must not start XLA itself, because XLA would occupy most of
the GPU's memory.
"""

import json
import pathlib
import shutil
import subprocess
import tempfile
from typing import Any

import jax

from launch import processes
from launch.processes import ProcessError, module_command
from outputs import manifests

_CUDA = ('gpu', 'cuda')  # Names of CUDA's platform.
_QUERY = '--query-gpu=name,memory.total,driver_version'
_LIMIT_S = 60.0


def find() -> dict[str, Any]:
  """Returns the description of this machine, which a new process writes.

  Raises:
    RuntimeError: If JAX does not start; has the end of its output.
  """
  command = module_command('machine', 'bench.gpu.machine', answers=True)
  with tempfile.TemporaryDirectory() as folder:
    try:
      with processes.start([command], pathlib.Path(folder)) as group:
        return json.loads(group.receive('machine', _LIMIT_S))
    except ProcessError as error:
      raise RuntimeError(f'JAX does not start here: {error}') from error


def is_gpu(description: dict[str, Any]) -> bool:
  """Returns whether the default platform is CUDA's."""
  return description['platform'] in _CUDA


def is_accelerator(description: dict[str, Any]) -> bool:
  """Returns whether the default platform is any but the CPU."""
  return description['platform'] != 'cpu'


def without_gpu(description: dict[str, Any]) -> str:
  """Returns the reason why JAX uses no GPU, and a remedy."""
  if description['driver']:
    return (
      f'nvidia-smi lists {description["driver"]}, but JAX runs on '
      f'{description["platform"]!r}: install requirements.txt, which has JAX '
      'for CUDA, and leave JAX_PLATFORMS unset'
    )
  return f'JAX runs on {description["platform"]!r}, and there is no nvidia-smi'


def _driver() -> str:
  """Returns the GPUs that nvidia-smi lists; '' without any."""
  if shutil.which('nvidia-smi') is None:
    return ''
  done = subprocess.run(
    ['nvidia-smi', _QUERY, '--format=csv,noheader'],
    capture_output=True,
    text=True,
    timeout=_LIMIT_S,
    check=False,
  )
  return done.stdout.strip() if done.returncode == 0 else ''


def main() -> None:
  """Writes the description of this machine."""
  description = {
    **manifests.environment(),
    'platform': jax.default_backend(),
    'driver': _driver(),
  }
  print(json.dumps(description))


if __name__ == '__main__':
  main()
