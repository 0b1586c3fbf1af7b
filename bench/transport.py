"""Measures message streams and whole runs relative to bare Flight.

  python -m bench.transport [--mb=100] [--turns=30] [--chunk_kb=2048]
    [--iterations=120]

A float32 vector goes to another process on the loopback interface and comes
back.  A stream reads every byte once more at each end for the checksum, and
copies it to its destination.  Bare Flight performs a DoPut and a DoGet in
chunks of the fastest size, and collects the received batches (`read_all`) or
discards them, which shows the rate of the connection alone.  Both are measured
in processes with the default allocator and in processes that retain freed
memory (`cluster.network.memory`), alternately.  The run is one of tools.launch
without a model, with one worker and one dedicated server; in an iteration the
worker pushes the vector, the coordinator decides, and the worker pulls it.
"""

import argparse
import contextlib
import multiprocessing
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from bench import clusters
from cluster.network import memory
from cluster.network import streams as transport
from cluster.network.messages import NOTHING
from configs import default
from tools.reading import records

_HOST = '127.0.0.1'
_BARE_CHUNK_BYTES = 2**21  # Fastest size from 128 KiB to the whole vector.
_COLLECT = b'collect'  # Command of a DoPut that collects its batches.
_SCHEMA = pa.schema([pa.field('bytes', pa.uint8())])
_NAMES = {
  'stream': 'stream: checked, in place',
  'collects': 'bare Flight, collects',
  'discards': 'bare Flight, discards',
}
_AIM = 0.8
_COMPUTE_S = 0.001  # Computation in an iteration of the run.
Turn = Callable[[str], tuple[float, float]]


