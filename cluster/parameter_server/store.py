"""The parameter store of a run with servers on real hosts, for its coordinator.

The store counts versions and learning rates as each server does, and turns the
coordinator's calls into numbered orders, which all servers execute in the same
sequence.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from cluster.network import messages
from cluster.parameter_server import work
from learning.scaling import Scaling, factor, worker_scaling
from learning.schedule import Schedule
from learning.shard_codec import ShardCodec
from system import processes, threads

_ITEM = np.dtype(np.float32).itemsize
Key = tuple[int, int]  # Rank of a worker, and number of its incarnation.


class OrderedServer(Protocol):
  """A server: in this process, or at the other end of a stream.

  Attributes:
    work: Its work; None if it was not measured.
  """

  work: messages.ServerWork | None

  def order(self, sequence: int, orders: Sequence[messages.Order]) -> None:
    """Queues orders, which are executed after those of lower numbers."""


class ShardedParameterStore:
  """A ParameterStore whose parameters are on servers: see `learning.learning`.

  Attributes:
    version: Number of updates applied or skipped.
    examples: Number of examples in applied updates.
    scalings: Loss scaling of each worker; [] without.
    sequence: Number of batches of orders given to the servers.
    incarnations: Number of the last incarnation of each worker.
    has_inner_optimizer: True if workers have states of inner optimizers.
  """

  def __init__(
    self,
    *,
    codec: ShardCodec,
    schedule: Schedule | None,
    num_workers: int,
    scaling: Scaling | None = None,
    has_inner_optimizer: bool = False,
  ):
    """Creates the store at version 0, without servers.

    Args:
      codec: Of the servers' shares.
      schedule: Learning rate schedule; None if nothing is learned.
      num_workers: Number of workers.
      scaling: Initial loss scaling of each worker; None without.
      has_inner_optimizer: Whether workers have states of inner optimizers.
    """
    self.has_inner_optimizer = has_inner_optimizer
    self.scalings = [scaling] * num_workers if scaling else []
    self.version = self.examples = 0
    self.incarnations = [-1] * num_workers
    self._sums: dict[int, int] = {}  # Examples of updates to be applied.
    self._codec = codec
    self._schedule = schedule
    self._servers: Sequence[OrderedServer] = []
    self._orders: list[messages.Order] = []
    self.sequence = 0
    self._number = 0  # Number of the last question or held version.
    self._questions: dict[int, list[threads.Future[Any]]] = {}
    self._kinds: dict[int, type[messages.Order]] = {}  # Of the questions.
    self._save_residuals: Callable[[int], list[threads.Future[Any]]] = (
      lambda step: []
    )
    self._answering = threads.Lock()
    self._error: Exception | None = None
    self._abandoned = 0  # Questions up to this number are answered in vain.

  def attach(
    self,
    servers: Sequence[OrderedServer],
    save_residuals: Callable[
      [int], list[threads.Future[Any]]
    ] = lambda step: [],
  ) -> None:
    """Sets the servers, once all have joined and before their first order.

    Answers to questions that other servers were asked are ignored from now on.

    Args:
      servers: Servers in the order of their shares.
      save_residuals: Makes the workers write their parts of a checkpoint, given
        its number; returns a future of each.
    """
    self._servers, self._save_residuals = servers, save_residuals
    self._orders, self.sequence = [], 0
    with self._answering:
      self._error, self._abandoned = None, self._number

  def add(
    self,
    update: int,
    worker: int,
    examples: int,
    *,
    weight: float | None = None,
    staleness_weight: float = 1.0,
    finite: bool = True,
  ) -> None:
    """Adds a worker's push, which all servers have received, to an update."""
    scaling = worker_scaling(self.scalings, worker)
    examples = examples if finite else 0
    weight = examples if weight is None or not finite else weight
    self._orders.append(
      messages.Add(
        worker=worker,
        incarnation=self.incarnations[worker],
        update=update,
        examples=examples,
        weight=weight,
        scale=factor(scaling) / staleness_weight,
      )
    )
    if scaling:
      self.scalings[worker] = scaling.after(finite=finite)
    self._sums[update] = self._sums.get(update, 0) + examples

  def discard(self, worker: int) -> None:
    """Drops a worker's push, which all servers have received."""
    self._orders.append(
      messages.Add(
        worker=worker,
        incarnation=self.incarnations[worker],
        update=0,
        examples=0,
        weight=0.0,
        scale=1.0,
      )
    )

  def commit(self, update: int) -> bool:
    """Orders servers to apply an update, which increments the version."""
    self._orders.append(messages.Commit(update))
    self.examples += self._sums.pop(update)
    self.version += 1
    return True

  def release(self, worker: int, pull: messages.Pull) -> None:
    """Orders servers to send the current version to a worker."""
    self._orders.append(
      messages.Release(worker, self.incarnations[worker], pull)
    )

  def end(self, worker: int, incarnation: int) -> None:
    """Makes servers end a worker's streams and drop its push unless added."""
    self._orders.append(messages.EndWorker(worker, incarnation))

  def save(self, step: int) -> list[threads.Future[Any]]:
    """Orders servers and workers to write their parts of a checkpoint.

    Args:
      step: Number of the checkpoint.

    Returns:
      A future of each part, which is done once the part is on disk.
    """
    shares = self._ask(lambda number: messages.SaveShare(number, step))
    return shares + self._save_residuals(step)

  def flush(self) -> None:
    """Sends all collected orders to the servers."""
    if self._orders:
      # Traffic of the coordinator's own server would delay orders to others.
      for server in reversed(self._servers):
        server.order(self.sequence, self._orders)
      self.sequence += 1
      self._orders = []

  def mirror(self, number: int) -> None:
    """Orders servers to retain their states as parts of a mirror."""
    self._orders.append(messages.MirrorShare(number))

  def drop_mirrors(self, before: int) -> None:
    """Orders servers to drop their parts of mirrors of lower numbers."""
    self._orders.append(messages.DropMirrors(before))

  def hold(self) -> int:
    """Orders servers to hold the current version; returns a handle."""
    number = self._next()
    self._orders.append(messages.Hold(number))
    return number

  def free(self, handle: int) -> None:
    """Orders servers to free a version that they hold."""
    self._orders.append(messages.Drop(handle))

  def held_bytes(self, server: int) -> int:
    """Returns the bytes of a held version of a server's share."""
    return _ITEM * sum(self._codec.sizes[server])

  def read(self, handle: int) -> Callable[[], tuple[Any, Any]]:
    """Requests a held version from the servers.

    Args:
      handle: Handle of the version.

    Returns:
      A function that waits for the servers; it returns parameters and
      statistics.

    Raises:
      RuntimeError: If there are no servers, as in a run that has finished.
    """
    if not self._servers:
      raise RuntimeError(
        'Expected servers that hold the version, but the run has ended: '
        'tools.checkpoint exports the parameters of its newest checkpoint.'
      )
    parts = self._ask(lambda number: messages.SendVersion(number, handle))
    return lambda: self._codec.join(
      [
        self._codec.split_shard(part.result(), server)
        for server, part in enumerate(parts)
      ]
    )

  def awaits(
    self, server: int, number: int, kind: type[messages.Order]
  ) -> bool:
    """Returns whether a server may answer a question.

    True if its answer is awaited, or the question was asked before an error.

    Args:
      server: Rank of the server.
      number: Number of the question.
      kind: Order that asks such a question.
    """
    with self._answering:
      futures = self._questions.get(number)
      waits = (
        futures is not None
        and not futures[server].done()
        and self._kinds[number] is kind
      )
      return waits or self._error is not None or number <= self._abandoned

  def answer(self, server: int, number: int, answer: Any) -> None:
    """Records a server's answer to a question; from any thread."""
    with self._answering:
      if self._error is not None or number <= self._abandoned:
        return  # `fail` has answered the question.
      future = self._questions[number][server]
      if isinstance(answer, Exception):
        future.set_exception(answer)
      else:
        future.set_result(answer)
      if all(future.done() for future in self._questions[number]):
        self._questions.pop(number)
        self._kinds.pop(number)

  def fail(self, error: Exception) -> None:
    """Makes all requests raise an error until `attach`; from any thread."""
    with self._answering:
      self._error = self._error or error
      for futures in self._questions.values():
        for future in futures:
          if not future.done():
            future.set_exception(error)
      self._questions.clear()
      self._kinds.clear()

  @property
  def has_failed(self) -> bool:
    """True if requests raise an error: see `fail`."""
    with self._answering:
      return self._error is not None

  @property
  def work(self) -> messages.ServerWork | None:
    """Work of the slowest server; None if one was not measured."""
    return work.slowest([server.work for server in self._servers])

  def detach(self) -> None:
    """Drops servers and orders, until `attach` sets the next servers."""
    self._servers, self._orders = [], []

  def _next(self) -> int:
    self._number += 1
    return self._number

  def _ask(
    self, order: Callable[[int], messages.Order]
  ) -> list[threads.Future[Any]]:
    number = self._next()
    asked = order(number)
    futures: list[threads.Future[Any]] = [
      threads.Future() for _ in self._servers
    ]
    with self._answering:
      if self._error is not None:
        raise self._error
      self._questions[number] = futures
      self._kinds[number] = type(asked)
    self._orders.append(asked)
    self.flush()  # The caller may wait for an answer.
    return futures

  def state(self) -> Any:
    """Returns the state of the store, without that of the servers."""
    counts = self.version, self.examples, self._sums, self._number
    return counts, self.scalings

  def restore(self, state: Any) -> None:
    """Restores a state; the number of workers may have changed."""
    counts, scalings = state
    self.version, self.examples, self._sums, number = counts
    self._number = max(number, self._number)
    self.scalings = [*scalings, *self.scalings[len(scalings) :]][
      : len(self.scalings)
    ]

  @property
  def pending(self) -> list[int]:
    """Numbers of updates that have pushes and are not applied, ascending."""
    return sorted(self._sums)

  @property
  def learning_rate(self) -> float | None:
    """Learning rate of the next update; None if nothing is learned."""
    if self._schedule is None:
      return None
    return self._schedule(examples=self.examples, updates=self.version)

  @property
  def has_worker_states(self) -> bool:
    """True if workers have residuals, or states of inner optimizers."""
    return self._codec.has_residual or self.has_inner_optimizer

  @processes.CachedProperty
  def sizes_bytes(self) -> list[int]:
    """Bytes of a push and a pull together, by stage of the wire."""
    codec = self._codec
    servers = range(len(codec.sizes))
    return [
      sum(codec.push_bytes(k, stage) + codec.pull_bytes(k) for k in servers)
      for stage in range(len(codec.wire.pushes))
    ]
