"""Places of computations: gradients on accelerators, the rest on the host.

Gradients, their codecs in workers, evaluations and the updates of replicas run
on JAX's default device, which is an accelerator where there is one.  All that
belongs to a parameter server, the predictors of speeds (`predict.online`) and
runs without a model use the CPU, and processes with none but these start no
accelerator.  See docs/architecture.md.
"""

import contextlib
import functools

import jax

_CPU = 'cpu'


def keep_cpu() -> None:
  """Adds the CPU to JAX's platforms, last, if JAX is to start without it.

  JAX_PLATFORMS=cuda leaves the CPU out, which servers and predictors need.  The
  first platform remains the default.  Does nothing once JAX has started.
  """
  platforms = _platforms()
  if platforms and _CPU not in platforms.split(','):
    jax.config.update('jax_platforms', f'{platforms},{_CPU}')


def use_cpu_only() -> None:
  """Keeps JAX from starting accelerators in this process, if it has not yet."""
  jax.config.update('jax_platforms', _CPU)


def is_cpu_only() -> bool:
  """Returns whether JAX starts, or has started, without accelerators."""
  return _platforms() == _CPU


def has_accelerator() -> bool:
  """Returns whether JAX's default device is an accelerator; starts JAX."""
  return jax.default_backend() != _CPU


def on_cpu() -> contextlib.AbstractContextManager[None]:
  """Returns a context whose arrays and computations are the CPU's.

  Raises:
    ValueError: If JAX has started without it.
  """
  return jax.default_device(_cpu())


def _platforms() -> str:
  """Returns JAX's platforms, with commas between; '' if they are not chosen."""
  return jax.config.jax_platforms or ''  # type: ignore[attr-defined]


@functools.cache
def _cpu() -> jax.Device:
  keep_cpu()
  try:
    return jax.local_devices(backend=_CPU)[0]
  except RuntimeError as error:
    platforms = _platforms()
    raise ValueError(
      f"JAX_PLATFORMS: expected 'cpu' among them, got {platforms!r}."
    ) from error
