"""Chunks of a gradient, summed among workers by a conversation in NumPy.

What `wire.sparse` compiles for a sum among workers, for hosts: there XLA's
passes over fresh memory cost several times what the work in them does.  Here
vectors are passed over once, block by block, in memory that is used again.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from wire.codec import Room, State, Summed, Talk

_BLOCK = 2**15  # Numbers that stay in a core's cache while they are used.

Vectors = Mapping[str, np.ndarray]


class Hosted(NamedTuple):
  """A worker's part of the conversation.

  Attributes:
    chunk: Numbers of each.
    sent_of: Returns how many chunks travel of so many numbers.
    momentum: That workers apply; 0 for none.
    lags: Whether chunks are chosen by what was left in them.
    dense: Whether all travel, whatever there is.
    dtype: To which what travels is rounded; what that takes away is kept.
    masked: Whether an update is told which numbers have arrived.
  """

  chunk: int
  sent_of: Callable[[int], int]
  momentum: float
  lags: bool
  dense: bool
  masked: bool
  dtype: np.dtype

  def talk(
    self, state: State, vector: np.ndarray, scale: float, room: Room
  ) -> Talk:
    """Yields what a worker says; see `Codec.hosted`."""
    n = vector.size
    kept, own = self._added(state.kept, vector, np.float32(scale), room)
    norms = state.common
    if not (self.lags or self.dense):
      norms = yield own
    left, chunks = kept['left'].reshape(-1, self.chunk), None
    if self.sent_of(n) < len(left):
      chunks = chosen(np.asarray(norms), self.sent_of(n))
    values = n if chunks is None else len(chunks) * self.chunk
    said = room('decision', values + (len(left) if self.lags else 0))
    rows = said[:values].reshape(-1, self.chunk)
    if chunks is None:  # Nothing has waited, so the velocity is not stale.
      rows[...], own[...] = left, 0
      left[...] = _rounded(rows, self.dtype)
    else:
      np.take(left, chunks, axis=0, out=rows, mode='clip')
      own[chunks] = 0
      for each in kept.values():
        each.reshape(-1, self.chunk)[chunks] = 0
      if self.dtype != np.float32:
        left[chunks] = _rounded(rows, self.dtype)
    if self.lags:
      said[values:] = own
    if scale != 1:
      for each in kept.values():
        each *= np.float32(1 / scale)
    heard = yield said
    common: Any = np.array(heard[values:]) if self.lags else ()
    return (
      self._summed(np.asarray(heard)[:values], chunks, n, room),
      State(kept, common=common),
    )

  def _added(
    self, kept: Any, vector: np.ndarray, scale: np.float32, room: Room
  ) -> tuple[Vectors, np.ndarray]:
    """Returns what there is to be sent with a new gradient, and its norms.

    In the memory of the gradient; that of before stays.
    """
    before = {what: np.asarray(each) for what, each in kept.items()}
    after = {'left': vector}
    if self.momentum:
      spare = _spare(before['left'], room)
      after = {'left': spare, 'velocity': vector}
    norms = np.empty(vector.size // self.chunk, np.float32)
    rows = max(_BLOCK // self.chunk, 1)
    scratch = room('scratch', rows * self.chunk)
    # Who has computed what is not finite has noticed.
    with np.errstate(over='ignore', invalid='ignore'):
      for first, place in self._blocks(vector.size, rows):
        new, old = after['left'][place], before['left'][place]
        block = scratch[: new.size]
        if self.momentum:
          velocity = vector[place]
          np.multiply(
            before['velocity'][place], np.float32(self.momentum), out=block
          )
          if scale != 1:
            block *= scale
          velocity += block
        if scale != 1:
          old = np.multiply(old, scale, out=block)
        np.add(old, vector[place], out=new)
        np.abs(new, out=block)
        parts = block.reshape(-1, self.chunk)
        np.add.reduce(parts, axis=1, out=norms[first : first + len(parts)])
    return after, norms

  def _blocks(self, n: int, rows: int) -> Iterator[tuple[int, slice]]:
    """Yields the first chunk of each block, and where it lies."""
    step = rows * self.chunk
    for number, start in enumerate(range(0, n, step)):
      yield number * rows, slice(start, min(start + step, n))

  def _summed(
    self, heard: np.ndarray, chunks: np.ndarray | None, n: int, room: Room
  ) -> Summed:
    """Returns the sum, in room."""
    total = room('sum', n)
    if chunks is None:
      total[...] = heard
      room.rows.pop('sum', None)
      return Summed(total)
    self._put(room, 'sum', total, chunks, heard.reshape(-1, self.chunk))
    if not self.masked:
      return Summed(total)
    arrived = room('arrived', n, bool)
    self._put(room, 'arrived', arrived, chunks, True)
    return Summed(total, arrived)

  def _put(
    self,
    room: Room,
    name: str,
    array: np.ndarray,
    chunks: np.ndarray,
    values: np.ndarray | bool,
  ) -> None:
    """Puts values into the chunks of an array of room, and zeros elsewhere."""
    rows = array.reshape(-1, self.chunk)
    rows[room.rows.get(name, slice(None))] = 0
    rows[chunks] = values
    room.rows[name] = chunks


def chosen(norms: np.ndarray, count: int) -> np.ndarray:
  """Returns the chunks that travel, ascending; of equal ones the first."""
  return np.sort(np.argsort(-norms, kind='stable')[:count])


def rounded(numbers: np.ndarray, dtype: np.dtype) -> np.ndarray:
  """Returns numbers of float32 as they travel, float32."""
  if dtype == np.float32:
    return numbers
  with np.errstate(over='ignore'):  # Who gets what is infinite will notice.
    return numbers.astype(dtype).astype(np.float32)


def _rounded(numbers: np.ndarray, dtype: np.dtype) -> Any:
  """Rounds numbers in place; returns what that takes away."""
  if dtype == np.float32:
    return 0
  exact, numbers[...] = numbers.copy(), rounded(numbers, dtype)
  with np.errstate(invalid='ignore'):
    return exact - numbers


def _spare(taken: np.ndarray, room: Room) -> np.ndarray:
  """Returns one of two arrays: that in which this does not lie."""
  names = ('left', 'left, too')
  both = [room(name, taken.size) for name in names]
  return both[int(np.may_share_memory(taken, both[0]))]
