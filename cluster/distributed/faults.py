"""Failures on purpose, addressed by worker, iteration and kind."""

import enum
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Any

import jax

from configs.checks import require


class Kind(enum.StrEnum):
  """What a worker does between computing a gradient and pushing it."""

  DIE = 'die'  # Its process is killed.
  HANG = 'hang'  # Its process is stopped.
  SLOW = 'slow'  # It takes 1.5 times `timeout_s` longer.
  CUT = 'cut'  # Its host's interface goes down.
  CORRUPT = 'corrupt'  # A byte of the push changes on its way.
  WRONG_SIZE = 'wrong_size'  # The push is too short.
  NAN = 'nan'  # The gradient is not a number.


class Faults:
  """The failures of one run; each happens once, also in a run that goes on."""

  def __init__(
    self,
    entries: Sequence[Sequence[Any]],
    *,
    num_workers: int,
    directory: pathlib.Path,
    interface: str,
    timeout_s: float,
  ):
    """Lets nothing happen yet.

    Args:
      entries: (worker, iteration, kind) each.
      num_workers: Number of workers.
      directory: Where is noted what has happened; all workers share it.
      interface: That `cut` takes down.
      timeout_s: After which a worker counts as lost.

    Raises:
      ValueError: If an entry is not of this form, or would cut the loopback.
    """
    kinds = [kind.value for kind in Kind]
    form = f'(worker < {num_workers}, iteration >= 0, one of {kinds})'
    require(isinstance(entries, tuple), 'faults', 'a tuple of tuples', entries)
    for entry in entries:
      valid = (
        isinstance(entry, tuple)
        and [type(part) for part in entry] == [int, int, str]
        and 0 <= entry[0] < num_workers
        and entry[1] >= 0
        and entry[2] in kinds
      )
      require(valid, 'faults', form, entry)
      cuts = entry[2] == Kind.CUT and interface == 'lo'
      require(not cuts, 'faults', "an interface other than 'lo' to cut", entry)
    self._entries = {entry[:2]: Kind(entry[2]) for entry in entries}
    self._directory = directory
    self._interface = interface
    self._timeout_s = timeout_s

  def due(self, worker: int, iteration: int) -> Kind | None:
    """Returns what is to happen now, and notes that it has."""
    kind = self._entries.get((worker, iteration))
    if kind is None:
      return None
    self._directory.mkdir(parents=True, exist_ok=True)
    try:
      (self._directory / f'{worker}-{iteration}-{kind}').touch(exist_ok=False)
    except FileExistsError:
      return None
    return kind

  def happen(self, kind: Kind | None, payload: Any) -> Any:
    """Lets happen what happens before a push; returns what is pushed."""
    if kind == Kind.DIE:
      os.kill(os.getpid(), signal.SIGKILL)
    elif kind == Kind.HANG:
      os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == Kind.SLOW:
      time.sleep(1.5 * self._timeout_s)
    elif kind == Kind.CUT:
      command = ['ip', 'link', 'set', self._interface, 'down']
      subprocess.run(command, check=True)
    elif kind == Kind.NAN:
      return jax.tree.map(lambda leaf: leaf * float('nan'), payload)
    return payload
