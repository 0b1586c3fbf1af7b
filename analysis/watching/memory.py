"""Memory of a run's processes on this host, from files of the run and /proc."""

import json
import pathlib
import platform
from collections.abc import Iterator, Mapping
from typing import Any


def find_memory(folder: pathlib.Path) -> dict[str, float]:
  """Returns the resident memory of a run's live processes, MiB by role.

  The processes are those of the launchers' rows (launch*.jsonl), or the one
  that holds the lock of the folder.  Those of other hosts, and ids that other
  programs use by now, are left out.

  Args:
    folder: Folder of the run.
  """
  found = {}
  for role, pid in dict(_find_processes(folder)).items():
    resident = _read_resident(pid)
    if resident is not None:
      found[role] = resident
  return found


def _find_processes(folder: pathlib.Path) -> Iterator[tuple[str, int]]:
  """Yields role and id of each process, the newest of a role last."""
  logs = sorted(folder.glob('launch*.jsonl'))
  for log in logs:
    for line in log.read_text(errors='replace').splitlines():
      row = _parse(line)
      if row.get('event') == 'start' and row.get('pid'):
        yield str(row['role']), int(row['pid'])
  if logs:
    return
  lock = folder / '.lock'
  owner = _parse(lock.read_text()) if lock.is_file() else {}
  if owner.get('host') == platform.node() and owner.get('pid'):
    yield 'process', int(owner['pid'])


def _parse(line: str) -> Mapping[str, Any]:
  """Returns the object of a line; {} if it is not written completely."""
  try:
    row = json.loads(line)
  except ValueError:
    return {}
  return row if isinstance(row, dict) else {}


def _read_resident(pid: int) -> float | None:
  """Returns the memory of a process of a run, MiB; None for any other."""
  path = pathlib.Path('/proc', str(pid))
  try:
    if b'python' not in (path / 'cmdline').read_bytes():
      return None
    status = (path / 'status').read_text()
  except OSError:
    return None
  for line in status.splitlines():
    name, _, value = line.partition(':')
    if name == 'VmRSS':
      return int(value.split()[0]) / 2**10
  return None  # It has ended, and was not waited for.
