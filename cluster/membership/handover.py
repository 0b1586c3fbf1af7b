"""Transfer of a replica's state to another process, while no replica computes.

The process that needs the state requests it from a living replica, at the
address that the coordinator sends.  The request may contain the digest of the
state that the process has: a source with the same state answers with the digest
alone.  A transferred state is verified by its digest.
"""

import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from cluster.network import memory
from cluster.network.heartbeat import within
from cluster.network.messages import (
  DONE,
  STATE,
  STATE_REQUEST,
  Done,
  SameState,
  StateArrays,
  StateRequest,
)
from cluster.network.streams import (
  STATES,
  Closed,
  Corrupt,
  Listener,
  Port,
  Security,
  Stream,
  chunked,
  connect,
)
from outputs import serialization

# Size of a chunk, and bytes that have to arrive within a timeout: many
# processes may share the source's link, as all do when a run resumes.
_STEP = 1 << 18


class Handover:
  """Listener that sends the learner's state to processes that request it.

  Attributes:
    address: 'address:port' of the listener.
  """

  def __init__(
    self,
    port: Port,
    state: Callable[[int], tuple[Any, str]],
    timeout_s: float,
  ):
    """Starts to listen for requests.

    Args:
      port: Port of this process.
      state: Returns the state of a version and its digest; called in other
        threads.  Raises LookupError if this process has another version.
      timeout_s: Seconds after which a receiver that takes nothing is lost.
    """
    self._state, self._timeout_s = state, timeout_s
    self._listener = Listener(port, self._send, service=STATES)
    self.address = self._listener.address

  def close(self) -> None:
    """Stops listening."""
    self._listener.close(0.0)

  def _send(self, stream: Stream, hello: msgspec.Raw) -> None:
    try:
      request = STATE_REQUEST.decode(hello)
    except ValueError as error:
      raise Corrupt(f'sent another hello: {error}') from error
    try:
      state, digest = self._state(request.version)
    except LookupError as error:
      raise Closed(str(error)) from error
    if request.digest == digest:
      stream.send(SameState(digest))
      stream.receive(DONE, 0)
      return
    tree = serialization.freeze(state)()
    arrays = {name: np.ascontiguousarray(tree[name]) for name in tree}
    # `ascontiguousarray` gives an array of no dimensions one.
    described = [
      (name, str(array.dtype), np.shape(tree[name]))
      for name, array in arrays.items()
    ]
    parts = [_bytes(array) for array in arrays.values() if array.size]
    stream.limit_silence(self._timeout_s)
    stream.send(
      StateArrays(described, digest),
      chunked(parts, _STEP),
      sum(p.size for p in parts),
    )
    stream.receive(DONE, 0)  # The receiver has all of it.


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
    address: Address of the `Handover` of a replica.
    version: Number of the version.
    security: Credentials of the stream.
    timeout_s: Limit of the connection, and of each 256 KiB, seconds.
    step: Called after each 256 KiB.
    known: Digest of the state that the caller has; '' for none.

  Returns:
    The state, whose digest the caller has to verify once its arrays are placed,
    and the digest.  The state is None if the caller has the same one.

  Raises:
    TransportError: If the state cannot be fetched.
  """
  request = StateRequest(version, known)
  stream = connect(address, request, security, timeout_s, service=STATES)
  try:
    with within(stream, timeout_s):
      message = stream.receive(STATE)
    header = message.header
    if isinstance(header, SameState):
      stream.send(Done())
      return None, header.digest
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
    for name, dtype, shape in header.arrays:
      try:
        kind = np.dtype(dtype)
      except TypeError as error:
        raise Corrupt(f'{address}: {error}') from error
      size = math.prod(shape) * kind.itemsize
      if start + size > body.size:
        raise Corrupt(f'{address}: expected {body.size} bytes, got more')
      part = body[start : start + size].view(kind)
      tree[name], start = part.reshape(shape), start + size
    if start != body.size:
      raise Corrupt(f'{address}: expected {start} bytes, got {body.size}')
    stream.send(Done())
    return serialization.thaw(tree), header.digest
  finally:
    stream.close()


def copy_state(state: Any) -> Any:
  """Returns a copy of a state like one that `fetch` returns."""
  return serialization.thaw(dict(serialization.freeze(state)()))


def _bytes(array: np.ndarray) -> np.ndarray:
  return array.reshape(-1).view(np.uint8)
