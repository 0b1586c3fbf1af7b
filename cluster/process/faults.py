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

from cluster.network.calls import Spoil
from configs.checks import require
from configs.sections import named


class Kind(enum.StrEnum):
  """Kinds of failure that are injected into a worker or a server."""

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
  """Moments of an injected failure, in an iteration or an incarnation."""

  START = 'start'  # Before it is ready; of the life of that number.
  PULL = 'pull'  # After the first chunk that it receives.
  COMPUTE = 'compute'  # Before the push.
  FIRST = 'first'  # After the first chunk that it sends.
  LAST = 'last'  # Before the last chunk that it sends.
  END = 'end'  # Once the run has finished; the number does not matter.
  # Of servers: of the checkpoint of that number; of that evaluation of a life,
  # which is the coordinator's.
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
  """A failure that is injected once.

  Attributes:
    kind: Kind of the failure.
    phase: Moment of the failure.
    seconds: Duration of a cut; 0 for one that never ends.
  """

  kind: Kind
  phase: Phase = Phase.COMPUTE
  seconds: int = 0


class Faults:
  """The failures of one run; each happens once, even if the run is resumed."""

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
    """Creates the failures; none happens before `due` and `happen` are called.

    Args:
      entries: (worker, iteration, kind) or (worker, iteration, kind, phase)
        each; ('server:0', number, kind, phase) for a server.
      num_workers: Number of workers.
      num_servers: Number of servers.
      directory: Folder, shared by all processes, with a file for each failure
        that has happened.
      interface: Network interface that `cut` takes down.
      timeout_s: Silence after which a worker counts as lost.

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
    """Kinds of all failures that the run is configured to have."""
    return {fault.kind for fault in self._entries.values()}

  def due(
    self, who: int | str, number: int, phase: Phase = Phase.COMPUTE
  ) -> Fault | None:
    """Returns the failure that is due, and records that it has happened.

    Args:
      who: The worker, or 'server:0'.
      number: Number of the iteration; at the start, of the incarnation; at the
        end, -1; of the checkpoint or evaluation.
      phase: The moment that has come.

    Returns:
      The failure; None if none is due, or if it has happened before.
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
    """Returns the failures of an iteration's chunks; None if there are none.

    Args:
      who: The worker.
      number: Number of the iteration.
      whole: Failure of the push as a whole, if any.
    """
    phases = (Phase.PULL, Phase.FIRST, Phase.LAST)
    if whole or any((who, number, phase) in self._entries for phase in phases):
      return Travel(self, who, number, whole)
    return None

  def happen(self, fault: Fault | None) -> None:
    """Carries out a failure that is an action of this process.

    These are 'die', 'stop', 'hang', 'slow' and 'cut'.  The other kinds change
    data, where the data are: here they do nothing, and neither does None.
    """
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
    """Yields chunks, with failures after the first and before the last.

    Args:
      chunks: At least one.
      first: Failure after the first chunk; None for none.
      last: Failure before the last chunk; None for none.
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
      # The kernel deletes the routes of an interface that goes down.
      up = [f'sleep {seconds}', f'ip link set {name} up']
      for route in routes.stdout.splitlines():
        up.append(f'ip route replace {route} dev {name}')
      # A session of its own: the shell outlives this process.
      subprocess.Popen(['sh', '-c', '; '.join(up)], start_new_session=True)


class Travel:
  """Injects failures into the chunks of one iteration of an allreduce."""

  def __init__(
    self, faults: Faults, who: int, number: int, whole: Fault | None
  ):
    """Creates the failures of one iteration; for `Faults.travel`."""
    self._faults, self._at = faults, (who, number)
    self._whole = whole
    self._come = self._gone = False

  def came(self) -> None:
    """Carries out the failure after the first chunk that is received."""
    if not self._come:
      self._come = True
      self._faults.happen(self._due(Phase.PULL))

  def goes(self, body: Any, left: int) -> tuple[Any, Any]:
    """Returns the bytes that a chunk's header describes, and those to send.

    They differ if the chunk is to arrive corrupt.

    Args:
      body: Bytes of the chunk.
      left: Number of chunks that are still to be sent, with this one.
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
    """Carries out the failure after the first chunk that is sent."""
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
  """Returns which chunk of a push the failures of its phases corrupt."""
  if last and last.kind == Kind.CORRUPT:
    return 'last'
  early = any(one and one.kind == Kind.CORRUPT for one in (whole, first))
  return 'first' if early else None


def spoilt(fault: Fault | None, payload: Any) -> Any:
  """Returns a payload, as not-a-number if the failure is `NAN`."""
  if fault and fault.kind == Kind.NAN:
    return jax.tree.map(lambda leaf: leaf * float('nan'), payload)
  return payload


def flipped(params: Any) -> Any:
  """Returns parameters with one bit flipped, in the largest number.

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
  is_coordinator = fault.phase != Phase.EVALUATION or entry[0] == 'server:0'
  whole = "an evaluation of 'server:0', which the coordinator has"
  require(is_coordinator, 'faults', whole, entry)
  return fault


def _known(who: Any, num_workers: int, num_servers: int) -> bool:
  """Returns whether there is such a worker or server."""
  if isinstance(who, str):
    match = _SERVER.fullmatch(who)
    return match is not None and int(match[1]) < num_servers
  return type(who) is int and 0 <= who < num_workers
