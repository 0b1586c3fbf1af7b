"""Measures sums of an executor in memory, without a network.

Two workers of a ring, one after the other, in this thread: each packs the half
of the pool that it sends, if that travels rounded; adds the other half to its
own, and rounds the sum; and takes over the sums of the other.  Pools are
written before, and are not in a core's own cache, as after a backward pass.
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
from cluster.allreduce.executor.frames import DTYPES, UP
from cluster.allreduce.executor.membership import Membership
from cluster.network import memory
from topology.baselines import schemes
from topology.clusters import shapes
from topology.packing.pack import pack

_KNOWN = {dtype.name: dtype for dtype in DTYPES}
_CACHE = 64 * 2**20  # Bytes that drive others out of a core's cache.


def show(dtype: str, size: int, chunk_bytes: int, rounds: int) -> None:
  """Prints what the executors of two workers do, in ms of one of them.

  Args:
    dtype: Dtype of messages.
    size: Bytes of the pool.
    chunk_bytes: Bytes of a message.
    rounds: Number of measurements, of which the median is taken.
  """
  rows = [('ms per worker', 'packing', 'adding', 'taking over')]
  for each in dict.fromkeys(('float32', dtype)):
    took = [_packed(each, size, chunk_bytes) for _ in range(rounds + 1)][1:]
    cells = map(statistics.median, zip(*took, strict=True))
    rows.append((each, *(f'{1e3 * cell:.1f}' for cell in cells)))
  print(f'\n{size / 1e6:g} MB in memory\n\n{clusters.table(*rows)}\n')


@functools.cache
def _two(dtype: str, size: int, chunk_bytes: int) -> list[tuple[Any, ...]]:
  """Returns program, pool and halves of two workers on a ring."""
  star = shapes.star([1, 1])
  forest = schemes.naive_ring(star, pack(star))
  names = {worker: i for i, worker in enumerate(star.workers)}
  group = Membership(1, {0: '', 1: ''}, forest, names)
  count = size // 4
  made = []
  for index in names.values():
    roles = program.find_roles(group, index, chunk_bytes=chunk_bytes)
    dealt = program.make_program(roles, count, [(0, count)], [_KNOWN[dtype]])
    pool = memory.aligned(4 * count).view(np.float32)
    halves = memory.aligned(2 * count).view(np.uint16)
    made.append((dealt, pool, halves))
  return made


def _packed(dtype: str, size: int, chunk_bytes: int) -> list[float]:
  """Returns seconds of packing, adding and taking over, of each of two."""
  made, took = _two(dtype, size, chunk_bytes), [0.0, 0.0, 0.0]
  rng = np.random.default_rng(0)
  for _, pool, _ in made:
    pool[:] = rng.random(pool.size, np.float32)
  both = [
    Exchange(
      dealt, pool, ReceiveBuffers(len(dealt.starts) * chunk_bytes), halves
    )
    for dealt, pool, halves in made
  ]
  np.zeros(_CACHE, np.uint8).fill(1)

  def timed(kind: int, function: Callable[..., None], *args: Any) -> None:
    start_s = time.perf_counter()
    function(*args)
    took[kind] += time.perf_counter() - start_s

  for exchange in both:
    timed(0, exchange.ready, 0)
  while not all(exchange.done for exchange in both):
    for index, (mine, its) in enumerate((both, both[::-1])):
      while (sent := mine.take(1 - index)) is not None:
        chunk, nbytes, code = sent.chunk, len(sent.body), sent.dtype
        body = its.allocate(index, sent.kind, chunk, nbytes, code)
        body[:] = sent.body
        kind = 1 if sent.kind == UP else 2
        timed(kind, its.arrived, index, sent.kind, chunk, body)
        mine.sent(1 - index)
  return [each / 2 for each in took]
