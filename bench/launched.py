"""The processes of a run that tools.launch has started, from outside."""

import json
import os
import pathlib
import re
import signal
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

_YOUNG_S = 5.5  # The launcher counts processes that end within 5 s,
_SPARED = 3  # and gives up after 5 of them in a row.
_PUSH = b'"event":"push"'  # In rows of events.jsonl.
_LISTEN = '0A'  # State in /proc/net/tcp.
_ADDRESS = re.compile(r'--coordinator=\S+?:(\d+)')
# An older process, after this number of pushes of the run, has compiled all
# programs and is connected to all others.
_SETTLED_S, _PUSHES = 15.0, 100
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


class Launched:
  """Processes of a run, according to its launch.jsonl.

  Attributes:
    living: Process id and Unix time of the start of each live process, by role.
    starts: Number of starts.
    deaths: Ends with another code than 0.
    ports: Ports of coordinators.
    pushes: Pushes of the run so far, also of those that were lost.
    grown: Largest growth of a process since its first work, MiB and open files,
      by role.
  """

  def __init__(self, workdir: pathlib.Path):
    """Initializes the object without processes."""
    self.living: dict[str, tuple[int, float]] = {}
    self.starts = self.deaths = 0
    self.ports: set[int] = set()
    self.pushes = 0
    self.grown: dict[str, tuple[float, int]] = {}
    self._first: dict[int, tuple[float, int]] = {}
    self._before: dict[int, int] = {}  # Pushes before a process was started.
    self._launch = Lines(workdir / 'launch.jsonl')
    self._events = Lines(workdir / 'events.jsonl')
    self._short: Counter[str] = Counter()

  def look(self) -> None:
    """Reads the new lines of the run's files."""
    for line in self._launch.more():
      self._take(json.loads(line))
    self.pushes += sum(_PUSH in line for line in self._events.more())
    for pid, _ in self.living.values():
      self.ports |= set(map(int, _ADDRESS.findall(command_line(pid))))

  def measure(self) -> None:
    """Measures memory and open files of the live processes."""
    now = time.time()
    for role, (pid, start) in self.living.items():
      has = _has(pid)
      if has is None:
        continue
      young = self.pushes - self._before[pid] < _PUSHES
      if now - start < _SETTLED_S or young or pid not in self._first:
        self._first[pid] = has
        continue
      more = (a - b for a, b in zip(has, self._first[pid], strict=True))
      before = self.grown.get(role, (0.0, 0))
      self.grown[role] = tuple(map(max, more, before))

  def victims(self, kind: str) -> list[str]:
    """Returns those that may be killed, of 'worker' or 'server'."""
    now = time.time()
    return [
      role
      for role, (_, start) in sorted(self.living.items())
      if role.startswith(kind)
      and (self._short[role] < _SPARED or now - start > _YOUNG_S)
    ]

  def kill(self, role: str) -> bool:
    """Sends SIGKILL to a process; returns whether it still was that one."""
    pid, _ = self.living[role]
    try:
      handle = os.pidfd_open(pid)
    except ProcessLookupError:
      return False
    try:
      # Between fork and exec it still has the command line of its parent.
      if f'--role={role}' not in command_line(pid):
        return False
      signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
      return False
    finally:
      os.close(handle)
    return True

  def _take(self, row: Mapping[str, Any]) -> None:
    role = row['role']
    if row['event'] == 'start':
      self.living[role] = row['pid'], row['time']
      self._before[row['pid']] = self.pushes
      self.starts += 1
      return
    _, start = self.living.pop(role)
    short = row['time'] - start < _YOUNG_S
    self._short[role] = self._short[role] + 1 if short else 0
    self.deaths += row['code'] != 0


def command_line(pid: int) -> str:
  """Returns the command of a process; '' if there is none."""
  try:
    data = pathlib.Path('/proc', str(pid), 'cmdline').read_bytes()
  except (FileNotFoundError, ProcessLookupError):
    return ''
  return data.replace(b'\0', b' ').decode(errors='replace')


def _has(pid: int) -> tuple[float, int] | None:
  """Returns MiB of memory and the number of open files of a process."""
  process = pathlib.Path('/proc', str(pid))
  try:
    pages = int((process / 'statm').read_text().split()[1])
    return pages * _PAGE_MIB, len(list((process / 'fd').iterdir()))
  except (FileNotFoundError, ProcessLookupError):
    return None


def listening() -> set[int]:
  """Returns the TCP ports of this machine that are listened on."""
  ports = set()
  for name in ('tcp', 'tcp6'):
    lines = pathlib.Path('/proc/net', name).read_text().splitlines()[1:]
    for line in lines:
      _, address, _, state, *_ = line.split()
      if state == _LISTEN:
        ports.add(int(address.rpartition(':')[2], 16))
  return ports
