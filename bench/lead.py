"""Measures the load that one coordinator can sustain.

  python -m bench.lead [--pushes=10000]
  python -m bench.lead --processes=64 [--supersteps=100] [--schemes=bsp,elastic]

Without --processes, up to 256 scripted ASP workers in two processes push over
loopback streams to a coordinator with one dedicated server or four; the
parameters are 4 KiB of dummy data.  A row is a run: pushes per second, CPU time
of the coordinator's process, which includes server 0, and of its deciding
thread, both also relative to the first row, and the peak memory and threads of
the process.
CPU times are more informative than rates, because the scripted workers compete
for the same cores.

With --processes, tools.launch starts that many real workers of a timing-only
model: seconds until all are ready, seconds of a superstep, memory of a process.
"""

import contextlib
import json
import os
import pathlib
import re
import resource
import secrets
import sys
import tempfile
import threading
import time
from typing import Any

import msgspec
import numpy as np
from absl import app, flags
from ml_collections import ConfigDict

import analysis
import train
from analysis import runs
from bench import clusters
from cluster.membership import checks, rendezvous_files
from cluster.membership.versions import find_versions
from cluster.network import messages
from cluster.network.connection import Connection
from cluster.network.frame_reader import Receiving
from cluster.network.handshake import open_connection
from cluster.network.loop_streams import LoopStream
from cluster.network.socket_loop import SocketLoop
from cluster.network.streams import (
  Security,
  Stream,
  TransportError,
  connect,
  push_service,
)
from cluster.process import roles
from configs import default, timing
from launch import processes
from launch.processes import Command, Group
from outputs.manifests import fingerprint

_ROWS = ((16, 1), (64, 1), (256, 1), (16, 4), (256, 4))  # Workers, servers.
_CLIENTS = 2  # Processes of scripted workers.
_SIZE_BYTES = 4096
_TIMEOUT_S = 60.0
_HEARTBEAT_S = 10.0
_START_S = 600.0
_MAIN = pathlib.Path(__file__).resolve().parents[1] / 'main.py'
_MEMORY = re.compile(rb'^(Rss|Pss):\s+(\d+) kB', re.MULTILINE)


def main(argv: list[str]) -> None:
  """Prints a Markdown table of scripted workers or of real processes."""
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  values = flags.FLAGS
  if values.part:
    _take_part(**json.loads(values.part))
  elif values.processes:
    _print_processes(values.processes, values.supersteps, values.schemes)
  else:
    _print_scripted(values.pushes)


def _print_scripted(pushes: int) -> None:
  print(
    '| workers | servers | pushes/s | process us/push | over first '
    '| deciding us/push | over first | peak MiB | threads |'
  )
  print('| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |')
  first: list[float] = []
  for workers, servers in _ROWS:
    row = measure(workers, servers, pushes)
    costs_us = [
      1e6 * row[key] / row['pushes'] for key in ('cpu_s', 'decided_s')
    ]
    first = first or costs_us
    costs = ' | '.join(
      f'{cost_us:.0f} | {cost_us / before_us:.2f}'
      for cost_us, before_us in zip(costs_us, first, strict=True)
    )
    print(
      f'| {workers} | {servers} | {row["pushes"] / row["wall_s"]:.0f} '
      f'| {costs} | {row["peak_MiB"]:.0f} | {row["threads"]:.0f} |',
      flush=True,
    )


def measure(workers: int, servers: int, pushes: int) -> dict[str, float]:
  """Returns times, pushes and memory of the coordinator of a run.

  Args:
    workers: Number of scripted workers.
    servers: Number of servers, the first of which coordinates.
    pushes: Number of pushes of all workers together.
  """
  with tempfile.TemporaryDirectory() as folder:
    run = {
      'workers': workers,
      'servers': servers,
      'pushes': pushes,
      'workdir': f'{folder}/run',
      'coordinator': f'127.0.0.1:{roles.free_ports(1)[0]}',
    }
    commands = [
      *(_command(run, role=f'server:{index}') for index in range(servers)),
      *(_command(run, client=index) for index in range(_CLIENTS)),
    ]
    with processes.start(commands, pathlib.Path(folder)) as group:
      group.finish(_START_S, 'server:0')
      group.wait(_START_S)
      lines = group.log('server:0').splitlines()
      return json.loads(next(line for line in lines if line.startswith('{')))


