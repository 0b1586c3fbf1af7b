"""Measures the drift of replicas on unlike processors and the cost of repair.

  python -m bench.drift [--numbers=4000000] [--updates=1000] [--workers=4]

Two processes apply the same gradient sums, one of them without fused
multiply-add (XLA_FLAGS=--xla_cpu_max_isa=AVX).  The first table has the
relative difference of their states (`learning.drift`) after some updates.

The second table has the cost of a check that finds drift: digest, transfer over
loopback and comparison.  It also has the cost of an update of all parameters,
which every replica performs, and of one worker's shard, as if the roots of the
trees updated their chunks and sent the changes of parameters.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cluster.membership import handover
from cluster.network.port import Port
from cluster.network.streams import Security
from learning import drift, optimizer
from learning.digest import digest
from learning.layout import Layout
from learning.learner import TaskLearner
from outputs import serialization

_OLDER = {'XLA_FLAGS': '--xla_cpu_max_isa=AVX'}
_AFTER = (10, 100, 1000)  # Updates before a comparison.
_ROUNDS = 7
_BATCH, _RATE = 32, 0.05
_SGD = {'momentum': 0.9, 'nesterov': False, 'weight_decay': 1e-4}
_ADAMW = {'b1': 0.9, 'b2': 0.999, 'eps': 1e-8, 'weight_decay': 1e-4}


def main(argv: list[str] | None = None) -> None:
  """Measures and prints both tables."""
  parser = argparse.ArgumentParser(
    prog='bench.drift', description=__doc__.splitlines()[0]
  )
  parser.add_argument('--numbers', type=int, default=4_000_000)
  parser.add_argument('--updates', type=int, default=1000)
  parser.add_argument('--workers', type=int, default=4)
  parser.add_argument('--into', help='for itself')
  flags = parser.parse_args(argv)
  if flags.into:
    _write_states(pathlib.Path(flags.into), flags.updates)
    return
  _print_drift(flags.updates)
  _print_costs(flags.numbers, flags.workers)


def _optimizers() -> dict[str, optax.GradientTransformation]:
  momentum = optimizer.sgd(**_SGD)
  return {
    'momentum': momentum,
    'clipping, momentum': optax.chain(optax.clip_by_global_norm(1.0), momentum),
    'AdamW': optimizer.adamw(**_ADAMW),
  }


def _learner(
  numbers: int, tx: optax.GradientTransformation
) -> tuple[TaskLearner, Layout]:
  """Returns a learner of a matrix and a vector, and its gradient buffer."""
  rng, width = np.random.default_rng(0), max(numbers // 1000, 1)
  shapes = {'kernel': (1000, width), 'bias': (width,)}
  params = {
    name: jnp.asarray(rng.normal(size=shape, scale=0.05).astype(np.float32))
    for name, shape in shapes.items()
  }
  learner = TaskLearner(
    params=params,
    stats=(),
    tx=tx,
    schedule=lambda examples, updates: _RATE,
    reduction='sum',
    num_workers=4,
    worker_batch=_BATCH,
  )
  layout = Layout(params, (), bucket_bytes=0)
  learner.warm_up_buffer(layout)
  return learner, layout


def _apply(learner: TaskLearner, layout: Layout, vector: np.ndarray) -> None:
  learner.apply_buffer(layout, vector, 4 * _BATCH, pushes=4)


def _write_states(folder: pathlib.Path, updates: int) -> None:
  """Applies fixed sums with each optimizer; writes the states to compare."""
  for name, tx in _optimizers().items():
    learner, layout = _learner(300_000, tx)
    rng = np.random.default_rng(1)
    for count in range(1, updates + 1):
      vector = rng.standard_normal(layout.size, np.float32)
      _apply(learner, layout, vector)
      if count in _AFTER or count == updates:
        data, arrays = serialization.dump(jax.device_get(learner.state()))
        plain = np.frombuffer(data, np.uint8)
        np.savez(folder / f'{name}-{count}.npz', *arrays, data=plain)


def _print_drift(updates: int) -> None:
  counts = sorted({count for count in (*_AFTER, updates) if count <= updates})
  with (
    tempfile.TemporaryDirectory() as first,
    tempfile.TemporaryDirectory() as second,
  ):
    for folder, variables in ((first, {}), (second, _OLDER)):
      argv = [sys.executable, '-m', 'bench.drift', f'--into={folder}']
      argv += [f'--updates={updates}']
      subprocess.run(argv, env=os.environ | variables, check=True)
    print('relative difference after updates', *counts, sep='\t')
    for name in _optimizers():
      differences = [
        drift.relative_difference(
          *(
            _read(pathlib.Path(f, f'{name}-{count}.npz'))
            for f in (second, first)
          )
        )
        for count in counts
      ]
      print(name, *(f'{each:.1e}' for each in differences), sep='\t')


def _read(path: pathlib.Path) -> Any:
  with np.load(path, allow_pickle=False) as content:
    arrays = [content[f'arr_{k}'] for k in range(len(content.files) - 1)]
    return serialization.load(content['data'].data, arrays)


def _print_costs(numbers: int, workers: int) -> None:
  learner, layout = _learner(numbers, optimizer.sgd(**_SGD))
  shard, shard_layout = _learner(numbers // workers, optimizer.sgd(**_SGD))
  vector = np.ones(layout.size, np.float32)
  part = np.ones(shard_layout.size, np.float32)
  # Copies, because updates reuse the memory of the learner's state.
  state, other = (
    handover.copy_state({'learner': learner.state(), 'replicated': ()})
    for _ in range(2)
  )
  state_digest = digest(state)
  source = handover.Handover(
    Port('127.0.0.1', 0, Security()), lambda _: (state, state_digest), 5.0
  )
  calls = {
    'update of all numbers': lambda: _apply(learner, layout, vector),
    f'update of one of {workers} shares': lambda: _apply(
      shard, shard_layout, part
    ),
    'digest': lambda: digest(state),
    'transfer of the state': lambda: handover.fetch(
      [(0, source.address)], 0, Security(), 30.0
    ),
    'comparison': lambda: drift.relative_difference(
      other['learner'], state['learner']
    ),
  }
  size = sum(
    leaf.nbytes for leaf in jax.tree.leaves(other) if hasattr(leaf, 'nbytes')
  )
  print(f'\nmedian of {_ROUNDS}, state of {size / 1e6:.0f} MB', 'ms', sep='\t')
  times: dict[str, list[float]] = {name: [] for name in calls}
  for _ in range(_ROUNDS):  # Interleaved, so that load slows all calls.
    for name, call in calls.items():
      times[name].append(_took_s(call))
  for name, seconds in times.items():
    print(name, f'{1e3 * statistics.median(seconds):.1f}', sep='\t')
  source.close()


def _took_s(call: Callable[[], Any]) -> float:
  start = time.perf_counter()
  call()
  return time.perf_counter() - start


if __name__ == '__main__':
  main()
