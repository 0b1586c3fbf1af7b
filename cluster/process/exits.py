"""Exit codes of a run's processes, and the error that ends one.

Entry points and launchers read the codes, whatever the runtime: this module
therefore imports no network code.
"""

import os
import sys
from typing import NoReturn

LOST = os.EX_TEMPFAIL  # 75: a restart of the process may help.
STOPPED = 143  # SIGTERM or the coordinator has ended an unfinished run.
DRAINED = 79  # A worker has left a run, which continues, after SIGTERM.


class Unmendable(Exception):
  """Raised if a run cannot continue, but can be resumed from a checkpoint."""


def end(code: int) -> NoReturn:
  """Exits this process at once, even if other threads hang."""
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code)


class Relinquished(Unmendable):
  """Raised if another process is to coordinate the run, which continues."""
