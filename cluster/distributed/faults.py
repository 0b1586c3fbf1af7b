"""Failures on purpose, addressed by worker, iteration, kind and phase."""

import enum
import os
import pathlib
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from cluster.transport.messages import Spoil
from configs.checks import require
from configs.sections import named


class Kind(enum.StrEnum):
  """What goes wrong with a worker."""

  DIE = 'die'  # Its process is killed.
  STOP = 'stop'  # Its process is stopped: it is silent, too.
  HANG = 'hang'  # It does not go on, though its process lives and says so.
  SLOW = 'slow'  # It takes `SLOWER` times `timeout_s` longer.
  CUT = 'cut'  # Its host's interface goes down; 'cut:5' for 5 seconds.
  CORRUPT = 'corrupt'  # A byte of the push changes on its way.
  WRONG_SIZE = 'wrong_size'  # The push is too short.
  NAN = 'nan'  # The gradient is not a number.
  FLIP = 'flip'  # A bit of its copy of the parameters changes.


class Phase(enum.StrEnum):
  """When it does, in an iteration or, at both ends, in a life."""

  START = 'start'  # Before it is ready; of the life of that number.
  PULL = 'pull'  # After the first chunk that it receives.
  COMPUTE = 'compute'  # Before the push.
  FIRST = 'first'  # After the first chunk that it sends.
  LAST = 'last'  # Before the last chunk that it sends.
  END = 'end'  # Once the run has finished; the number does not matter.
  # Of servers: of the checkpoint of that number; of that evaluation of a life,
  # which is the lead's.
  CHECKPOINT = 'checkpoint'
  EVALUATION = 'evaluation'


SLOWER = 1.5  # Times `timeout_s`.
# What is done to the push as a whole, not at a moment.
_OF_PUSH = (Kind.WRONG_SIZE, Kind.NAN, Kind.FLIP)
_FLIPPED = 25  # Bit of a float32's exponent: 16 times as much, or as little.
_SENT = (Phase.COMPUTE, Phase.FIRST, Phase.LAST)  # What can be corrupt.
_SERVED = (Phase.CHECKPOINT, Phase.EVALUATION)
_SERVER = re.compile(r'server:(\d{1,4})')
_KIND = re.compile(r'([a-z_]+)(?::(\d{1,4}))?')


class Fault(NamedTuple):
  """One failure.

  Attributes:
    kind: What goes wrong.
    phase: When.
    seconds: That a cut lasts; 0 for good.
  """

  kind: Kind
  phase: Phase = Phase.COMPUTE
  seconds: int = 0


