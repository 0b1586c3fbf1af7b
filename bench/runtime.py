"""Measures the virtual runtime relative to a bare jitted loop.

  python -m bench.runtime [--pairs=5] [--epochs=2] [--data=digits]
    [--width=0.125] [--batch=16]

Both compute the gradients and updates of BSP on VGG16 and evaluate once at the
end; the bare loop has no scheme, no clock, no network and no files.  They
alternate, and the ratio of the times of each pair is printed.
"""

import argparse
import statistics
import tempfile
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

import train
from configs import vgg16_bsp
from data.stream import Stream


def main(argv: list[str] | None = None) -> float:
  """Prints the ratio of every pair and returns the median."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--pairs', type=int, default=5)
  parser.add_argument('--epochs', type=float, default=2.0)
  parser.add_argument('--data', default='digits')
  parser.add_argument('--width', type=float, default=0.125)
  parser.add_argument('--batch', type=int, default=16)
  arguments = parser.parse_args(argv)

  config = vgg16_bsp.get_config(arguments.data)
  config.model.vgg.width = arguments.width
  config.batching.worker_batch = arguments.batch
  config.checkpoint.every_s = float('inf')
  config.epochs = config.eval_every = arguments.epochs
  bare = _BareLoop(config)
  bare.run()  # Compiles.
  ratios = []
  print(
    f'virtual BSP over a bare jitted loop, VGG16 of width {arguments.width} on '
    f'{arguments.data}, batches of {arguments.batch}'
  )
  for pair in range(arguments.pairs):
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
  return median


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


if __name__ == '__main__':
  main()
