"""Measures the error of messages of few bits: python -m bench.bits.

  python -m bench.bits [--numbers=65536] [--chunk=2048] [--file=FILE.npy]

A row per number of bits, of the codec `wire.quantised` with error feedback: the
share of a gradient's squared norm that its first message misses.  Gradients are
random numbers of three distributions, and --file, float32 [n].
"""

import argparse
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from bench import clusters
from wire import quantised

_BITS = (8, 4, 2)


def main(argv: list[str] | None = None) -> None:
  """Prints the table."""
  parser = argparse.ArgumentParser(
    prog='bench.bits', description=__doc__.splitlines()[0]
  )
  parser.add_argument('--numbers', type=int, default=65536)
  parser.add_argument('--chunk', type=int, default=2048)
  parser.add_argument('--file', help='a gradient, as numpy.save writes it')
  flags = parser.parse_args(argv)
  gradients = draw(flags.numbers)
  if flags.file:
    gradients |= {flags.file: np.load(flags.file).ravel().astype(np.float32)}
  rows = [('bits', *gradients)]
  for bits in _BITS:
    shares = [missed(each, bits, flags.chunk) for each in gradients.values()]
    rows.append((f'{bits}', *(f'{share:.4f}' for share in shares)))
  print(clusters.table(*rows))


def draw(count: int) -> Mapping[str, np.ndarray]:
  """Returns random gradients, float32 [count] each, by distribution."""
  rng = np.random.default_rng(0)
  return {
    'normal': rng.standard_normal(count).astype(np.float32),
    'Laplace': rng.laplace(size=count).astype(np.float32),
    'Student t, 3 degrees': rng.standard_t(3, count).astype(np.float32),
  }


def missed(gradient: np.ndarray, bits: int, chunk: int) -> float:
  """Returns the share of the squared norm that a first message misses.

  Args:
    gradient: Float32 [n], not all 0.
    bits: Bits of an integer.
    chunk: Numbers that share a scale.
  """
  codec = quantised.make(
    bits=bits, chunk=chunk, error_feedback=True, seed=0
  ).push
  message, _ = codec.encode(codec.init(gradient.size, 0), jnp.asarray(gradient))
  sent = np.asarray(codec.decode(message, gradient.size).vector)
  error = np.square(gradient - sent).sum() / np.square(gradient).sum()
  return float(error)


if __name__ == '__main__':
  main()
