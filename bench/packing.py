"""Measures the sums of an executor in memory, without a network.

Two workers of a ring run one after the other in this thread.  Each worker
encodes the half of the buffer that it sends, if messages are in half precision;
adds the received half to its own and rounds the sum; and stores the sums of the
other worker.  Buffers are written before and then evicted from the core's
cache, as after a backward pass.
"""

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench import clusters
from cluster.allreduce.executor import program
from cluster.allreduce.executor.exchange import Exchange, ReceiveBuffers
from cluster.allreduce.executor.membership import Membership
from cluster.allreduce.executor.program import DTYPES
from cluster.network import memory
from cluster.network.frames import UP
from topology.baselines import schemes
from topology.clusters import shapes
from topology.packing.pack import pack

_DTYPES = {dtype.name: dtype for dtype in DTYPES}
_CACHE = 64 * 2**20  # Bytes that evict all others from a core's cache.


def print_table(dtype: str, size: int, chunk_bytes: int, rounds: int) -> None:
  """Prints the milliseconds per worker to encode, add and store, by dtype.

  Args:
    dtype: Dtype of messages.
    size: Bytes of the gradient buffer.
    chunk_bytes: Bytes of a message.
    rounds: Number of measurements, of which the median is taken.
  """
  rows = [('ms per worker', 'encoding', 'adding', 'storing')]
  for each in dict.fromkeys(('float32', dtype)):
    took = [_measure(each, size, chunk_bytes) for _ in range(rounds + 1)][1:]
    cells = map(statistics.median, zip(*took, strict=True))
    rows.append((each, *(f'{1e3 * cell:.1f}' for cell in cells)))
  print(f'\n{size / 1e6:g} MB in memory\n\n{clusters.table(*rows)}\n')


@functools.cache
def _two_workers(
  dtype: str, size: int, chunk_bytes: int
) -> list[tuple[Any, ...]]:
  """Returns program, buffer and half-precision workspace of two workers."""
  star = shapes.star([1, 1])
  forest = schemes.naive_ring(star, pack(star))
  names = {worker: i for i, worker in enumerate(star.workers)}
  membership = Membership(1, {0: '', 1: ''}, forest, names)
  count = size // 4
  workers = []
  for index in names.values():
    roles = program.find_roles(membership, index, chunk_bytes=chunk_bytes)
    worker_program = program.make_program(
      roles, count, [(0, count)], [_DTYPES[dtype]]
    )
    buffer = memory.aligned(4 * count).view(np.float32)
    halves = memory.aligned(2 * count).view(np.uint16)
    workers.append((worker_program, buffer, halves))
  return workers


def _measure(dtype: str, size: int, chunk_bytes: int) -> list[float]:
  """Returns the seconds of encoding, adding and storing, per worker."""
  workers, took = _two_workers(dtype, size, chunk_bytes), [0.0, 0.0, 0.0]
  rng = np.random.default_rng(0)
  for _, buffer, _ in workers:
    buffer[:] = rng.random(buffer.size, np.float32)
  exchanges = [
    Exchange(
      worker_program,
      buffer,
      ReceiveBuffers(len(worker_program.starts) * chunk_bytes),
      halves,
    )
    for worker_program, buffer, halves in workers
  ]
  np.zeros(_CACHE, np.uint8).fill(1)

  def measure(kind: int, function: Callable[..., None], *args: Any) -> None:
    start_s = time.perf_counter()
    function(*args)
    took[kind] += time.perf_counter() - start_s

  for exchange in exchanges:
    measure(0, exchange.ready, 0)
  while not all(exchange.done for exchange in exchanges):
    for index, (sender, receiver) in enumerate((exchanges, exchanges[::-1])):
      while (sent := sender.take(1 - index)) is not None:
        chunk, nbytes, code = sent.chunk, len(sent.body), sent.dtype
        body = receiver.allocate(index, sent.kind, chunk, nbytes, code)
        body[:] = sent.body
        kind = 1 if sent.kind == UP else 2
        measure(kind, receiver.arrived, index, sent.kind, chunk, body)
        sender.sent(1 - index)
  return [each / 2 for each in took]
