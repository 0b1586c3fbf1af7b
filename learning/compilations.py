"""Flags and precision of compilations, and their number: none happens late.

Kernels of GPUs repeat bit for bit with --xla_gpu_deterministic_ops: it refuses
or replaces operations whose order of sums is up to chance, and switches
autotuning off, which takes the kernel that was the fastest at the moment, and
so other ones, with other roundings, in the next process.  The narrower
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

# Of the environment: what of XLA_FLAGS was appended here, by this process or by
# one that has started it, and so was not asked for by the user.
_ADDED = 'SYNCOPATE_XLA_FLAGS'
DETERMINISTIC = '--xla_gpu_deterministic_ops'
_EVENT = '/jax/core/compile/backend_compile_duration'
_TF32 = 8  # Compute capability of the first NVIDIA GPUs that multiply in it.
_TRUE, _FALSE = ('true', '1'), ('false', '0')  # As XLA reads them.
_seen: list[float] = []


def configure(config: ConfigDict) -> None:
  """Sets XLA's flags as a config asks for them; call it before XLA starts.

  XLA reads XLA_FLAGS once, when it starts.

  Args:
    config: Checked; config.deterministic is read.

  Raises:
    ValueError: If XLA_FLAGS contradicts the config, or if XLA has started with
      other flags on a GPU; names both.
  """
  # JAX logs each kind of accelerator that is not there.
  logging.getLogger('jax').setLevel(logging.WARNING)
  wanted = config.deterministic
  flags = _read(os.environ.get('XLA_FLAGS', ''))
  given = flags.removesuffix(os.environ.get(_ADDED, '')).strip()
  asked = _value(given)
  if asked not in (None, wanted):
    raise ValueError(
      f'XLA_FLAGS: expected no {DETERMINISTIC}={str(asked).lower()}, because '
      f'config.deterministic is {wanted}, got {given!r}.'
    )
  if is_started() and bool(_value(flags)) != wanted and _has_gpu():
    raise ValueError(
      f'config.deterministic: expected {not wanted}, because XLA has started '
      f'in this process with XLA_FLAGS={flags!r} and reads them only once, got '
      f'{wanted}.  Call learning.compilations.configure(config) before JAX is '
      'used, or use a new process.'
    )
  added = f'{DETERMINISTIC}=true' if wanted and not asked else ''
  _set('XLA_FLAGS', f'{given} {added}'.strip())
  _set(_ADDED, added)


def matmul(config: Mapping[str, Any]) -> str | None:
  """Returns the precision of a run's programs for jax.default_matmul_precision.

  It is that of the config where layers compute in float32.  None, JAX's own
  default, has no effect on products of half precision.

  Args:
    config: Checked.
  """
  precision = config['precision']
  return precision['matmul'] if precision['dtype'] == 'float32' else None


def numerics(config: Mapping[str, Any], device: jax.Device) -> dict[str, Any]:
  """Returns how a device computes what a config asks for.

  Args:
    config: Checked; its XLA flags are set.
    device: That computes gradients.

  Returns:
    A dictionary with `deterministic`, whether programs repeat bit for bit, and
    `matmul`, the precision of products of float32, None if there are none.
    CPUs have float32 alone, and NVIDIA GPUs float32 and, from Ampere on, TF32:
    XLA takes both other precisions for it.
  """
  deterministic = device.platform == 'cpu' or config['deterministic']
  found = matmul(config) if config['model']['name'] != 'none' else None
  if found and device.platform == 'cpu':
    found = 'float32'
  capability = str(getattr(device, 'compute_capability', ''))
  major = capability.partition('.')[0]
  if found not in (None, 'float32') and major.isdecimal():  # Of NVIDIA.
    found = 'tensorfloat32' if int(major) >= _TF32 else 'float32'
  return {'deterministic': deterministic, 'matmul': found}


def is_started() -> bool:
  """Returns whether XLA has started, and so has read its flags."""
  return xla_bridge.backends_are_initialized()


def count() -> int:
  """Returns how many programs have been compiled since the import."""
  return len(_seen)


def _read(flags: str) -> str:
  """Returns XLA's flags, from the file that they name if they name one."""
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
  """Returns the deterministic flag, whose last value counts; None without."""
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


def _listen(event: str, duration_s: float, **_: str | int) -> None:
  if event == _EVENT:
    _seen.append(duration_s)


jax.monitoring.register_event_duration_secs_listener(_listen)
