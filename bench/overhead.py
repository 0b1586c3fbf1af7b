"""Measures what the virtual runtime costs beside a model, and without one.

  python -m bench.overhead [--parts=runtime,scale]
  python -m bench.overhead --parts=runtime --pairs=4
  python -m bench.overhead --parts=scale --bare

runtime: virtual BSP over a bare jitted loop.  Both compute the gradients and
updates of BSP on VGG16 and evaluate once at the end; the bare loop has no
scheme, no clock, no network and no files.  They alternate, and the ratio of the
times of each pair is printed.

scale: timing-only runs of many workers.  Each row is a run in a new process:
wall time, peak memory, microseconds per iteration, their ratio to the first row
of the scheme, and the ratio of the time per event to that of a bare loop over
`heapq` with as many events and workers.  An iteration has four events: a pull
arrives, a gradient is ready, its push arrives, the scheme decides.  Links are
unlimited, or all transfers share the links of one server.
"""

import heapq
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from ml_collections import ConfigDict

import train
from bench import flag_lists
from configs import timing, vgg16_bsp
from data.stream import Stream
from sweeps import scratch

_PARTS = ('runtime', 'scale')
_SCHEMES = ('elastic', 'ssp')
_UNLIMITED = float('inf')
_EVENTS = 4  # Events of an iteration.


def main(argv: list[str]) -> None:
  """Prints the chosen parts."""
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  values = flags.FLAGS
  if values.one:
    scheme, workers, server_Bps = values.one
    limits = int(workers), float(server_Bps)
    _run(scheme, *limits, values.iterations, bare=values.bare)
    return
  if 'runtime' in values.parts:
    print_runtime(
      pairs=values.pairs,
      epochs=values.epochs,
      data=values.data,
      width=values.width,
      batch=values.batch,
    )
  if 'scale' in values.parts:
    print_scale(values.workers, values.iterations, bare=values.bare)


def print_runtime(
  *,
  pairs: int = 5,
  epochs: float = 2.0,
  data: str = 'digits',
  width: float = 0.125,
  batch: int = 16,
) -> None:
  """Prints the ratio of every pair of runs, and the median.

  Args:
    data: Data set, as a variant of configs/vgg16_bsp.py.
    width: Width of VGG16, 1 as published.
    batch: Examples of a worker's iteration.
  """
  config = vgg16_bsp.get_config(data)
  config.model.vgg.width = width
  config.batching.worker_batch = batch
  config.checkpoint.every_s = float('inf')
  config.epochs = config.eval_every = epochs
  bare = _BareLoop(config)
  bare.run()  # Compiles.
  ratios = []
  print(
    f'virtual BSP over a bare jitted loop, VGG16 of width {width} on '
    f'{data}, batches of {batch}'
  )
  for pair in range(pairs):
    run = train.build(config, workdir=f'{tempfile.mkdtemp()}/run')
    summary = run()
    virtual_s = summary['wall_s']
    bare_s, params = bare.run()
    ratios.append(virtual_s / bare_s)
    difference = _difference(
      run.runtime.coordinator.store.learner.params, params
    )
    print(
      f'  pair {pair}: {virtual_s:.2f} s / {bare_s:.2f} s = {ratios[-1]:.3f}, '
      f'{summary["compilations"]} compilations after warm-up, parameters '
      f'differ by at most {difference:.1e}'
    )
  median = statistics.median(ratios)
  print(f'  median {median:.3f} (aim: at most 1.05)')


