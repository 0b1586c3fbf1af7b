"""Launcher of a run: it restarts processes, and ends the others with a run.

The docstring of `tools.launch` has the consequences of the end of a process, of
signals, and the rows of launch.jsonl.
"""

import json
import os
import pathlib
import signal
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TextIO

from cluster.network import sockets
from cluster.network.interfaces import interface_address
from cluster.process import roles
from cluster.process.exits import (
  DRAINED,
  LOST,
  STOPPED,
  ExitRecord,
  Reason,
)
from configs.checks import require
from launch import lab
from launch.plan import INTERFACE, Plan, environment, on_interface
from launch.processes import Command, Exit, Group
from launch.ray_processes import RayProcesses, Request, Reservation, reserve
from launch.screen import Screen

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FINISH_S = 10.0  # Time of the others to end after the coordinator.
_ISLAND_S = 10.0  # Time of a leader to end after one of its followers.
_KILL_S = 5.0  # Time to end after SIGTERM, if no checkpoint is saved.
_QUICK_S = 5.0  # A process that ends sooner after its start ends quickly.
_QUICK = 5  # Quick ends in a row that end the run.
_BACKOFF_S = 0.5  # Delay of a restart; doubles with each quick end in a row.
_IDLE_S = 60.0
_SAME_S = 1.0  # With --rank, a signal repeated within this time is ignored.
# Codes with which followers end when their leader has ended.
_OF_LEADERS = (LOST, STOPPED, DRAINED)
_LOOPBACK = f'{INTERFACE}lo'
_PORT = '--config.cluster.port='


def launch(
  plan: Plan, program: Sequence[str], *, on_ray: Request | None = None
) -> int:
  """Runs the processes of a run until they have ended.

  SIGINT, SIGTERM and SIGHUP get handlers in this process, which stay; ignored
  ones stay ignored.

  Args:
    plan: Processes to run, whose folder is created if it is missing.
    program: Command of each process, to which flags are appended.
    on_ray: Resources of each process in a Ray cluster; None to run all
      processes on this machine.

  Returns:
    The exit code: 0 if the run has finished; that of the process that ended it
    (128 + the number of its signal); or 128 + the number of the signal that
    this process has received.

  Raises:
    ValueError: If there are too few GPUs, if the environment names a missing
      lab, or if a Ray cluster or a folder that its nodes share is missing.
    OSError: If a process cannot be started, or the folder cannot be created.
  """
  screen = Screen(plan.names, plan.coordinator)
  if on_ray is not None:
    reservation = reserve(plan, on_ray, screen)
    places = dict.fromkeys(plan.names, '')
    devices = reservation.devices(plan)
  else:
    reservation = None
    places = plan.places(os.environ)
    devices = plan.devices(os.environ)
  plan.workdir.mkdir(parents=True, exist_ok=True)
  log = plan.log.open('a', buffering=1)
  with log, _processes(plan, reservation, screen) as processes:
    run = _Supervisor(
      plan=plan,
      program=program,
      places=places,
      devices=devices,
      log=log,
      screen=screen,
      processes=processes,
    )
    for number in _SIGNALS:
      if signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, lambda received, _: run.receive(received))
    return run()


def _processes(
  plan: Plan, reservation: Reservation | None, screen: Screen
) -> Group | RayProcesses:
  if reservation is None:
    return Group(None, output=screen, is_bound=True)
  return RayProcesses(reservation, screen, plan.workdir)


