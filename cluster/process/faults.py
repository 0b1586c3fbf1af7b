"""Failures injected on purpose: their form in a config, and what each does.

`config.cluster.faults` lists failures by worker, iteration, kind and phase.
Product code knows nothing of them: runs that are to fail use subclasses of the
product's classes (`cluster.parameter_server.faults`,
`cluster.allreduce.faults`, `cluster.membership.faults`), which carry out what
is due in the phases that they override.
"""

import enum
import itertools
import pathlib
import re
import resource
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from configs.checks import require
from configs.sections import error_prefix
from system import clock, processes, threads


class Kind(enum.StrEnum):
  """Kinds of failure that are injected into a worker or a server."""

  DIE = 'die'  # The process is killed.
  # The process is stopped, and so are its heartbeats; 'stop:15' for 15 seconds.
  STOP = 'stop'
  HANG = 'hang'  # The worker makes no progress; its heartbeats continue.
  SLOW = 'slow'  # The worker takes `SLOWER` times `timeout_s` longer.
  CUT = 'cut'  # The host's interface goes down; 'cut:5' for 5 seconds.
  MEMORY = 'memory'  # An allocation fails: MemoryError.
  # The process can open no file and no socket; 'descriptors:5' for 5 seconds.
  DESCRIPTORS = 'descriptors'
  # Packets from the host are lost without an error, those to it arrive.
  DROP = 'drop'
  CORRUPT = 'corrupt'  # A byte of the push changes on its way.
  WRONG_SIZE = 'wrong_size'  # The push is too short.
  NAN = 'nan'  # The gradient is not a number.
  FLIP = 'flip'  # A bit of a replica's parameters changes.


class Phase(enum.StrEnum):
  """Moments of an injected failure, in an iteration or an incarnation."""

  START = 'start'  # Before the worker is ready, in that incarnation.
  PULL = 'pull'  # After the first chunk that the worker receives.
  COMPUTE = 'compute'  # Before the push.
  FIRST = 'first'  # After the first chunk that the worker sends.
  LAST = 'last'  # Before the last chunk that the worker sends.
  APPLIED = 'applied'  # After the replica has applied the iteration's sum.
  # Before the replica connects to the members of an epoch; number of that.
  RENDEZVOUS = 'rendezvous'
  FETCH = 'fetch'  # After the first chunk of the state; number of the fetch.
  SERVE = 'serve'  # Before the state is sent to another; number of the request.
  PROBE = 'probe'  # Before links are measured; number of the order.
  PACK = 'pack'  # Before the coordinator packs a forest; number of the packing.
  END = 'end'  # Once the run has finished; the number does not matter.
  CHECKPOINT = 'checkpoint'  # Before a server writes that checkpoint.
  EVALUATION = 'evaluation'  # Before that evaluation by a coordinator.


SLOWER = 1.5  # Times `timeout_s`.
# Phases whose numbers count from 0 in each process; of replicas alone.
COUNTED = (
  *(Phase.RENDEZVOUS, Phase.FETCH, Phase.SERVE, Phase.PROBE, Phase.PACK),
)
# Kinds that may have an end.
_LASTING = (Kind.CUT, Kind.DROP, Kind.STOP, Kind.DESCRIPTORS)
# Kinds that change the push as a whole, and thus have no phase.
_OF_PUSH = (Kind.WRONG_SIZE, Kind.NAN, Kind.FLIP)
_FLIPPED = 25  # Bit of a float32's exponent: 16 times as much, or as little.
_CORRUPTIBLE = (Phase.COMPUTE, Phase.FIRST, Phase.LAST)
_OF_SERVERS = (Phase.CHECKPOINT, Phase.EVALUATION)
_OF_LINKS = (Kind.CUT, Kind.DROP)
_NOWHERE = '02:00:00:00:00:00'  # A hardware address that no host has.
_SERVER = re.compile(r'server:(\d{1,4})')
_KIND = re.compile(r'([a-z_]+)(?::(\d{1,4}))?')


class Fault(NamedTuple):
  """A failure that is injected once.

  Attributes:
    kind: Kind of the failure.
    phase: Moment of the failure.
    seconds: Duration of a cut, a stop or a lack of descriptors; 0 for one that
      never ends.
  """

  kind: Kind
  phase: Phase = Phase.COMPUTE
  seconds: int = 0


