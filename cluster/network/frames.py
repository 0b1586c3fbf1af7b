"""Frames: what travels at once on a call of Arrow Flight.

A frame has a text and perhaps a chunk of bytes.  A small chunk follows the text
in Flight's metadata; a large one is a record batch beside it, without a copy.
Such a batch costs many times what it costs to copy little: five calls that give
Python's lock away, and wait for it again.
"""

import struct
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

SCHEMA = pa.schema([pa.field('bytes', pa.uint8(), nullable=False)])
# Kind, number within the stream, checksum, how long the text is.
FORM = struct.Struct('<cQQI')
HEADER, CHUNK, END = b'H', b'C', b'E'
SMALL_BYTES = 1 << 14  # Of a chunk that is copied.
BATCH_BYTES = 2**31 - 1  # What one record batch of Flight can hold.


class Frame(NamedTuple):
  """What has arrived.

  Attributes:
    kind: HEADER, CHUNK or END.
    text: View of bytes.
    chunk: uint8 [n]; of a header the first one, if it has a body.
  """

  kind: bytes
  text: Any
  chunk: np.ndarray | None


def packed(
  kind: bytes,
  number: int,
  text: bytes,
  chunk: np.ndarray | None = None,
  *,
  spoil: bool = False,
) -> tuple[pa.Buffer, np.ndarray | None]:
  """Returns metadata, and the chunk if it is to travel beside it.

  Args:
    kind: HEADER, CHUNK or END.
    number: Of the frame within the stream.
    text: Of any size.
    chunk: uint8 [n], contiguous, or None.
    spoil: Whether to flip a bit, of the chunk if there is one.
  """
  size = len(text)
  if chunk is not None and chunk.size <= SMALL_BYTES:
    text, chunk = text + chunk.tobytes(), None
  form = FORM.pack(kind, number, checksum(text, chunk), size)
  if spoil:
    whole = bytearray(text if chunk is None else chunk)
    whole[-1] ^= 1
    text = bytes(whole) if chunk is None else text
    chunk = chunk if chunk is None else np.frombuffer(whole, np.uint8)
  return pa.py_buffer(form + text), chunk


def checksum(text: Any, chunk: np.ndarray | None) -> int:
  """Returns that of a text and what follows it."""
  of = xxhash.xxh3_64(text)
  if chunk is not None:
    of.update(chunk)
  return of.intdigest()


def batch(chunk: np.ndarray) -> pa.RecordBatch:
  """Returns what a large chunk travels as."""
  buffers = [None, pa.py_buffer(chunk)]
  column = pa.Array.from_buffers(pa.uint8(), chunk.size, buffers, 0)
  return pa.RecordBatch.from_arrays([column], schema=SCHEMA)


def unbatched(batch: pa.RecordBatch | None) -> np.ndarray | None:
  """Returns the bytes of a chunk, without padding; None if it is none."""
  valid = batch is not None and batch.schema == SCHEMA and batch.num_rows
  buffer = batch.column(0).buffers()[1] if valid else None
  if buffer is None or buffer.size < batch.num_rows:
    return None
  return np.frombuffer(buffer, np.uint8)[: batch.num_rows]
