"""A simulated world: hosts, links and processes of a run."""

import contextlib
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from system import clock, processes, threads
from system import net as real_net
from system.simulated import net, scheduler
from system.simulated import processes as simulated_processes
from system.simulated import threads as simulated_threads
from system.simulated.processes import Process
from system.simulated.scheduler import Scheduler

_START_S = 1_800_000_000.0  # Wall time of the start, seconds since 1970.


class _Clock:
  """The clocks of a world: see `clock.Source`."""

  def __init__(self, scheduler: Scheduler):
    self._scheduler = scheduler

  def monotonic(self) -> float:
    return self._scheduler.look()

  def perf_counter(self) -> float:
    return self._scheduler.look()

  def time(self) -> float:
    return _START_S + self._scheduler.look()

  def sleep(self, seconds: float) -> None:
    self._scheduler.sleep(seconds)


class World:
  """Processes on simulated hosts; what happens is a function of the seed.

  Attributes:
    processes: The newest process of each name.
    on_end: Called with each process that has ended; it must not wait.
  """

  def __init__(
    self,
    seed: int,
    *,
    latency_s: float = 1e-4,
    rate_Bps: float = 1e8,
    yields: float = 0.05,
  ):
    """Creates a world without processes.

    Args:
      seed: Seed of every choice.
      latency_s: Latency of the links between two hosts.
      rate_Bps: Their rate, bytes per second.
      yields: Probability that a thread gives way where it need not wait.
    """
    self.scheduler = Scheduler(seed, yields=yields)
    self.network = net.Network(
      self.scheduler, latency_s=latency_s, rate_Bps=rate_Bps
    )
    self.processes: dict[str, Process] = {}
    self.on_end: Callable[[Process], object] = lambda process: None
    self._count = self._num_coming = 0

  @property
  def now(self) -> float:
    """Seconds since the start."""
    return self.scheduler.now

  def start(
    self, name: str, host: str, function: Callable[[], object]
  ) -> Process:
    """Starts a process; replaces one of this name that has ended."""
    self._count += 1
    process = Process(
      self.scheduler,
      self.network,
      self._count,
      name,
      host,
      on_end=lambda ended: self.on_end(ended),
    )
    self.processes[name] = process
    process.start(function)
    return process

  def start_later(
    self, delay_s: float, name: str, host: str, function: Callable[[], object]
  ) -> None:
    """Starts a process after some seconds, until which the world goes on."""
    self._num_coming += 1

    def start() -> None:
      self._num_coming -= 1
      self.start(name, host, function)

    self.scheduler.call_after(delay_s, start)

  def at(self, when: float, function: Callable[[], object]) -> None:
    """Calls a function at a time; it must not wait."""
    self.scheduler.call_at(when, function)

  def run(self, limit_s: float) -> str:
    """Runs until all processes have ended, or until a time; returns why."""
    with self.installed():
      self._watch()
      self.scheduler.run(limit_s)
    return self.scheduler.end

  def close(self) -> None:
    """Ends all threads that are left: see `Scheduler.close`."""
    with self.installed():
      self.scheduler.close()

  def _watch(self) -> None:
    """Ends the simulation once all processes have ended."""
    is_over = all(each.is_dead for each in self.processes.values())
    if is_over and not self._num_coming:
      self.scheduler.stop('all processes have ended')
    else:
      self.scheduler.call_after(0.1, self._watch)

  @contextlib.contextmanager
  def installed(self) -> Iterator[None]:
    """Puts this world in place of the host."""
    scheduler.activate(self.scheduler)
    net.activate(self.network)
    before = []
    for module, parts in self._parts():
      before.append((module, {name: getattr(module, name) for name in parts}))
      _set(module, parts)
    try:
      yield
    finally:
      for module, parts in before:
        _set(module, parts)
      scheduler.activate(None)
      net.activate(None)

  def _parts(self) -> list[tuple[ModuleType, Mapping[str, Any]]]:
    own = simulated_threads
    return [
      (clock, {'source': _Clock(self.scheduler)}),
      (
        threads,
        {
          name: getattr(own, name)
          for name in (
            'Condition',
            'Event',
            'Future',
            'Lock',
            'Semaphore',
            'SimpleQueue',
            'Thread',
            'ThreadPoolExecutor',
            'Timer',
            'current_thread',
            'main_thread',
            'wait',
          )
        },
      ),
      (
        real_net,
        {
          'Socket': net.Socket,
          'Wake': net.Wake,
          'epoll': net.Epoll,
          'poll': net.MilliPoll,
          'gethostname': self._hostname,
          'interface_addresses': self._interfaces,
          'hardware_address': lambda address: address.replace('.', ''),
        },
      ),
      (
        processes,
        {
          name: getattr(simulated_processes, name)
          for name in (
            'exit_now',
            'find_handler',
            'find_owner',
            'getpid',
            'handle_signal',
            'lock_file',
          )
        }
        | {'kill': self._kill},
      ),
    ]

  def _kill(self, pid: int, number: int) -> None:
    for process in self.processes.values():
      if process.pid == pid and not process.is_dead:
        process.signal(number)
        current = self.scheduler.current
        if current:
          process.handle_signals(current)
        return
    raise ProcessLookupError(pid)

  def _hostname(self) -> str:
    owner = simulated_processes.find_owner()
    return f'host-{owner.host}' if owner else socket.gethostname()

  def _interfaces(self) -> dict[str, list[str]]:
    owner = simulated_processes.find_owner()
    return {'lo': ['127.0.0.1'], 'eth0': [owner.host]}

  # Faults.

  def kill(self, name: str) -> None:
    """Kills a process, as SIGKILL does."""
    self.processes[name].signal(signal.SIGKILL)

  def power_off(self, name: str) -> None:
    """Ends a process with its host: peers learn nothing."""
    self.processes[name].end(-signal.SIGKILL, silently=True)

  def send(self, name: str, number: int) -> None:
    """Sends a signal to a process."""
    self.processes[name].signal(number)

  def cut(self, source: str, target: str) -> None:
    """Cuts the link from the host of a process to that of another one."""
    self.network.cut(self.processes[source].host, self.processes[target].host)

  def heal(self, source: str, target: str) -> None:
    """Ends a cut."""
    self.network.heal(self.processes[source].host, self.processes[target].host)


def _set(module: ModuleType, parts: Mapping[str, Any]) -> None:
  for name, part in parts.items():
    setattr(module, name, part)
