"""Exit codes of a run's processes, and the error that ends one.

They import no transport, so that an entry point and a launcher can tell how a
process ended whatever its runtime.
"""

import os
import sys
from typing import NoReturn

LOST = os.EX_TEMPFAIL  # 75: starting the process again may help.
STOPPED = 143  # SIGTERM, or the coordinator, has ended it unfinished.


class Unmendable(Exception):
  """The run cannot go on, but can be started again from a checkpoint."""


def end(code: int) -> NoReturn:
  """Ends this process, whatever its other threads do."""
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code)
