"""What the virtual runtime costs beside a bare jitted loop.

  python -m bench.runtime [--pairs=5] [--epochs=2]

Both do the gradients and updates of BSP on VGG16 and digits and evaluate once
at the end; the bare loop has no scheme, no clock, no network and no files.
They run in turns, and the ratio of each pair is printed: the tax.
"""

import argparse
import statistics
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import train
from configs import vgg16_bsp


def main(argv: list[str] | None = None) -> float:
  """Prints the ratio of every pair and returns the median."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--pairs', type=int, default=5)
  parser.add_argument('--epochs', type=float, default=2.0)
  arguments = parser.parse_args(argv)

  config = vgg16_bsp.get_config()
  config.epochs = config.eval_every = arguments.epochs
  bare = _BareLoop(config)
  bare.run()  # Compiles.
  ratios = []
  print('virtual BSP over a bare jitted loop, VGG16 (1/8) on digits')
  for pair in range(arguments.pairs):
    run = train.build(config, workdir=f'{tempfile.mkdtemp()}/run')
    summary = run()
    virtual_s = summary['wall_s']
    bare_s, params = bare.run()
    ratios.append(virtual_s / bare_s)
    print(
      f'  pair {pair}: {virtual_s:.2f} s / {bare_s:.2f} s = {ratios[-1]:.3f}, '
      f'compilations after warm-up {summary["compilations"]}, largest '
      f'difference of a parameter {_difference(run.cluster.server.params, params):.1e}'
    )
  median = statistics.median(ratios)
  print(f'  median {median:.3f} (aim: at most 1.05)')
  return median


class _BareLoop:
  """Synchronous SGD over as many batches as BSP would use, in plain JAX."""

  def __init__(self, config):
    run = train.build(config, workdir=tempfile.mkdtemp())
    cluster = run.cluster
    self._config, self._train = config, cluster.train
    self._params, task = cluster.server.params, cluster.gradient.task
    self._evaluate = run.journal.evaluate
    sgd = config.optimizer.sgd
    tx = optax.sgd(config.optimizer.learning_rate, momentum=sgd.momentum)
    self._state = tx.init(self._params)

    def loss(params, inputs, targets):
      return jnp.sum(task.loss(params, inputs, targets, jax.random.key(0)))

    def apply(params, state, gradient, examples):
      mean = jax.tree.map(lambda g: g / examples, gradient)
      updates, state = tx.update(mean, state, params)
      scale = examples / config.batching.worker_batch
      updates = jax.tree.map(lambda u: u * scale, updates)
      return optax.apply_updates(params, updates), state

    self._gradient = jax.jit(jax.value_and_grad(loss))
    self._add = jax.jit(lambda a, b: jax.tree.map(jnp.add, a, b))
    self._apply = jax.jit(apply)

  def run(self):
    """Returns the seconds that it took, and the parameters."""
    batch, workers = self._config.batching.worker_batch, 4
    inputs, targets = self._train
    params, state = self._params, self._state
    start = time.perf_counter()
    order = self._order(len(targets))
    for first in range(0, len(order), batch * workers):
      total = None
      for worker in range(workers):
        begin = first + worker * batch
        indices = order[begin : begin + batch]
        _, gradient = self._gradient(params, inputs[indices], targets[indices])
        total = gradient if total is None else self._add(total, gradient)
      params, state = self._apply(
        params, state, total, np.float32(batch * workers)
      )
    self._evaluate(params)
    return time.perf_counter() - start, params

  def _order(self, examples):
    """As many shuffled examples as whole supersteps use."""
    step = self._config.batching.worker_batch * 4
    steps = int(np.ceil(round(self._config.epochs * examples) / step))
    rng = np.random.default_rng(0)
    epochs = [
      rng.permutation(examples) for _ in range(-(-steps * step // examples))
    ]
    return np.concatenate(epochs)[: steps * step]


def _difference(one, other) -> float:
  pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
  return max(float(jnp.abs(a - b).max()) for a, b in pairs)


if __name__ == '__main__':
  main()
