"""Signals that stop runs and sweeps."""

import contextlib
from collections.abc import Callable, Iterator

from outputs import terminal
from system import processes, threads

# Signals by which others end a process: SLURM sends SIGTERM before it takes a
# node, and a terminal that closes sends SIGHUP.
TERMINATING = (processes.SIGTERM, processes.SIGHUP)
_STOPS = (processes.SIGINT, *TERMINATING)
# Handlers to leave alone: those that Python cannot restore, and "ignore".
_UNTOUCHED = (None, processes.SIG_IGN)


@contextlib.contextmanager
def catch_stop_signals(*, only_first: bool) -> Iterator[list[int]]:
  """Yields a list to which signals that stop this process are appended.

  An ignored signal stays so: processes in the background get no SIGINT, those
  of nohup no SIGHUP.  Outside the main thread, which alone may handle signals,
  the list stays empty.

  A terminal that closes may send SIGHUP more than once, from the kernel and
  from the shell.  After any signal SIGHUP is therefore ignored; if it was the
  signal, also behind the context.

  Args:
    only_first: True if the next signal acts as it did before the context, and
      is not appended.
  """
  received: list[int] = []
  if threads.current_thread() is not threads.main_thread():
    yield received
    return

  def stop(number: int, frame: object) -> None:
    del frame
    received.append(number)
    terminal.drop_if_lost()
    if only_first:
      for each, handler in before.items():
        processes.handle_signal(each, handler)
    if processes.SIGHUP in before:
      processes.handle_signal(processes.SIGHUP, processes.SIG_IGN)

  handled = [n for n in _STOPS if processes.find_handler(n) not in _UNTOUCHED]
  before = {number: processes.handle_signal(number, stop) for number in handled}
  try:
    yield received
  finally:
    for number, handler in before.items():
      if not (number == processes.SIGHUP and number in received):
        processes.handle_signal(number, handler)


def handle_termination(handler: Callable[[int, object], None]) -> None:
  """Handles signals of `TERMINATING` from now on; only main threads can.

  An ignored SIGHUP stays so.

  Args:
    handler: Function of the number of the signal and the frame.
  """
  for number in TERMINATING:
    if (
      number != processes.SIGHUP
      or processes.find_handler(number) != processes.SIG_IGN
    ):
      processes.handle_signal(number, handler)