def _command(run: dict[str, Any], **part: Any) -> Command:
  """Returns the command of a process of a run; `part` is for it alone."""
  words = [sys.executable, '-m', 'bench.lead']
  words.append(f'--part={json.dumps(run | part)}')
  return Command(part.get('role') or f'client{part["client"]}', words)


def _take_part(
  *,
  workers: int,
  servers: int,
  pushes: int,
  workdir: str,
  coordinator: str,
  role: str = '',
  client: int = 0,
) -> None:
  """Runs one process of a run: a server, or a share of the scripted workers."""
  config = _config(workers, servers, pushes)
  if not role:
    _drive(range(client, workers, _CLIENTS), coordinator, workdir)
    return
  process = {'role': role, 'coordinator': coordinator}
  run = train.build(config, workdir=workdir, process=process)
  if role != 'server:0':
    run()
    return
  run.runtime = timed = _TimedRuntime(run.runtime)
  summary = run()
  peak_MiB = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
  row = {'pushes': summary['iterations'], 'peak_MiB': peak_MiB}
  print(json.dumps(row | timed.elapsed()))


class _TimedRuntime:
  """Runtime that measures wall and CPU times from its start to its close."""

  def __init__(self, runtime: Any):
    self._runtime = runtime
    self._start = self._end = 0.0, 0.0, 0.0
    self._num_threads = 0

  def start(self) -> None:
    self._start = _clocks()
    self._runtime.start()

  def close(self) -> None:
    self._end = _clocks()
    self._num_threads = len(os.listdir('/proc/self/task'))
    self._runtime.close()

  def elapsed(self) -> dict[str, float]:
    """Returns threads, and seconds: wall, CPU of the process, of its thread."""
    spans = [
      end - start for start, end in zip(self._start, self._end, strict=True)
    ]
    times = dict(zip(('wall_s', 'cpu_s', 'decided_s'), spans, strict=True))
    return times | {'threads': self._num_threads}

  def __getattr__(self, name: str) -> Any:
    return getattr(self._runtime, name)


def _clocks() -> tuple[float, float, float]:
  return time.perf_counter(), time.process_time(), time.thread_time()


def _config(workers: int, servers: int, pushes: int) -> ConfigDict:
  return timing.config(
    timing.fields(workers=workers, iterations=1, size_bytes=_SIZE_BYTES),
    {
      'sync.name': 'asp',
      'route.server.servers': servers,
      'route.server.dedicated': True,
      'model.none.num_train': (
        pushes * default.get_config().batching.worker_batch
      ),
      'log_every': 10**9,
      'cluster.runtime': 'distributed',
      'cluster.speed.slowdown': (1.0,),
      'cluster.start_s': _START_S,
      'cluster.timeout_s': _TIMEOUT_S,
    },
  )


def _drive(indices: range, coordinator: str, workdir: str) -> None:
  """Runs the scripted workers of these indices until the run ends."""
  path = pathlib.Path(workdir) / 'manifest.json'
  deadline = time.monotonic() + _START_S
  while not path.exists() and time.monotonic() < deadline:
    time.sleep(0.05)
  manifest = analysis.read(path.parent).manifest
  config_fingerprint = fingerprint(manifest)
  versions = find_versions(manifest, '')
  token = (pathlib.Path(workdir) / rendezvous_files.TOKEN).read_text().strip()
  security = Security(token=token)
  loop = SocketLoop(
    'workers',
    after_events=lambda: None,
    tick=lambda: None,
    on_error=lambda _: os._exit(1),  # The loop has logged it.
    on_exit=lambda _: None,
  )
  controls, process = [], secrets.token_hex(16)
  for index in indices:
    hello = messages.WorkerHello(index, process, config_fingerprint, versions)
    controls.append(connect(coordinator, hello, security, _START_S))
    worker = _Worker(index, process, controls[-1], loop)
    threading.Thread(target=worker.join, args=(security,), daemon=True).start()
  _send_heartbeats(controls)


