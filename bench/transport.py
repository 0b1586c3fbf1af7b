"""Measures message streams and whole runs relative to bare Arrow Flight.

  python -m bench.transport [--mb=100] [--turns=30] [--chunk_kb=2048]
    [--iterations=120] [--round_trips=5000]

A float32 vector goes to another process on the loopback interface and comes
back.  A stream reads every byte once more at each end for the checksum, and
copies it to its destination.  Bare Flight performs a DoPut and a DoGet in
chunks of the fastest size, and collects the received batches (`read_all`) or
drops them, which shows the rate of the connection alone.  Both are measured in
processes with the default allocator and in processes that retain freed memory
(`cluster.network.memory`), alternately.  The run is one of tools.launch without
a model, with one worker and one dedicated server; in an iteration the worker
pushes the vector, the coordinator decides, and the worker pulls it.

Round trips are of a heartbeat that comes back: on a stream, which encodes,
checks and decodes it each time, and on a DoExchange of Flight, which passes its
bytes alone.
"""

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
from absl import app, flags

import analysis
from analysis import printing
from bench import clusters
from cluster.network import memory
from cluster.network import streams as transport
from cluster.network.frame_reader import Receiving
from cluster.network.loop_streams import LoopListener, LoopStream
from cluster.network.messages import NOTHING, Schema, WorkerHeartbeat, encode
from configs import timing

_HOST = '127.0.0.1'
_BARE_CHUNK_BYTES = 2**21  # The fastest, of 128 KiB to one batch of it all.
_KEEP = b'keep'  # The command of a DoPut whose receiver keeps what arrives.
_SCHEMA = pa.schema([pa.field('bytes', pa.uint8())])
_ROUND_TRIPS = {'beats': 'stream', 'exchange': 'bare Flight'}
_NAMES = {
  'stream': 'stream: checked, in place',
  'keeps': 'bare Flight, keeps',
  'drops': 'bare Flight, drops',
}
_BEAT = WorkerHeartbeat(0.5, ('compute', 3, 1))
_ANY: Schema[Any] = Schema(Any)
_AIM = 0.8
_COMPUTE_S = 0.001  # Of an iteration of a run.
Turn = Callable[[str], tuple[float, float]]


