"""Transfer of a replica's state to another process, while no replica computes.

The process that needs it asks a living replica, at the address that the
coordinator names.  It may send the digest of what it holds: a source with the
same state answers with its digest alone.  Whatever is transferred is verified
by that digest.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from cluster.network import memory
from cluster.network.heartbeat import within
from cluster.network.streams import (
  Closed,
  Corrupt,
  Listener,
  Security,
  Stream,
  chunked,
  connect,
)
from outputs import serialization

# Bytes that have to come within a timeout, and of a chunk: many may share the
# source's link, as all others do when a run goes on from a checkpoint.
_STEP = 1 << 18


class Handover:
  """Gives the learner's state to who asks for it.

  Attributes:
    address: Where.
  """

  def __init__(
    self,
    host: str,
    security: Security,
    state: Callable[[int], tuple[Any, str]],
  ):
    """Listens from here on.

    Args:
      host: Address to listen on.
      security: Of the streams.
      state: Returns the state of a version and its digest; called in other
        threads.  Raises LookupError if there is another version.
    """
    self._state = state
    self._listener = Listener(host, 0, self._give, security)
    self.address = self._listener.address

  def close(self) -> None:
    """Listens no more."""
    self._listener.close(0.0)

  def _give(self, stream: Stream, hello: Any) -> None:
    version = hello.get('version') if isinstance(hello, dict) else None
    if type(version) is not int:
      raise Closed('expected a version, got another hello')
    try:
      state, digest = self._state(version)
    except LookupError as error:
      raise Closed(str(error)) from error
    if hello.get('digest') == digest:
      stream.send({'arrays': None, 'digest': digest})
      stream.receive(0)
      return
    tree = serialization.freeze(state)()
    arrays = {name: np.ascontiguousarray(tree[name]) for name in tree}
    # A contiguous array of no dimensions has one.
    told = [
      [name, str(array.dtype), list(np.shape(tree[name]))]
      for name, array in arrays.items()
    ]
    parts = [_bytes(array) for array in arrays.values() if array.size]
    stream.send(
      {'arrays': told, 'digest': digest},
      chunked(parts, _STEP),
      sum(p.size for p in parts),
    )
    stream.receive(0)  # Until it has it all.


def fetch(
  address: str,
  version: int,
  security: Security,
  timeout_s: float,
  *,
  step: Callable[[], None] = lambda: None,
  known: str = '',
) -> tuple[Any, str]:
  """Returns the learner's state of a version, and its digest.

  Args:
    address: Of the `Handover` of a replica.
    version: Which one.
    security: Of the stream.
    timeout_s: Of connecting, and of each 256 KiB.
    step: Called after each of them.
    known: Digest of the state that the caller has.

  Returns:
    The state, whose digest the caller has to verify once its arrays are where
    they belong; None if it is the one that is known.

  Raises:
    TransportError: If it cannot be had.
  """
  hello = {'version': version, 'digest': known}
  stream = connect(address, hello, security, timeout_s)
  try:
    with within(stream, timeout_s):
      message = stream.receive()
    if message.header['arrays'] is None:
      stream.send(None)
      return None, message.header['digest']
    body, start = memory.aligned(message.size_bytes), 0
    chunks = iter(message.chunks)
    while start < body.size:
      with within(stream, timeout_s):
        end = min(start + _STEP, body.size)
        while start < end:
          chunk = next(chunks)
          body[start : start + chunk.size] = chunk
          start += chunk.size
          del chunk
      step()
    next(chunks, None)
    tree, start = {}, 0
    for name, dtype, shape in message.header['arrays']:
      size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
      part = body[start : start + size].view(np.dtype(dtype))
      tree[name], start = part.reshape(shape), start + size
    if start != body.size:
      raise Corrupt(f'{address}: expected {start} bytes, got {body.size}')
    stream.send(None)
    return serialization.thaw(tree), message.header['digest']
  finally:
    stream.close()


def copied(state: Any) -> Any:
  """Returns a state as `fetch` would give it, without another process."""
  return serialization.thaw(dict(serialization.freeze(state)()))


def _bytes(array: np.ndarray) -> np.ndarray:
  return array.reshape(-1).view(np.uint8)
