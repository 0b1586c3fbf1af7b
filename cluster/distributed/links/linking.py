"""Which links the lead believes in, and whether they are measured."""

from collections.abc import Mapping
from typing import Any

from absl import logging

from cluster.distributed.links import content
from cluster.distributed.links.surveyor import Surveyor
from cluster.distributed.reduced.formation import Formation
from cluster.transport.interfaces import is_loopback
from route import links
from topology.clusters import cluster as clusters


class Linking:
  """Lets the formation know the links; for the thread of the lead."""

  def __init__(self, formation: Formation, surveyor: Surveyor, *, workers: int):
    """Knows what the formation knows.

    Args:
      formation: Makes groups.
      surveyor: Has links measured.
      workers: How many there are.
    """
    self._formation, self._surveyor = formation, surveyor
    self._workers = workers

  @property
  def waits(self) -> str:
    """What a run waits for whose workers are all there."""
    busy = self._surveyor.busy
    return '  links to be measured' if busy else '  connections'

  def measures(self, members: list[int]) -> bool:
    """Returns whether links are measured before these members connect.

    An event 'measured' then says that they were; see `measured`.

    Args:
      members: Workers, ascending: all of them, if nothing is known yet.
    """
    if self._surveyor.busy:
      return True
    if self._formation.knows:
      return False
    if self._together(members):
      logging.info('Links are not measured, but equal: all share one host.')
      self._formation.know(links.equal(self._workers), {})
      return False
    self._surveyor.begin(members)
    return True

  def measured(self, event: Mapping[str, Any]) -> None:
    """Takes in what was measured, if anything was.

    Raises:
      Unmendable: If it has failed again.
    """
    if found := self._surveyor.ended(event):
      cluster = clusters.from_json(found)
      self._formation.know(cluster, content.host_latency_s(found))

  def answered(self, event: Mapping[str, Any]) -> None:
    """A worker has measured what it was told to."""
    self._surveyor.answered(event)

  def lose(self, index: int, reason: str) -> None:
    """A worker is gone."""
    self._surveyor.lose(index, reason)

  def _together(self, members: list[int]) -> bool:
    """Whether workers share a host, as far as addresses tell."""
    address = self._formation.address
    hosts = {address(index).rpartition(':')[0] for index in members}
    return len(hosts) == 1 or all(map(is_loopback, hosts))
