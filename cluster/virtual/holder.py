"""The learner in the process of the virtual runtime, and what travels of it."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from learning.learning import Learner
from wire.codec import Message, Payload
from wire.trees import Trees


class LocalHolder:
  """A Holder: see `learning.learning`.

  Attributes:
    learner: Holds the parameters.
    trees: What becomes of pushes and pulls on their way.
  """

  def __init__(self, learner: Learner, trees: Trees):
    """Holds the learner."""
    self.learner = learner
    self.trees = trees
    self._arrived: dict[int, Payload] = {}  # Pushes, by worker.
    self._held: dict[int, tuple[Any, Any]] = {}
    self._newest: tuple[Any, Any] = None, None  # Parameters; as workers get it.

  def warm_up(self, payloads: list[Payload]) -> None:
    """Compiles what pushes like these need, and updates."""
    state = self.trees.init()
    for payload in (*payloads, payloads[-1]):  # Of what is remembered, too.
      message, state = self.trees.encode(state, payload)
      jax.block_until_ready(self.trees.decode(message))
    self.learner.warm_up()

  def pulled(self) -> Any:
    """Returns the parameters as workers get them; once for each version."""
    if self._newest[0] is not self.learner.params:
      params = self.learner.params
      self._newest = params, self.trees.pull(params)
    return self._newest[1]

  def arrived(self, worker: int, message: Message) -> None:
    """A worker's push has arrived whole."""
    self._arrived[worker] = self.trees.decode(message)

  def add(self, update: int, worker: int, examples: int) -> None:
    """Sums the push of a worker, which has arrived, into an update."""
    self.learner.add(update, self._arrived.pop(worker), examples)

  def commit(self, update: int) -> None:
    """Applies an update; the version becomes one higher."""
    self.learner.commit(update)

  def hold(self) -> int:
    """Keeps this version's parameters and statistics; returns a number."""
    held = max(self._held, default=0) + 1
    self._held[held] = self.learner.params, self.learner.stats
    return held

  def drop(self, held: int) -> None:
    """Forgets a version that was held."""
    self._held.pop(held)

  def read(self, held: int) -> Callable[[], tuple[Any, Any]]:
    """Returns what gives a version that is held."""
    return functools.partial(self._held.__getitem__, held)

  @property
  def version(self) -> int:
    """Updates applied."""
    return self.learner.version

  @property
  def examples(self) -> int:
    """Examples in them."""
    return self.learner.examples

  @property
  def learning_rate(self) -> float | None:
    """The learning rate of the next update; None if nothing is learned."""
    return self.learner.learning_rate
