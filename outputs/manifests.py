"""What is needed to repeat a run: manifest.json, and what tells runs apart."""

import copy
import functools
import json
import math
import operator
import os
import pathlib
import platform
import subprocess
import sys
import zlib
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import jax
import numpy as np

from data import embedded
from learning import compilations

FORMAT = 2  # Of a run's folder.
# Of a config: what each host may have in its own way.
LOCAL = (
  *('config.cluster.interface', 'config.cluster.devices_per_worker'),
  *('config.cluster.token_file', 'config.cluster.certificate_file'),
  *('config.cluster.key_file', 'config.cluster.tls_name'),
  'config.cluster.workers_per_gpu',
)
# Of a config: fields that runs of before do not have, and their values there on
# CPUs.  At these they are no part of a fingerprint, which so stays as it was.
_YOUNGER = {
  'deterministic': True,
  'precision.matmul': 'float32',
  'route.native.combine_bytes': 2.0**25,
  'cluster.workers_per_gpu': 1,
}
# Of a manifest: what a start of a run may have in another way than the first.
START = (
  *('host', 'python', 'versions', 'devices', 'cores', 'xla_flags'),
  *('numerics', 'git_revision'),
)
_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'numpy', 'ml_collections')


def manifest(
  config: Mapping[str, Any], own: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns what is needed to repeat a run: config, command, versions.

  Args:
    config: As a dictionary.
    own: Parts that the config does not describe, by name: pytrees of arrays
      and of what `repr` tells apart; None for those that it does.
  """
  return {
    'format': FORMAT,
    **described(config, own),
    'seed': config['seed'],
    **environment(),
    'numerics': compilations.numerics(config, jax.local_devices()[0]),
  }


def environment() -> dict[str, Any]:
  """Returns command, machine, versions and code of this process.

  Starts XLA, to list its devices.
  """
  git = ['git', '-C', str(pathlib.Path(__file__).parents[1])]
  return {
    'command': sys.argv,
    'host': platform.node(),
    'python': platform.python_version(),
    'versions': {name: metadata.version(name) for name in _PACKAGES},
    'devices': [device.device_kind for device in jax.local_devices()],
    'cores': len(os.sched_getaffinity(0)),
    'xla_flags': os.environ.get('XLA_FLAGS', ''),
    'git_revision': _output([*git, 'rev-parse', 'HEAD']),
    'git_changes': _output([*git, 'status', '--porcelain']),
  }


def completed(manifest: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a manifest with the fields that are younger than its run.

  They have the values at which runs of before were computed: kernels of GPUs
  were deterministic, and products of float32 of JAX's own precision, TF32 on
  GPUs.

  Args:
    manifest: Of this format, of any version.
  """
  found = copy.deepcopy(dict(manifest))
  config = found['config']
  values = dict(_YOUNGER)
  on_cpus = set(found.get('devices', ['cpu'])) <= {'cpu'}
  dtype = config.get('precision', {}).get('dtype', 'float32')
  if not on_cpus and dtype == 'float32':
    values['precision.matmul'] = 'tensorfloat32'
  for field, value in values.items():
    *above, name = field.split('.')
    section = config
    for each in above:
      section = section.setdefault(each, {})
    section.setdefault(name, value)
  return found


def starts(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
  """Returns the starts of a run so far; earlier versions wrote the first."""
  if 'starts' in manifest:
    return list(manifest['starts'])
  return [{'examples': 0} | start_of(manifest)]


def start_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
  """Returns what a manifest says of the process that wrote it."""
  return {name: manifest[name] for name in START if name in manifest}


def described(
  config: Mapping[str, Any], own: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns what of a manifest tells a run from others; takes the same."""
  prints = {k: v if v is None else _fingerprint(v) for k, v in own.items()}
  if _is_embedded(config):
    prints['text'] = embedded.sha256()
  return {'config': _jsonable(config), 'own': prints}


def _is_embedded(config: Mapping[str, Any]) -> bool:
  """Returns whether a run reads the text that comes with Python."""
  data = config['data']
  read = config['model']['name'] != 'none' and data['name'] == 'text'
  return read and not data['text']['file']


def fingerprint(described: Mapping[str, Any]) -> str:
  """Returns what tells a run from others, of what `manifest` returns.

  What each host may have in its own way is no part of it.
  """
  parts = {'config': copy.deepcopy(described['config'])}
  del parts['config']['checkpoint']
  for field in LOCAL:
    section, name = _section(parts, field)
    del section[name]
  for field, value in _YOUNGER.items():
    section, name = _section(parts['config'], field)
    if section.get(name) == value:
      del section[name]
  parts['own'] = described['own']
  return f'{zlib.crc32(json.dumps(parts, sort_keys=True).encode()):08x}'


def _section(parts: Any, field: str) -> tuple[Any, str]:
  """Returns the section of a field, and the field's name in it."""
  *above, name = field.split('.')
  return functools.reduce(operator.getitem, above, parts), name


def _fingerprint(value: Any) -> str:
  """Returns what tells a value from others: arrays by a sample of theirs."""
  return ' '.join(map(_printed, jax.tree.leaves(value)))


def _printed(leaf: Any) -> str:
  if not hasattr(leaf, 'shape'):
    return repr(leaf)
  rows = np.asarray(leaf[:64] if leaf.shape else leaf)
  return f'{tuple(leaf.shape)}:{zlib.crc32(rows.tobytes()):08x}'


def _output(command: list[str]) -> str | None:
  """Returns what a command prints, or None if it is missing or fails."""
  try:
    done = subprocess.run(
      command, capture_output=True, text=True, timeout=10, check=False
    )
  except FileNotFoundError:
    return None
  return done.stdout.strip() if done.returncode == 0 else None


def _jsonable(value: Any) -> Any:
  """Infinite numbers become text: JSON has none."""
  if isinstance(value, Mapping):
    return {key: _jsonable(item) for key, item in value.items()}
  if isinstance(value, tuple):
    return [_jsonable(item) for item in value]
  if isinstance(value, float) and not math.isfinite(value):
    return str(value)
  return value