class Faults:
  """The failures of one run; each happens once, even if the run is resumed.

  Attributes:
    push: Failure of this worker's current push as a whole; None for none.
  """

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
      interface: Network interface of the failures of links.
      timeout_s: Silence after which a worker counts as lost.

    Raises:
      ValueError: If an entry is not of this form, or would cut the loopback.
    """
    require(isinstance(entries, tuple), 'faults', 'a tuple of tuples', entries)
    self._entries: dict[tuple[int | str, int, Phase], Fault] = {}
    for entry in entries:
      fault = _parse(entry, num_workers, num_servers)
      cuts = fault.kind in _OF_LINKS and interface == 'lo'
      require(not cuts, 'faults', "an interface other than 'lo' to cut", entry)
      number = -1 if fault.phase == Phase.END else entry[1]
      self._entries[entry[0], number, fault.phase] = fault
    self._directory = directory
    self._interface = interface
    self._timeout_s = timeout_s
    self._evaluations = itertools.count()
    self._counts: Counter[Phase] = Counter()
    self.push: Fault | None = None

  @property
  def kinds(self) -> set[Kind]:
    """Kinds of all failures that the run is configured to have."""
    return {fault.kind for fault in self._entries.values()}

  @property
  def phases(self) -> set[Phase]:
    """Phases of all failures that the run is configured to have."""
    return {phase for _, _, phase in self._entries}

  def is_planned(
    self, target: int | str, number: int, phases: Iterable[Phase]
  ) -> bool:
    """Returns whether the config has a failure in one of several phases."""
    return any((target, number, phase) in self._entries for phase in phases)

  def due(
    self, target: int | str, number: int, phase: Phase = Phase.COMPUTE
  ) -> Fault | None:
    """Returns the failure that is due, and records that it has happened.

    Args:
      target: Rank of a worker, or 'server:N'.
      number: Number of the iteration; at the start, of the incarnation; at the
        end, -1; of the checkpoint or evaluation.
      phase: The moment that has come.

    Returns:
      The failure; None if none is due, or if it has happened before.
    """
    fault = self._entries.get((target, number, phase))
    if fault is None:
      return None
    self._directory.mkdir(parents=True, exist_ok=True)
    name = f'{target}-{number}-{fault.kind}'
    if phase != Phase.COMPUTE:
      name += f'-{phase}'
    try:
      with (self._directory / name).open('x') as file:
        file.write(str(fault.seconds))
    except FileExistsError:
      return None
    return fault

  def happen(self, fault: Fault | None) -> None:
    """Carries out a failure that is an action of this process.

    These are 'die', 'stop', 'hang', 'slow', 'cut', 'descriptors' and 'memory'.
    The other kinds change data, where the data are: here they do nothing, and
    neither does None.

    Raises:
      MemoryError: If it is injected.
    """
    if fault is None:
      return
    if fault.kind == Kind.DIE:
      processes.kill(processes.getpid(), processes.SIGKILL)
    elif fault.kind == Kind.STOP:
      _stop(fault.seconds)
    elif fault.kind == Kind.HANG:
      threads.Event().wait()
    elif fault.kind == Kind.SLOW:
      clock.sleep(SLOWER * self._timeout_s)
    elif fault.kind == Kind.CUT:
      self._cut(fault.seconds)
    elif fault.kind == Kind.DESCRIPTORS:
      _forbid_descriptors(fault.seconds)
    elif fault.kind == Kind.MEMORY:
      raise MemoryError('An allocation fails, as the config says.')
    elif fault.kind == Kind.DROP:
      self._drop(fault.seconds)

  def strike(self, target: int | str, number: int, phase: Phase) -> None:
    """Carries out the action that is due in a phase, if any."""
    self.happen(self.due(target, number, phase))

  def strike_counted(self, target: int | str, phase: Phase) -> None:
    """Carries out what is due at this process's next moment of a phase."""
    number, self._counts[phase] = self._counts[phase], self._counts[phase] + 1
    self.strike(target, number, phase)

  def strike_push(self, worker: int, iteration: int) -> Fault | None:
    """Carries out what is due at the push of an iteration, and notes it."""
    self.push = self.due(worker, iteration)
    self.happen(self.push)
    return self.push

  def strike_evaluation(self) -> None:
    """Carries out what is due at this coordinator's next evaluation."""
    self.strike('server:0', next(self._evaluations), Phase.EVALUATION)

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
    show = ['ip', 'route', 'show', 'dev', name]
    routes = subprocess.run(show, capture_output=True, text=True, check=True)
    subprocess.run(['ip', 'link', 'set', name, 'down'], check=True)
    # The kernel deletes the routes of an interface that goes down.
    commands = [f'ip link set {name} up']
    for route in routes.stdout.splitlines():
      commands.append(f'ip route replace {route} dev {name}')
    _restore(seconds, commands)

  def _drop(self, seconds: int) -> None:
    """Sends the host's packets to a hardware address that no host has."""
    name = self._interface
    show = ['ip', '-4', 'neigh', 'show', 'dev', name]
    known = subprocess.run(show, capture_output=True, text=True, check=True)
    hosts = [line.split()[0] for line in known.stdout.splitlines()]
    for host in hosts:
      entry = f'{host} lladdr {_NOWHERE} dev {name} nud permanent'
      subprocess.run(['ip', 'neigh', 'replace', *entry.split()], check=True)
    commands = [f'ip neigh del {host} dev {name}' for host in hosts]
    _restore(seconds, commands)


