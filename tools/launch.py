"""Starts all processes of one distributed run on this machine, or one of them.

  python -m tools.launch --workers=4 [--servers=1] [--dedicated] [--workdir=DIR]
    [--restarts=3] -- --config=configs/vgg16_elastic.py [flags of main.py]
  python -m tools.launch --workers=4 --module=tools.probe -- [its flags]
  python -m tools.launch --rank --workers=4 --servers=1 --workdir=DIR
    [--role=worker:2] [--coordinator=HOST:PORT] -- [flags of main.py]

Lines of all processes come out behind their names; only the coordinator, server 0 if
it is dedicated, else worker 0, draws progress.  --module names what runs in the
place of main.py.  In a lab (tools/lab.py) dedicated servers are on the first
hosts, workers on those that follow, and around.  Workers get GPUs of their own,
or as many share one as --workers_per_gpu says.

When a process ends, this happens:

  the coordinator, code 0           the run has finished; the others have 10 s to end
  another one, code 0        nothing
  another one, code 143      nothing: the coordinator has stopped it
  75, or killed by a signal  it is started again, with what died with it:
    a worker                   itself, as often as it takes; 5 deaths in a row
                               within 5 s of its start are for good
    one that holds a shard     all, from a checkpoint, --restarts times at most
  any other code             all are ended; the code is that of the launcher

SIGINT, SIGTERM and SIGHUP are passed to the coordinator as SIGTERM: it saves a
checkpoint, and all end, after --grace_s at most.  A second signal ends all at
once.  If nobody reads what comes out, that is one, too: SIGPIPE.

launch.jsonl in the folder of the run has a row for each start and end: time
(Unix), role, pid, event ('start', 'exit'), code (negative: a signal; or null).

With --rank it supervises the one process that --role or, as main.py finds it,
the environment names; others have theirs, on other hosts.  These lose the coordinator
when it ends, and come again by themselves or by a start.  So when it ends:

  code 0                     the run has finished, for this process
  killed by a signal, and    it is started again, as often as it takes; 5 deaths
  it holds no shard          in a row within 5 s of its start are for good
  killed and it holds one;   it is started again, --restarts times at most: all
  75; or 143, not the coordinator   that the run is started again, at most once each
  any other code             so ends this one; whoever has started it ends all

After a signal nothing is started again.  Only the coordinator is told; the others wait
for it to stop them, --grace_s at most.  All return 128 and the number.  One
signal may come twice, from a scheduler and a script: a second one counts if it
comes a second later.  Rows are in launch-worker-2.jsonl.
"""

import datetime
import json
import os
import pathlib
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TextIO

from absl import app, flags

from cluster.network import memory
from cluster.process import roles
from cluster.process.exits import LOST, STOPPED
from configs.checks import require
from outputs import compiled, transient
from tools import lab
from tools.launching.children import Exit, Processes, Screen
from tools.launching.plan import Plan

_MAIN = pathlib.Path(__file__).resolve().parents[1] / 'main.py'
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FINISH_S = 10.0  # For the others to end by themselves after the coordinator.
_KILL_S = 5.0  # For a process to end after SIGTERM if nobody waits for it.
_QUICK_S = 5.0  # A life shorter than this counts towards the end for good.
_QUICK = 5
_BACKOFF_S = 0.5  # Before a start; doubles with each short life in a row.
_IDLE_S = 60.0
_SAME_S = 1.0  # Of a process alone: signals so close are one.
_INTERFACE = '--config.cluster.interface='


