"""Frames: the units in which messages and chunks travel on a connection.

A frame is a header of 48 bytes and a payload.  Both have a checksum (XXH3) of
their own, so that the size in a header can be trusted before the payload has
arrived.  Streams of messages use the first fields; chunks of an allreduce also
name their membership, iteration, layout and dtype.
"""

import struct
from typing import Any, NamedTuple

import xxhash

from cluster.network.errors import Corrupt

# Kinds of streams: a message, a part of its body, the end with its reason.
TEXT, CHUNK, END = 1, 2, 3
# Kinds of an allreduce: a partial sum, a sum, the last frame of a worker.
UP, DOWN, LEFT = 4, 5, 6
HEADER_BYTES = 48
_FIELDS = struct.Struct('<HHIQQIIQ')
_CHECKSUM = struct.Struct('<Q')
MAX_PAYLOAD_BYTES = MAX_EPOCH = 2**32 - 1


class FrameHeader(NamedTuple):
  """Header of a frame.

  Attributes:
    kind: TEXT, CHUNK or END in a stream; UP, DOWN or LEFT in an allreduce.
    dtype: Code of the dtype of the payload's numbers; 0 in a stream.
    size: Bytes of the payload.
    number: Number of the frame within its stream, or of the chunk within the
      buffer.
    iteration: Number of the allreduce; 0 in a stream.
    epoch: Number of the membership epoch; 0 in a stream.
    layout: Hash of the buffer's chunks and their trees; 0 in a stream.
    checksum: Checksum of the payload.
  """

  kind: int
  dtype: int
  size: int
  number: int
  iteration: int
  epoch: int
  layout: int
  checksum: int


def pack_header(
  kind: int,
  number: int,
  payload: Any,
  dtype: int = 0,
  iteration: int = 0,
  epoch: int = 0,
  layout: int = 0,
) -> bytes:
  """Returns the header of a payload; the other arguments as of `FrameHeader`.

  Args:
    kind: Kind of the frame.
    number: Number of the frame, or of the chunk.
    payload: Contiguous buffer of bytes.
    dtype: Code of a chunk's dtype.
    iteration: Number of a chunk's allreduce.
    epoch: Number of a chunk's membership epoch.
    layout: Layout of a chunk's buffer.
  """
  checksum = xxhash.xxh3_64_intdigest(payload)
  fields = _FIELDS.pack(
    kind, dtype, len(payload), number, iteration, epoch, layout, checksum
  )
  return fields + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(fields))


def parse_header(header: memoryview) -> FrameHeader:
  """Returns the fields of a header, 48 bytes.

  Raises:
    Corrupt: If its checksum differs.
  """
  fields = header[: _FIELDS.size]
  (checksum,) = _CHECKSUM.unpack_from(header, _FIELDS.size)
  if xxhash.xxh3_64_intdigest(fields) != checksum:
    raise Corrupt('the header of a frame has another checksum')
  return FrameHeader(*_FIELDS.unpack(fields))
