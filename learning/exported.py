"""Files of a model's parameters, for other runs and other programs.

An .npz or .safetensors file has an array for each leaf, named by its path:
`params/hidden0/kernel`.  Running statistics are below `stats/`.
"""

import io
import pathlib
import zipfile
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from configs.checks import require
from learning import placement
from learning.residuals import named_leaves

SUFFIXES = ('.npz', '.safetensors')


def check_suffix(path: pathlib.Path, field: str) -> None:
  """Raises ValueError, which names a field, if a file is of another kind."""
  expected = f'a file that ends with {" or ".join(SUFFIXES)}'
  require(path.suffix in SUFFIXES, field, expected, str(path))


def encode(suffix: str, params: Any, stats: Any) -> bytes:
  """Returns the content of a file of parameters and running statistics.

  Args:
    suffix: One of `SUFFIXES`.
    params: Pytree of arrays.
    stats: Pytree of arrays; () if there are none.
  """
  named: dict[str, Any] = {
    name: np.asarray(leaf, order='C')
    for name, leaf in named_leaves({'params': params, 'stats': stats})
  }
  if suffix == '.npz':
    file = io.BytesIO()
    np.savez(file, **named)
    return file.getvalue()
  data: bytes = safetensors.numpy.save(named)
  return data


def load(path: pathlib.Path, params: Any, stats: Any) -> tuple[Any, Any]:
  """Returns parameters and statistics of a file, in the form of a model's.

  Args:
    path: File with the content from `encode`, or of another program.
    params: Pytree of arrays of the model, whose names, shapes and types the
      file must have.
    stats: Pytree of the model's running statistics, for the same check.

  Raises:
    ValueError: If the file has other arrays; names them.
    OSError: If it cannot be read.
  """
  found = _read(path)
  tree = {'params': params, 'stats': stats}
  named = named_leaves(tree)
  wanted = {name: _describe(leaf) for name, leaf in named}
  got = {name: _describe(leaf) for name, leaf in found.items()}
  if got != wanted:
    raise ValueError(f'{path}: {_differences(wanted, got)}')
  with placement.on_cpu():
    leaves = [jnp.asarray(found[name]) for name, _ in named]
  loaded = jax.tree.unflatten(jax.tree.structure(tree), leaves)
  return loaded['params'], loaded['stats']


def _read(path: pathlib.Path) -> dict[str, np.ndarray]:
  data = path.read_bytes()
  try:
    if path.suffix == '.npz':
      with np.load(io.BytesIO(data), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}
    return dict(safetensors.numpy.load(data))
  except (
    ValueError,
    EOFError,
    KeyError,
    zipfile.BadZipFile,
    safetensors.SafetensorError,
  ) as error:
    raise ValueError(
      f'{path}: expected a complete {path.suffix} file of arrays, got: {error}.'
    ) from error


def _describe(leaf: Any) -> str:
  return f'{leaf.dtype}{list(leaf.shape)}'


def _differences(wanted: Mapping[str, str], got: Mapping[str, str]) -> str:
  """Returns the first names that are missing, unknown or of another shape."""
  parts = []
  missing = sorted(wanted.keys() - got.keys())
  unknown = sorted(got.keys() - wanted.keys())
  if missing:
    parts.append(f'expected {_some(missing)}, which the file lacks')
  if unknown:
    parts.append(f'the model has no {_some(unknown)}')
  parts += [
    f'expected {name} to be {wanted[name]}, got {got[name]}'
    for name in sorted(wanted.keys() & got.keys())
    if wanted[name] != got[name]
  ][:3]
  return '; '.join(parts) + '.'


def _some(names: list[str]) -> str:
  more = f' and {len(names) - 3} more' if len(names) > 3 else ''
  return ', '.join(names[:3]) + more
