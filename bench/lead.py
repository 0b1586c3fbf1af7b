"""Measures the load that one coordinator sustains.

  python -m bench.lead [--pushes=10000]
  python -m bench.lead --processes=64 [--supersteps=100] [--schemes=bsp,elastic]

Without --processes, up to 256 scripted ASP workers in two processes push over
loopback streams to a coordinator with one dedicated server or four; the
parameters are 4 KiB of dummy data.  A row is a run: pushes per second, CPU time
of the coordinator's process, which includes server 0, and of its deciding
thread, both also relative to the first row, and the peak memory of the process.
CPU times are more informative than rates, because the scripted workers compete
for the same cores.

With --processes, tools.launch starts that many real workers of a timing-only
model: seconds until all are ready, seconds of a superstep, memory of a process.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import resource
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from ml_collections import ConfigDict

import train
from cluster.membership import rendezvous
from cluster.network import messages
from cluster.network.streams import (
  PUSHES,
  Security,
  Stream,
  TransportError,
  connect,
)
from cluster.process import roles
from configs import default
from outputs.manifests import fingerprint

_ROWS = ((16, 1), (64, 1), (256, 1), (16, 4), (256, 4))  # Workers, servers.
_CLIENTS = 2  # Processes of scripted workers.
_SIZE_BYTES = 4096
_TIMEOUT_S = 60.0
_BEATS_S = 10.0
_START_S = 600.0
_MAIN = pathlib.Path(__file__).resolve().parents[1] / 'main.py'
_MEMORY = re.compile(rb'^(Rss|Pss):\s+(\d+) kB', re.MULTILINE)


def main(argv: list[str] | None = None) -> None:
  """Prints a table of either kind, in Markdown."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--pushes', type=int, default=10_000)
  parser.add_argument('--processes', type=int)
  parser.add_argument('--supersteps', type=int, default=100)
  parser.add_argument('--schemes', default='bsp,elastic')
  parser.add_argument('--part', help=argparse.SUPPRESS)
  arguments = parser.parse_args(argv)
  if arguments.part:
    _take_part(**json.loads(arguments.part))
  elif arguments.processes:
    _launches(
      arguments.processes, arguments.supersteps, arguments.schemes.split(',')
    )
  else:
    _scripted(arguments.pushes)


def _scripted(pushes: int) -> None:
  print(
    '| workers | servers | pushes/s | process us/push | over first '
    '| deciding us/push | over first | peak MiB |'
  )
  print('| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |')
  first: list[float] = []
  for workers, servers in _ROWS:
    row = _row(workers, servers, pushes)
    costs_us = [1e6 * row[of] / row['pushes'] for of in ('cpu_s', 'decided_s')]
    first = first or costs_us
    costs = ' | '.join(
      f'{cost_us:.0f} | {cost_us / before_us:.2f}'
      for cost_us, before_us in zip(costs_us, first, strict=True)
    )
    print(
      f'| {workers} | {servers} | {row["pushes"] / row["wall_s"]:.0f} '
      f'| {costs} | {row["peak_MiB"]:.0f} |',
      flush=True,
    )


def _row(workers: int, servers: int, pushes: int) -> dict[str, float]:
  """Returns the measurements of one run's coordinator."""
  with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
    run = {
      'workers': workers,
      'servers': servers,
      'pushes': pushes,
      'workdir': f'{folder}/run',
      'coordinator': f'127.0.0.1:{roles.free_ports(1)[0]}',
    }
    measured = stack.enter_context(_started(run, role='server:0'))
    for index in range(1, servers):
      stack.enter_context(_started(run, role=f'server:{index}'))
    for index in range(_CLIENTS):
      stack.enter_context(_started(run, client=index))
    output, _ = measured.communicate(timeout=_START_S)
    return json.loads(output.splitlines()[-1])


@contextlib.contextmanager
def _started(run: dict[str, Any], **part: Any) -> Iterator[subprocess.Popen]:
  command = [sys.executable, '-m', 'bench.lead', '--part']
  command.append(json.dumps(run | part))
  with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
    try:
      yield process
    except BaseException:
      process.kill()
      raise


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
  """Runs one process of a run: a server, or some scripted workers."""
  config = _config(workers, servers, pushes)
  if not role:
    _drive(range(client, workers, _CLIENTS), coordinator, workdir)
    return
  process = {'role': role, 'coordinator': coordinator}
  run = train.build(config, workdir=workdir, process=process)
  if role != 'server:0':
    run()
    return
  run.runtime = measured = _Measured(run.runtime)
  summary = run()
  peak_MiB = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
  row = {'pushes': summary['iterations'], 'peak_MiB': peak_MiB}
  print(json.dumps(row | measured.used()))


