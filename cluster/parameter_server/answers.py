"""Answers of servers to questions of the coordinator, which come in parts."""

from collections.abc import Iterable

import numpy as np

from cluster.network import memory
from cluster.network.errors import InvalidMessage
from cluster.network.messages import (
  SaveShare,
  SendVersion,
  ShareSaved,
  VersionPart,
)
from cluster.parameter_server.store import ShardedParameterStore


class Answers:
  """Collects the servers' answers; those of one server in one thread."""

  def __init__(self, store: ShardedParameterStore):
    """Starts without answers.

    Args:
      store: Parameter store, which asks the questions and gets the answers.
    """
    self._store = store
    # Bytes of versions so far, and their number, by server and question.
    self._versions: dict[tuple[int, int], tuple[np.ndarray, int]] = {}

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
      InvalidMessage: If the server was not asked, or was asked for something
        else, or the version has another size.
    """
    is_version = isinstance(answer, VersionPart)
    kind = SendVersion if is_version else SaveShare
    if not self._store.awaits(server, answer.question, kind):
      raise InvalidMessage(f'Server {server} answers what it was not asked.')
    if isinstance(answer, VersionPart):
      self._collect(server, answer, body)
    else:
      error = None
      if answer.error is not None:
        error = OSError(f'Server {server}: {answer.error}')
      self._store.answer(server, answer.question, error)

  def _collect(
    self, server: int, part: VersionPart, body: Iterable[np.ndarray]
  ) -> None:
    key, size = (server, part.question), self._store.held_bytes(server)
    if part.size_bytes != size:
      raise InvalidMessage(f'Expected {size} bytes, got {part.size_bytes}.')
    if key not in self._versions:
      self._versions[key] = memory.aligned(size), 0
    vector, start = self._versions[key]
    for chunk in body:
      if start + chunk.size > size:
        raise InvalidMessage(f'Expected {size} bytes, got more.')
      vector[start : start + chunk.size] = chunk
      start += chunk.size
      del chunk  # Before the next one arrives, which so takes its memory.
    self._versions[key] = vector, start
    if start == size:
      del self._versions[key]
      self._store.answer(server, part.question, vector.view(np.float32))
