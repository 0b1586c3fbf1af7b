"""Status of a running run: who waits for whom, and processes that hang."""

import os
import pathlib
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import psutil

from analysis import runs
from cluster.process import stacks

_BEATS = 3  # Heartbeat intervals after which a silence is worth a sentence.
_LEAST_S = 5.0  # Shortest silence that is.
_LAUNCH_S = 30.0  # Between the start of a process and the launcher's row of it.
_WATCHED_S = 1.0  # For which the processor time of processes is measured.
_STACKS_S = 5.0  # Longest wait for stacks.


class Process(NamedTuple):
  """A process of a run on this host.

  Attributes:
    role: Role, such as 'worker:2'.
    pid: Process id.
    status: Status by psutil, such as 'stopped'; '' if it has ended.
    cpu_s: Seconds of processor time during the last second.
  """

  role: str
  pid: int
  status: str
  cpu_s: float


def describe(path: pathlib.Path, *, with_stacks: bool = False) -> list[str]:
  """Returns sentences on a running run.

  Args:
    path: Folder of the run.
    with_stacks: Whether processes of this host write their stacks.

  Raises:
    ValueError: If there is no run, or if it is not one of real hosts.
    OSError: If a file cannot be read.
  """
  run = runs.read(path)
  config, summary = run.config, run.summary
  if config['cluster']['runtime'] != 'distributed':
    raise ValueError(
      f"{path}: config.cluster.runtime: expected 'distributed', whose workers "
      f'are processes, got {config["cluster"]["runtime"]!r}.'
    )
  if summary is not None:
    return [f'The run has ended: {summary["ended"]}.']
  lines = []
  processes = find_processes(path)
  status = run.live
  if status is None:
    lines.append('The run has not begun: its processes have not all joined.')
  else:
    lines += explain(status, processes, now=time.time())
  for process in processes:
    lines += _on_process(process)
  if with_stacks:
    for process in processes:
      lines += dump_stacks(path, process)
  return lines


def explain(
  status: Mapping[str, Any], processes: Sequence[Process], *, now: float
) -> Iterator[str]:
  """Yields sentences on who waits for whom.

  Args:
    status: Content of live.json.
    processes: Processes of this host.
    now: Unix time.
  """
  limit_s = max(_BEATS * status['beat_s'], _LEAST_S)
  age_s = max(now - status['written'], 0.0)
  yield f'At {status["time"]:.1f} s of the run, {age_s:.1f} s ago:'
  if age_s > limit_s:
    yield (
      f'The coordinator (process {status["pid"]} on {status["host"]}) has '
      f'handled no event for {age_s:.0f} s: all others wait for it.'
    )
    return
  alive = [each for each in status['workers'] if each['alive']]
  for each in status['workers']:
    if not each['alive']:
      yield f'Worker {each["worker"]} does not take part.'
    elif each['silent_s'] > limit_s:
      yield (
        f'Worker {each["worker"]} has sent no heartbeat for '
        f'{each["silent_s"]:.1f} s: its process is stopped, or its link is cut.'
      )
  blocking = find_blocking(alive, limit_s)
  since_s = max((each['still_s'] for each in blocking), default=0.0)
  waiting = [each for each in alive if each not in blocking]
  if blocking and waiting and since_s > limit_s:
    yield (
      f'{_name(waiting)} {"waits" if len(waiting) == 1 else "wait"} for '
      f'{_name(blocking).lower()}, since {since_s:.1f} s before.'
    )
  still = [each for each in blocking if each['still_s'] > limit_s]
  for each in still:
    what = 'computes' if each['doing'] == 'compute' else 'transfers'
    yield (
      f'Worker {each["worker"]}{_host(each)} {what} in iteration '
      f'{each["iteration"]} without progress for {each["still_s"]:.1f} s.'
    )
  if not still:
    yield 'All workers make progress.'


