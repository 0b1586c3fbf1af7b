"""Measures copies between an accelerator and the host in one process.

  python -m bench.gpu.copying [--mib=64] [--seconds=1]

The process writes a line when it is ready and waits for a line, so that several
processes start together.  It then writes a line of JSON with bytes per second:

  whole      one large copy to the host
  buckets    copies of 1 MiB to the host, all started before the first wait
  pageable   the same without pinned memory
  to_device  one large copy to the device

and whether the first, second and last use pinned memory (`pinned`), as training
does where the device allows it: see learning/device_copies.py.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from learning.device_copies import (
  DeviceCopies,
  PageableCopies,
  PinnedCopies,
  find_copies,
)

_BUCKET = 2**18  # Float32 numbers, 1 MiB.


def main(argv: list[str]) -> None:
  """Measures the copies and prints their rates."""
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  mib, seconds = flags.FLAGS.mib, flags.FLAGS.seconds

  @jax.jit
  def whole(start: jax.Array) -> list[jax.Array]:
    return [start + jnp.arange(mib * _BUCKET, dtype=jnp.float32)]

  @jax.jit
  def buckets(start: jax.Array) -> list[jax.Array]:
    numbers = start + jnp.arange(_BUCKET, dtype=jnp.float32)
    return [numbers + k for k in range(mib)]

  host = np.zeros(mib * _BUCKET, np.float32)
  fastest = find_copies()
  calls = {
    'whole': lambda: _to_host_s(fastest, whole),
    'buckets': lambda: _to_host_s(fastest, buckets),
    'pageable': lambda: _to_host_s(PageableCopies(), buckets),
    'to_device': lambda: _to_device_s(fastest, host),
  }
  for call in calls.values():
    call()  # Compiles.
  print('ready', flush=True)
  sys.stdin.readline()
  took: dict[str, list[float]] = {name: [] for name in calls}
  deadline = time.monotonic() + seconds
  while time.monotonic() < deadline or not took['to_device']:
    for name, call in calls.items():  # Alternate, because load changes.
      took[name].append(call())
  rates = {
    name: host.nbytes / statistics.median(times) for name, times in took.items()
  }
  is_pinned = isinstance(fastest, PinnedCopies)
  print(json.dumps({**rates, 'pinned': is_pinned}), flush=True)


def _to_host_s(
  copies: DeviceCopies, make: Callable[[jax.Array], Sequence[jax.Array]]
) -> float:
  """Returns the seconds in which new arrays come into a buffer of the host."""
  arrays = jax.block_until_ready(make(jnp.float32(0)))
  start = time.perf_counter()
  for copy in copies.start_to_host(arrays):
    np.array(copies.wait_for_host(copy))
  return time.perf_counter() - start


def _to_device_s(copies: DeviceCopies, host: np.ndarray) -> float:
  """Returns the seconds of a copy to the device."""
  start = time.perf_counter()
  copies.wait_for_device(copies.start_to_device([host]))
  return time.perf_counter() - start


def _parse(argv: list[str]) -> list[str]:
  flags.DEFINE_integer('mib', 64, 'Size of all copied arrays, MiB.')
  flags.DEFINE_float('seconds', 1.0, 'Seconds of measuring.')
  return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
