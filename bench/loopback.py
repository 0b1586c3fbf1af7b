"""Measures executors of processes on the loopback interface.

  python -m bench.loopback [--mb=100] [--rounds=5] [--chunk_kb=48,256,1024]
    [--lanes=1] [--steps=300]

rate: two workers sum a buffer of --mb over two equal shards.  GB/s each way is
what a worker sends per second of a round; per core, what it sends per second of
its processor time.  That is split into the kernel's, as the system counts it,
checksums and additions, as timed in one more round, and the rest: Python.
--lanes are the numbers of lanes to compare.

empty: four workers sum buffers of 1 and 16 numbers, from `Executor.begin` to
the end of the wait, over equal shards and a ring: medians and 95th percentiles
of --steps sums, one after the other.
"""

import contextlib
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

import numpy as np
from absl import app, flags

from analysis import printing
from bench import flag_lists
from cluster.allreduce.executor.executor import Executor, Membership
from cluster.network import frames
from cluster.network.handshake import Security
from cluster.network.port import Port
from topology.baselines import schemes
from topology.clusters import shapes
from topology.forests.trees import Forest
from topology.packing.pack import pack

_HOST = '127.0.0.1'
_TIMEOUT_S = 60.0
_PARTS = ('checksum', 'add')
_SIZES = (1, 16)


def main(argv: list[str]) -> None:
  """Prints both tables."""
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  values = flags.FLAGS
  rows = [('lanes', 'chunk KiB', 'round s', 'GB/s each way', 'per core')]
  rows[0] += ('CPU s/GB', 'kernel', 'checksum', 'add', 'Python')
  for count in values.lanes:
    for kib in values.chunk_kb:
      rows.append(_measure_rate(count, kib, values.mb, values.rounds))
  print(f'2 workers, {values.mb:g} MB\n\n{printing.markdown(rows)}', flush=True)
  rows = [('forest', 'lanes', 'numbers', 'median ms', '95 % ms')]
  for name in ('shards', 'ring'):
    for count in values.lanes:
      rows += _measure_empty(name, count, values.steps)
  print(f'\nempty supersteps of 4 workers\n\n{printing.markdown(rows)}')


def _measure_rate(
  lanes: int, chunk_kib: int, megabytes: float, rounds: int
) -> tuple[str, ...]:
  """Returns the row of two workers that sum a buffer."""
  size = round(megabytes * 1e6 / 4)
  with _workers(2, 'shards', lanes, chunk_kib * 1024) as request:
    request('sum', size=size)
    results = [request('sum', size=size) for _ in range(rounds)]
    profiles = request('profile', size=size)
  took_s = statistics.median(max(w['took_s'] for w in r) for r in results)
  parts = [worker for result in results for worker in result]
  sent, cpu_s = (sum(p[key] for p in parts) for key in ('sent', 'cpu_s'))
  kernel_s = sum(part['kernel_s'] for part in parts)
  shares = [kernel_s / cpu_s]
  shares += [rounds * sum(p[key] for p in profiles) / cpu_s for key in _PARTS]
  return (
    str(lanes),
    str(chunk_kib),
    f'{took_s:.3f}',
    f'{sent / len(parts) / took_s / 1e9:.2f}',
    f'{sent / cpu_s / 1e9:.2f}',
    f'{1e9 * cpu_s / sent:.3f}',
    *(f'{share:.0%}' for share in (*shares, 1 - sum(shares))),
  )


