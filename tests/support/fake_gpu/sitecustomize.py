"""Registers a second CPU client as a fake accelerator.

Python processes use this module if SYNCOPATE_FAKE_GPU=N, at least 1, is set and
this folder is on PYTHONPATH.  JAX then finds a platform 'fake' with N devices,
which it prefers to the CPU like a GPU: arrays and computations without an
explicit device are placed there.  `JAX_PLATFORMS` selects 'cpu' and 'fake' as
usual.  The devices are CPUs and report themselves as CPUs;
`jax.default_backend()` returns 'fake'.

If SYNCOPATE_FAKE_GPU_RECORD is a folder, the process writes events to a file
there, one JSON object per line:

  {"argv": [...]}                      first, the command line
  {"client": NAME, "started": N}       a client of N devices has started
  {"client": NAME, "computation": F}   F was compiled, or read from the cache
  {"client": NAME, "bytes": B}         B bytes went to a device explicitly

A jitted call compiles before it runs, and other placements of arrays are
recorded with their bytes.  A client without lines of the last two kinds has
therefore never held an array.  `tests.support.accelerators` reads the files.

This module does not import JAX; it registers the client when a process does.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys

_NAME = 'fake'
_PRIORITY = 500  # CUDA has 200.


class _AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Import hook that calls functions with newly imported modules."""

  def __init__(self, functions):
    self._functions = functions
    self._loaders = {}

  def find_spec(self, name, path=None, target=None):
    if name not in self._functions or name in self._loaders:
      return None
    self._loaders[name] = None  # The line below calls this method again.
    spec = importlib.util.find_spec(name)
    if spec is not None:
      self._loaders[name], spec.loader = spec.loader, self
    return spec

  def create_module(self, spec):
    return self._loaders[spec.name].create_module(spec)

  def exec_module(self, module):
    spec = module.__spec__
    spec.loader = module.__loader__ = self._loaders[spec.name]
    spec.loader.exec_module(module)
    self._functions[spec.name](module)


def _register(bridge):
  """Registers the platform; records started clients and their arrays."""
  count = int(os.environ['SYNCOPATE_FAKE_GPU'])
  client = bridge.xla_client

  def make_client():
    state = bridge.distributed.global_state
    return client.make_cpu_client(
      asynchronous=True,
      distributed_client=state.client,
      node_id=state.process_id,
      num_nodes=state.num_processes,
      num_devices=count,
    )

  bridge.register_backend_factory(
    _NAME, make_client, priority=_PRIORITY, fail_quietly=False
  )

  def default_backend():
    return _name(bridge, bridge.get_backend())

  bridge.default_backend = default_backend
  init_backend = bridge._init_backend

  def _init_backend(platform):
    backend = init_backend(platform)
    _record({'client': platform, 'started': backend.local_device_count()})
    return backend

  bridge._init_backend = _init_backend
  put = client.batched_device_put

  def batched_device_put(aval, sharding, xs, devices, *args, **kwargs):
    _record_bytes(bridge, xs, devices)
    return put(aval, sharding, xs, devices, *args, **kwargs)

  client.batched_device_put = batched_device_put
  copy = client.batched_copy_array_to_devices_with_sharding

  def copy_arrays(arrays, device_lists, *args, **kwargs):
    for array, devices in zip(arrays, device_lists, strict=True):
      _record_bytes(bridge, [array], list(devices)[:1])
    return copy(arrays, device_lists, *args, **kwargs)

  client.batched_copy_array_to_devices_with_sharding = copy_arrays


def _record_compilations(compiler):
  """Records every computation that is compiled, or read from the cache."""
  compile_ = compiler.compile_or_get_cached

  def compile_or_get_cached(backend, computation, *args, **kwargs):
    from jax._src import xla_bridge

    name = computation.operation.attributes['sym_name'].value
    _record({'client': _name(xla_bridge, backend), 'computation': name})
    return compile_(backend, computation, *args, **kwargs)

  compiler.compile_or_get_cached = compile_or_get_cached


def _name(bridge, client):
  """Returns the platform that a client was started for."""
  for name, other in bridge._backends.items():
    if other is client:
      return name
  return client.platform


def _record_bytes(bridge, arrays, devices):
  for array, device in zip(arrays, devices, strict=True):
    size = int(getattr(array, 'nbytes', 0))
    _record({'client': _name(bridge, device.client), 'bytes': size})


def _record(row):
  folder = os.environ.get('SYNCOPATE_FAKE_GPU_RECORD')
  if not folder:
    return
  path = os.path.join(folder, f'{os.getpid()}.jsonl')
  rows = [row]
  if not os.path.exists(path):
    with open('/proc/self/cmdline', 'rb') as file:
      argv = file.read().decode(errors='replace').split('\0')[:-1]
    rows.insert(0, {'argv': argv})
  with open(path, 'a', encoding='utf-8') as file:
    file.write(''.join(json.dumps(each) + '\n' for each in rows))


def _run_hidden():
  """Runs the sitecustomize module that this one hides."""
  here = os.path.dirname(os.path.abspath(__file__))
  path = [each for each in sys.path if os.path.abspath(each) != here]
  spec = importlib.machinery.PathFinder.find_spec('sitecustomize', path)
  if spec is not None and spec.loader is not None:
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _is_installed():
  return any(
    type(each).__name__ == _AfterImport.__name__ for each in sys.meta_path
  )


if os.environ.get('SYNCOPATE_FAKE_GPU') and not _is_installed():
  sys.meta_path.insert(
    0,
    _AfterImport(
      {
        'jax._src.xla_bridge': _register,
        'jax._src.compiler': _record_compilations,
      }
    ),
  )
if __name__ == 'sitecustomize':
  _run_hidden()