class _Measured:
  """Runtime that measures the times used between its start and its close."""

  def __init__(self, runtime: Any):
    self._runtime = runtime
    self._began = self._ended = 0.0, 0.0, 0.0

  def start(self) -> None:
    self._began = _clocks()
    self._runtime.start()

  def close(self) -> None:
    self._ended = _clocks()
    self._runtime.close()

  def used(self) -> dict[str, float]:
    """Returns seconds of wall time, and CPU seconds of process and thread."""
    spans = [
      end - start for start, end in zip(self._began, self._ended, strict=True)
    ]
    return dict(zip(('wall_s', 'cpu_s', 'decided_s'), spans, strict=True))

  def __getattr__(self, name: str) -> Any:
    return getattr(self._runtime, name)


def _clocks() -> tuple[float, float, float]:
  return time.perf_counter(), time.process_time(), time.thread_time()


def _config(workers: int, servers: int, pushes: int) -> ConfigDict:
  config = _timing(workers)
  config.sync.name = 'asp'
  config.route.server.servers = servers
  config.route.server.dedicated = True
  _last(config, pushes)
  config.cluster.timeout_s = _TIMEOUT_S
  return config


def _timing(workers: int) -> ConfigDict:
  """Returns a config without a model, on real hosts."""
  config = default.get_config()
  config.model.name = 'none'
  config.model.none.size_bytes = _SIZE_BYTES
  config.cluster.runtime = 'distributed'
  config.cluster.workers = workers
  config.cluster.speed.slowdown = (1.0,)
  config.cluster.start_s = _START_S
  config.checkpoint.every_s = float('inf')
  config.log_every = 10**9
  return config


def _last(config: ConfigDict, iterations: int) -> None:
  """Sets the run's length to so many iterations, summed over the workers."""
  num_train = iterations * config.batching.worker_batch
  config.model.none.num_train = num_train
  config.epochs = config.eval_every = 1.0


def _drive(indices: range, coordinator: str, workdir: str) -> None:
  """Runs the scripted workers of these indices until the run ends."""
  path = pathlib.Path(workdir) / 'manifest.json'
  deadline = time.monotonic() + _START_S
  while not path.exists() and time.monotonic() < deadline:
    time.sleep(0.05)
  print_of = fingerprint(json.loads(path.read_text()))
  token = (pathlib.Path(workdir) / rendezvous.TOKEN).read_text().strip()
  security = Security(token=token)
  controls, process = [], secrets.token_hex(16)
  for index in indices:
    hello = messages.WorkerHello(index, process, print_of)
    controls.append(connect(coordinator, hello, security, _START_S))
    work = threading.Thread(target=_work, args=(index, controls[-1], security))
    work.start()
  _beat(controls)


def _work(index: int, control: Stream, security: Security) -> None:
  with contextlib.suppress(TransportError):
    admission = control.receive(messages.WORKER_ADMISSION).header
    servers = control.receive(messages.TO_WORKER).header.addresses
    key = messages.WorkerConnection(index, admission.incarnation)
    streams = [
      connect(each, key, security, _START_S, service=PUSHES) for each in servers
    ]
    for stream in streams:
      stream.receive(messages.PIECE_SIZES)
    threading.Thread(target=_heed, args=(control,), daemon=True).start()
    control.send(messages.WorkerReady())
    buffers: list[np.ndarray | None] = [None] * len(streams)
    while True:
      for k, stream in enumerate(streams):
        message = stream.receive(messages.PULL)
        if buffers[k] is None:
          buffers[k] = np.zeros(message.size_bytes, np.uint8)
        message.read(buffers[k])
        pull = message.header.pull
      now = time.monotonic()
      report = messages.PushReport(
        iteration=pull.iteration,
        pulled_at=now,
        computed_at=now,
        compute_s=0.0,
        factors=(),
        loss=None,
        is_finite=True,
        computed=0,
        compilations=0,
        has_recalled=False,
      )
      for stream, buffer in zip(streams, buffers, strict=True):
        stream.send(report, [buffer], buffer.size)


