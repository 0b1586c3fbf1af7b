"""Recorder and milestones that do nothing, for recorded runs."""

from typing import Any, cast

from cluster.milestones import Milestones
from outputs.recorder import Recorder


class _Silent:
  """Object with every attribute; as a method, none of them does anything."""

  finished = False

  def __getattr__(self, name: str) -> '_Silent':
    return _Silent()

  def __call__(self, *args: Any, **fields: Any) -> None:
    del args, fields


def silent_recorder() -> Recorder:
  """Returns a recorder of a run that never ends, which writes no file."""
  recorder: Any = _Silent()
  return cast(Recorder, recorder)


def silent_milestones() -> Milestones:
  """Returns milestones of a run that is never evaluated, logged or ended."""
  milestones: Any = _Silent()
  return cast(Milestones, milestones)
