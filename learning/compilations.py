"""Flags and precision of XLA's programs, and a count of compilations.

Kernels of GPUs repeat bit for bit with --xla_gpu_deterministic_ops.  The flag
refuses or replaces operations that sum in a random order.  It also disables
autotuning, which takes the kernel that was fastest at the moment, and therefore
another one, with other rounding, in another process.  The narrower flag
--xla_gpu_exclude_nondeterministic_ops does the first, and the second only in
some versions of XLA (openxla/xla#12520, and `select_first_config` there).
"""

import logging
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax

# JAX has no public function that says whether XLA has started.
from jax._src import xla_bridge
from ml_collections import ConfigDict

# Environment variable with the flags that this module, here or in the parent
# process, has appended to XLA_FLAGS: the user has not set them.
_ADDED = 'SYNCOPATE_XLA_FLAGS'
DETERMINISTIC = '--xla_gpu_deterministic_ops'
_EVENT = '/jax/core/compile/backend_compile_duration'
_TF32 = 8  # Compute capability of the first NVIDIA GPUs with TF32.
_TRUE, _FALSE = ('true', '1'), ('false', '0')  # As XLA reads them.
_durations_s: list[float] = []  # Durations of all compilations.


def configure(config: ConfigDict) -> None:
  """Sets XLA's flags for a config; has to be called before XLA starts.

  XLA reads XLA_FLAGS once, when it starts.

  Args:
    config: Checked config, of which config.deterministic is read.

  Raises:
    ValueError: If XLA_FLAGS contradicts the config, or if XLA has started with
      other flags on a GPU; names both.
  """
  # JAX logs every kind of accelerator that it does not find.
  logging.getLogger('jax').setLevel(logging.WARNING)
  wanted = config.deterministic
  flags = _read(os.environ.get('XLA_FLAGS', ''))
  given = flags.removesuffix(os.environ.get(_ADDED, '')).strip()
  chosen = _value(given)
  if chosen not in (None, wanted):
    raise ValueError(
      f'XLA_FLAGS: expected no {DETERMINISTIC}={str(chosen).lower()}, because '
      f'config.deterministic is {wanted}, got {given!r}.'
    )
  if is_started() and bool(_value(flags)) != wanted and _has_gpu():
    raise ValueError(
      f'config.deterministic: expected {not wanted}, because XLA has started '
      f'in this process with XLA_FLAGS={flags!r} and reads them only once, got '
      f'{wanted}.  Call learning.compilations.configure(config) before JAX is '
      'used, or use a new process.'
    )
  added = f'{DETERMINISTIC}=true' if wanted and not chosen else ''
  _set('XLA_FLAGS', f'{given} {added}'.strip())
  _set(_ADDED, added)


def matmul(config: Mapping[str, Any]) -> str | None:
  """Returns a run's argument of jax.default_matmul_precision.

  It is the precision of the checked config if layers compute in float32, and
  None, JAX's default, if they compute in half precision.
  """
  precision = config['precision']
  return precision['matmul'] if precision['dtype'] == 'float32' else None


def numerics(config: Mapping[str, Any], device: jax.Device) -> dict[str, Any]:
  """Returns the determinism and precision that a device has under a config.

  Args:
    config: Checked config; `configure` was called with it.
    device: Device that computes gradients.

  Returns:
    A dictionary with `deterministic`, whether programs repeat bit for bit, and
    `matmul`, the precision of float32 products, None if there are none.  CPUs
    have float32 alone; NVIDIA GPUs have float32 and, from Ampere on, TF32,
    which XLA uses for both other precisions.
  """
  deterministic = device.platform == 'cpu' or config['deterministic']
  found = matmul(config) if config['model']['name'] != 'none' else None
  if found and device.platform == 'cpu':
    found = 'float32'
  capability = str(getattr(device, 'compute_capability', ''))
  major = capability.partition('.')[0]
  if (
    found not in (None, 'float32') and major.isdecimal()
  ):  # A compute capability of NVIDIA.
    found = 'tensorfloat32' if int(major) >= _TF32 else 'float32'
  return {'deterministic': deterministic, 'matmul': found}


def is_started() -> bool:
  """Returns whether XLA has started, and has therefore read its flags."""
  return xla_bridge.backends_are_initialized()


def count() -> int:
  """Returns the number of programs compiled since this module was imported."""
  return len(_durations_s)


def _read(flags: str) -> str:
  """Returns XLA's flags, read from a file if a file is named."""
  flags = flags.strip()
  if not flags or flags.startswith('-'):
    return flags
  try:
    return ' '.join(pathlib.Path(flags).read_text().split())
  except (OSError, UnicodeDecodeError) as error:
    raise ValueError(
      f'XLA_FLAGS: expected flags, or a file of flags, got {error}.'
    ) from error


def _set(variable: str, value: str) -> None:
  if value:
    os.environ[variable] = value
  else:
    os.environ.pop(variable, None)


def _value(flags: str) -> bool | None:
  """Returns the last value of the deterministic flag; None without it."""
  found = None
  for flag in flags.split():
    name, has_value, value = flag.partition('=')
    if name != DETERMINISTIC:
      continue
    value = value.lower() if has_value else 'true'
    if value not in _TRUE + _FALSE:
      raise ValueError(
        f'XLA_FLAGS: expected {DETERMINISTIC}=true or false, got {flag!r}.'
      )
    found = value in _TRUE
  return found


def _has_gpu() -> bool:
  return any(device.platform == 'gpu' for device in jax.local_devices())


def _listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
  del kwargs
  if event == _EVENT:
    _durations_s.append(duration_secs)


jax.monitoring.register_event_duration_secs_listener(_listen)
