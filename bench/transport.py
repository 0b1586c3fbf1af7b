"""What streams of messages cost beside bare Flight.

  python -m bench.transport [--mb=100] [--pairs=5] [--chunk_kb=2048]

Two processes on the loopback interface: a float32 vector goes to the other
one and comes back.  A stream reads every byte once more at each end for the
checksum, and copies it to where it belongs.  Bare Flight, a DoPut and a DoGet
in chunks of the size that suits it, keeps what arrives (`read_all`), or, for
what the wire alone can do, drops it.  They run in turns, and the ratios of the
throughputs of each turn are printed.
"""

import argparse
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from cluster import transport

_HOST = '127.0.0.1'
_BARE_CHUNK_BYTES = 2**21  # The fastest, of 128 KiB to one batch of it all.
_KEEP = b'keep'  # The command of a DoPut whose receiver keeps what arrives.
_SCHEMA = pa.schema([pa.field('bytes', pa.uint8())])


def main(argv: list[str] | None = None) -> float:
  """Prints the ratios of every pair; returns the median to the faster one."""
  parser = argparse.ArgumentParser(
    prog='bench.transport', description=__doc__.splitlines()[0]
  )
  parser.add_argument('--mb', type=int, default=100)
  parser.add_argument('--pairs', type=int, default=5)
  parser.add_argument('--chunk_kb', type=int, default=2048)
  arguments = parser.parse_args(argv)

  size, chunk = 10**6 * arguments.mb, 2**10 * arguments.chunk_kb
  vector = _vector(size)
  landed = np.zeros(size, np.uint8)
  ours, theirs = multiprocessing.Pipe()
  other = multiprocessing.get_context('spawn').Process(
    target=_serve, args=(theirs, size), daemon=True
  )
  other.start()
  print(f'stream over bare Flight, {arguments.mb} MB each way, MB/s')
  kept, dropped = [], []
  with flight.FlightClient(f'grpc://{ours.recv()}') as client:
    stream = transport.connect(ours.recv(), {}, transport.Security(), 10.0)
    _round_trip(stream, vector, landed, chunk)  # Touches all memory.
    _bare_round_trip(client, vector, keep=True)
    for pair in range(arguments.pairs):
      stream_s = _round_trip(stream, vector, landed, chunk)
      kept_s = _bare_round_trip(client, vector, keep=True)
      dropped_s = _bare_round_trip(client, vector, keep=False)
      kept.append(sum(kept_s) / sum(stream_s))
      dropped.append(sum(dropped_s) / sum(stream_s))
      rates = [
        f'{size / 1e6 / s:.0f}' for s in (*stream_s, *kept_s, *dropped_s)
      ]
      print(
        f'  pair {pair}: push {rates[0]} pull {rates[1]}, kept: put {rates[2]} '
        f'get {rates[3]} = {kept[-1]:.3f}, dropped: put {rates[4]} get '
        f'{rates[5]} = {dropped[-1]:.3f}'
      )
    if not np.array_equal(landed, vector):
      raise RuntimeError('What came back is not what was sent.')
    stream.close()
  ours.send('end')
  other.join()
  median = statistics.median(dropped)
  print(
    f'  median {median:.3f} of Flight that drops what arrives (aim: at least '
    f'0.80), {statistics.median(kept):.3f} of one that keeps it'
  )
  return median


def _vector(size: int) -> np.ndarray:
  values = np.random.default_rng(0).normal(size=size // 4)
  return values.astype(np.float32).view(np.uint8)


def _round_trip(
  stream: transport.Stream, vector: np.ndarray, landed: np.ndarray, chunk: int
) -> tuple[float, float]:
  """Returns the seconds of a push, until it has arrived, and of a pull."""
  start = time.perf_counter()
  stream.send(chunk, transport.chunked(vector, chunk), vector.size)
  stream.receive()
  middle = time.perf_counter()
  stream.send(chunk)
  stream.receive().read(landed)
  return middle - start, time.perf_counter() - middle


def _bare_round_trip(
  client: flight.FlightClient, vector: np.ndarray, *, keep: bool
) -> tuple[float, float]:
  start = time.perf_counter()
  command = flight.FlightDescriptor.for_command(_KEEP if keep else b'')
  writer, _ = client.do_put(command, _SCHEMA)
  for batch in _batches(vector):
    writer.write_batch(batch)
  writer.close()
  middle = time.perf_counter()
  _received(client.do_get(flight.Ticket(b'')), keep)
  return middle - start, time.perf_counter() - middle


def _received(reader: Any, keep: bool) -> pa.Table | None:
  """What a reader brings, as a whole; or None when all has come and gone."""
  if keep:
    return reader.read_all()
  for _ in reader:
    pass
  return None


def _batches(vector: np.ndarray):
  for chunk in transport.chunked(vector, _BARE_CHUNK_BYTES):
    buffers = [None, pa.py_buffer(chunk)]
    column = pa.Array.from_buffers(pa.uint8(), chunk.size, buffers)
    yield pa.RecordBatch.from_arrays([column], schema=_SCHEMA)


class _Bare(flight.FlightServerBase):
  def __init__(self, vector: np.ndarray):
    super().__init__(f'grpc://{_HOST}:0')
    self._vector = vector

  def do_put(self, context, descriptor, reader, writer) -> None:
    _received(reader, descriptor.command == _KEEP)

  def do_get(self, context, ticket) -> flight.GeneratorStream:
    return flight.GeneratorStream(_SCHEMA, _batches(self._vector))


def _serve(pipe: Connection, size: int) -> None:
  landed = np.zeros(size, np.uint8)

  def handle(stream, hello):
    while True:
      stream.receive().read(landed)
      stream.send(None)
      chunk = stream.receive().header
      stream.send(None, transport.chunked(landed, chunk), size)

  with (
    _Bare(_vector(size)) as bare,
    transport.Listener(_HOST, 0, handle, transport.Security()) as listener,
  ):
    pipe.send(f'{_HOST}:{bare.port}')
    pipe.send(listener.address)
    pipe.recv()


if __name__ == '__main__':
  main()
