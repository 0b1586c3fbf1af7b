"""Shows a running, ended or broken run on the terminal, from its files alone.

  python -m tools.watch RUN_DIR [--every_s=1] [--once]

The page has phase, speed, batch, staleness and lead of each worker, the slowest
links against plan, memory of the processes on this host, losses and the time
left.  It ends with the run, or with Ctrl-C.
"""

import pathlib
import sys
import time

import rich.console
import rich.live
from absl import app, flags

from analysis.watching.page import Page
from configs.checks import require


def main(argv: list[str]) -> None:
  """Shows the run that the command line names."""
  if len(argv) != 2:
    raise app.UsageError(f'Expected one folder of a run, got {argv[1:]}.')
  values = flags.FLAGS
  try:
    require(values.every_s > 0, '--every_s', 'more than 0', values.every_s)
    page = Page(pathlib.Path(argv[1]))
    console = rich.console.Console()
    if values.once or not console.is_terminal:
      console.print(page.render())
      return
    with rich.live.Live(console=console, auto_refresh=False) as live:
      while True:
        has_ended = page.has_ended
        live.update(page.render(), refresh=True)
        if has_ended:
          return
        time.sleep(values.every_s)
  except (OSError, ValueError) as error:
    sys.exit(f'Refused: {error}')
  except KeyboardInterrupt:
    return


if __name__ == '__main__':
  flags.DEFINE_float('every_s', 1.0, 'Seconds between two states of the page.')
  flags.DEFINE_bool('once', False, 'Show the present state, and end.')
  app.run(main)
