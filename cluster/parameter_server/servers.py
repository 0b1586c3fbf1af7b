"""All servers of a run on real hosts, as the coordinator sees them: as one.

It counts versions and learning rates as each of them does, and turns what the
coordinator wants into numbered orders that all of them carry out in the same sequence.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import numpy as np

from cluster.network import messages
from learning.scaling import Scaling, factor, of
from learning.schedule import Schedule
from wire.flat import Flat

_ITEM = np.dtype(np.float32).itemsize
Key = tuple[int, int]  # A worker and which life of it.


class Ordered(Protocol):
  """A server: here, or at the other end of a stream."""

  def order(self, sequence: int, orders: Sequence[messages.Order]) -> None:
    """Takes orders that are carried out after those of lower numbers."""


class Orders:
  """A ParameterStore: see `learning.learning`.

  Attributes:
    version: Updates applied, or skipped.
    examples: Examples in them.
    scalings: Loss scales, of each worker; [] without.
    sequence: How often orders were given to the servers.
    lives: Which life of each worker is, or was last, among the living.
  """

  def __init__(
    self,
    *,
    flat: Flat,
    schedule: Schedule | None,
    num_workers: int,
    scaling: Scaling | None = None,
  ):
    """Starts at version 0, without servers.

    Args:
      flat: Of the servers' shares.
      schedule: Of the learning rate; None if nothing is learned.
      num_workers: Number of workers.
      scaling: That each starts with; None without.
    """
    self.scalings = [scaling] * num_workers if scaling else []
    self.version = self.examples = 0
    self.lives = [-1] * num_workers
    self._sums: dict[int, int] = {}  # Examples of updates not yet applied.
    self._flat = flat
    self._schedule = schedule
    self._servers: list[Ordered] = []
    self._orders: list[messages.Order] = []
    self.sequence = 0
    self._number = 0  # Of the last question, or version that is held.
    self._questions: dict[int, list[Future]] = {}
    self._beside: Callable[[int], list[Future]] = lambda step: []
    self._answering = threading.Lock()
    self._error: Exception | None = None

  def attach(
    self,
    servers: list[Ordered],
    beside: Callable[[int], list[Future]] = lambda step: [],
  ) -> None:
    """Names the servers, in the order of their shares.

    Args:
      servers: To be ordered.
      beside: Has others write their parts of a checkpoint, too.
    """
    self._servers, self._beside = servers, beside

  def add(
    self, update: int, worker: int, examples: int, *, finite: bool = True
  ) -> None:
    """Sums a worker's push, which all servers have, into an update."""
    own, examples = of(self.scalings, worker), examples if finite else 0
    self._orders.append(
      messages.Add(worker, self.lives[worker], update, examples, factor(own))
    )
    if own:
      self.scalings[worker] = own.after(finite=finite)
    self._sums[update] = self._sums.get(update, 0) + examples

  def commit(self, update: int) -> bool:
    """Applies an update; the version becomes one higher."""
    self._orders.append(messages.Commit(update))
    self.examples += self._sums.pop(update)
    self.version += 1
    return True

  def release(self, worker: int, pull: messages.Pull) -> None:
    """Sends this version to a worker."""
    self._orders.append(messages.Release(worker, self.lives[worker], pull))

  def end(self, worker: int, life: int) -> None:
    """Ends a worker's streams and forgets a push of it that was not added."""
    self._orders.append(messages.EndWorker(worker, life))

  def save(self, step: int) -> list[Future]:
    """Has every server write its part of a checkpoint, and what it holds.

    Args:
      step: Its number.

    Returns:
      Of each server, and of who writes beside them: is done once its part is
      safe.
    """
    return self._ask(lambda k: messages.SaveShare(k, step)) + self._beside(step)

  def flush(self) -> None:
    """Gives the orders so far to the servers."""
    if self._orders:
      # What the coordinator's own server sends would hold up orders on their link.
      for server in reversed(self._servers):
        server.order(self.sequence, self._orders)
      self.sequence += 1
      self._orders = []

  def hold(self) -> int:
    """Keeps this version's parameters and statistics; returns a number."""
    number = self._next()
    self._orders.append(messages.Hold(number))
    return number

  def drop(self, held: int) -> None:
    """Forgets a version that was held."""
    self._orders.append(messages.Drop(held))

  def held_bytes(self, server: int) -> int:
    """Returns how long a version of a server's share is, when it is sent."""
    return _ITEM * sum(self._flat.sizes[server])

  def read(self, held: int) -> Callable[[], tuple[Any, Any]]:
    """Returns what gives a version that is held; it waits for the servers."""
    parts = self._ask(lambda k: messages.SendVersion(k, held))
    return lambda: self._flat.joined(
      [
        self._flat.split(part.result(), server)
        for server, part in enumerate(parts)
      ]
    )

  def asks(self, server: int, number: int) -> bool:
    """Returns whether a server has still to answer; true once nobody waits."""
    with self._answering:
      futures = self._questions.get(number)
      waits = futures is not None and not futures[server].done()
      return waits or self._error is not None

  def answer(self, server: int, number: int, answer: Any) -> None:
    """Takes in what a server has sent or saved; from any thread."""
    with self._answering:
      if self._error is not None:
        return  # Nobody waits any more.
      future = self._questions[number][server]
      if isinstance(answer, Exception):
        future.set_exception(answer)
      else:
        future.set_result(answer)
      if all(future.done() for future in self._questions[number]):
        self._questions.pop(number)

  def fail(self, error: Exception) -> None:
    """Lets all who wait for an answer, or will, know that there is none."""
    with self._answering:
      self._error = self._error or error
      for futures in self._questions.values():
        for future in futures:
          if not future.done():
            future.set_exception(error)
      self._questions.clear()

  def _next(self) -> int:
    self._number += 1
    return self._number

  def _ask(self, order: Callable[[int], messages.Order]) -> list[Future]:
    number = self._next()
    futures = [Future() for _ in self._servers]
    with self._answering:
      if self._error is not None:
        raise self._error
      self._questions[number] = futures
    self._orders.append(order(number))
    self.flush()  # Who waits for an answer may be the caller.
    return futures

  def state(self) -> Any:
    """Returns what is counted here; the servers save the rest."""
    counts = self.version, self.examples, self._sums, self._number
    return counts, self.scalings

  def restore(self, state: Any) -> None:
    """Goes back to where `state` was taken, with other workers perhaps."""
    counts, scalings = state
    self.version, self.examples, self._sums, self._number = counts
    self.scalings = [*scalings, *self.scalings[len(scalings) :]][
      : len(self.scalings)
    ]

  @property
  def pending(self) -> list[int]:
    """Updates with pushes that are not applied yet, ascending."""
    return sorted(self._sums)

  @property
  def learning_rate(self) -> float | None:
    """The learning rate of the next update; None if nothing is learned."""
    if self._schedule is None:
      return None
    return self._schedule(examples=self.examples, updates=self.version)

  @property
  def keeps(self) -> bool:
    """Whether workers keep what they have not sent of gradients."""
    return self._flat.keeps

  @functools.cached_property
  def sizes_bytes(self) -> list[int]:
    """Bytes of a push and a pull together, by the stage of the wire."""
    flat = self._flat
    servers = range(len(flat.sizes))
    return [
      sum(flat.push_bytes(k, stage) + flat.pull_bytes(k) for k in servers)
      for stage in range(len(flat.wire.pushes))
    ]
