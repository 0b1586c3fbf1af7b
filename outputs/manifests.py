"""Manifests, which have what it takes to repeat a run, and fingerprints."""

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

from configs import declared, user_parts
from configs.checks import hide_passwords
from learning import compilations
from outputs import formats, inputs

# Fields of a config that may differ between the hosts of a run.
LOCAL = tuple(
  f'config.{path}'
  for path, field in declared.iterate_fields()
  if field.is_local
)
# Fields of a config that change no result: a run may resume with others.
DISPLAY = tuple(
  f'config.{path}'
  for path, field in declared.iterate_fields()
  if field.is_display
)
# Fields of a manifest that may differ between the starts of a run.
START = (
  *('host', 'python', 'versions', 'devices', 'cores', 'xla_flags'),
  *('numerics', 'git_revision', 'prefetched_iterations'),
)
# Settings of JAX on which its random numbers depend.
_RANDOM = ('jax_default_prng_impl', 'jax_threefry_partitionable')
_MOST_SHOWN, _CHARACTERS = 8, 40  # Fields that differ, and of a value.
_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'numpy', 'ml_collections')


def manifest(
  config: Mapping[str, Any],
  own: Mapping[str, Any],
  *,
  measures: Mapping[str, str],
  prefetched_iterations: int,
) -> dict[str, Any]:
  """Returns the manifest of a run: config, command, versions.

  Args:
    config: Config as a dictionary.
    own: Parts of the caller's own, by name, as pytrees of arrays and of values
      that `repr` tells apart; None for a part that the config describes.
    measures: Directions of the measures of evaluations, by name, the primary
      one first.
    prefetched_iterations: Iterations for which a worker prefetches examples.
  """
  return {
    'format': formats.RUN_FOLDER,
    **described(config, own),
    'seed': config['seed'],
    **environment(),
    'numerics': compilations.numerics(config, jax.local_devices()[0]),
    'measures': measures,
    'prefetched_iterations': prefetched_iterations,
  }


def environment() -> dict[str, Any]:
  """Returns command, machine, versions and code of this process.

  Starts XLA, to list its devices.
  """
  git = ['git', '-C', str(pathlib.Path(__file__).parents[1])]
  return {
    'command': [hide_passwords(word) for word in sys.argv],
    'host': platform.node(),
    'python': platform.python_version(),
    'versions': {name: metadata.version(name) for name in _PACKAGES},
    'devices': [device.device_kind for device in jax.local_devices()],
    'cores': len(os.sched_getaffinity(0)),
    'xla_flags': os.environ.get('XLA_FLAGS', ''),
    'git_revision': _output([*git, 'rev-parse', 'HEAD']),
    'git_changes': _output([*git, 'status', '--porcelain']),
  }


def start_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the fields of a manifest on the process that wrote it."""
  return {name: manifest[name] for name in START if name in manifest}


def described(
  config: Mapping[str, Any], own: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns the part of a manifest that identifies a run: see `manifest`."""
  return {
    'config': _jsonable(config),
    'own': {k: v if v is None else _fingerprint(v) for k, v in own.items()},
    'files': inputs.digests(config),
    'random': {name: getattr(jax.config, name) for name in _RANDOM},
  }


def fingerprint(described: Mapping[str, Any]) -> str:
  """Returns a short text that identifies a run.

  Fields that may differ between hosts, those that change no result (such as the
  frequency of checkpoints), and paths of files that the run reads have no
  influence; the content of the files has.
  """
  parts = _identify(described)
  return f'{zlib.crc32(json.dumps(parts, sort_keys=True).encode()):08x}'


def identity(described: Mapping[str, Any]) -> dict[str, str]:
  """Returns what identifies a run by field, as texts for messages.

  The hosts of a run have the same: see `fingerprint`.
  """
  flat = flatten(_identify(described))
  return {field: json.dumps(value) for field, value in flat.items()}


def describe_difference(
  expected: Mapping[str, str], got: Mapping[str, str]
) -> str:
  """Returns the fields that differ with both values; '' if none is known to.

  At most 8 fields, and 40 characters of each value.

  Args:
    expected: Result of `identity`; {} if it is not known.
    got: The same.
  """
  differing = [
    field
    for field in sorted(expected.keys() | got.keys())
    if expected.get(field) != got.get(field)
  ]
  if not (expected and got and differing):
    return ''
  parts = [
    f'{field}: {_show(got.get(field))} instead of {_show(expected.get(field))}'
    for field in differing[:_MOST_SHOWN]
  ]
  if len(differing) > _MOST_SHOWN:
    parts.append(f'and {len(differing) - _MOST_SHOWN} other fields')
  return '; '.join(parts)


def _show(value: str | None) -> str:
  if value is None:
    return 'no such field'
  if len(value) <= _CHARACTERS:
    return value
  return value[: _CHARACTERS - 3] + '...'


def _identify(described: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the parts of a manifest that identify a run: see `fingerprint`."""
  parts = {'config': copy.deepcopy(described['config'])}
  emptied = set()
  for field in (*LOCAL, *DISPLAY):
    section, name = _section(parts, field)
    section.pop(name, None)  # Runs of earlier versions lack it.
    if not section:
      emptied.add(field.rpartition('.')[0])
  for path in emptied:
    above, name = _section(parts, path)
    del above[name]
  for field in inputs.identified_fields(described['files']):
    section, name = _section(parts, field)
    del section[name]
  files = described['files'].items()
  parts |= {
    'own': described['own'],
    'files': {field: file['digest'] for field, file in files},
    'random': described['random'],
  }
  return parts


def flatten(values: Mapping[str, Any], above: str = '') -> dict[str, Any]:
  """Returns the fields of nested dictionaries by path, such as 'sync.name'."""
  flat: dict[str, Any] = {}
  for name, value in values.items():
    if isinstance(value, Mapping):
      flat |= flatten(value, f'{above}{name}.')
    else:
      flat[above + name] = value
  return flat


def read_field(manifest: Mapping[str, Any], field: str) -> Any:
  """Returns the value of a field, such as 'config.cluster.workers'."""
  section, name = _section(manifest, field)
  return section[name]


def write_field(manifest: dict[str, Any], field: str, value: Any) -> None:
  """Sets the value of a field, such as 'config.cluster.workers'."""
  section, name = _section(manifest, field)
  section[name] = value


def _section(parts: Any, field: str) -> tuple[Any, str]:
  """Returns the section of a field, and the field's name in it."""
  *above, name = field.split('.')
  return functools.reduce(operator.getitem, above, parts), name


def _fingerprint(value: Any) -> str:
  """Returns a text that identifies a value; arrays by a sample."""
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
  """Returns a value for JSON, where infinite numbers are text."""
  if isinstance(value, Mapping):
    return {
      key: _jsonable(item)
      for key, item in value.items()
      if item or key not in user_parts.OPEN  # Nothing of the user's own.
    }
  if isinstance(value, tuple):
    return [_jsonable(item) for item in value]
  if isinstance(value, float) and not math.isfinite(value):
    return str(value)
  return value