def main(argv: list[str] | None = None) -> float:
  """Prints rates; returns the stream's rate over that of discarding Flight."""
  parser = argparse.ArgumentParser(
    prog='bench.transport', description=__doc__.splitlines()[0]
  )
  parser.add_argument('--mb', type=int, default=100)
  parser.add_argument('--turns', type=int, default=30)
  parser.add_argument('--chunk_kb', type=int, default=2048)
  parser.add_argument('--iterations', type=int, default=120)
  flags = parser.parse_args(argv)

  size, chunk = 10**6 * flags.mb, 2**10 * flags.chunk_kb
  with (
    _pair({}, size, chunk) as default_pair,
    _pair(memory.ENVIRONMENT, size, chunk) as retaining_pair,
  ):
    pairs = {'default': default_pair, 'retained': retaining_pair}
    before = [_turn(pairs) for _ in range(flags.turns // 2)]
    iteration_s = _iteration_s(size, flags.iterations)
    turns = before + [_turn(pairs) for _ in range(flags.turns - len(before))]

  stream = 'stream', 'retained'
  rows = [('', 'freed memory', 'MB/s there', 'back', '/ stream', '/ run')]
  for key in turns[0]:
    there, back = (
      size / 1e6 / statistics.median(times)
      for times in zip(*(turn[key] for turn in turns), strict=True)
    )
    took_s = [sum(turn[key]) for turn in turns]
    ratio = statistics.median(
      took / sum(turn[stream]) for took, turn in zip(took_s, turns, strict=True)
    )
    run = statistics.median(took_s) / iteration_s
    cells = f'{there:.0f}', f'{back:.0f}', f'{ratio:.3f}', f'{run:.3f}'
    rows.append((_NAMES[key[0]], key[1], *cells))
    if key == ('discards', 'default'):
      reached = ratio
  print(
    f'\n{flags.mb} MB there and back, medians of {flags.turns} turns.  '
    'Last columns: the throughput of\nthe stream that retains freed memory, '
    f'and of a run ({1e3 * iteration_s:.0f} ms for an iteration), over '
    f'that\nof the row:\n\n{clusters.table(*rows)}\n\nstream over bare Flight '
    f'with the default allocator that discards: {reached:.3f} '
    f'(aim: at least {_AIM:.2f})'
  )
  return reached


def _turn(pairs: Mapping[str, Turn]) -> dict[tuple[str, str], Any]:
  """Returns the seconds there and back, by kind of transfer and allocator.

  Args:
    pairs: Transfers between two processes, by use of freed memory.
  """
  return {
    (kind, freed): turn(kind)
    for kind in _NAMES
    for freed, turn in pairs.items()
  }


@contextlib.contextmanager
def _pair(environ: Mapping[str, str], size: int, chunk: int) -> Iterator[Turn]:
  """Yields a function that moves bytes between two new processes and back.

  Args:
    environ: Further environment variables of the processes.
    size: Bytes each way.
    chunk: Bytes of a chunk of the stream.
  """
  with (
    _process(environ, _serve, size, chunk) as server,
    _process(environ, _request, size, chunk) as client,
  ):
    client.send(server.recv())

    def turn(kind: str) -> float:
      client.send(kind)
      return client.recv()

    for kind in _NAMES:
      turn(kind)  # Touches all memory.
    yield turn


@contextlib.contextmanager
def _process(
  environ: Mapping[str, str], target: Callable[..., None], *args: Any
) -> Iterator[Connection]:
  """Yields a pipe to a new process, which ends with the context."""
  parent_end, child_end = multiprocessing.Pipe()
  process = multiprocessing.get_context('spawn').Process(
    target=target, args=(child_end, *args), daemon=True
  )
  before = dict(os.environ)
  for name in memory.ENVIRONMENT:
    os.environ.pop(name, None)
  os.environ.update(environ)
  try:
    process.start()
  finally:
    os.environ.clear()
    os.environ.update(before)
  child_end.close()
  yield parent_end
  parent_end.send('')
  process.join()


def _request(pipe: Connection, size: int, chunk: int) -> None:
  """Sends and fetches the vector on each request; the client of `_serve`."""
  bare, address = pipe.recv()
  vector, received = _vector(size), np.zeros(size, np.uint8)
  with flight.FlightClient(f'grpc://{bare}') as client:
    stream = transport.connect(address, None, transport.Security(), 10.0)
    while kind := pipe.recv():
      start = time.perf_counter()
      if kind == 'stream':
        _push(stream, vector, chunk)
        middle = time.perf_counter()
        _pull(stream, received)
      else:
        _put(client, vector, kind)
        middle = time.perf_counter()
        _drain(client.do_get(flight.Ticket(b'')), kind == 'collects')
      pipe.send((middle - start, time.perf_counter() - middle))
    if not np.array_equal(received, vector):
      raise RuntimeError('The vector has changed on its way.')
    stream.close()


def _push(stream: transport.Stream, vector: np.ndarray, chunk: int) -> None:
  stream.send(None, transport.chunked([vector], chunk), vector.size)
  stream.receive(NOTHING)  # The vector has arrived.


def _pull(stream: transport.Stream, received: np.ndarray) -> None:
  stream.send(None)
  stream.receive(NOTHING).read(received)


def _put(client: flight.FlightClient, vector: np.ndarray, kind: str) -> None:
  command = _COLLECT if kind == 'collects' else b''
  descriptor = flight.FlightDescriptor.for_command(command)
  writer, _ = client.do_put(descriptor, _SCHEMA)
  for batch in _batches(vector):
    writer.write_batch(batch)
  writer.close()


def _drain(reader: Any, collects: bool) -> pa.Table | None:
  """Reads all batches; returns them as one table if it collects them."""
  if collects:
    return reader.read_all()
  for _ in reader:
    pass
  return None


def _vector(size: int) -> np.ndarray:
  values = np.random.default_rng(0).normal(size=size // 4)
  return values.astype(np.float32).view(np.uint8)


def _batches(vector: np.ndarray) -> Iterator[pa.RecordBatch]:
  for chunk in transport.chunked([vector], _BARE_CHUNK_BYTES):
    buffers = [None, pa.py_buffer(chunk)]
    column = pa.Array.from_buffers(pa.uint8(), chunk.size, buffers)
    yield pa.RecordBatch.from_arrays([column], schema=_SCHEMA)


class _Bare(flight.FlightServerBase):
  """Flight server that accepts and sends the vector."""

  def __init__(self, vector: np.ndarray):
    super().__init__(f'grpc://{_HOST}:0')
    self._vector = vector

  def do_put(
    self, context: Any, descriptor: Any, reader: Any, writer: Any
  ) -> None:
    _drain(reader, descriptor.command == _COLLECT)

  def do_get(self, context: Any, ticket: Any) -> flight.GeneratorStream:
    return flight.GeneratorStream(_SCHEMA, _batches(self._vector))


def _serve(pipe: Connection, size: int, chunk: int) -> None:
  """Receives and returns the vector, as a stream and as bare Flight."""
  received = np.zeros(size, np.uint8)

  def handle(stream: Any, hello: Any) -> None:
    while True:
      stream.receive(NOTHING).read(received)
      stream.send(None)
      stream.receive(NOTHING)
      stream.send(None, transport.chunked([received], chunk), size)

  with (
    _Bare(_vector(size)) as bare,
    transport.Listener(_HOST, 0, handle, transport.Security()) as listener,
  ):
    pipe.send((f'{_HOST}:{bare.port}', listener.address))
    pipe.recv()


def _iteration_s(size: int, iterations: int) -> float:
  """Returns the median seconds of an iteration of a run that moves bytes."""
  fields = {
    'epochs': 1.0,
    'model.name': 'none',
    'model.none.size_bytes': size,
    'model.none.num_train': (
      iterations * default.get_config().batching.worker_batch
    ),
    'cluster.speed.injected': True,
    'cluster.speed.name': 'constant',
    'cluster.speed.fixed_s': _COMPUTE_S,
    'cluster.speed.per_example_s': 0.0,
    'cluster.speed.slowdown': (1.0,),
    'checkpoint.every_s': 'inf',
  }
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, 'run')
    clusters.run(path, 'configs/default.py', fields, workers=1)
    times = [
      e['time'] for e in records.read_events(path) if e['event'] == 'push'
    ]
  return statistics.median(np.diff(times)[2:])


if __name__ == '__main__':
  main()
