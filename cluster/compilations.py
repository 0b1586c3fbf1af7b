"""Counts XLA compilations of this process, to show that none happen late."""

import jax

_EVENT = '/jax/core/compile/backend_compile_duration'
_seen: list[float] = []


def count() -> int:
  """Returns how many programs have been compiled since the import."""
  return len(_seen)


def _listen(event: str, duration_s: float, **_: str | int) -> None:
  if event == _EVENT:
    _seen.append(duration_s)


jax.monitoring.register_event_duration_secs_listener(_listen)
