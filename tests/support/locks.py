"""Processes that hold the lock of a folder, like a run."""

import contextlib
import pathlib
from collections.abc import Iterator

from tests.support import commands

_HOLD = """
import fcntl, json, os, platform, sys, time
file = open(sys.argv[1], 'a+')
fcntl.flock(file, fcntl.LOCK_EX)
file.truncate(0)
file.write(json.dumps({'host': platform.node(), 'pid': os.getpid()}))
file.flush()
print('held', flush=True)
time.sleep(float(sys.argv[2]))
"""


@contextlib.contextmanager
def hold(folder: pathlib.Path, *, for_s: float = 600.0) -> Iterator[int]:
  """Starts a process that holds a folder's lock, and kills it at the end.

  Args:
    folder: Folder; created if it is missing.
    for_s: Seconds after which the process exits.

  Yields:
    The ID of the process.
  """
  folder.mkdir(parents=True, exist_ok=True)
  words = commands.python(_HOLD, str(folder / '.lock'), str(for_s))
  with commands.start(words) as process:
    process.until('held')
    yield process.process_id
