"""Events of probing, which threads pass to the coordinator's event loop."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from cluster.allreduce.rendezvous import PackedForest
from cluster.membership.events import Event
from topology import Forest


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinksMeasured(Event):
  """The end of a measurement of links.

  Attributes:
    content: Content of a file: see `file_format`; None if it has failed.
    took_s: Seconds of measuring; 0 if the content is that of an earlier run.
    problem: Reason for which it has failed; '' for none.
    is_lost: Whether it has failed because a worker was lost.
  """

  content: Mapping[str, Any] | None = None
  took_s: float = 0.0
  problem: str = ''
  is_lost: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Packing:
  """A forest that was packed for measured links.

  Attributes:
    running: Running forest.
    new: New forest.
    old_s: Predicted seconds of an allreduce over the running one.
    new_s: Predicted seconds of an allreduce over the new one.
  """

  running: PackedForest
  new: PackedForest
  old_s: float
  new_s: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForestPacked(Event):
  """The end of packing a forest for measured links.

  Attributes:
    packing: The result; None if it has failed.
    error: Reason for which it has failed; '' for none.
  """

  packing: Packing | None = None
  error: str = ''


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForestPlanned(Event):
  """The end of packing a forest for the members of a membership epoch.

  Attributes:
    key: Key of the request.
    forest: The result; None if there is none.
    problem: Reason for which there is none; '' otherwise.
  """

  key: Any
  forest: Forest | None
  problem: str = ''
