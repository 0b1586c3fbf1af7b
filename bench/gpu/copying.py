"""Measures copies between an accelerator and the host in one process.

  python -m bench.gpu.copying [--mib=64] [--seconds=1]

The process writes a line when it is ready and waits for a line, so that several
processes start together.  It then writes a line of JSON: bytes per second of
one large copy to the host (`whole`), of buckets of 1 MiB whose copies all start
before the first one is awaited (`buckets`), and to the device (`to_device`).
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

_BUCKET = 2**18  # Float32 numbers, 1 MiB.


def main(argv: list[str] | None = None) -> None:
  """Measures the copies and prints their rates."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--mib', type=int, default=64)
  parser.add_argument('--seconds', type=float, default=1.0)
  flags = parser.parse_args(argv)

  @jax.jit
  def whole(start: jax.Array) -> list[jax.Array]:
    return [start + jnp.arange(flags.mib * _BUCKET, dtype=jnp.float32)]

  @jax.jit
  def buckets(start: jax.Array) -> list[jax.Array]:
    numbers = start + jnp.arange(_BUCKET, dtype=jnp.float32)
    return [numbers + k for k in range(flags.mib)]

  host = np.zeros(flags.mib * _BUCKET, np.float32)
  calls = {
    'whole': lambda: _to_host_s(whole),
    'buckets': lambda: _to_host_s(buckets),
    'to_device': lambda: _to_device_s(host),
  }
  for call in calls.values():
    call()  # Compiles.
  print('ready', flush=True)
  sys.stdin.readline()
  took: dict[str, list[float]] = {name: [] for name in calls}
  deadline = time.monotonic() + flags.seconds
  while time.monotonic() < deadline or not took['to_device']:
    for name, call in calls.items():  # Alternate, because load changes.
      took[name].append(call())
  rates = {
    name: host.nbytes / statistics.median(times) for name, times in took.items()
  }
  print(json.dumps(rates), flush=True)


def _to_host_s(make: Callable[[jax.Array], Sequence[jax.Array]]) -> float:
  """Returns the seconds of a copy of new arrays to the host."""
  arrays = jax.block_until_ready(make(jnp.float32(0)))
  start = time.perf_counter()
  for array in arrays:
    array.copy_to_host_async()
  for array in arrays:
    np.array(array)  # On CPUs np.asarray would not copy.
  return time.perf_counter() - start


def _to_device_s(host: np.ndarray) -> float:
  start = time.perf_counter()
  jax.block_until_ready(jax.device_put(host, may_alias=False))
  return time.perf_counter() - start


if __name__ == '__main__':
  main()