def _restore(seconds: int, commands: Sequence[str]) -> None:
  """Executes commands after some seconds; never if there are none."""
  if seconds:
    # A session of its own: the shell outlives this process.
    subprocess.Popen(
      ['sh', '-c', '; '.join([f'sleep {seconds}', *commands])],
      start_new_session=True,
    )


def make(
  config: ConfigDict, num_servers: int, directory: pathlib.Path
) -> Faults:
  """Returns the failures that a config asks for.

  Raises:
    ValueError: If an entry is wrong.
  """
  with error_prefix('config.cluster'):
    return Faults(
      config.cluster.faults,
      num_workers=config.cluster.workers,
      num_servers=num_servers,
      directory=directory,
      interface=config.cluster.interface,
      timeout_s=config.cluster.timeout_s,
    )


def _stop(seconds: int) -> None:
  """Stops this process, for some seconds or for good."""
  own = processes.getpid()
  if seconds:
    # A session of its own: the shell outlives this process.
    subprocess.Popen(
      ['sh', '-c', f'sleep {seconds}; kill -CONT {own}'],
      start_new_session=True,
    )
  processes.kill(own, processes.SIGSTOP)


def _forbid_descriptors(seconds: int) -> None:
  """Lets this process open no more files, for some seconds or for good."""
  limits = resource.getrlimit(resource.RLIMIT_NOFILE)
  resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
  if seconds:
    restore = threads.Timer(
      seconds, resource.setrlimit, [resource.RLIMIT_NOFILE, limits]
    )
    restore.daemon = True
    restore.start()


def to_nan(fault: Fault | None, payload: Any) -> Any:
  """Returns a payload, as not-a-number if the failure is `NAN`."""
  if fault and fault.kind == Kind.NAN:
    return jax.tree.map(lambda leaf: leaf * float('nan'), payload)
  return payload


def flip_bit(params: Any) -> Any:
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


def _parse(entry: Any, num_workers: int, num_servers: int) -> Fault:
  kinds, phases = [str(k) for k in Kind], [str(p) for p in Phase]
  form = (
    f"(worker < {num_workers} or 'server:N', N < {num_servers}; number >= 0; "
    f'one of {kinds}) or a fourth, one of {phases}'
  )
  valid = (
    isinstance(entry, tuple)
    and [type(part) for part in entry[1:]] in ([int, str], [int, str, str])
    and (_exists(entry[0], num_workers, num_servers))
    and entry[1] >= 0
  )
  require(valid, 'faults', form, entry)
  match = _KIND.fullmatch(entry[2])
  phase = entry[3] if len(entry) == 4 else Phase.COMPUTE
  kind, seconds = match.groups() if match else ('', None)
  require(kind in kinds and phase in phases, 'faults', form, entry)
  valid = seconds is None or (kind in _LASTING and int(seconds) > 0)
  expected = f'seconds, above 0, of {[str(k) for k in _LASTING]} alone'
  require(valid, 'faults', expected, entry)
  fault = Fault(Kind(kind), Phase(phase), int(seconds or 0))
  valid = fault.kind not in _OF_PUSH or fault.phase == Phase.COMPUTE
  expected = f'no phase for {[str(k) for k in _OF_PUSH]}: they are of the push'
  require(valid, 'faults', expected, entry)
  valid = fault.kind != Kind.CORRUPT or fault.phase in _CORRUPTIBLE
  expected = f"one of {[str(p) for p in _CORRUPTIBLE]} for 'corrupt'"
  require(valid, 'faults', expected, entry)
  valid = (fault.phase in _OF_SERVERS) == isinstance(entry[0], str)
  servers = [str(p) for p in _OF_SERVERS]
  expected = f'{servers} for servers, other phases for workers'
  require(valid, 'faults', expected, entry)
  valid = fault.phase != Phase.EVALUATION or entry[0] == 'server:0'
  expected = "an evaluation of 'server:0', which the coordinator has"
  require(valid, 'faults', expected, entry)
  return fault


def _exists(target: Any, num_workers: int, num_servers: int) -> bool:
  """Returns whether the run has such a worker or server."""
  if isinstance(target, str):
    match = _SERVER.fullmatch(target)
    return match is not None and int(match[1]) < num_servers
  return type(target) is int and 0 <= target < num_workers
