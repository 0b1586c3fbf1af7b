"""What travels, as an interface: codecs, and the wire that they make up.

A wire is made by `make(...)` of the module that config.wire.name names.  Its
codecs are pure functions of fixed shapes that can be jitted; what they remember
is an argument and a result.  How many bytes a vector becomes is known before
the vector is.
"""

import itertools
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, cast

import jax
import numpy as np

# A pytree of arrays: what a vector becomes on its way.
Message = Any


class State(NamedTuple):
  """What one worker's codec remembers from vector to vector, plain pytrees.

  Attributes:
    kept: Of what was encoded, what is still to be sent: arrays, float32 [n].
      Who goes on in the place of a worker, or of several, takes it over, or
      their sum.
    own: What else this worker has, such as a random key.
    common: What is the same on all workers that sum among themselves, such as
      norms of the last sum: who joins them needs theirs.
  """

  kept: Any = ()
  own: Any = ()
  common: Any = ()


def scaled(state: State, scale: Any) -> State:
  """Returns a state that keeps what it keeps times a number."""
  kept = jax.tree.map(lambda array: array * scale, state.kept)
  return state._replace(kept=kept)


class Payload(NamedTuple):
  """What a push carries, summed over its examples.

  Attributes:
    gradient: Pytree like the parameters.
    stats: The batch's statistics times its examples, like `Task.stats`.
    arrived: Which numbers of the gradient it has, if an update is to leave the
      others as they are: bool, like the gradient; () if it has all.
  """

  gradient: Any
  stats: Any
  arrived: Any = ()


class Summed(NamedTuple):
  """The sum of all workers' vectors, as far as it has travelled.

  Attributes:
    vector: Float32 [n].
    arrived: As of `Payload`, bool [n] or ().
  """

  vector: jax.Array
  arrived: Any = ()


class Rows(NamedTuple):
  """A matrix that lies in a vector, row after row.

  Attributes:
    start: Where its first number is.
    rows: How many.
    columns: Numbers of each.
  """

  start: int
  rows: int
  columns: int


# A worker's part of a conversation: of what it carries on and what it has heard
# it returns what it says, which the sum of all will answer, and what it carries
# on.
Round = Callable[[Any, jax.Array], tuple[Any, Any]]


# What a worker says, hears, and has at the end: see `wire.talks`.
Talk = Generator[Any, Any, tuple[Summed, State]]


class Room:
  """Arrays of NumPy that one worker's conversations use again and again.

  Fresh memory would cost more than what is done in it.

  Attributes:
    rows: Of arrays by name, where they are not 0, if somebody knows.
  """

  def __init__(self, **arrays: np.ndarray):
    """Takes arrays that are there, by name; nobody else writes to them."""
    self._arrays = arrays
    self.rows: dict[str, np.ndarray] = {}

  def __call__(self, name: str, size: int, dtype: Any = np.float32) -> Any:
    """Returns [size], the same for the same name and size; as it was left."""
    known = self._arrays.get(name)
    if known is None or known.size != size:
      known = self._arrays[name] = np.empty(size, dtype)
      self.rows.pop(name, None)
    return known


