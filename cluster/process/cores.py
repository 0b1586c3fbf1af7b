"""Cores that a process can use."""

import os
import pathlib

_GROUP = pathlib.Path('/proc/self/cgroup')
_GROUPS = pathlib.Path('/sys/fs/cgroup')


def count_cores(
  group: pathlib.Path = _GROUP, groups: pathlib.Path = _GROUPS
) -> int:
  """Returns the cores that this process may use, at least 1.

  They are those of its affinity, of which a quota of its control group (version
  2) or of one above may leave a part.

  Args:
    group: File that names the control group of the process.
    groups: Folder of control groups; a system may lack both.
  """
  cores = len(os.sched_getaffinity(0))
  for line in group.read_text().splitlines() if group.exists() else ():
    number, _, name = line.split(':', 2)
    folder = groups / name.lstrip('/')
    while number == '0' and folder.is_relative_to(groups):
      cores = min(cores, _read_quota(folder / 'cpu.max', cores))
      folder = folder.parent
  return max(cores, 1)


def _read_quota(file: pathlib.Path, default: int) -> int:
  """Returns the cores of a quota, rounded down; `default` without one."""
  if not file.exists():
    return default
  quota, period = file.read_text().split()
  return default if quota == 'max' else int(quota) // int(period)