def launch(plan: Plan, program: Sequence[str]) -> int:
  """Runs the processes of a run until they have ended.

  Args:
    plan: Of the run.
    program: What each process runs; flags are put behind it.

  Returns:
    The exit code: 0 if the run has finished, that of the process that has
    failed for good (128 and the number of its signal), or 128 and the number of
    the signal that this process has got.

  Raises:
    ValueError: If there are too few GPUs, or if the environment names a lab
      that there is not.
    OSError: If a process cannot be started, or the folder not be made.
  """
  places = plan.places(os.environ)
  devices = plan.devices(os.environ)
  plan.workdir.mkdir(parents=True, exist_ok=True)
  screen = Screen(plan.names, plan.coordinator)
  log = plan.log.open('a', buffering=1)
  with log, Processes(screen) as processes:
    run = _Run(
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
        signal.signal(number, lambda got, _: run.signals.append(got))
    return run()


class _Run:
  """The processes of a run, and what is going to happen to them."""

  def __init__(
    self,
    *,
    plan: Plan,
    program: Sequence[str],
    places: Mapping[str, str],
    devices: Mapping[str, Mapping[str, str]],
    log: TextIO,
    screen: Screen,
    processes: Processes,
  ):
    self._plan = plan
    self._program = program
    self._places = places
    self._devices = devices
    self._log = log
    self._screen = screen
    self._processes = processes
    self.signals: list[int] = []  # Not yet obeyed.
    self._due = dict.fromkeys(plan.names, 0.0)  # Who is to start, and when.
    self._starts: Counter[str] = Counter()
    self._short: Counter[str] = Counter()  # Short lives in a row.
    self._restarts = 0  # Of all.
    self._over = False  # Somebody has been told that the run is.
    # Once the end has begun: its code, and when who is left gets a signal.
    self._code: int | None = None
    self._signalled_at = float('-inf')
    self._term_at = self._kill_at = float('inf')
    self._asked: set[str] = set()  # Who has got SIGTERM.

  def __call__(self) -> int:
    """Returns the exit code of the run, which has ended."""
    if self._plan.coordinator in self._plan.names:
      self._screen.say(f'workdir {self._plan.workdir}')
    self._choose_address()
    while True:
      next_s = self._act(time.monotonic())
      if self._code is not None and not self._processes.names():
        return self._code
      for ended in self._processes.wait(next_s):
        self._note(ended)
        self._ended(ended)
      while self.signals:
        self._signalled(self.signals.pop(0))
      if self._screen.lost and self._code is None:
        self._signalled(signal.SIGPIPE)

  def _act(self, now: float) -> float:
    """Starts and ends what it is time for; returns seconds until the next."""
    for name in [name for name, due in self._due.items() if due <= now]:
      del self._due[name]
      self._start(name)
    if self._term_at <= now:
      for name in self._processes.names():
        self._ask(name)
    if self._kill_at <= now:
      self._kill(self._plan.names)
    times = [*self._due.values(), self._term_at, self._kill_at]
    return min([at - now for at in times if at > now] + [_IDLE_S])

  def _ended(self, ended: Exit) -> None:
    """Decides what follows from the end of a process."""
    name, code = ended.name, ended.code
    coordinator, only = name == self._plan.coordinator, self._plan.only
    stopped = code == STOPPED and not coordinator
    if self._code is not None:
      if coordinator:
        self._hurry()
    elif name in self._due:
      pass  # It starts again with another that has ended at the same time.
    elif code == 0 or (stopped and not only):
      self._over = True
      if coordinator or only:
        self._end(0, term_s=_FINISH_S, kill_s=_KILL_S)
    elif 0 < code != LOST and not stopped:
      self._fail(f'{name} has exited with code {code}', code)
    else:
      self._mend(ended)

  def _mend(self, ended: Exit) -> None:
    """Starts again what has died with a process, or gives up."""
    name, only = ended.name, self._plan.only
    self._short[name] += ended.lived_s < _QUICK_S
    short = self._short[name]
    if ended.code < 0:
      how = f'{name} has died ({signal.strsignal(-ended.code)})'
      code = 128 - ended.code
    else:
      stopped = ended.code == STOPPED
      why = 'been stopped' if stopped else 'lost what may come back'
      how, code = f'{name} has {why}', ended.code
    held = name in self._plan.holders
    self._restarts += held or bool(only and ended.code > 0)
    if short == _QUICK:
      self._fail(f'{how}, soon after its start {short} times in a row', code)
    elif self._restarts > self._plan.restarts:
      restarts = f'{self._plan.restarts} restarts{"" if only else " of all"}'
      self._fail(f'{how}, after {restarts}', code)
    elif self._over and not held:
      self._screen.say(f'{how}; the run is ending without it')
    else:
      delay_s = _BACKOFF_S * 2**short
      who = 'all' if held and not only else 'it'
      self._screen.say(f'{how}: starting {who} again in {delay_s:g} s')
      group = self._plan.names if held else [name]
      self._kill(group)
      if held:
        self._choose_address()
        self._over = False
      self._due |= dict.fromkeys(group, time.monotonic() + delay_s)

  def _signalled(self, number: int) -> None:
    now = time.monotonic()
    if self._plan.only and now - self._signalled_at < _SAME_S:
      return
    self._signalled_at = now
    if self._code is not None:
      # A terminal that goes away is lost first, and then sends SIGHUP.
      if not (self._screen.lost and number == signal.SIGHUP):
        self._kill_at = 0.0
      return
    self._screen.say(f'{signal.Signals(number).name}: the run ends')
    if self._plan.coordinator in self._processes.names():
      self._ask(self._plan.coordinator)
    self._end(128 + number, term_s=self._plan.grace_s, kill_s=0.0)

  def _fail(self, how: str, code: int) -> None:
    self._screen.say(f'{how}: the run ends')
    self._end(code, term_s=0.0, kill_s=self._plan.grace_s)

  def _end(self, code: int, *, term_s: float, kill_s: float) -> None:
    """Starts nothing any more, and sets when SIGTERM and SIGKILL come."""
    self._code = code
    self._due.clear()
    self._term_at = time.monotonic() + term_s
    self._kill_at = self._term_at + kill_s
    saves = self._plan.only or self._plan.coordinator
    if code and saves not in self._processes.names():
      self._hurry()

  def _hurry(self) -> None:
    """Ends who is left soon, as nobody saves a checkpoint any more."""
    now = time.monotonic()
    self._term_at = min(self._term_at, now)
    self._kill_at = min(self._kill_at, now + _KILL_S)

  def _ask(self, name: str) -> None:
    """Sends SIGTERM, once: many programs take two as an order to hurry."""
    if name not in self._asked:
      self._asked.add(name)
      self._processes.signal(name, signal.SIGTERM)

  def _kill(self, names: Sequence[str]) -> None:
    for ended in self._processes.kill(names):
      self._note(ended)

  def _note(self, ended: Exit) -> None:
    """Writes the row of an end, whoever has caused it."""
    if ended.lived_s >= _QUICK_S:
      self._short[ended.name] = 0
    self._row(ended.name, ended.pid, 'exit', ended.code)

  def _start(self, name: str) -> None:
    argv = [*self._program, *self._plan.arguments]
    argv += self._plan.flags()
    if self._plan.only:
      argv += self._plan.told
    else:
      argv += [
        f'--role={name.replace(" ", ":")}',
        f'--coordinator={self._coordinator}',
      ]
    if host := self._places[name]:
      if not any(word.startswith(_INTERFACE) for word in argv):
        argv += [f'{_INTERFACE}eth0']
      argv = lab.command(host, argv)
    cache = compiled.variables(os.environ, _cache(self._plan))
    environ = {**cache, **memory.ENVIRONMENT, **os.environ}
    environ |= self._devices[name] | self._screen.environ(name)
    environ |= {'SYNCOPATE_RESTARTS': str(self._starts[name])}
    pid = self._processes.start(name, argv, environ)
    self._starts[name] += 1
    self._row(name, pid, 'start', None)

  def _row(self, name: str, pid: int, event: str, code: int | None) -> None:
    row = {'time': time.time(), 'role': name.replace(' ', ':'), 'pid': pid}
    self._log.write(json.dumps(row | {'event': event, 'code': code}) + '\n')

  def _choose_address(self) -> None:
    """Gives the coordinator a new port, so that no process of before finds it."""
    if self._plan.only:
      return  # Others have to find it where it was.
    host = self._places[self._plan.coordinator] or '127.0.0.1'
    self._coordinator = f'{host}:{roles.free_ports(1)[0]}'


def _cache(plan: Plan) -> pathlib.Path:
  """Returns the folder of compiled programs, for processes that restart."""
  folder = plan.workdir.resolve() / 'compiled'
  # Hosts differ, and so may what is compiled for them.
  return folder / socket.gethostname() if plan.only else folder


def main(argv: list[str]) -> None:
  """Does what the flags say."""
  given = flags.FLAGS
  now = datetime.datetime.now().strftime('%Y%m%d-%H%M%S-%f')
  try:
    told = {flag: given[flag].value for flag in ('role', 'coordinator')}
    told = {flag: value for flag, value in told.items() if value}
    only = _only(given, told)
    plan = Plan(
      workers=given.workers,
      servers=given.servers,
      dedicated=given.dedicated,
      workdir=pathlib.Path(given.workdir or f'runs/{now}-{os.getpid()}'),
      arguments=tuple(argv[1:]),
      restarts=given.restarts,
      grace_s=given.grace_s,
      devices_per_worker=given.devices_per_worker,
      workers_per_gpu=given.workers_per_gpu,
      only=only,
      told=tuple(f'--{flag}={value}' for flag, value in told.items()),
    )
    program = ['-m', given.module] if given.module else [str(_MAIN)]
    code = launch(plan, [sys.executable, *program])
  except (OSError, ValueError) as error:
    transient.leave(error)
  sys.exit(code)


def _only(given: flags.FlagValues, told: Mapping[str, str]) -> str:
  """Returns the name of the process that --rank is for; '' without it."""
  if not given.rank:
    require(
      not told, '--role and --coordinator', 'nothing without --rank', told
    )
    return ''
  shared = 'with --rank the folder that all processes share'
  require(given.workdir is not None, '--workdir', shared, None)
  servers = given.servers if given.dedicated else 0
  role = roles.find(
    os.environ, workers=given.workers, dedicated=servers, **told
  )
  return f'{role.kind} {role.index}'


def _parse(argv: list[str]) -> list[str]:
  flags.DEFINE_integer('workers', 4, 'Processes that train.')
  flags.DEFINE_integer(
    'servers', 0, 'Shards of the parameters; 0: one in each worker.'
  )
  flags.DEFINE_bool('dedicated', False, 'Servers are processes of their own.')
  flags.DEFINE_string(
    'workdir', None, 'Folder of the run; by default a new one.'
  )
  flags.DEFINE_integer('restarts', 3, 'How often all may be started again.')
  flags.DEFINE_float(
    'grace_s', 30.0, 'Seconds to save a checkpoint at the end.'
  )
  flags.DEFINE_integer('devices_per_worker', 1, 'GPUs of each worker.')
  flags.DEFINE_integer(
    'workers_per_gpu', 1, 'Workers that share each GPU, and its memory.'
  )
  flags.DEFINE_bool('rank', False, 'Launch one process, whose host this is.')
  flags.DEFINE_string('role', '', 'With --rank: worker:2 or server:0.')
  flags.DEFINE_string(
    'coordinator', '', 'With --rank: HOST:PORT where the coordinator listens.'
  )
  flags.DEFINE_alias('lead', 'coordinator')  # Its name until November 2026.
  flags.DEFINE_string('module', None, 'Run in the place of main.py.')
  return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
