"""Disturbs the network and the disk of a run in a lab, from outside of it.

Packets are dropped where a host receives them, by a classic BPF program that
`tc` attaches; the hosts notice nothing but the silence.
"""

import contextlib
import pathlib
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from launch import hosts

_LAB = re.compile(r'SYNCOPATE_LAB=(syn-[0-9a-f]{6})')
# Classic BPF: (code, jump if true, jump if false, constant).
_LOAD, _IF_EQUAL, _IF_GREATER, _RETURN = 32, 21, 37, 6
_SOURCE = 26  # Offset of the IPv4 source in a frame.
_RANDOM = 2**32 - 0x1000 + 56  # Pseudo offset of a random number.
_DROP, _PASS = 2, 2**32 - 1
_RATE = '10mbit'  # 1 % of the runs' links.


class Disturbance(NamedTuple):
  """Something that happens to hosts or the disk, and ends.

  Attributes:
    kind: 'drop' (the second group receives nothing of the first), 'part' (nor
      the first of the second), 'loss' (the first group loses 5 % of all packets
      that it receives), 'rate' (its links have 1 % of their rate) or 'disk'
      (the run's file system is full).
    pushes: Number of pushes of the run at which it begins.
    seconds: Duration.
    first: Indices of hosts.
    second: Indices of other hosts.
  """

  kind: str
  pushes: int
  seconds: float
  first: tuple[int, ...] = ()
  second: tuple[int, ...] = ()


class Disturbances:
  """Disturbances of one run.

  Attributes:
    begun: Those that have begun.
  """

  def __init__(
    self, planned: Sequence[Disturbance], workdir: pathlib.Path, link: str
  ):
    """Disturbs nothing yet.

    Args:
      planned: Disturbances of the run.
      workdir: Folder of the run; the log of its lab is beside it.
      link: Rate of all links.
    """
    self._planned, self._workdir = list(planned), workdir
    self._log, self._link = workdir.with_name(f'{workdir.name}.log'), link
    self.begun: list[Disturbance] = []
    self._ends: list[tuple[float, Disturbance]] = []

  def update(self, pushes: int) -> None:
    """Begins and ends what is due after a number of pushes."""
    while self._planned and pushes >= self._planned[0].pushes:
      disturbance = self._planned.pop(0)
      self._begin(disturbance)
      self.begun.append(disturbance)
      self._ends.append((time.monotonic() + disturbance.seconds, disturbance))
    for end, disturbance in list(self._ends):
      if time.monotonic() >= end:
        self._ends.remove((end, disturbance))
        self._end(disturbance)

  def _begin(self, disturbance: Disturbance) -> None:
    first, second = disturbance.first, disturbance.second
    match disturbance.kind:
      case 'drop':
        self._drop(first, second)
      case 'part':
        self._drop(first, second)
        self._drop(second, first)
      case 'loss':
        for host in first:
          self._attach(host, _drop_randomly(0.05))
      case 'rate':
        self._set_rate(first, _RATE)
      case 'disk':
        with contextlib.suppress(OSError), self._ballast.open('wb') as file:
          while True:
            file.write(bytes(2**16))
            file.flush()

  def _end(self, disturbance: Disturbance) -> None:
    match disturbance.kind:
      case 'rate':
        self._set_rate(disturbance.first, self._link)
      case 'disk':
        self._ballast.unlink()
      case _:
        for host in {*disturbance.first, *disturbance.second}:
          with contextlib.suppress(subprocess.CalledProcessError):
            self._tc(host, 'qdisc', 'del', 'dev', 'eth0', 'clsact')

  @property
  def _ballast(self) -> pathlib.Path:
    return self._workdir / 'ballast'

  @property
  def _lab(self) -> str:
    match = _LAB.search(self._log.read_text(errors='replace'))
    if match is None:
      raise RuntimeError(f'{self._log}: expected the name of a lab.')
    return match[1]

  def _drop(self, sources: Sequence[int], receivers: Sequence[int]) -> None:
    for receiver in receivers:
      for source in sources:
        self._attach(receiver, _drop_source(_address(source)))

  def _attach(self, host: int, program: str) -> None:
    with contextlib.suppress(subprocess.CalledProcessError):  # There is one.
      self._tc(host, 'qdisc', 'add', 'dev', 'eth0', 'clsact')
    words = ['filter', 'add', 'dev', 'eth0', 'ingress', 'bpf', 'da']
    self._tc(host, *words, 'bytecode', program)

  def _set_rate(self, numbers: Sequence[int], rate: str) -> None:
    bits = hosts.parse_rate(rate, 'rate')
    for number in numbers:
      for line in hosts.change_commands(self._lab, f'host{number}', bits):
        subprocess.run(line.split(), check=True, capture_output=True)

  def _tc(self, host: int, *words: str) -> None:
    command = ['tc', '-n', f'{self._lab}-host{host}', *words]
    subprocess.run(command, check=True, capture_output=True)


@contextlib.contextmanager
def small_disk(workdir: pathlib.Path, size: str) -> Iterator[None]:
  """Mounts a small file system in memory at a run's folder.

  Args:
    workdir: The folder; '' in `size` leaves it as it is.
    size: Size of the file system, such as '64m'.
  """
  if not size:
    yield
    return
  workdir.mkdir(parents=True)
  mount = ['mount', '-t', 'tmpfs', '-o', f'size={size}', 'tmpfs', str(workdir)]
  subprocess.run(mount, check=True)
  try:
    yield
  finally:
    subprocess.run(['umount', '-l', str(workdir)], check=True)


def _address(host: int) -> str:
  links = hosts.parse_links(host + 2, '1gbit')
  return hosts.addresses(links)[f'host{host}']


def _program(*lines: tuple[int, int, int, int]) -> str:
  rows = [f'{code} {yes} {no} {value}' for code, yes, no, value in lines]
  return ','.join([str(len(rows)), *rows])


def _drop_source(address: str) -> str:
  """Returns a program that drops the packets of an IPv4 address."""
  value = int.from_bytes(bytes(map(int, address.split('.'))))
  return _program(
    (_LOAD, 0, 0, _SOURCE),
    (_IF_EQUAL, 0, 1, value),
    (_RETURN, 0, 0, _DROP),
    (_RETURN, 0, 0, _PASS),
  )


def _drop_randomly(share: float) -> str:
  """Returns a program that drops a share of all packets."""
  return _program(
    (_LOAD, 0, 0, _RANDOM),
    (_IF_GREATER, 0, 1, round(share * 2**32)),
    (_RETURN, 0, 0, _PASS),
    (_RETURN, 0, 0, _DROP),
  )
