"""Gradient, learner and learning of timing-only runs, which have no model.

Parameters are float32 numbers without a meaning.  In real runs they are zeros;
in a virtual run there are none, so that a thousand workers cost little.
"""

import copy
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from configs.checks import require
from data.stream import Ranges, Stream, size
from learning.fragments import Fragments
from learning.gradient_buffer import Sink
from learning.iteration import Iteration
from learning.layout import FLOAT32
from learning.learning import Learning, Overlap
from learning.scaling import Scaling
from learning.shard_codec import ShardCodec
from wire.codec import Payload, Wire


class TimingOnlyGradient:
  """A `Gradient` and `Streaming` of a run without a model."""

  computed = 0
  overlap = Overlap.NONE
  copies = None

  def __call__(self, params: Any, iteration: Iteration) -> tuple[Payload, None]:
    return Payload(params, ()), None

  def init(self, params: Any) -> tuple[()]:
    return ()

  def push(
    self, params: Any, iteration: Iteration, state: Any
  ) -> tuple[Payload, None, Any]:
    return Payload(params, ()), None, state

  def prepare(self, ranges: Ranges) -> None: ...

  def weigh(self, ranges: Ranges) -> int:
    return size(ranges)

  def place(self, tree: Any) -> Any:
    return tree

  def warm_up(
    self, params: Any, examples: int | None, *, changing: bool
  ) -> list[Payload]:
    return [Payload(params, ())]

  def stream(
    self, params: Any, iteration: Iteration, sink: Sink
  ) -> tuple[tuple[()], None]:
    return (), None


class TimingOnlyLearner:
  """A `Learner` that counts versions of parameters that never change.

  Attributes:
    params: The parameters.
    stats: The statistics.
    version: Number of updates applied.
    examples: Number of examples in applied updates.
    scaling: None.
  """

  has_model = False
  scaling: Scaling | None = None

  def __init__(self, params: Any, stats: Any):
    self.params, self.stats = params, stats
    self.version = self.examples = 0
    self._sums: dict[int, int] = {}

  def twin(self, params: Any, stats: Any) -> 'TimingOnlyLearner':
    return TimingOnlyLearner(params, stats)

  def fork(self) -> 'TimingOnlyLearner':
    fork = copy.copy(self)
    fork._sums = dict(self._sums)
    return fork

  def add(
    self,
    update: int,
    payload: Payload,
    examples: int,
    *,
    weight: float | None = None,
    pushes: int = 1,
    scale: float = 1.0,
  ) -> None:
    self._sums[update] = self._sums.get(update, 0) + examples

  def replace(
    self, update: int, function: Callable[[Payload], Payload]
  ) -> Payload:
    return Payload((), ())

  def commit(self, update: int) -> None:
    self.version += 1
    self.examples += self._sums.pop(update)

  def skip(self, update: int | None = None) -> None:
    raise RuntimeError('Expected an update that can overflow, got none.')

  def apply(
    self,
    payload: Payload,
    examples: int,
    *,
    weight: float | None = None,
    pushes: int,
  ) -> None:
    self.version += 1
    self.examples += examples

  def state(self) -> dict[str, Any]:
    return {
      'version': self.version,
      'examples': self.examples,
      'sums': self._sums,
    }

  def restore(self, state: dict[str, Any]) -> None:
    self.version, self.examples = state['version'], state['examples']
    self._sums = state['sums']


def make(
  *,
  size_bytes: int,
  num_train: int,
  stream: Stream,
  divide: Callable[[int], Fragments | None] = lambda numbers: None,
) -> Learning:
  """Returns the learning of a run without a model.

  Args:
    size_bytes: Bytes of the parameters in float32.
    num_train: Number of examples of an epoch.
    stream: Assignment of examples to iterations.
    divide: Returns the fragments of a number of parameters; None for none.

  Raises:
    ValueError: If the bytes are not those of whole float32 numbers.
  """
  item = FLOAT32.itemsize
  whole = f'a multiple of {item}, the bytes of a float32'
  require(size_bytes % item == 0, 'size_bytes', whole, size_bytes)
  gradient, numbers = TimingOnlyGradient(), size_bytes // item
  return Learning(
    num_train=num_train,
    stream=stream,
    gradient=gradient,
    pushes=gradient,
    make_learner=TimingOnlyLearner,
    shard_codec=functools.partial(_shard_codec, numbers),
    find_overlap=_find_overlap,
    streaming=lambda layout, *, overlap: gradient,
    fragments=divide(numbers),
    blank=numbers,
  )


def _shard_codec(numbers: int, *, servers: int, wire: Wire) -> ShardCodec:
  """Returns a codec of zeros that encodes and decodes each of them once."""
  zeros = np.zeros(numbers, np.float32)
  codec = ShardCodec(zeros, (), servers=servers, wire=wire)
  codec.encode, codec.decode = _once(codec.encode), _once(codec.decode)
  codec.encode_pull = _once(codec.encode_pull)
  codec.decode_pulls = _once(codec.decode_pulls)
  return codec


def _find_overlap(*, wanted: bool) -> tuple[Overlap, str]:
  """Returns that sending overlaps with the time of a backward pass."""
  if wanted:
    return Overlap.BACKWARD, (
      'Without a model, buckets are sent while the time of a backward pass '
      'goes by.'
    )
  return Overlap.NONE, (
    'Without a model, buckets are sent once the time of a backward pass has '
    'gone by: config.route.overlap is False.'
  )


def _once(function: Callable[..., Any]) -> Callable[..., Any]:
  """Returns a function that remembers results by its integer arguments."""
  results: dict[tuple[int, ...], Any] = {}

  def call(*args: Any) -> Any:
    numbers = tuple(arg for arg in args if isinstance(arg, int))
    if numbers not in results:
      results[numbers] = function(*args)
    return results[numbers]

  return call
