"""Nothing is learned: time and bytes alone, for as many workers as one likes.

Parameters are float32 numbers that stand for nothing.  Where they travel
between real hosts they are zeros; in one process there are none.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from configs.checks import require
from data.stream import Ranges, Stream
from learning.gradient_buffer import LeafSink
from learning.layout import FLOAT32, Layout
from learning.learning import Overlap
from learning.shard_codec import ShardCodec
from wire.codec import Payload, Wire

_ITEM = np.dtype(np.float32).itemsize


class NoGradient:
  """Computes nothing; its attributes are those of a Gradient."""

  computed = 0
  overlap = Overlap.NONE

  def __call__(
    self,
    params: Any,
    ranges: Ranges,
    *,
    worker: int,
    iteration: int,
    scale: float = 1.0,
  ) -> tuple[Payload, None]:
    """Returns the parameters in the place of their gradient, and no loss."""
    return Payload(params, ()), None

  def prepare(self, ranges: Ranges) -> None:
    """Nothing to prepare."""

  def placed(self, tree: Any) -> Any:
    """Returns the tree: nothing is computed anywhere."""
    return tree

  def warm_up(
    self, params: Any, examples: int | None, *, changing: bool
  ) -> list[Payload]:
    """Nothing to compile; returns what is pushed."""
    return [Payload(params, ())]

  def warm_up_stream(
    self, params: Any, examples: int | None, *, changing: bool
  ) -> None:
    """Nothing to compile."""

  def stream(
    self,
    params: Any,
    ranges: Ranges,
    *,
    worker: int,
    iteration: int,
    sink: LeafSink,
    scale: float = 1.0,
  ) -> tuple[tuple[()], None]:
    """Hands out nothing; returns no statistics and no loss."""
    return (), None


class NoLearner:
  """Counts versions of parameters that never change.

  Attributes:
    params: As given.
    stats: As given.
    version: Updates applied.
    examples: Examples in them.
    learning_rate: None.
    scaling: None.
  """

  learning_rate = scaling = None

  def __init__(self, params: Any, stats: Any):
    """Starts at version 0."""
    self.params, self.stats = params, stats
    self.version = self.examples = 0
    self._sums: dict[int, int] = {}

  def twin(self, params: Any, stats: Any) -> 'NoLearner':
    """Returns another one."""
    return NoLearner(params, stats)

  def fork(self) -> 'NoLearner':
    """Returns one that goes on from here, while this one stays as it is."""
    fork = copy.copy(self)
    fork._sums = dict(self._sums)
    return fork

  def warm_up(self, like: Payload | None = None) -> None:
    """Nothing to compile."""

  def add(
    self,
    update: int,
    payload: Payload,
    examples: int,
    *,
    pushes: int = 1,
    scale: float = 1.0,
  ) -> None:
    """Counts a push into an update."""
    self._sums[update] = self._sums.get(update, 0) + examples

  def replace(
    self, update: int, function: Callable[[Payload], Payload]
  ) -> Payload:
    """Replaces nothing."""
    return Payload((), ())

  def commit(self, update: int) -> None:
    """Applies an update; the version becomes one higher."""
    self.version += 1
    self.examples += self._sums.pop(update)

  def skip(self, update: int | None = None) -> None:
    """Nothing is skipped that is never computed."""
    raise RuntimeError('Expected an update that can overflow, got none.')

  def apply_buffer(
    self,
    layout: Layout,
    vector: np.ndarray,
    examples: int,
    *,
    pushes: int,
    arrived: Any = (),
  ) -> None:
    """Counts an update."""
    self.version += 1
    self.examples += examples

  def warm_up_buffer(self, layout: Layout, arrived: Any = ()) -> None:
    """Nothing to compile."""

  def state(self) -> dict[str, Any]:
    """Returns what commits and sums change."""
    return {
      'version': self.version,
      'examples': self.examples,
      'sums': self._sums,
    }

  def restore(self, state: dict[str, Any]) -> None:
    """Goes back to where `state` was taken."""
    self.version, self.examples = state['version'], state['examples']
    self._sums = state['sums']


class Nothing:
  """A Learning of nothing: see `learning.learning`."""

  evaluate = schedule = scaling = None
  other_bytes = 0
  params = stats = ()
  sizes: Sequence[int] = ()
  devices: Sequence[str] = ()

  def __init__(self, *, size_bytes: int, num_train: int, stream: Stream):
    """Keeps how much there is of it.

    Args:
      size_bytes: Of the parameters, in float32.
      num_train: Examples of an epoch.
      stream: Which examples an iteration uses.

    Raises:
      ValueError: If the bytes are no whole numbers of float32.
    """
    whole = f'a multiple of {_ITEM}, the bytes of a float32'
    require(size_bytes % _ITEM == 0, 'size_bytes', whole, size_bytes)
    self.num_train, self.stream = num_train, stream
    self.gradient = NoGradient()
    self.learner = NoLearner
    self.elements = size_bytes // _ITEM, 0

  def epochs(self, *, examples: int, updates: int) -> float:
    """Returns how far a run is."""
    del updates
    return examples / self.num_train

  def shard_codec(self, *, servers: int, wire: Wire) -> ShardCodec:
    """Returns how zeros are divided among servers."""
    zeros = np.zeros(self.elements[0], np.float32)
    codec = ShardCodec(zeros, (), servers=servers, wire=wire)
    codec.encode, codec.decode = _once(codec.encode), _once(codec.decode)
    codec.encode_pull = _once(codec.encode_pull)
    codec.decode_pulls = _once(codec.decode_pulls)
    return codec

  def layout(
    self,
    *,
    bucket_bytes: float,
    step_statistics: int,
    dtype: np.dtype = FLOAT32,
    multiple: int = 1,
  ) -> Layout:
    """Returns a pool of as many numbers, in one range: nobody fills them."""
    return Layout(
      (),
      blank=self.elements[0],
      bucket_bytes=bucket_bytes,
      step_statistics=step_statistics,
      dtype=dtype,
      multiple=multiple,
    )

  def find_overlap(self, *, wanted: bool) -> tuple[Overlap, str]:
    """Returns that a simulated backward pass overlaps with sending, if wanted.

    Args:
      wanted: config.route.overlap.
    """
    if wanted:
      return Overlap.BACKWARD, (
        'Without a model, buckets are sent while the time of a backward pass '
        'goes by.'
      )
    return Overlap.NONE, (
      'Without a model, buckets are sent once the time of a backward pass has '
      'gone by: config.route.overlap is False.'
    )

  def streaming(self, layout: Layout, *, overlap: bool) -> NoGradient:
    """Returns what hands out nothing."""
    return self.gradient


def _once(function: Callable[..., Any]) -> Callable[..., Any]:
  """Returns what always returns what the function has returned at first.

  That is, with the same whole numbers among its arguments.
  """
  found: dict[tuple[int, ...], Any] = {}

  def known(*args: Any) -> Any:
    numbers = tuple(arg for arg in args if isinstance(arg, int))
    if numbers not in found:
      found[numbers] = function(*args)
    return found[numbers]

  return known