class Faults:
  """The failures of one run; each happens once, also in a run that goes on."""

  def __init__(
    self,
    entries: Sequence[Sequence[Any]],
    *,
    num_workers: int,
    num_servers: int,
    directory: pathlib.Path,
    interface: str,
    timeout_s: float,
  ):
    """Lets nothing happen yet.

    Args:
      entries: (worker, iteration, kind) or (worker, iteration, kind, phase)
        each; ('server:0', number, kind, phase) of a server.
      num_workers: Number of workers.
      num_servers: Number of servers.
      directory: Where is noted what has happened; all workers share it.
      interface: That `cut` takes down.
      timeout_s: After which a worker counts as lost.

    Raises:
      ValueError: If an entry is not of this form, or would cut the loopback.
    """
    require(isinstance(entries, tuple), 'faults', 'a tuple of tuples', entries)
    self._entries: dict[tuple[int | str, int, Phase], Fault] = {}
    for entry in entries:
      fault = _parsed(entry, num_workers, num_servers)
      cuts = fault.kind == Kind.CUT and interface == 'lo'
      require(not cuts, 'faults', "an interface other than 'lo' to cut", entry)
      number = -1 if fault.phase == Phase.END else entry[1]
      self._entries[entry[0], number, fault.phase] = fault
    self._directory = directory
    self._interface = interface
    self._timeout_s = timeout_s

  @property
  def kinds(self) -> set[Kind]:
    """All that is to go wrong."""
    return {fault.kind for fault in self._entries.values()}

  def due(
    self, who: int | str, number: int, phase: Phase = Phase.COMPUTE
  ) -> Fault | None:
    """Returns what is to happen now, and notes that it has.

    Args:
      who: To which worker, or 'server:0'.
      number: Of its iteration; at the start, of its life; at the end, -1; of
        the checkpoint or evaluation.
      phase: What it is about to do.
    """
    fault = self._entries.get((who, number, phase))
    if fault is None:
      return None
    self._directory.mkdir(parents=True, exist_ok=True)
    name = f'{who}-{number}-{fault.kind}'
    if phase != Phase.COMPUTE:
      name += f'-{phase}'
    try:
      with (self._directory / name).open('x') as file:
        file.write(str(fault.seconds))
    except FileExistsError:
      return None
    return fault

  def travel(
    self, who: int, number: int, whole: Fault | None
  ) -> 'Travel | None':
    """Returns what happens to the chunks of an iteration; None for nothing.

    Args:
      who: Which worker.
      number: Of its iteration.
      whole: What happens to the push as a whole.
    """
    phases = (Phase.PULL, Phase.FIRST, Phase.LAST)
    if whole or any((who, number, phase) in self._entries for phase in phases):
      return Travel(self, who, number, whole)
    return None

  def happen(self, fault: Fault | None) -> None:
    """Lets happen what happens at a moment."""
    kind = fault.kind if fault else None
    if kind == Kind.DIE:
      os.kill(os.getpid(), signal.SIGKILL)
    elif kind == Kind.STOP:
      os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == Kind.HANG:
      threading.Event().wait()
    elif kind == Kind.SLOW:
      time.sleep(SLOWER * self._timeout_s)
    elif kind == Kind.CUT:
      self._cut(fault.seconds)

  def during(
    self, chunks: Iterable[Any], first: Fault | None, last: Fault | None
  ) -> Iterator[Any]:
    """Yields chunks; lets a fault happen after the first, and before the last.

    Args:
      chunks: At least one.
      first: What happens after the first; None for nothing.
      last: What happens before the last, likewise.
    """
    if first is None and last is None:
      yield from chunks
      return
    chunks = iter(chunks)
    held, after = next(chunks), first
    for chunk in chunks:
      yield held
      self.happen(after)
      held, after = chunk, None
    self.happen(last)
    yield held
    self.happen(after)

  def _cut(self, seconds: int) -> None:
    name = self._interface
    shown = ['ip', 'route', 'show', 'dev', name]
    routes = subprocess.run(shown, capture_output=True, text=True, check=True)
    subprocess.run(['ip', 'link', 'set', name, 'down'], check=True)
    if seconds:
      # Routes go with the link.
      up = [f'sleep {seconds}', f'ip link set {name} up']
      for route in routes.stdout.splitlines():
        up.append(f'ip route replace {route} dev {name}')
      # It goes on if this process is ended meanwhile.
      subprocess.Popen(['sh', '-c', '; '.join(up)], start_new_session=True)


class Travel:
  """What happens to the chunks of one iteration, where they are summed."""

  def __init__(
    self, faults: Faults, who: int, number: int, whole: Fault | None
  ):
    """For `Faults.travel`."""
    self._faults, self._at = faults, (who, number)
    self._whole = whole
    self._come = self._gone = False

  def came(self) -> None:
    """A chunk has come."""
    if not self._come:
      self._come = True
      self._faults.happen(self._due(Phase.PULL))

  def goes(self, body: Any, left: int) -> tuple[Any, Any]:
    """Returns what a chunk is said to be, and what is sent in its place.

    Args:
      body: Bytes.
      left: Chunks that are to go, with this one.
    """
    faults = [self._whole, self._due(Phase.LAST) if left == 1 else None]
    self._whole = None
    if not self._gone:
      self._first = self._due(Phase.FIRST)
      faults.append(self._first)
    kinds = {fault.kind for fault in faults if fault}
    if Kind.WRONG_SIZE in kinds:
      body = body[:-4]
    sent = body
    if Kind.CORRUPT in kinds:
      sent = bytearray(body)
      sent[0] ^= 1
    self._faults.happen(faults[1])
    return body, sent

  def gone(self) -> None:
    """It has gone."""
    if not self._gone:
      self._gone = True
      self._faults.happen(self._first)

  def _due(self, phase: Phase) -> Fault | None:
    return self._faults.due(*self._at, phase)


