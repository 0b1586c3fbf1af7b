"""Measures the cost of an iteration in timing-only runs of many workers.

  python -m bench.scale [--workers=1024] [--iterations=1000] [--bare]

Each row is a run in a new process: wall time, peak memory, microseconds per
iteration, their ratio to the first row of the scheme, and the ratio of the time
per event to that of a bare loop over `heapq` with as many events and workers.
An iteration has four events: a pull arrives, a gradient is ready, its push
arrives, the scheme decides.  Links are unlimited, or all transfers share the
links of one server.  With --bare the runs write neither the timeline, nor
events, nor TensorBoard's files.
"""

import argparse
import heapq
import json
import pathlib
import re
import subprocess
import sys
import time

from configs import timing
from sweeps import scratch

_SCHEMES = ('elastic', 'ssp')
_UNLIMITED = float('inf')
_EVENTS = 4  # Events of an iteration.


def main(argv: list[str] | None = None) -> None:
  """Prints one row per scheme, number of workers and network."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--workers', type=int, default=1024)
  parser.add_argument('--iterations', type=int, default=1000)
  parser.add_argument('--bare', action='store_true')
  parser.add_argument('--one', nargs=3, help=argparse.SUPPRESS)
  arguments = parser.parse_args(argv)
  if arguments.one:
    scheme, workers, server_Bps = arguments.one
    limits = int(workers), float(server_Bps)
    _run(scheme, *limits, arguments.iterations, bare=arguments.bare)
    return
  print(
    'scheme  workers network    wall s  MiB  us/iteration  over first'
    '  event over heapq'
  )
  for scheme in _SCHEMES:
    first = None
    for workers, server_Bps in (
      (arguments.workers // 16, _UNLIMITED),
      (arguments.workers, _UNLIMITED),
      (arguments.workers, 1.25e9),
    ):
      case = [scheme, str(workers), str(server_Bps)]
      row = _run_in_process(case, arguments.iterations, bare=arguments.bare)
      cost_us = 1e6 * row['wall_s'] / row['iterations']
      first = first or cost_us
      network = 'unlimited' if server_Bps == _UNLIMITED else 'one server'
      print(
        f'{scheme:7} {workers:7} {network:10} {row["wall_s"]:6.1f} '
        f'{row["peak_MiB"]:4.0f} {cost_us:13.1f} {cost_us / first:11.2f} '
        f'{row["wall_s"] / row["heapq_s"]:17.1f}',
        flush=True,
      )


def _run_in_process(
  case: list[str], iterations: int, *, bare: bool
) -> dict[str, float]:
  """Returns the measurements of one row, from a new process."""
  command = [sys.executable, '-m', 'bench.scale', f'--iterations={iterations}']
  done = subprocess.run(
    [*command, *(['--bare'] if bare else []), '--one', *case],
    check=True,
    stdout=subprocess.PIPE,
    text=True,
  )
  return json.loads(done.stdout.splitlines()[-1])


def _run(
  scheme: str, workers: int, server_Bps: float, iterations: int, *, bare: bool
) -> None:
  """Executes the run of one row and prints its measurements as JSON."""
  slowdown = [1 + 2 * worker / (workers - 1) for worker in range(workers)]
  config = timing.config(
    timing.fields(workers=workers, iterations=10, size_bytes=1_000_000),
    timing.links(_UNLIMITED, server_Bps),
    {
      'sync.name': scheme,
      'epochs': iterations / 10,
      'eval_every': iterations / 10,
      'cluster.speed.slowdown': tuple(slowdown),
      'checkpoint.every_s': 60.0,
    },
  )
  if bare:
    config.outputs.timeline = config.outputs.events = False
    config.outputs.board = False
  with scratch.execute(config) as run:
    summary = run.summary
  row = {name: summary[name] for name in ('wall_s', 'iterations')}
  row['heapq_s'] = _heapq_s(_EVENTS * summary['iterations'], slowdown)
  print(json.dumps(row | {'peak_MiB': _peak_MiB()}))


def _heapq_s(events: int, slowdown: list[float]) -> float:
  """Returns the seconds of a bare loop in which each event adds another."""
  queue = [(each, 0, worker, 0) for worker, each in enumerate(slowdown)]
  heapq.heapify(queue)
  start = time.perf_counter()
  for _ in range(events):
    at, kind, worker, number = heapq.heappop(queue)
    heapq.heappush(queue, (at + slowdown[worker], kind, worker, number))
  return time.perf_counter() - start


def _peak_MiB() -> float:
  # Unlike ru_maxrss, VmHWM excludes the memory of the parent process.
  status = pathlib.Path('/proc/self/status').read_text()
  (peak_KiB,) = re.findall(r'VmHWM:\s+(\d+) kB', status)
  return int(peak_KiB) / 1024


if __name__ == '__main__':
  main()
