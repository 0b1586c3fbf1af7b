"""Versions that all processes of a run must share: code, JAX and data.

Processes of other versions would compute something else, which no later check
finds: each process states its versions when it joins, and the coordinator
refuses others.
"""

import functools
import pathlib
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import xxhash

from cluster.network.messages import Versions

_ROOT = pathlib.Path(__file__).parents[2]
# Packages whose code a run executes.  Recipes of configs/ may differ: the
# values of the config are compared by themselves.
_PACKAGES = (
  *('batching', 'cluster', 'data', 'diagnosis', 'learning', 'models'),
  *('outputs', 'predict', 'route', 'sync', 'topology', 'wire'),
)
_NAMES = {
  'sources': 'code',
  'jax': 'JAX',
  'jaxlib': 'jaxlib',
  'data': 'data',
}


def find_versions(manifest: Mapping[str, Any], data: str) -> Versions:
  """Returns the versions of this process.

  Args:
    manifest: Manifest of the run, of this process.
    data: Digest of the data; '' without any.
  """
  return Versions(
    sources=source_digest(),
    revision=(manifest['git_revision'] or _package_version())[:12],
    jax=manifest['versions']['jax'],
    jaxlib=manifest['versions']['jaxlib'],
    data=data,
  )


@functools.cache
def source_digest(root: pathlib.Path = _ROOT) -> str:
  """Returns the digest of the files whose code a run executes, 16 digits.

  Unlike a commit of Git it covers uncommitted changes, and code without Git.

  Args:
    root: Folder of the packages.
  """
  found = xxhash.xxh3_64()
  paths = [root / 'train.py']
  for package in _PACKAGES:
    paths += sorted((root / package).rglob('*.py'))
  for path in paths:
    found.update(f'{path.relative_to(root)}\0'.encode())
    found.update(path.read_bytes())
  return found.hexdigest()


def describe_difference(expected: Versions, got: Versions) -> str:
  """Returns a sentence on versions that differ; '' if a run may have both.

  Args:
    expected: Versions of the coordinator.
    got: Versions of another process.
  """
  parts = [
    f'{_NAMES[field]} {_text(got, field)} instead of {_text(expected, field)}'
    for field in _NAMES
    if getattr(expected, field) != getattr(got, field)
  ]
  if not parts:
    return ''
  return (
    'expected the versions of the coordinator, as mixed ones compute something '
    f'else; got {", ".join(parts)}'
  )


def _text(versions: Versions, field: str) -> str:
  """Returns a version for a message."""
  text = getattr(versions, field) or 'of an unknown version'
  if field == 'sources' and versions.revision:
    return f'{text} (revision {versions.revision})'
  return str(text)


def _package_version() -> str:
  """Returns the version of the installed package; '' if it is not installed."""
  try:
    return metadata.version('syncopate')
  except metadata.PackageNotFoundError:
    return ''
