"""Observes and kills the processes of a run that tools.launch has started."""

import json
import os
import pathlib
import re
import signal
import time
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from cluster.membership.terms import Terms

# The launcher counts processes that end within 5 s, and ends the run after 5 of
# them in a row.
_YOUNG_S, _MAX_EARLY_ENDS = 5.5, 3
_PUSH = b'"event":"push"'  # Part of a row of events.jsonl.
_LISTEN = '0A'  # State in /proc/net/tcp.
_ADDRESS = re.compile(r'--coordinator=\S+?:(\d+)')
# After this age and this number of pushes of the run, a process has compiled
# all programs and is connected to all others.
_WARM_UP_S, _WARM_UP_PUSHES = 15.0, 100
# Usage is the least of this many measurements, as connections of a transfer to
# a process that rejoins, and their files, are temporary.
_NUM_MEASUREMENTS = 6
_PAGE_MIB = os.sysconf('SC_PAGE_SIZE') / 2**20


class Lines:
  """Reader of a growing file, which a resumed run truncates."""

  def __init__(self, path: pathlib.Path):
    self._path = path
    self._read = 0

  def more(self) -> list[bytes]:
    """Returns the new complete lines."""
    if not self._path.exists():
      return []
    self._read = min(self._read, self._path.stat().st_size)
    with self._path.open('rb') as file:
      file.seek(self._read)
      data = file.read()
    whole = data[: data.rfind(b'\n') + 1]
    self._read += len(whole)
    return whole.splitlines()


class RunProcesses:
  """Processes of a run, according to its launch.jsonl.

  Attributes:
    workdir: Folder of the run.
    alive: Process id and Unix time of the start of each live process, by role.
    starts: Number of starts.
    deaths: Number of processes that ended with a code other than 0.
    ports: Ports of coordinators.
    pushes: Number of pushes of the run so far, including lost ones.
    growth: Largest growth of a process after warm-up, MiB and open files, by
      role, where its usage is the least of six successive measurements.
    peak: Largest number of open files of a process, by role.
  """

  def __init__(self, workdir: pathlib.Path):
    """Initializes the object without processes."""
    self.workdir = workdir
    self.alive: dict[str, tuple[int, float]] = {}
    self.starts = self.deaths = 0
    self.ports: set[int] = set()
    self.pushes = 0
    self.growth: dict[str, tuple[float, int]] = {}
    self.peak: Counter[str] = Counter()
    self._recent: dict[int, deque[tuple[float, int]]] = {}
    self._first: dict[int, tuple[float, int]] = {}
    self._before: dict[int, int] = {}  # Pushes before a process was started.
    self._launch = Lines(workdir / 'launch.jsonl')
    self._events = Lines(workdir / 'events.jsonl')
    self._early_ends: Counter[str] = Counter()

  def update(self) -> None:
    """Reads the new lines of the run's files."""
    for line in self._launch.more():
      self._record(json.loads(line))
    self.pushes += sum(_PUSH in line for line in self._events.more())
    for pid, _ in self.alive.values():
      self.ports |= set(map(int, _ADDRESS.findall(command_line(pid))))

  def count_pushes(self) -> int:
    """Returns the number of pushes in the run's file, without lost ones."""
    return sum(
      _PUSH in line for line in Lines(self.workdir / 'events.jsonl').more()
    )

  @property
  def coordinator(self) -> str:
    """Role of the process that coordinates the run now."""
    place = Terms(self.workdir).find()
    has_servers = any(role.startswith('server') for role in self.alive)
    if place:
      return f'worker:{place.worker}'
    return 'server:0' if has_servers else 'worker:0'

  def measure(self) -> None:
    """Measures memory and open files of the live processes."""
    now = time.time()
    for role, (pid, start) in self.alive.items():
      usage = _usage(pid)
      if usage is None:
        continue
      self.peak[role] = max(self.peak[role], usage[1])
      is_young = self.pushes - self._before[pid] < _WARM_UP_PUSHES
      if now - start < _WARM_UP_S or is_young:
        continue
      recent = self._recent.setdefault(pid, deque(maxlen=_NUM_MEASUREMENTS))
      recent.append(usage)
      if len(recent) < _NUM_MEASUREMENTS:
        continue
      memory, files = map(min, zip(*recent, strict=True))
      first_memory, first_files = self._first.setdefault(pid, (memory, files))
      before_memory, before_files = self.growth.get(role, (0.0, 0))
      self.growth[role] = (
        max(before_memory, memory - first_memory),
        max(before_files, files - first_files),
      )

  def victims(self, kind: str) -> list[str]:
    """Returns the roles of processes of a kind that may be killed.

    Args:
      kind: 'worker' or 'server'.
    """
    now = time.time()
    return [
      role
      for role, (_, start) in sorted(self.alive.items())
      if role.startswith(kind)
      and (self._early_ends[role] < _MAX_EARLY_ENDS or now - start > _YOUNG_S)
    ]

  def kill(self, role: str) -> bool:
    """Sends SIGKILL to the process of a role; returns whether it was alive."""
    pid, _ = self.alive[role]
    try:
      handle = os.pidfd_open(pid)
    except ProcessLookupError:
      return False
    try:
      # Between fork and exec a process has the command line of its parent.
      if f'--role={role}' not in command_line(pid):
        return False
      signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
      return False
    finally:
      os.close(handle)
    return True

  def _record(self, row: Mapping[str, Any]) -> None:
    role = row['role']
    if row['event'] == 'start':
      self.alive[role] = row['pid'], row['time']
      self._before[row['pid']] = self.pushes
      self.starts += 1
      return
    _, start = self.alive.pop(role)
    is_early = row['time'] - start < _YOUNG_S
    self._early_ends[role] = self._early_ends[role] + 1 if is_early else 0
    self.deaths += row['code'] != 0


def command_line(pid: int) -> str:
  """Returns the command line of a process; '' if it has ended."""
  try:
    data = pathlib.Path('/proc', str(pid), 'cmdline').read_bytes()
  except (FileNotFoundError, ProcessLookupError):
    return ''
  return data.replace(b'\0', b' ').decode(errors='replace')


def _usage(pid: int) -> tuple[float, int] | None:
  """Returns MiB of memory and the number of open files of a process."""
  process = pathlib.Path('/proc', str(pid))
  try:
    pages = int((process / 'statm').read_text().split()[1])
    return pages * _PAGE_MIB, len(list((process / 'fd').iterdir()))
  except (FileNotFoundError, ProcessLookupError):
    return None


def listening_ports() -> set[int]:
  """Returns the TCP ports of this machine with a listening socket."""
  ports = set()
  for name in ('tcp', 'tcp6'):
    lines = pathlib.Path('/proc/net', name).read_text().splitlines()[1:]
    for line in lines:
      _, address, _, state, *_ = line.split()
      if state == _LISTEN:
        ports.add(int(address.rpartition(':')[2], 16))
  return ports
