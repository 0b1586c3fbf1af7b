"""Measures the virtual cluster in timing-only runs of many workers.

  python -m bench.scale [--workers=1024] [--iterations=1000] [--bare]

Each row is a run of its own process: wall time, peak memory, microseconds per
iteration, their ratio to the first row of its scheme, and that of an event to
one of a bare loop over `heapq`, with as many events and workers.  An iteration
has four: a pull arrives, a gradient is ready, its push arrives, the scheme
decides.  Links are unlimited, or all transfers share the links of one server.
With --bare timeline, events and TensorBoard's are left out.
"""

import argparse
import heapq
import json
import pathlib
import re
import subprocess
import sys
import time

from configs import default
from sweeps import scratch

_SCHEMES = ('elastic', 'ssp')
_UNLIMITED = float('inf')
_EVENTS = 4  # Of an iteration.


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
      shown = [scheme, str(workers), str(server_Bps)]
      row = _in_process(shown, arguments.iterations, bare=arguments.bare)
      cost_us = 1e6 * row['wall_s'] / row['iterations']
      first = first or cost_us
      network = 'unlimited' if server_Bps == _UNLIMITED else 'one server'
      print(
        f'{scheme:7} {workers:7} {network:10} {row["wall_s"]:6.1f} '
        f'{row["peak_MiB"]:4.0f} {cost_us:13.1f} {cost_us / first:11.2f} '
        f'{row["wall_s"] / row["heapq_s"]:17.1f}',
        flush=True,
      )


def _in_process(
  shown: list[str], iterations: int, *, bare: bool
) -> dict[str, float]:
  command = [sys.executable, '-m', 'bench.scale', f'--iterations={iterations}']
  done = subprocess.run(
    [*command, *(['--bare'] if bare else []), '--one', *shown],
    check=True,
    stdout=subprocess.PIPE,
    text=True,
  )
  return json.loads(done.stdout.splitlines()[-1])


def _run(
  scheme: str, workers: int, server_Bps: float, iterations: int, *, bare: bool
) -> None:
  """Runs one row, and prints it as JSON."""
  config = default.get_config()
  config.sync.name = scheme
  if bare:
    config.outputs.timeline = config.outputs.events = False
    config.outputs.board = False
  config.model.name = 'none'
  config.model.none.size_bytes = 1_000_000
  batch = config.batching.worker_batch
  config.model.none.num_train = workers * batch * 10
  config.epochs = iterations / 10
  config.eval_every = config.epochs
  config.cluster.workers = workers
  slowdown = [1 + 2 * worker / (workers - 1) for worker in range(workers)]
  config.cluster.speed.slowdown = tuple(slowdown)
  network = config.cluster.network
  network.worker_up_Bps = network.worker_down_Bps = (_UNLIMITED,)
  network.server_up_Bps = network.server_down_Bps = (server_Bps,)
  with scratch.trained(config) as run:
    summary = run.summary
  row = {name: summary[name] for name in ('wall_s', 'iterations')}
  row['heapq_s'] = _heapq_s(_EVENTS * summary['iterations'], slowdown)
  print(json.dumps(row | {'peak_MiB': _peak_MiB()}))


def _heapq_s(events: int, slowdown: list[float]) -> float:
  """Returns how long a bare loop takes in which each event causes another."""
  queue = [(each, 0, worker, 0) for worker, each in enumerate(slowdown)]
  heapq.heapify(queue)
  start = time.perf_counter()
  for _ in range(events):
    at, kind, worker, life = heapq.heappop(queue)
    heapq.heappush(queue, (at + slowdown[worker], kind, worker, life))
  return time.perf_counter() - start


def _peak_MiB() -> float:
  # Unlike ru_maxrss, this leaves out the process that started this one.
  status = pathlib.Path('/proc/self/status').read_text()
  (peak_KiB,) = re.findall(r'VmHWM:\s+(\d+) kB', status)
  return int(peak_KiB) / 1024


if __name__ == '__main__':
  main()