def _heed(control: Stream) -> None:
  """Ends this process when the coordinator ends one of its workers."""
  with contextlib.suppress(TransportError):
    while not isinstance(
      control.receive(messages.TO_WORKER).header, messages.SessionEnd
    ):
      pass
  os._exit(0)


def _beat(controls: list[Stream]) -> None:
  steps = 0
  while True:
    time.sleep(_BEATS_S)
    steps += 1
    for control in controls:
      with contextlib.suppress(TransportError):
        beat = messages.WorkerHeartbeat(0.0, ('transfer', 0, steps))
        control.send(beat)


def _launches(processes: int, supersteps: int, schemes: list[str]) -> None:
  print(
    '| scheme | processes | ready s | supersteps | s each | '
    'lead MiB (RSS, PSS) | worker MiB (RSS, PSS) |'
  )
  print('| --- | ---: | ---: | ---: | ---: | ---: | ---: |')
  for scheme in schemes:
    row = _launched(scheme, processes, supersteps)
    print(
      f'| {scheme} | {processes} | {row["ready_s"]:.0f} | {supersteps} '
      f'| {row["wall_s"] / supersteps:.2f} | {row["lead"]} | {row["worker"]} |',
      flush=True,
    )


def _launched(scheme: str, processes: int, supersteps: int) -> dict[str, Any]:
  """Runs real processes; returns their times and memory."""
  config = _timing(processes)
  with tempfile.TemporaryDirectory() as folder:
    workdir = pathlib.Path(folder) / 'run'
    _last(config, processes * supersteps)
    fields = {
      'sync.name': scheme,
      'model.name': 'none',
      'model.none.size_bytes': _SIZE_BYTES,
      'model.none.num_train': config.model.none.num_train,
      'epochs': config.epochs,
      'eval_every': config.eval_every,
      'log_every': processes,
      'checkpoint.every_s': 'inf',
      'cluster.speed.slowdown': '(1.0,)',
      'cluster.timeout_s': _TIMEOUT_S,
      'cluster.start_s': _START_S,
    }
    command = [sys.executable, '-m', 'tools.launch', f'--workers={processes}']
    command += ['--servers=1', f'--workdir={workdir}', '--']
    command += [f'--config={_MAIN.parent / "configs" / "default.py"}']
    command += [f'--config.{name}={value}' for name, value in fields.items()]
    began = time.time()
    with subprocess.Popen(command, stdout=sys.stderr) as launcher:
      try:
        found = _memory_once(launcher, workdir)
        subprocess.CompletedProcess(command, launcher.wait()).check_returncode()
      finally:
        launcher.terminate()  # It ends the others.
    path = workdir / 'summary.json'
    summary = json.loads(path.read_text())
    ready_s = path.stat().st_mtime - summary['wall_s'] - began
  return found | {'ready_s': ready_s, 'wall_s': summary['wall_s']}


def _memory_once(
  launcher: subprocess.Popen, workdir: pathlib.Path
) -> dict[str, str]:
  """Returns the memory of the coordinator and of a mean worker, mid-run."""
  rows = workdir / 'metrics.jsonl'
  while not rows.exists() or not rows.stat().st_size:
    if launcher.poll() is not None:
      raise RuntimeError('The run has ended before it has begun.')
    time.sleep(0.2)
  pids: dict[str, int] = {}
  for line in (workdir / 'launch.jsonl').read_text().splitlines():
    row = json.loads(line)
    if row['event'] == 'start':
      pids[row['role']] = row['pid']
  of = {role: _memory_MiB(pid) for role, pid in pids.items()}
  coordinator = of.pop('worker:0')
  mean = np.mean(list(of.values()), axis=0)
  return {
    'lead': f'{coordinator[0]:.0f}, {coordinator[1]:.0f}',
    'worker': f'{mean[0]:.0f}, {mean[1]:.0f}',
  }


def _memory_MiB(pid: int) -> tuple[float, float]:
  """Returns a process's resident and proportional set sizes, MiB."""
  text = pathlib.Path(f'/proc/{pid}/smaps_rollup').read_bytes()
  found = {name: int(size) / 1024 for name, size in _MEMORY.findall(text)}
  return found[b'Rss'], found[b'Pss']


if __name__ == '__main__':
  main()