class _Supervisor:
  """Supervisor of the processes of a run, with their due starts and ends."""

  def __init__(
    self,
    *,
    plan: Plan,
    program: Sequence[str],
    places: Mapping[str, str],
    devices: Mapping[str, Mapping[str, str]],
    log: TextIO,
    screen: Screen,
    processes: Group | RayProcesses,
  ):
    self._plan = plan
    self._program = program
    self._places = places
    self._devices = devices
    self._log = log
    self._screen = screen
    self._processes = processes
    self._signals: list[int] = []  # Received and not yet handled.
    self._due = dict.fromkeys(plan.names, 0.0)  # Times of due starts.
    self._starts: Counter[str] = Counter()
    self._short: Counter[str] = Counter()  # Quick ends in a row.
    # Restarts of all processes since a checkpoint was written, and the newest
    # checkpoint at the last of them.
    self._restarts, self._checkpoint = 0, plan.newest_checkpoint
    self._over = False  # A process has ended because the run is over.
    # After the end has begun: exit code, and times of signals to the others.
    self._code: int | None = None
    self._signalled_at = float('-inf')
    self._term_at = self._kill_at = float('inf')
    # Times at which leaders are killed whose followers have ended.
    self._island_at: dict[str, float] = {}
    self._terminated: set[str] = set()  # Processes that have got SIGTERM.
    self._meeting: list[str] = []  # Flag of the coordinator's address.

  def receive(self, number: int) -> None:
    """Notes a signal, which is handled at once; callable from its handler."""
    self._signals.append(number)
    self._processes.wake()

  def __call__(self) -> int:
    """Supervises the run until it ends; returns its exit code."""
    if self._plan.coordinator in self._plan.names:
      self._screen.print_line(f'workdir {self._plan.workdir}')
    self._choose_address()
    while True:
      next_s = self._act(time.monotonic())
      if not self._due and not self._processes.names():
        return self._code or 0  # Without a code the run is over.
      for ended in self._processes.next_ends(next_s):
        self._record_end(ended)
        self._handle_end(ended)
      while self._signals:
        self._handle_signal(self._signals.pop(0))
      if self._screen.lost and self._code is None:
        self._handle_signal(signal.SIGPIPE)

  def _act(self, now: float) -> float:
    """Performs due starts and ends; returns the seconds until the next one."""
    for name in [name for name, due in self._due.items() if due <= now]:
      del self._due[name]
      self._start(name)
    if self._term_at <= now:
      for name in self._processes.names():
        self._terminate(name)
    if self._kill_at <= now:
      self._kill(self._plan.names)
    for name in [name for name, at in self._island_at.items() if at <= now]:
      del self._island_at[name]
      if name in self._processes.names():
        self._processes.signal(name, signal.SIGKILL)
    times = [*self._due.values(), self._term_at, self._kill_at]
    times += self._island_at.values()
    return min([at - now for at in times if at > now] + [_IDLE_S])

  def _handle_end(self, ended: Exit) -> None:
    """Restarts processes or ends the run after the end of a process."""
    name, code = ended.name, ended.code
    coordinator, only = name == self._plan.leader, self._plan.only
    stopped = code == STOPPED and not coordinator
    if self._code is not None:
      if coordinator and code != DRAINED:  # Else another one saves.
        self._shorten_deadlines()
    elif name in self._due:
      pass  # It is restarted with another one that ended at the same time.
    elif self._is_follower(name) and (code <= 0 or code in _OF_LEADERS):
      self._await_leader(name, code)
    elif code == 0 or (stopped and not (only or self._plan.has_successors)):
      self._over = True
      if coordinator or only:
        self._end(0, term_s=_FINISH_S, kill_s=_KILL_S)
    elif code == DRAINED and (not coordinator or self._plan.has_successors):
      self._screen.print_line(f'{name} was drained: the others continue')
      if only:
        self._end(DRAINED, term_s=0.0, kill_s=0.0)
    elif 0 < code != LOST and not stopped:
      self._fail(f'{name} has exited with code {code}', code)
    else:
      self._restart(ended)

  def _is_follower(self, name: str) -> bool:
    """Returns whether a process follows one that is launched here, too."""
    leader, *followers = self._plan.island(name)
    return not self._plan.only and leader != name and name in followers

  def _await_leader(self, name: str, code: int) -> None:
    """Sets the time until which a leader must end after its follower."""
    leader = self._plan.island(name)[0]
    if code and leader in self._processes.names():
      end_at = time.monotonic() + _ISLAND_S
      self._island_at.setdefault(leader, end_at)

  def _restart(self, ended: Exit) -> None:
    """Restarts a process, or all, after it was lost; or ends the run."""
    name, only = ended.name, self._plan.only
    # Then all return to a checkpoint: the others have been stopped.
    gives_up = name == self._plan.leader and ended.code > 0
    self._short[name] += ended.lived_s < _QUICK_S
    short = self._short[name]
    if ended.code < 0:
      how = f'{name} has died ({signal.strsignal(-ended.code)})'
      code = 128 - ended.code
    else:
      is_stopped = ended.code == STOPPED
      reason = 'been stopped' if is_stopped else 'lost what may come back'
      how, code = f'{name} has {reason}', ended.code
    has_shard = name in self._plan.shard_processes
    if has_shard or gives_up or (only and ended.code > 0):
      self._count_restart()
    if short == _QUICK:
      self._fail(f'{how}, soon after its start {short} times in a row', code)
    elif self._restarts > self._plan.restarts:
      restarts = f'{self._plan.restarts} restarts{"" if only else " of all"}'
      self._fail(f'{how}, after {restarts} without a new checkpoint', code)
    elif self._over and not has_shard:
      self._screen.print_line(f'{how}; the run is ending without it')
    else:
      delay_s = _BACKOFF_S * 2**short
      scope = 'all' if has_shard and not only else 'it'
      self._screen.print_line(f'{how}: starting {scope} again in {delay_s:g} s')
      group = self._plan.names
      if not has_shard:
        group = [name] if only else self._plan.island(name)
      for each in group:
        self._island_at.pop(each, None)
      self._kill(group)
      if has_shard:
        self._choose_address()
        self._over = False
      self._due |= dict.fromkeys(group, time.monotonic() + delay_s)

  def _count_restart(self) -> None:
    """Counts a restart of all; a new checkpoint since the last resets it."""
    newest = self._plan.newest_checkpoint
    if newest > self._checkpoint:
      self._restarts = 0
    self._restarts, self._checkpoint = self._restarts + 1, newest

  def _handle_signal(self, number: int) -> None:
    now = time.monotonic()
    if self._plan.only and now - self._signalled_at < _SAME_S:
      return
    self._signalled_at = now
    if self._code is not None:
      # A terminal that closes is lost first, and then sends SIGHUP.
      if not (self._screen.lost and number == signal.SIGHUP):
        self._kill_at = 0.0
      return
    self._screen.print_line(f'{signal.Signals(number).name}: the run ends')
    # If only the coordinator got it, another one would take over.
    passes = self._plan.only or self._plan.has_successors
    needed = self._plan.shard_processes if self._plan.has_started else []
    for name in self._processes.names():
      drains = passes and name not in needed
      if drains or name == self._plan.leader:
        self._terminate(name)
    self._end(128 + number, term_s=self._plan.grace_s, kill_s=0.0)

  def _fail(self, how: str, code: int) -> None:
    self._screen.print_line(f'{how}: the run ends')
    self._end(code, term_s=0.0, kill_s=self._plan.grace_s)

  def _end(self, code: int, *, term_s: float, kill_s: float) -> None:
    """Cancels all starts, and sets the times of SIGTERM and SIGKILL."""
    self._code = code
    self._due.clear()
    self._term_at = time.monotonic() + term_s
    self._kill_at = self._term_at + kill_s
    saves = self._plan.only or self._plan.leader
    if code and saves not in self._processes.names():
      self._shorten_deadlines()

  def _shorten_deadlines(self) -> None:
    """Sets early times of the signals, when no process saves a checkpoint."""
    now = time.monotonic()
    self._term_at = min(self._term_at, now)
    self._kill_at = min(self._kill_at, now + _KILL_S)

  def _terminate(self, name: str) -> None:
    """Sends SIGTERM once, because many programs abort at a second one."""
    if name not in self._terminated:
      self._terminated.add(name)
      self._processes.signal(name, signal.SIGTERM)

  def _kill(self, names: Sequence[str]) -> None:
    for ended in self._processes.kill(*names):
      self._record_end(ended)

  def _record_end(self, ended: Exit) -> None:
    """Writes the row of an end, whatever its cause."""
    if ended.lived_s >= _QUICK_S:
      self._short[ended.name] = 0
    self._row(ended.name, ended.pid, 'exit', ended.code)
    if ended.code < 0:  # The process could not write its record itself.
      record = ExitRecord(self._plan.workdir, ended.name.replace(' ', ':'))
      record.write(
        Reason.KILLED,
        ended.code,
        signal.strsignal(-ended.code) or '',
        pid=ended.pid or None,
      )

  def _start(self, name: str) -> None:
    argv = [*self._program, *self._plan.arguments]
    argv += self._plan.flags()
    if self._plan.only:
      argv += self._plan.role_flags
    else:
      argv += [f'--role={name.replace(" ", ":")}', *self._meeting]
    if host := self._places[name]:
      argv = lab.command(host, on_interface(argv, 'eth0'))
    own = {**self._devices[name], **self._screen.environ(name)}
    own |= {'SYNCOPATE_RESTARTS': str(self._starts[name])}
    if not isinstance(self._processes, RayProcesses):
      own = {**environment(os.environ, _cache(self._plan)), **own}
    pid = self._processes.start(Command(name, argv, own))
    self._starts[name] += 1
    self._row(name, pid, 'start', None)

  def _row(
    self, name: str, pid: int | None, event: str, code: int | None
  ) -> None:
    row = {'time': time.time(), 'role': name.replace(' ', ':'), 'pid': pid}
    self._log.write(json.dumps(row | {'event': event, 'code': code}) + '\n')

  def _choose_address(self) -> None:
    """Chooses the coordinator's port: the configured one, or a new one."""
    # No earlier process knows a new one.  On Ray the coordinator chooses it.
    plan = self._plan
    if isinstance(self._processes, RayProcesses):
      self._processes.forget_address()
      return
    if plan.only:
      return  # Processes of other hosts know the address.
    fixed = [w for w in plan.arguments if w.startswith(_PORT)] or [f'{_PORT}0']
    first = fixed[-1].removeprefix(_PORT)
    require(first.isdecimal(), 'config.cluster.port', 'a port', first)
    port = roles.listening_port(
      int(first),
      plan.coordinator,
      workers=plan.workers,
      dedicated=plan.servers if plan.dedicated else 0,
      hosts=plan.hosts_per_worker,
    )
    host = self._places[self._plan.coordinator]
    if not host:
      words = self._plan.arguments
      named = [w for w in words if w.startswith(INTERFACE)] or [_LOOPBACK]
      host = interface_address(named[-1].removeprefix(INTERFACE))
    address = sockets.join(host, port or roles.free_ports(1)[0])
    self._meeting = [f'--coordinator={address}']


def _cache(plan: Plan) -> pathlib.Path:
  """Returns the folder of compiled programs, for processes that restart."""
  folder = plan.workdir.resolve() / 'compiled'
  # Compiled programs may differ between hosts.
  return folder / socket.gethostname() if plan.only else folder
