"""Devices of computations: gradients on accelerators, the rest on the host.

Gradients, their codecs in workers, evaluations and the updates of replicas run
on JAX's default device, an accelerator if there is one.  Parameter servers,
speed predictors (`predict.online`) and runs without a model use the CPU, and a
process that runs nothing else starts no accelerator.  See docs/architecture.md.
"""

import contextlib
import functools

import jax

from configs.checks import require

_CPU = 'cpu'


def keep_cpu() -> None:
  """Appends the CPU to JAX's platforms if it is not among them.

  JAX_PLATFORMS=cuda omits the CPU, which servers and predictors need.  The
  first platform remains the default.  Has no effect once JAX has started.
  """
  platforms = _platforms()
  if platforms and _CPU not in platforms.split(','):
    jax.config.update('jax_platforms', f'{platforms},{_CPU}')


def use_cpu_only() -> None:
  """Prevents JAX from starting accelerators in this process later on."""
  jax.config.update('jax_platforms', _CPU)


def is_cpu_only() -> bool:
  """Returns whether JAX starts, or has started, without accelerators."""
  return _platforms() == _CPU


def start() -> None:
  """Starts JAX on the first platform that JAX_PLATFORMS names, if any.

  JAX itself passes over 'cuda' on a host without a GPU, and would compute on
  the next platform.

  Raises:
    ValueError: If JAX does not start, or starts on the CPU although
      JAX_PLATFORMS names an accelerator first.
  """
  keep_cpu()
  platforms = _platforms()
  try:
    found = jax.default_backend()
  except RuntimeError as error:
    raise ValueError(
      f'JAX: expected to start with JAX_PLATFORMS={platforms!r}, got: {error}'
    ) from error
  first = platforms.split(',')[0] or found
  expected = (
    f"a device of {first!r} on this host, or 'cpu' first, or nothing: then JAX "
    'chooses'
  )
  fits = first == _CPU or found != _CPU
  require(fits, 'JAX_PLATFORMS', expected, platforms)


def has_accelerator() -> bool:
  """Returns whether JAX's default device is an accelerator; starts JAX."""
  return jax.default_backend() != _CPU


def on_cpu() -> contextlib.AbstractContextManager[None]:
  """Returns a context in which JAX creates arrays and computes on the CPU.

  Raises:
    ValueError: If JAX does not start (see `start`), or had started without
      the CPU.
  """
  context: contextlib.AbstractContextManager[None] = jax.default_device(_cpu())
  return context


def _platforms() -> str:
  """Returns JAX's platforms, separated by commas; '' for its default."""
  return jax.config.jax_platforms or ''  # type: ignore[attr-defined]


@functools.cache
def _cpu() -> jax.Device:
  start()
  try:
    return jax.local_devices(backend=_CPU)[0]
  except RuntimeError as error:  # JAX had started before.
    platforms = _platforms()
    raise ValueError(
      f"JAX_PLATFORMS: expected 'cpu' among them, got {platforms!r}."
    ) from error
