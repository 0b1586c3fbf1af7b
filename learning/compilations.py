"""Repeatable compilations, and their number: none are to happen late."""

import logging
import os

import jax

_REPEATABLE = '--xla_gpu_deterministic_ops=true'
_EVENT = '/jax/core/compile/backend_compile_duration'
_seen: list[float] = []


def make_repeatable() -> None:
  """Asks for repeatable GPU kernels, unless XLA has started, and for quiet."""
  flags = os.environ.get('XLA_FLAGS', '')
  if _REPEATABLE.split('=')[0] not in flags:
    os.environ['XLA_FLAGS'] = f'{flags} {_REPEATABLE}'.strip()
  # JAX logs each kind of accelerator that is not there.
  logging.getLogger('jax').setLevel(logging.WARNING)


def count() -> int:
  """Returns how many programs have been compiled since the import."""
  return len(_seen)


def _listen(event: str, duration_s: float, **_: str | int) -> None:
  if event == _EVENT:
    _seen.append(duration_s)


jax.monitoring.register_event_duration_secs_listener(_listen)
