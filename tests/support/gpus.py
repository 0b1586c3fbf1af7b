"""Hosts that seem to have GPUs: nvidia-smi and JAX's CUDA plugin as fakes.

The plugin registers no platform, so that JAX computes on the CPU.  When JAX
starts, the plugin writes the settings that a CUDA client would read.
"""

import contextlib
import json
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any
from unittest import mock

from cluster.process import devices

ROOT = pathlib.Path(__file__).parents[2]
_RECORDED = (
  *('CUDA_VISIBLE_DEVICES', 'CUDA_DEVICE_ORDER', 'XLA_CLIENT_MEM_FRACTION'),
  *('XLA_PYTHON_CLIENT_MEM_FRACTION', 'JAX_COMPILATION_CACHE_DIR'),
)
_PLUGIN = f"""
import json, os, pathlib
import jax
def initialize():
  seen = {{name: os.environ.get(name, '') for name in {_RECORDED}}}
  seen['positions'] = jax.config.read('jax_cuda_visible_devices')
  seen['cores'] = len(os.sched_getaffinity(0))
  path = pathlib.Path(os.environ['FAKE_CUDA'], f'{{os.getpid()}}.json')
  path.write_text(json.dumps(seen))
"""


def list_output(count: int, parts: int = 0) -> str:
  """Returns the output of nvidia-smi -L for GPUs with MIG devices.

  Args:
    count: Number of GPUs.
    parts: Number of MIG devices of each GPU.
  """
  lines = []
  for gpu in range(count):
    lines.append(f'GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: GPU-{gpu}a-b)')
    for part in range(parts):
      name = f'  MIG 1g.10gb     Device  {part}: (UUID: {mig(gpu, part)})'
      lines.append(name)
  return '\n'.join(lines)


def mig(gpu: int, part: int) -> str:
  """Returns the name of a MIG device."""
  return f'MIG-{gpu}{part}c6d4f1-42e4-5de3'


class Host:
  """Host with fake GPUs, as a folder of programs and modules.

  Attributes:
    environ: Environment variables of processes on the host.
  """

  def __init__(self, output: str = '', *, code: int = 0, cuda: bool = True):
    """Writes the fake programs and modules.

    Args:
      output: Output of nvidia-smi; '' for a host without it.
      code: Exit code of nvidia-smi.
      cuda: True if JAX has a CUDA plugin.
    """
    self._folder = pathlib.Path(tempfile.mkdtemp())
    if output:
      tool = self._folder / 'nvidia-smi'
      tool.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\nexit {code}\n")
      tool.chmod(0o755)
    if cuda:
      (self._folder / 'fake_cuda.py').write_text(_PLUGIN)
      (self._folder / 'fake_cuda-1.dist-info').mkdir()
      for name, text in (
        ('METADATA', 'Metadata-Version: 2.1\nName: fake_cuda\nVersion: 1\n'),
        ('entry_points.txt', '[jax_plugins]\nfake = fake_cuda\n'),
      ):
        (self._folder / 'fake_cuda-1.dist-info' / name).write_text(text)
    self.environ = {
      'PATH': f'{self._folder}:/usr/bin:/bin',
      'PYTHONPATH': f'{self._folder}:{ROOT}',
      'FAKE_CUDA': tempfile.mkdtemp(),
      'JAX_PLATFORMS': '',
    }
    self._cuda = cuda

  @contextlib.contextmanager
  def here(self, **environ: str) -> Iterator[None]:
    """Context in which this process is on the host.

    Args:
      **environ: Further variables; CUDA_VISIBLE_DEVICES is not set otherwise.
    """
    with (
      mock.patch.dict(os.environ, self.environ | environ),
      mock.patch.object(devices, 'has_cuda', lambda _: self._cuda),
      mock.patch.object(devices, '_DEVICE_NODES', self._folder),
    ):
      for name in _RECORDED:
        if name not in environ:
          os.environ.pop(name, None)
      yield

  def startups(self) -> list[dict[str, Any]]:
    """Returns the settings that each process read when JAX started."""
    return [
      json.loads(path.read_text())
      for path in pathlib.Path(self.environ['FAKE_CUDA']).glob('*.json')
    ]

  def variables(self, **environ: str) -> dict[str, str]:
    """Returns the whole environment of a process on the host."""
    inherited = {k: v for k, v in os.environ.items() if k not in _RECORDED}
    return inherited | self.environ | environ

  def has_node(self, name: str) -> None:
    """Creates a file of /dev, such as nvidia0, on the host."""
    (self._folder / name).touch()