def _measure_empty(name: str, lanes: int, steps: int) -> list[tuple[str, ...]]:
  """Returns the rows of four workers that sum a few numbers."""
  rows = []
  with _workers(4, name, lanes, None) as request:
    for size in _SIZES:
      request('steps', size=size, count=steps // 3)
      times_s = np.max(request('steps', size=size, count=steps), axis=0)
      row = (1e3 * np.percentile(times_s, share) for share in (50, 95))
      rows.append((name, str(lanes), str(size), *(f'{ms:.2f}' for ms in row)))
  return rows


@contextlib.contextmanager
def _workers(
  count: int, name: str, lanes: int, chunk_bytes: int | None
) -> Iterator[Callable[..., list[Any]]]:
  """Yields the function that sends a request to all workers of a membership."""
  context = multiprocessing.get_context('spawn')
  ends, processes = [], []
  try:
    for index in range(count):
      end, other = context.Pipe()
      args = other, index, count, name, lanes, chunk_bytes
      process = context.Process(target=_serve, args=args, daemon=True)
      process.start()
      other.close()
      ends.append(end)
      processes.append(process)
    addresses = [end.recv() for end in ends]

    def request(action: str, **kwargs: Any) -> list[Any]:
      for end in ends:
        end.send((action, kwargs))
      return [end.recv() for end in ends]

    request('form', addresses=addresses)
    yield request
    for end in ends:
      end.send(None)
  finally:
    for process in processes:
      process.join(_TIMEOUT_S)
      process.kill()


def _serve(end: Connection, *arguments: Any) -> None:
  """Executes requests in the process of a worker."""
  worker = _Worker(*arguments)
  end.send(worker.address)
  while (request := end.recv()) is not None:
    action, kwargs = request
    end.send(getattr(worker, action)(**kwargs))
  worker.close()


class _Worker:
  """One of the workers; its public methods are the requests."""

  def __init__(
    self,
    index: int,
    count: int,
    name: str,
    lanes: int,
    chunk_bytes: int | None,
  ):
    self._index, self._count, self._lanes = index, count, lanes
    star = shapes.star([1] * count)
    packed = pack(star)
    self._forest: Forest = {
      'shards': schemes.equal_shards,
      'ring': schemes.naive_ring,
    }[name](star, packed)
    self._names = {worker: i for i, worker in enumerate(star.workers)}
    self._executor = Executor(
      index,
      port=Port(_HOST, 0, Security()),
      timeout_s=_TIMEOUT_S,
      chunk_bytes=chunk_bytes,
    )
    self.address = self._executor.address
    self._iteration = self._epoch = 0

  def close(self) -> None:
    self._executor.close()

  def form(self, addresses: list[str]) -> None:
    self._epoch += 1
    members = dict(enumerate(addresses))
    self._executor.form(
      Membership(self._epoch, members, self._forest, self._names, self._lanes)
    )
    self._addresses = addresses

  def sum(self, size: int) -> dict[str, float]:
    """Sums a buffer; returns time, processor time and bytes sent."""
    buffer = np.full(size, self._index + 1, np.float32)
    sent = self._sent_bytes()
    self._run(np.ones(1, np.float32))  # All workers are here.
    before, start_s = _read_usage(), time.monotonic()
    self._run(buffer)
    took_s = time.monotonic() - start_s
    user_s, kernel_s = _read_usage() - before
    if not (buffer == self._count * (self._count + 1) / 2).all():
      raise RuntimeError('The sum is wrong.')
    sent = self._sent_bytes() - sent
    return {
      'took_s': took_s,
      'cpu_s': user_s + kernel_s,
      'kernel_s': kernel_s,
      'sent': sent,
    }

  def profile(self, size: int) -> dict[str, float]:
    """Sums a buffer; returns processor time, and that of some calls."""
    times_s, own_s = dict.fromkeys(_PARTS, 0.0), _measure_clock()

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
      def call(*args: Any, **kwargs: Any) -> Any:
        start_s = time.thread_time()
        try:
          return function(*args, **kwargs)
        finally:
          times_s[part] += time.thread_time() - start_s - own_s

      return call

    digest = timed('checksum', frames.xxhash.xxh3_64_intdigest)
    with (
      mock.patch.object(frames.xxhash, 'xxh3_64_intdigest', digest),
      mock.patch.object(np, 'add', timed('add', np.add)),
    ):
      self.sum(size)
    return times_s

  def steps(self, size: int, count: int) -> list[float]:
    """Sums a few numbers many times; returns the seconds of each sum."""
    buffer, times_s = np.ones(size, np.float32), []
    for _ in range(count):
      buffer[:] = 1
      start_s = time.monotonic()
      self._run(buffer)
      times_s.append(time.monotonic() - start_s)
    return times_s

  def _run(self, buffer: np.ndarray) -> None:
    self._iteration += 1
    reduction = self._executor.begin(
      self._iteration, buffer, [(0, len(buffer))]
    )
    reduction.ready(0)
    reduction.wait(_TIMEOUT_S)

  def _sent_bytes(self) -> int:
    return sum(u.sent_bytes for u in self._executor.traffic().values())


def _read_usage() -> np.ndarray:
  """Returns processor time of this process: in user mode, in the kernel."""
  usage = resource.getrusage(resource.RUSAGE_SELF)
  return np.array([usage.ru_utime, usage.ru_stime])


def _measure_clock() -> float:
  """Returns the seconds that reading a thread's clock adds to what it times."""
  differences = []
  for _ in range(1000):
    start_s = time.thread_time()
    differences.append(time.thread_time() - start_s)
  return statistics.median(differences)


def _parse(argv: list[str]) -> list[str]:
  flags.DEFINE_float('mb', 100.0, 'Of rate: size of the buffer, MB.')
  flags.DEFINE_integer(
    'rounds', 5, 'Of rate: measured sums of a row.', lower_bound=1
  )
  flag_lists.define_integers(
    'chunk_kb', (48, 256, 1024), 'Of rate: sizes of chunks, KiB.'
  )
  flag_lists.define_integers('lanes', (1,), 'Numbers of lanes of a link.')
  flags.DEFINE_integer(
    'steps', 300, 'Of empty: measured sums of a row.', lower_bound=1
  )
  return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