def main(argv: list[str]) -> None:
  """Prints rates, and their ratios to those of bare Flight."""
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  given = flags.FLAGS
  size, chunk = 10**6 * given.mb, 2**10 * given.chunk_kb
  with (
    _pair({}, size, chunk) as as_it_is,
    _pair(memory.ENVIRONMENT, size, chunk) as keeping,
  ):
    pairs = {'as it is': as_it_is, 'kept': keeping}
    round_trips = {
      kind: as_it_is(f'{kind} {given.round_trips}') for kind in _ROUND_TRIPS
    }
    before = [_turn(pairs) for _ in range(given.turns // 2)]
    iteration_s = _iteration_s(size, given.iterations)
    turns = before + [_turn(pairs) for _ in range(given.turns - len(before))]

  stream = 'stream', 'kept'
  rows = [('', 'freed memory', 'MB/s there', 'back', 'stream', 'run')]
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
    if key == ('drops', 'as it is'):
      reached = ratio
  print(
    f'\n{given.mb} MB there and back, medians of {given.turns} turns; stream, '
    f'run: the throughput of the\nstream that keeps freed memory, and of a run '
    f"({1e3 * iteration_s:.0f} ms for an iteration), over the\nline's:\n\n"
    f'{printing.markdown(rows)}\n\nstream over bare Flight as it is, which '
    f'drops what arrives: {reached:.3f} (aim: at least {_AIM:.2f})\n'
  )
  rows = [('', 'round trips/s', 'CPU of the client')]
  for kind, (took_s, cpu_s) in round_trips.items():
    count = given.round_trips
    us = f'{1e6 * cpu_s / count:.0f} us'
    rows.append((_ROUND_TRIPS[kind], f'{count / took_s:.0f}', us))
  print(printing.markdown(rows))


def _turn(pairs: Mapping[str, Turn]) -> dict[tuple[str, str], Any]:
  """Returns the seconds there and back, by (kind of transfer, memory kept)."""
  return {
    (kind, kept): turn(kind) for kind in _NAMES for kept, turn in pairs.items()
  }


@contextlib.contextmanager
def _pair(environ: Mapping[str, str], size: int, chunk: int) -> Iterator[Turn]:
  """Yields a function that moves bytes between two new processes and back."""
  with (
    _process(environ, _serve, size, chunk) as server,
    _process(environ, _ask, size, chunk) as client,
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
  """Yields the pipe of a new process, which ends with the context."""
  ours, theirs = multiprocessing.Pipe()
  process = multiprocessing.get_context('spawn').Process(
    target=target, args=(theirs, *args), daemon=True
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
  theirs.close()
  yield ours
  ours.send('')
  process.join()


def _ask(pipe: Connection, size: int, chunk: int) -> None:
  """Sends and fetches vectors on request; the client of `_serve`."""
  bare, address = pipe.recv()
  vector, landed = _vector(size), np.zeros(size, np.uint8)
  with flight.FlightClient(f'grpc://{bare}') as client:
    stream = transport.connect(address, None, transport.Security(), 10.0)
    while kind := pipe.recv():
      if kind.partition(' ')[0] in _ROUND_TRIPS:
        pipe.send(_round_trips(kind, stream, client))
        continue
      start = time.perf_counter()
      if kind == 'stream':
        _push(stream, vector, chunk)
        middle = time.perf_counter()
        _pull(stream, landed)
      else:
        _put(client, vector, kind)
        middle = time.perf_counter()
        _received(client.do_get(flight.Ticket(b'')), kind == 'keeps')
      pipe.send((middle - start, time.perf_counter() - middle))
    if not np.array_equal(landed, vector):
      raise RuntimeError('What came back is not what was sent.')
    stream.close()


def _round_trips(
  order: str, stream: transport.Stream, client: flight.FlightClient
) -> tuple[float, float]:
  """Returns the seconds, and CPU seconds, of round trips of a heartbeat."""
  kind, count = order.split()
  data = pa.py_buffer(encode(_BEAT))
  writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b''))
  writer.begin(_SCHEMA)
  start, cpu_start = time.perf_counter(), time.process_time()
  for _ in range(int(count)):
    if kind == 'beats':
      stream.send(_BEAT)
      stream.receive(_ANY)
    else:
      writer.write_metadata(data)
      reader.read_chunk()
  took = time.perf_counter() - start, time.process_time() - cpu_start
  writer.done_writing()
  writer.close()
  return took


def _push(stream: transport.Stream, vector: np.ndarray, chunk: int) -> None:
  stream.send(None, transport.chunked([vector], chunk), vector.size)
  stream.receive(NOTHING)  # It has arrived.


def _pull(stream: transport.Stream, landed: np.ndarray) -> None:
  stream.send(None)
  stream.receive(NOTHING).read(landed)


def _put(client: flight.FlightClient, vector: np.ndarray, kind: str) -> None:
  command = _KEEP if kind == 'keeps' else b''
  descriptor = flight.FlightDescriptor.for_command(command)
  writer, _ = client.do_put(descriptor, _SCHEMA)
  for batch in _batches(vector):
    writer.write_batch(batch)
  writer.close()


def _received(reader: Any, keep: bool) -> pa.Table | None:
  """Returns what a reader receives; without `keep`, drops it: None."""
  if keep:
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
  def __init__(self, vector: np.ndarray):
    super().__init__(f'grpc://{_HOST}:0')
    self._vector = vector

  def do_put(
    self, context: Any, descriptor: Any, reader: Any, writer: Any
  ) -> None:
    _received(reader, descriptor.command == _KEEP)

  def do_exchange(
    self, context: Any, descriptor: Any, reader: Any, writer: Any
  ) -> None:
    writer.begin(_SCHEMA)
    for chunk in reader:
      writer.write_metadata(chunk.app_metadata)

  def do_get(self, context: Any, ticket: Any) -> flight.GeneratorStream:
    return flight.GeneratorStream(_SCHEMA, _batches(self._vector))


def _serve(pipe: Connection, size: int, chunk: int) -> None:
  """Receives and returns vectors, by stream and by bare Flight, until told."""
  landed = np.zeros(size, np.uint8)

  def handle(stream: LoopStream, hello: Any) -> Receiving[None]:
    while True:
      header, size_bytes = yield from stream.receive(_ANY)
      if header is not None:
        stream.send(header)
      elif size_bytes:
        yield from stream.fill(landed[:size_bytes])
        stream.send(None)
      else:
        stream.send(None, transport.chunked([landed], chunk), size)

  port = transport.Port(_HOST, 0, transport.Security())
  with (
    _Bare(_vector(size)) as bare,
    LoopListener(port, handle) as listener,
  ):
    pipe.send((f'{_HOST}:{bare.port}', listener.address))
    pipe.recv()


def _iteration_s(size: int, iterations: int) -> float:
  """Returns the median seconds of an iteration of a run that moves bytes."""
  fields = timing.fields(
    workers=1, iterations=iterations, size_bytes=size, compute_s=_COMPUTE_S
  )
  fields['cluster.speed.injected'] = True
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, 'run')
    clusters.run(path, 'configs/default.py', fields, workers=1)
    return analysis.pace(analysis.read(path)).median_s


def _parse(argv: list[str]) -> list[str]:
  for name, default, text in (
    ('mb', 100, 'Size of the vector, MB.'),
    ('turns', 30, 'Transfers of each kind, there and back.'),
    ('chunk_kb', 2048, 'Size of a chunk of the stream, KiB.'),
    ('iterations', 120, 'Iterations of the run.'),
    ('round_trips', 5000, 'Heartbeats that come back, of each kind.'),
  ):
    flags.DEFINE_integer(name, default, text, lower_bound=1)
  return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
