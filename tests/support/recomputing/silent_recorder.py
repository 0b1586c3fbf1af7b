"""Recorder and milestones that do nothing, for recorded runs."""

from collections.abc import Callable
from typing import Any, cast

from cluster.milestones import Milestones
from outputs.recorder import Recorder


class _Silent:
  """Object with every method; none of them does anything."""

  finished = False

  def __getattr__(self, name: str) -> Callable[..., None]:
    return lambda *args, **fields: None


def silent_recorder() -> Recorder:
  """Returns a recorder of a run that never ends, which writes no file."""
  recorder: Any = _Silent()
  return cast(Recorder, recorder)


def silent_milestones() -> Milestones:
  """Returns milestones of a run that is never evaluated, logged or ended."""
  milestones: Any = _Silent()
  return cast(Milestones, milestones)
