"""Frames: the units in which messages travel on a call of Arrow Flight.

A frame has a text and at most one chunk of bytes.  A small chunk follows the
text in Flight's metadata; a large one travels beside it as a record batch,
without a copy.  A record batch costs much more than the copy of a small chunk:
five calls that release Python's lock and wait for it again.
"""

import struct
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

SCHEMA = pa.schema([pa.field('bytes', pa.uint8(), nullable=False)])
# Kind, number within the stream, checksum, size of the text.
FORM = struct.Struct('<cQQI')
HEADER, CHUNK, END = b'H', b'C', b'E'
SMALL_BYTES = 1 << 14  # Largest chunk that is copied.
BATCH_BYTES = 2**31 - 1  # Largest record batch of Flight.


class Frame(NamedTuple):
  """A frame that has arrived.

  Attributes:
    kind: HEADER, CHUNK or END.
    text: View of bytes.
    chunk: uint8 [n]; None if there is none.  That of a header is the first of
      the body.
  """

  kind: bytes
  text: memoryview
  chunk: np.ndarray | None


def packed(
  kind: bytes,
  number: int,
  text: bytes,
  chunk: np.ndarray | None = None,
  *,
  spoil: bool = False,
) -> tuple[pa.Buffer, np.ndarray | None]:
  """Returns the metadata of a frame, and the chunk if it travels beside them.

  Args:
    kind: HEADER, CHUNK or END.
    number: Number of the frame within the stream.
    text: The text, of any size.
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


def checksum(text: bytes | memoryview, chunk: np.ndarray | None) -> int:
  """Returns the checksum (XXH3) of a text and the chunk that follows it."""
  hashed = xxhash.xxh3_64(text)
  if chunk is not None:
    hashed.update(chunk.data)
  return hashed.intdigest()


def batch(chunk: np.ndarray) -> pa.RecordBatch:
  """Returns the record batch as which a large chunk travels."""
  buffers = [None, pa.py_buffer(chunk)]
  column = pa.Array.from_buffers(pa.uint8(), chunk.size, buffers, 0)
  return pa.RecordBatch.from_arrays([column], schema=SCHEMA)


def unbatched(batch: Any) -> np.ndarray | None:
  """Returns the chunk of a record batch; None if it is no such batch.

  Args:
    batch: `pyarrow.RecordBatch` or None, as Flight hands it over.
  """
  if batch is None or batch.schema != SCHEMA or not batch.num_rows:
    return None
  buffer = batch.column(0).buffers()[1]  # Padded.
  if buffer is None or buffer.size < batch.num_rows:
    return None
  return np.frombuffer(buffer, np.uint8)[: batch.num_rows]
