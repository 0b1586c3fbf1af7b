"""Faults of links in a lab of `tools.lab`, injected from outside of a run.

A partition divides hosts into groups that cannot reach each other.  A black
hole drops the packets of one host to another one, without an error; packets in
the other direction arrive.
"""

import pathlib
import re
import subprocess
import time
from collections.abc import Sequence

from tools.launching import hosts

_LAB = re.compile(r'SYNCOPATE_LAB=(\S+)')
_NOWHERE = '02:00:00:00:00:00'  # A hardware address that no host has.
_BRIDGE = 'bridge'  # Of all hosts, in the switch's namespace.
_LIMIT_S = 60.0


class LinkFaults:
  """Links of a running lab without groups, whose hosts are host0, host1, ..."""

  def __init__(self, log: pathlib.Path, count: int):
    """Finds the lab.

    Args:
      log: Output of `tools.lab`.
      count: Number of its hosts.

    Raises:
      TimeoutError: If the lab does not start in time.
    """
    self._lab = _find_lab(log)
    self._switch = f'{self._lab}-{hosts.SWITCH}'
    links = hosts.parse_links(count, '1gbit', '{}', 'cubic', False)
    self._addresses = [*hosts.addresses(links).values()]

  def partition(self, *groups: Sequence[int]) -> None:
    """Separates groups of hosts; those of the first stay with all others."""
    for number, group in enumerate(groups[1:], start=1):
      name = f'part{number}'
      _call(f'ip -n {self._switch} link add {name} type bridge')
      _call(f'ip -n {self._switch} link set {name} up')
      self._move(group, name)

  def heal(self, *groups: Sequence[int]) -> None:
    """Ends a partition into these groups."""
    for number, group in enumerate(groups[1:], start=1):
      self._move(group, _BRIDGE)
      _call(f'ip -n {self._switch} link del part{number}')

  def black_hole(self, source: int, target: int) -> None:
    """Drops packets of one host to another one from now on."""
    entry = (
      f'{self._addresses[target]} lladdr {_NOWHERE} dev eth0 nud permanent'
    )
    _call(f'ip -n {self._lab}-host{source} neigh replace {entry}')

  def restore(self, source: int, target: int) -> None:
    """Ends a black hole."""
    entry = f'{self._addresses[target]} dev eth0'
    _call(f'ip -n {self._lab}-host{source} neigh del {entry}')

  def limit(self, host: int, rate: int) -> None:
    """Changes the send and receive rate of a host, bit/s."""
    for line in hosts.change_commands(self._lab, f'host{host}', rate):
      _call(line)

  def _move(self, group: Sequence[int], bridge: str) -> None:
    for host in group:
      _call(f'ip -n {self._switch} link set host{host} master {bridge}')


def _find_lab(log: pathlib.Path) -> str:
  deadline = time.monotonic() + _LIMIT_S
  while time.monotonic() < deadline:
    if log.exists() and (found := _LAB.search(log.read_text())):
      return found[1]
    time.sleep(0.1)
  raise TimeoutError(f'{log}: no lab within {_LIMIT_S:g} s.')


def _call(line: str) -> None:
  subprocess.run(line.split(), check=True)