class _Worker:
  """A scripted worker, which pushes what it has pulled.

  One event loop serves the streams of all workers of a process, so that they
  take little of the processors from the servers.
  """

  def __init__(
    self, index: int, process: str, control: Stream, loop: SocketLoop
  ):
    self._index, self._process = index, process
    self._control, self._loop = control, loop
    self._streams: list[LoopStream] = []
    self._buffers: list[np.ndarray] = []
    self._num_waited = 0  # Servers whose answer has not arrived.
    self._is_connected = threading.Event()

  def join(self, security: Security) -> None:
    """Joins the run, and exits this process when the run ends."""
    with contextlib.suppress(TransportError):
      admission = self._control.receive(messages.WORKER_ADMISSION).header
      servers = self._control.receive(messages.TO_WORKER).header.addresses
      hello = messages.WorkerConnection(
        self._index, admission.incarnation, self._process
      )
      connections = [
        open_connection(
          address, security, push_service(server), timeout_s=_START_S
        )
        for server, address in enumerate(servers)
      ]
      self._loop.post(lambda: self._begin(connections, hello))
      self._is_connected.wait(_START_S)
      self._control.send(messages.WorkerReady())
    _exit_at_session_end(self._control)

  def _begin(
    self, connections: list[Connection], hello: messages.WorkerConnection
  ) -> None:
    self._streams = [LoopStream(self._loop, each) for each in connections]
    self._buffers = [np.empty(0, np.uint8) for _ in connections]
    self._num_waited = len(connections)
    for server, stream in enumerate(self._streams):
      stream.run(self._exchange(server, stream, hello), lambda: None)

  def _exchange(
    self, server: int, stream: LoopStream, hello: messages.WorkerConnection
  ) -> Receiving[None]:
    """Pulls from a server until the run ends."""
    with contextlib.suppress(TransportError):
      stream.send(msgspec.Raw(messages.encode(hello)))
      yield from stream.receive(messages.NOTHING)
      yield from stream.receive(messages.PIECE_SIZES)
      if self._is_last():
        self._is_connected.set()
      while True:
        release, size_bytes = yield from stream.receive(messages.PULL)
        if size_bytes != self._buffers[server].size:
          self._buffers[server] = np.empty(size_bytes, np.uint8)
        yield from stream.fill(self._buffers[server])
        if self._is_last():
          self._push(release.pull.iteration)

  def _is_last(self) -> bool:
    """Counts an answer; returns whether those of all servers have arrived."""
    self._num_waited = (self._num_waited or len(self._streams)) - 1
    return not self._num_waited

  def _push(self, iteration: int) -> None:
    now = time.monotonic()
    report = messages.PushReport(
      iteration=iteration,
      pulled_at=now,
      computed_at=now,
      compute_s=checks.LEAST_S,
      factors=(),
      loss=None,
      weight=0.0,
      is_finite=True,
      computed=0,
      compilations=0,
      has_recalled=False,
    )
    for stream, buffer in zip(self._streams, self._buffers, strict=True):
      stream.send(report, [buffer], buffer.size)


def _exit_at_session_end(control: Stream) -> None:
  """Exits this process when the coordinator ends one of its sessions."""
  with contextlib.suppress(TransportError):
    while not isinstance(
      control.receive(messages.TO_WORKER).header, messages.SessionEnd
    ):
      pass
  os._exit(0)


def _send_heartbeats(controls: list[Stream]) -> None:
  steps = 0
  while True:
    time.sleep(_HEARTBEAT_S)
    steps += 1
    for control in controls:
      with contextlib.suppress(TransportError):
        heartbeat = messages.WorkerHeartbeat(0.0, ('transfer', 0, steps))
        control.send(heartbeat)