def find_blocking(
  alive: Sequence[Mapping[str, Any]], limit_s: float
) -> list[Mapping[str, Any]]:
  """Returns the workers for which the others wait.

  They are silent ones; else those that compute, and else those with the fewest
  chunks, of the workers whose iteration is under way, in the oldest iteration.

  Args:
    alive: Entries of live.json.
    limit_s: Seconds from which a worker without a heartbeat counts as silent.
  """
  silent = [each for each in alive if each['silent_s'] > limit_s]
  if silent:
    return silent
  running = [each for each in alive if each['running']]
  if not running:
    return []
  computing = [each for each in running if each['doing'] == 'compute']
  chosen = computing or running
  oldest = min(each['iteration'] for each in chosen)
  chosen = [each for each in chosen if each['iteration'] == oldest]
  if computing:
    return chosen
  least = min(each['steps'] for each in chosen)
  return [each for each in chosen if each['steps'] == least]


def find_processes(path: pathlib.Path) -> list[Process]:
  """Returns the processes of a run on this host that its launchers started.

  Takes a second, in which their processor time is measured.

  Args:
    path: Folder of the run.

  Raises:
    ValueError: If a file of a launcher is broken.
    OSError: If it cannot be read.
  """
  started: dict[int, dict[str, Any]] = {}
  for file in sorted(path.glob('launch*.jsonl')):
    for row in runs.read_objects(file):
      if row['event'] == 'start':
        started[row['pid']] = row
      else:
        started.pop(row['pid'], None)
  known: dict[int, psutil.Process] = {}
  for pid, row in started.items():
    try:
      process = psutil.Process(pid)
      # Another one may have the number of one of another host.
      if abs(process.create_time() - row['time']) < _LAUNCH_S:
        known[pid] = process
    except psutil.NoSuchProcess:
      continue
  before = {pid: _cpu_s(process) for pid, process in known.items()}
  if known:
    time.sleep(_WATCHED_S)
  return [
    Process(
      started[pid]['role'],
      pid,
      _status(process),
      _cpu_s(process) - before[pid],
    )
    for pid, process in known.items()
  ]


def dump_stacks(path: pathlib.Path, process: Process) -> list[str]:
  """Has a process write its Python stacks, and returns them.

  Args:
    path: Folder of the run.
    process: The process.

  Raises:
    OSError: If the file of the stacks cannot be read.
  """
  file = path / stacks.FOLDER / f'{process.role.replace(":", "-")}.txt'
  if process.status == psutil.STATUS_STOPPED:
    return [f'{process.role} is stopped, and cannot write its stacks.']
  if not file.exists():
    return [f'{process.role} has not come so far that it can write stacks.']
  before = file.stat().st_size
  os.kill(process.pid, stacks.SIGNAL)
  until, size = time.monotonic() + _STACKS_S, before
  while time.monotonic() < until:
    time.sleep(0.1)
    last, size = size, file.stat().st_size
    if size > before and size == last:
      break
  with file.open(encoding='utf-8', errors='replace') as lines:
    lines.seek(before)
    text = lines.read()
  return [f'Stacks of {process.role}, process {process.pid}:', text.rstrip()]


def _on_process(process: Process) -> Iterator[str]:
  """Yields sentences on a process of this host that does nothing."""
  where = f'Process {process.pid} ({process.role}) on {platform.node()}'
  if not process.status:
    yield f'{where} has just ended.'
  elif process.status == psutil.STATUS_STOPPED:
    yield f'{where} is stopped by a signal: kill -CONT {process.pid}.'
  elif process.status == psutil.STATUS_ZOMBIE:
    yield f'{where} has ended, and its launcher has not noticed.'
  else:
    yield f'{where} is alive: {process.cpu_s:.2f} s of computing in a second.'


def _status(process: psutil.Process) -> str:
  try:
    return str(process.status())
  except psutil.NoSuchProcess:
    return ''


def _cpu_s(process: psutil.Process) -> float:
  try:
    times = process.cpu_times()
  except psutil.NoSuchProcess:
    return 0.0
  return float(times.user + times.system)


def _name(workers: Sequence[Mapping[str, Any]]) -> str:
  names = [str(each['worker']) for each in workers]
  return f'Worker{"s" if len(names) > 1 else ""} {", ".join(names)}'


def _host(worker: Mapping[str, Any]) -> str:
  return f' on {worker["host"]}' if worker['host'] else ''
