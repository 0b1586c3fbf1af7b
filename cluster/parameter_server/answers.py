"""What servers answer to the coordinator, which may come in parts."""

from collections.abc import Iterable

import numpy as np

from cluster.network import memory
from cluster.network.messages import ShareSaved, VersionPart
from cluster.network.streams import Corrupt
from cluster.parameter_server.servers import Orders


class Answers:
  """Takes in what servers were asked; for each server from one thread."""

  def __init__(self, orders: Orders):
    """Has nothing yet.

    Args:
      orders: Asks, and gets the answers.
    """
    self._orders = orders
    # What has arrived of them, and how many bytes: by server and question.
    self._snapshots: dict[tuple[int, int], tuple[np.ndarray, int]] = {}

  def take(
    self,
    server: int,
    answer: ShareSaved | VersionPart,
    body: Iterable[np.ndarray],
  ) -> None:
    """Handles an answer, or a part of one.

    Args:
      server: Rank of the server.
      answer: The answer.
      body: Bytes of a version; other messages may come between its parts.

    Raises:
      Corrupt: If it answers something else than it was asked.
    """
    if not self._orders.asks(server, answer.question):
      raise Corrupt(f'Server {server} answers what it was not asked.')
    if isinstance(answer, VersionPart):
      self._take(server, answer, body)
    else:
      error = None
      if answer.error is not None:
        error = OSError(f'Server {server}: {answer.error}')
      self._orders.answer(server, answer.question, error)

  def _take(
    self, server: int, part: VersionPart, body: Iterable[np.ndarray]
  ) -> None:
    key, size = (server, part.question), self._orders.held_bytes(server)
    if part.size_bytes != size:
      raise Corrupt(f'Expected {size} bytes, got {part.size_bytes}.')
    if key not in self._snapshots:
      self._snapshots[key] = memory.aligned(size), 0
    vector, start = self._snapshots[key]
    for chunk in body:
      if start + chunk.size > size:
        raise Corrupt(f'Expected {size} bytes, got more.')
      vector[start : start + chunk.size] = chunk
      start += chunk.size
      del chunk  # Before the next one arrives, which so takes its warm memory.
    self._snapshots[key] = vector, start
    if start == size:
      del self._snapshots[key]
      self._orders.answer(server, part.question, vector.view(np.float32))
