"""Frames: the units in which messages travel on a stream.

A frame is a header of 32 bytes and a payload: the text of a message, or a chunk
of its body.  Both have a checksum (XXH3) of their own, so that the length in a
header can be trusted before the payload has arrived.
"""

import struct
from typing import Any, NamedTuple

import xxhash

from cluster.network.errors import Corrupt

TEXT, CHUNK, END = 1, 2, 3
HEADER_BYTES = 32
_FIELDS = struct.Struct('<IIQQ')
_CHECKSUM = struct.Struct('<Q')
MAX_PAYLOAD_BYTES = 2**32 - 1


class FrameHeader(NamedTuple):
  """Header of a frame.

  Attributes:
    kind: TEXT for a message, CHUNK for a part of its body, END for the reason
      for which the sender ends the stream.
    size: Bytes of the payload.
    number: Number of the frame within the stream.
    checksum: Checksum of the payload.
  """

  kind: int
  size: int
  number: int
  checksum: int


def pack_header(kind: int, number: int, payload: Any) -> bytes:
  """Returns the header of a frame.

  Args:
    kind: TEXT, CHUNK or END.
    number: Number of the frame within the stream.
    payload: Contiguous buffer of bytes.
  """
  checksum = xxhash.xxh3_64_intdigest(payload)
  fields = _FIELDS.pack(kind, len(payload), number, checksum)
  return fields + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(fields))


def parse_header(header: memoryview) -> FrameHeader:
  """Returns the fields of a header, 32 bytes.

  Raises:
    Corrupt: If its checksum differs.
  """
  fields = header[: _FIELDS.size]
  (checksum,) = _CHECKSUM.unpack_from(header, _FIELDS.size)
  if xxhash.xxh3_64_intdigest(fields) != checksum:
    raise Corrupt('the header of a frame has another checksum')
  return FrameHeader(*_FIELDS.unpack(fields))