def make(
  config: ConfigDict, num_servers: int, directory: pathlib.Path
) -> Faults:
  """Returns the failures that a config asks for.

  Raises:
    ValueError: If an entry is wrong.
  """
  with named('config.cluster'):
    return Faults(
      config.cluster.faults,
      num_workers=config.cluster.workers,
      num_servers=num_servers,
      directory=directory,
      interface=config.cluster.interface,
      timeout_s=config.cluster.timeout_s,
    )


def corrupted(
  whole: Fault | None, first: Fault | None, last: Fault | None
) -> Spoil | None:
  """Returns which chunk of a push is corrupt, of the faults of its phases."""
  if last and last.kind == Kind.CORRUPT:
    return 'last'
  early = any(one and one.kind == Kind.CORRUPT for one in (whole, first))
  return 'first' if early else None


def spoilt(fault: Fault | None, payload: Any) -> Any:
  """Returns what is pushed in the place of a payload."""
  if fault and fault.kind == Kind.NAN:
    return jax.tree.map(lambda leaf: leaf * float('nan'), payload)
  return payload


def flipped(params: Any) -> Any:
  """Returns parameters of which a bit has changed, in the largest number.

  Args:
    params: Pytree of float32 arrays.

  Returns:
    A pytree of NumPy arrays.
  """
  leaves, tree = jax.tree.flatten(params)
  leaves = [np.array(leaf) for leaf in leaves]
  filled = [leaf for leaf in leaves if leaf.size]
  if filled:
    largest = max(filled, key=lambda leaf: np.abs(leaf).max())
    place = np.abs(largest).argmax()
    largest.reshape(-1).view(np.uint32)[place] ^= np.uint32(1 << _FLIPPED)
  return jax.tree.unflatten(tree, leaves)


def _parsed(entry: Any, num_workers: int, num_servers: int) -> Fault:
  kinds, phases = [str(k) for k in Kind], [str(p) for p in Phase]
  form = (
    f"(worker < {num_workers} or 'server:N', N < {num_servers}; number >= 0; "
    f'one of {kinds}) or a fourth, one of {phases}'
  )
  valid = (
    isinstance(entry, tuple)
    and [type(part) for part in entry[1:]] in ([int, str], [int, str, str])
    and (_known(entry[0], num_workers, num_servers))
    and entry[1] >= 0
  )
  require(valid, 'faults', form, entry)
  match = _KIND.fullmatch(entry[2])
  phase = entry[3] if len(entry) == 4 else Phase.COMPUTE
  valid = match is not None and match[1] in kinds and phase in phases
  require(valid, 'faults', form, entry)
  cut = match[2] is None or (match[1] == Kind.CUT and int(match[2]) > 0)
  require(cut, 'faults', "seconds, above 0, of 'cut' alone", entry)
  fault = Fault(Kind(match[1]), Phase(phase), int(match[2] or 0))
  plain = fault.kind not in _OF_PUSH or fault.phase == Phase.COMPUTE
  whole = f'no phase for {[str(k) for k in _OF_PUSH]}: they are of the push'
  require(plain, 'faults', whole, entry)
  sent = fault.kind != Kind.CORRUPT or fault.phase in _SENT
  whole = f"one of {[str(p) for p in _SENT]} for 'corrupt'"
  require(sent, 'faults', whole, entry)
  served = fault.phase in _SERVED
  whole = f'{[str(p) for p in _SERVED]} for servers, other phases for workers'
  require(served == isinstance(entry[0], str), 'faults', whole, entry)
  leads = fault.phase != Phase.EVALUATION or entry[0] == 'server:0'
  whole = "an evaluation of 'server:0', which the lead has"
  require(leads, 'faults', whole, entry)
  return fault


def _known(who: Any, num_workers: int, num_servers: int) -> bool:
  """Returns whether there is such a worker or server."""
  if isinstance(who, str):
    match = _SERVER.fullmatch(who)
    return match is not None and int(match[1]) < num_servers
  return type(who) is int and 0 <= who < num_workers
