"""Finds the accelerator of this machine, in a process that ends afterwards.

  python -m bench.gpu.machine

writes a line of JSON: command, machine, versions and code, as manifests have
them, `platform`, the default one of JAX, and `driver`, of nvidia-smi.  The
process that runs the jobs must not start XLA itself: it would keep most of the
GPU's memory.
"""

import json
import os
import shutil
import subprocess
from typing import Any

import jax

from outputs import manifests
from sweeps import child

_CUDA = ('gpu', 'cuda')  # Names of CUDA's platform.
_QUERY = '--query-gpu=name,memory.total,driver_version'
_LIMIT_S = 60.0


def find() -> dict[str, Any]:
  """Returns what `main` writes, of a process of its own.

  Raises:
    RuntimeError: If JAX does not start there, with the end of its output.
  """
  try:
    done = subprocess.run(
      child.bound_command('bench.gpu.machine'),
      env=os.environ | {'PYTHONPATH': child.python_path()},
      capture_output=True,
      text=True,
      timeout=_LIMIT_S,
      check=False,
    )
  except subprocess.TimeoutExpired as error:
    raise RuntimeError(
      f'JAX has not started within {error.timeout:g} s'
    ) from error
  if done.returncode:
    end = done.stderr.strip().splitlines()[-3:]
    raise RuntimeError(f'JAX does not start here: {" | ".join(end)}')
  return json.loads(done.stdout.splitlines()[-1])


def is_gpu(found: dict[str, Any]) -> bool:
  """Returns whether the default platform is CUDA's."""
  return found['platform'] in _CUDA


def is_accelerator(found: dict[str, Any]) -> bool:
  """Returns whether the default platform is any but the CPU."""
  return found['platform'] != 'cpu'


def without_gpu(found: dict[str, Any]) -> str:
  """Returns why there is no GPU, with what helps."""
  if found['driver']:
    return (
      f'nvidia-smi lists {found["driver"]}, but JAX runs on '
      f'{found["platform"]!r}: install requirements.txt, which has JAX for '
      'CUDA, and leave JAX_PLATFORMS unset'
    )
  return f'JAX runs on {found["platform"]!r}, and there is no nvidia-smi'


def _driver() -> str:
  """Returns what nvidia-smi says of the GPUs; '' without any."""
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
  """Writes what is found."""
  found = {
    **manifests.environment(),
    'platform': jax.default_backend(),
    'driver': _driver(),
  }
  print(json.dumps(found))


if __name__ == '__main__':
  main()