class Early(NamedTuple):
  """What a sum among workers begins with, if it is known before the vector.

  The first round says these parts of the vector, end to end, and then what it
  says besides.

  Attributes:
    chunk: Numbers of a part; those that the last one lacks are zeros.
    count: Returns how many parts travel of n numbers; 0 if all of them do.
    chosen: Returns which, int [count], ascending, of the state and n; in NumPy.
    values: Returns what a part of the vector becomes, of what is kept of it,
      and of it; for NumPy.
  """

  chunk: int
  count: Callable[[int], int]
  chosen: Callable[[State, int], np.ndarray]
  values: Callable[[Any, Any], Any]

  def parts(self, n: int, bucket_bytes: float) -> list[tuple[int, int]]:
    """Returns what travels at a time: the first of its parts, and its end.

    Args:
      n: Numbers of the vector.
      bucket_bytes: Of float32 that these have at least, but for all of them.
    """
    count = self.count(n)
    least = max(int(min(bucket_bytes, 2**62)) // (4 * self.chunk), 1)
    starts = range(0, max(count - least, 0) + 1, least)
    return [*itertools.pairwise([*starts, count])]


class Halves(NamedTuple):
  """Of what is said last in a sum among workers, what travels in halves.

  Attributes:
    dtype: To which it has been rounded; the sum is rounded, too, once.
    count: Returns how many numbers, the first ones, of the vector's.
  """

  dtype: np.dtype
  count: Callable[[int], int]


class Codec(NamedTuple):
  """What a vector becomes on its way, and back.

  Attributes:
    init: Returns what a worker remembers before its first vector, of the number
      of elements and which worker it is: what rounds at random must not do so
      alike on all.
    encode: Returns what travels of a vector, float32 [n], and what is
      remembered then.
    decode: Returns the vector, float32 [n], that a message stands for, given
      n: shapes of messages need not tell it.
    size_bytes: Returns how long the message of n elements is.
    elementwise: Whether each number becomes one number by itself, and nothing
      is remembered.  Such a codec may be given an array of any shape, the
      leaves of a tree one by one, or a part of a vector.
    dtype: Of what each number is rounded to, if that is all that becomes of it,
      and float32 if nothing does: sums among workers round likewise.  None if
      something else does.
    arrived: Returns which numbers a message has, bool [n], of it and n, if an
      update is to leave the others as they are; None if it has all.
    rounds: How vectors of all workers are summed among them by a conversation
      (norms first, say); see `wire.talks`.  The first is given the state and
      the vector, the last returns `Summed` and the state, whose `kept` and
      `own` do not depend on what it has heard.  Each can be jitted by itself.
      () if such sums take nothing but rounding, see `dtype`, or cannot be had.
    hosted: The same conversation in NumPy, for hosts, where XLA takes longer;
      of the state, the vector, by which power of two that is scaled (what is
      kept is not), and room.  The vector is written over, and may be kept; what
      it keeps of the state before it does not touch.  The sum is in room.
      None for no other than `rounds`.
    halves: What of it travels in half of float32; None for nothing.
    overflows: Whether finite numbers may become infinite on their way.
    multiple: Vectors that are summed among workers are a multiple of so many
      numbers; they can end with numbers that stand for nothing.
    early: What of the first round can travel before the whole vector is there;
      None for nothing.
    shaped: Returns the codec of vectors in which these matrices lie; None if
      it is all the same.
  """

  init: Callable[[int, Any], State]
  encode: Callable[[State, jax.Array], tuple[Message, State]]
  decode: Callable[[Message, int], jax.Array]
  size_bytes: Callable[[int], int]
  elementwise: bool = False
  dtype: np.dtype | None = None
  arrived: Callable[[Message, int], jax.Array] | None = None
  rounds: Sequence[Round] = ()
  hosted: Callable[[State, np.ndarray, float, Room], Talk] | None = None
  halves: Halves | None = None
  overflows: bool = False
  multiple: int = 1
  early: Early | None = None
  shaped: 'Callable[[Sequence[Rows]], Codec] | None' = None


class Wire(NamedTuple):
  """The codecs of a run.

  Attributes:
    push: Of gradients.
    pull: Of parameters; it remembers nothing, as all workers get the same.
    stats: Of running statistics, both ways; it remembers nothing.
    before: Others of gradients, whose states are alike, each with the epochs
      until which it is used instead, ascending: stages of a warm-up.
  """

  push: Codec
  pull: Codec
  stats: Codec
  before: Sequence[tuple[float, Codec]] = ()

  @property
  def pushes(self) -> Sequence[Codec]:
    """The codecs of gradients, stage by stage."""
    return [*(codec for _, codec in self.before), self.push]

  def stage(self, epochs: float) -> int:
    """Returns which of `pushes` is used after so many epochs."""
    return sum(until <= epochs for until, _ in self.before)

  @property
  def elementwise(self) -> bool:
    """Whether all codecs treat each number by itself."""
    return all(codec.elementwise for codec in self._codecs)

  @property
  def plain(self) -> bool:
    """Whether all codecs hand over the very vector that they are given."""
    return self.elementwise and all(map(_changes_nothing, self._codecs))

  def push_bytes(self, params: int, stats: int, stage: int = -1) -> int:
    """Returns how long a push of so many elements of both is."""
    push = self.pushes[stage]
    return push.size_bytes(params) + self.stats.size_bytes(stats)

  def pull_bytes(self, params: int, stats: int) -> int:
    """Returns how long a pull of so many elements of both is."""
    return self.pull.size_bytes(params) + self.stats.size_bytes(stats)

  @property
  def _codecs(self) -> Sequence[Codec]:
    return [*self.pushes, self.pull, self.stats]


def decoded(codec: Codec, message: Message, n: int) -> Summed:
  """Returns what a message of n elements stands for."""
  arrived = codec.arrived(message, n) if codec.arrived else ()
  return Summed(codec.decode(message, n), arrived)


def _changes_nothing(codec: Codec) -> bool:
  vector = cast(jax.Array, np.zeros(1, np.float32))  # Which compiles nothing.
  message, _ = codec.encode(State(), vector)
  return message is vector and codec.decode(message, 1) is vector