def _print_processes(
  processes: int, supersteps: int, schemes: list[str]
) -> None:
  print(
    '| scheme | processes | ready s | supersteps | s each | '
    'coordinator MiB (RSS, PSS) | worker MiB (RSS, PSS) |'
  )
  print('| --- | ---: | ---: | ---: | ---: | ---: | ---: |')
  for scheme in schemes:
    row = _run_processes(scheme, processes, supersteps)
    print(
      f'| {scheme} | {processes} | {row["ready_s"]:.0f} | {supersteps} '
      f'| {row["wall_s"] / supersteps:.2f} | {row["coordinator"]} '
      f'| {row["worker"]} |',
      flush=True,
    )


def _run_processes(
  scheme: str, processes: int, supersteps: int
) -> dict[str, Any]:
  """Executes a run of real processes; returns its times and memory."""
  with tempfile.TemporaryDirectory() as folder:
    workdir = pathlib.Path(folder) / 'run'
    fields = {
      **timing.fields(
        workers=processes, iterations=supersteps, size_bytes=_SIZE_BYTES
      ),
      'sync.name': scheme,
      'log_every': processes,
      'cluster.speed.slowdown': (1.0,),
      'cluster.timeout_s': _TIMEOUT_S,
      'cluster.start_s': _START_S,
      'route.server.mirror_s': 0.0,
    }
    del fields['cluster.workers']  # The launcher sets it.
    command = [sys.executable, '-m', 'tools.launch', f'--workers={processes}']
    command += ['--servers=1', f'--workdir={workdir}', '--']
    command += [f'--config={_MAIN.parent / "configs" / "default.py"}']
    command += [f'--config.{name}={value}' for name, value in fields.items()]
    start = time.time()
    with clusters.start(command, workdir) as launcher:
      memory = _memory_once(launcher, workdir)
      launcher.finish(_START_S)
    path = workdir / 'summary.json'
    summary = analysis.read(workdir).summary or {}
    ready_s = path.stat().st_mtime - summary['wall_s'] - start
  return memory | {'ready_s': ready_s, 'wall_s': summary['wall_s']}


def _memory_once(launcher: Group, workdir: pathlib.Path) -> dict[str, str]:
  """Returns the memory of the coordinator and of a mean worker, mid-run."""
  rows = workdir / 'metrics.jsonl'
  while not rows.exists() or not rows.stat().st_size:
    if launcher.code(workdir.name) is not None:
      raise RuntimeError('The run has ended before its first metrics.')
    time.sleep(0.2)
  pids: dict[str, int] = {}
  for row in runs.read_objects(workdir / 'launch.jsonl'):
    if row['event'] == 'start':
      pids[row['role']] = row['pid']
  memory = {role: _memory_MiB(pid) for role, pid in pids.items()}
  coordinator = memory.pop('worker:0')
  mean = np.mean(list(memory.values()), axis=0)
  return {
    'coordinator': f'{coordinator[0]:.0f}, {coordinator[1]:.0f}',
    'worker': f'{mean[0]:.0f}, {mean[1]:.0f}',
  }


def _memory_MiB(pid: int) -> tuple[float, float]:
  """Returns a process's resident and proportional set sizes, MiB."""
  text = pathlib.Path(f'/proc/{pid}/smaps_rollup').read_bytes()
  sizes = {name: int(size) / 1024 for name, size in _MEMORY.findall(text)}
  return sizes[b'Rss'], sizes[b'Pss']


def _parse(argv: list[str]) -> list[str]:
  flags.DEFINE_integer(
    'pushes', 10_000, 'Pushes of a run of scripted workers.', lower_bound=1
  )
  flags.DEFINE_integer(
    'processes',
    None,
    'Real workers, in place of scripted ones.',
    lower_bound=1,
  )
  flags.DEFINE_integer(
    'supersteps', 100, 'With --processes: supersteps of a run.', lower_bound=1
  )
  flags.DEFINE_list(
    'schemes', ['bsp', 'elastic'], 'With --processes: schemes, a run of each.'
  )
  flags.DEFINE_string('part', '', 'For itself: one process of a run, as JSON.')
  return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
