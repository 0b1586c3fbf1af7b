"""NumPy implementation of the chunked allreduce of `wire.sparse`, for hosts.

There XLA's passes over newly allocated memory cost several times what the work
in them does.  Here vectors are passed over once, block by block, in memory that
is used again.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from wire.chunks import ChunkSettings
from wire.codec import PartialVector, Rounds, State, Workspace

_BLOCK = 2**15  # Numbers that stay in a core's cache while they are used.

Vectors = Mapping[str, np.ndarray]


class NumpyChunks(ChunkSettings):
  """NumPy implementation of a worker's part in the sparse allreduce."""

  def allreduce(
    self, state: State, vector: np.ndarray, scale: float, workspace: Workspace
  ) -> Rounds:
    """Yields the norms, unless they are known, and the values of chunks."""
    n = vector.size
    residual, own_norms = self._accumulate(
      state.residual, vector, np.float32(scale), workspace
    )
    norms = state.replicated
    if self.needs_norms:
      norms = yield own_norms
    unsent, chunks = residual['unsent'].reshape(-1, self.chunk), None
    if not self.sends_all(n):
      chunks = self.choose(np.asarray(norms), n)
    count = self.count_values(n)
    contribution = workspace.array(
      'contribution', count + (len(unsent) if self.lags else 0)
    )
    rows = contribution[:count].reshape(-1, self.chunk)
    if chunks is None:  # Nothing has waited, so the velocity is not stale.
      rows[...], own_norms[...] = unsent, 0
      unsent[...] = _round_in_place(rows, self.dtype)
    else:
      np.take(unsent, chunks, axis=0, out=rows, mode='clip')
      own_norms[chunks] = 0
      for each in residual.values():
        each.reshape(-1, self.chunk)[chunks] = 0
      if self.dtype != np.float32:
        unsent[chunks] = _round_in_place(rows, self.dtype)
    if self.lags:
      contribution[count:] = own_norms
    if scale != 1:
      for each in residual.values():
        each *= np.float32(1 / scale)
    total = yield contribution
    replicated: Any = np.array(total[count:]) if self.lags else ()
    return (
      self._reduced(np.asarray(total)[:count], chunks, n, workspace),
      State(residual, replicated=replicated),
    )

  def choose(self, norms: np.ndarray, n: int) -> np.ndarray:
    """Returns chunks of largest norm, ascending; the first of equal ones."""
    order = np.argsort(-norms, kind='stable')
    return np.sort(order[: self.count_sent(n)])

  def choose_from_state(self, state: State, n: int) -> np.ndarray:
    """Returns the chunks that are chosen by norms of before the gradient."""
    return self.choose(np.asarray(state.replicated), n)

  def encode_chunk(self, residual: Vectors, vector: np.ndarray) -> np.ndarray:
    """Returns the values of a chunk, of its residual and its gradient."""
    if self.momentum:
      vector = self.momentum * residual['velocity'] + vector
    return round_to(residual['unsent'] + vector, self.dtype)

  def _accumulate(
    self,
    residual: Any,
    vector: np.ndarray,
    scale: np.float32,
    workspace: Workspace,
  ) -> tuple[Vectors, np.ndarray]:
    """Returns the residual with a new gradient, and its norms, [chunks].

    It lies in the gradient's memory; the residual of before stays as it is.
    """
    before = {name: np.asarray(each) for name, each in residual.items()}
    after = {'unsent': vector}
    if self.momentum:
      spare = _other_array(before['unsent'], workspace)
      after = {'unsent': spare, 'velocity': vector}
    norms = np.empty(vector.size // self.chunk, np.float32)
    rows = max(_BLOCK // self.chunk, 1)
    scratch = workspace.array('scratch', rows * self.chunk)
    # A worker whose gradient is not finite has reported that already.
    with np.errstate(over='ignore', invalid='ignore'):
      for first, place in self._blocks(vector.size, rows):
        new, old = after['unsent'][place], before['unsent'][place]
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
    """Yields the first chunk of each block of so many chunks, and its place."""
    step = rows * self.chunk
    for number, start in enumerate(range(0, n, step)):
      yield number * rows, slice(start, min(start + step, n))

  def _reduced(
    self,
    values: np.ndarray,
    chunks: np.ndarray | None,
    n: int,
    workspace: Workspace,
  ) -> PartialVector:
    """Returns the reduced vector, in the workspace, of the sum of values."""
    vector = workspace.array('sum', n)
    if chunks is None:
      vector[...] = values
      workspace.nonzero_rows.pop('sum', None)
      return PartialVector(vector)
    rows = values.reshape(-1, self.chunk)
    self._scatter(workspace, 'sum', vector, chunks, rows)
    if self.correction != 'masked':
      return PartialVector(vector)
    arrived = workspace.array('arrived', n, bool)
    self._scatter(workspace, 'arrived', arrived, chunks, True)
    return PartialVector(vector, arrived)

  def _scatter(
    self,
    workspace: Workspace,
    name: str,
    array: np.ndarray,
    chunks: np.ndarray,
    values: np.ndarray | bool,
  ) -> None:
    """Writes values into chunks of an array of the workspace, 0 elsewhere."""
    rows = array.reshape(-1, self.chunk)
    rows[workspace.nonzero_rows.get(name, slice(None))] = 0
    rows[chunks] = values
    workspace.nonzero_rows[name] = chunks


def round_to(numbers: np.ndarray, dtype: np.dtype) -> np.ndarray:
  """Returns float32 numbers rounded to a dtype, in float32."""
  if dtype == np.float32:
    return numbers
  with np.errstate(over='ignore'):  # The sum is checked for infinities.
    rounded: np.ndarray = numbers.astype(dtype).astype(np.float32)
  return rounded


def _round_in_place(numbers: np.ndarray, dtype: np.dtype) -> Any:
  """Rounds numbers in place; returns what that takes away."""
  if dtype == np.float32:
    return 0
  exact, numbers[...] = numbers.copy(), round_to(numbers, dtype)
  with np.errstate(invalid='ignore'):
    return exact - numbers


def _other_array(used: np.ndarray, workspace: Workspace) -> np.ndarray:
  """Returns that of two arrays in which `used` does not lie."""
  names = ('unsent', 'unsent, too')
  both = [workspace.array(name, used.size) for name in names]
  return both[int(np.may_share_memory(used, both[0]))]