def print_scale(
  workers: int = 1024, iterations: int = 1000, *, bare: bool = False
) -> None:
  """Prints one row per scheme, number of workers and network.

  Args:
    workers: Workers of the larger runs; the smaller ones have a sixteenth.
    bare: Whether to write neither the timeline, nor events, nor TensorBoard's
      files.
  """
  print(
    'scheme  workers network    wall s  MiB  us/iteration  over first'
    '  event over heapq'
  )
  for scheme in _SCHEMES:
    first = None
    for count, server_Bps in (
      (workers // 16, _UNLIMITED),
      (workers, _UNLIMITED),
      (workers, 1.25e9),
    ):
      case = [scheme, str(count), str(server_Bps)]
      row = _run_in_process(case, iterations, bare=bare)
      cost_us = 1e6 * row['wall_s'] / row['iterations']
      first = first or cost_us
      network = 'unlimited' if server_Bps == _UNLIMITED else 'one server'
      print(
        f'{scheme:7} {count:7} {network:10} {row["wall_s"]:6.1f} '
        f'{row["peak_MiB"]:4.0f} {cost_us:13.1f} {cost_us / first:11.2f} '
        f'{row["wall_s"] / row["heapq_s"]:17.1f}',
        flush=True,
      )


class _BareLoop:
  """Synchronous SGD in plain JAX, on the same batches as the BSP run."""

  def __init__(self, config: ConfigDict):
    run = train.build(config, workdir=tempfile.mkdtemp())
    runtime = run.runtime
    self._params, self._stats = (
      runtime.coordinator.store.learner.params,
      runtime.coordinator.store.learner.stats,
    )
    task = runtime.pushes.task
    self._train = runtime.pushes.train
    self._evaluate = run.milestones.evaluate
    self._steps = _steps(config, len(self._train.targets))
    self._examples = config.cluster.workers * config.batching.worker_batch
    sgd = config.optimizer.sgd
    tx = optax.sgd(
      config.optimizer.learning_rate, momentum=sgd.momentum or None
    )
    self._state = tx.init(self._params)

    def loss(params: Any, inputs: np.ndarray, targets: np.ndarray) -> jax.Array:
      key = jax.random.key(0)
      return jnp.sum(task.loss(params, inputs, targets, key)[0])

    def apply(
      params: Any, state: Any, gradient: Any, examples: float
    ) -> tuple[Any, Any]:
      mean = jax.tree.map(lambda g: g / examples, gradient)
      updates, state = tx.update(mean, state, params)
      scale = examples / config.batching.worker_batch
      updates = jax.tree.map(lambda u: u * scale, updates)
      return optax.apply_updates(params, updates), state

    self._gradient = jax.jit(jax.value_and_grad(loss))
    self._add = jax.jit(lambda a, b: jax.tree.map(jnp.add, a, b))
    self._apply = jax.jit(apply)

  def run(self):
    """Returns the seconds of the loop, and the final parameters."""
    inputs, targets = self._train
    params, state = self._params, self._state
    examples = np.float32(self._examples)
    start = time.perf_counter()
    for step in self._steps:
      total = None
      for indices in step:
        _, gradient = self._gradient(params, inputs[indices], targets[indices])
        total = gradient if total is None else self._add(total, gradient)
      params, state = self._apply(params, state, total, examples)
    self._evaluate(params, self._stats)
    return time.perf_counter() - start, params


def _steps(config: ConfigDict, num_examples: int) -> list[list[np.ndarray]]:
  """Returns the example indices of each worker in each superstep of BSP."""
  workers, batch = config.cluster.workers, config.batching.worker_batch
  stream = Stream(
    num_examples=num_examples, seed=config.seed, ahead=config.data.ahead
  )
  target = round(config.epochs * num_examples)
  steps = []
  for _ in range(-(-target // (workers * batch))):
    ranges = [stream.take(worker, batch) for worker in range(workers)]
    steps.append([stream.indices(each) for each in ranges])
    for worker in range(workers):
      stream.done(worker)
  return steps


def _difference(one: Any, other: Any) -> float:
  """Returns the largest absolute difference of two pytrees."""
  pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
  return max(float(jnp.abs(a - b).max()) for a, b in pairs)


def _run_in_process(
  case: list[str], iterations: int, *, bare: bool
) -> dict[str, float]:
  """Returns the measurements of one row, from a new process."""
  command = [
    sys.executable,
    '-m',
    'bench.overhead',
    f'--iterations={iterations}',
  ]
  done = subprocess.run(
    [*command, *(['--bare'] if bare else []), f'--one={",".join(case)}'],
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


def _parse(argv: list[str]) -> list[str]:
  flag_lists.define_choices('parts', _PARTS, 'Parts to measure.')
  flags.DEFINE_integer('pairs', 5, 'Of runtime: pairs of runs.')
  flags.DEFINE_float('epochs', 2.0, 'Of runtime: epochs of a run.')
  flags.DEFINE_string(
    'data', 'digits', 'Of runtime: data set of configs/vgg16_bsp.py.'
  )
  flags.DEFINE_float('width', 0.125, 'Of runtime: width of VGG16.')
  flags.DEFINE_integer('batch', 16, 'Of runtime: examples of a worker.')
  flags.DEFINE_integer('workers', 1024, 'Of scale: workers of most runs.')
  flags.DEFINE_integer('iterations', 1000, 'Of scale: of each worker.')
  flags.DEFINE_bool('bare', False, 'Of scale: write no files of events.')
  flags.DEFINE_list('one', [], 'For itself: the run of one row.')
  return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
