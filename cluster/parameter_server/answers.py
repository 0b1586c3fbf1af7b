"""What servers answer to the coordinator, which may come in parts."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from cluster.network import memory
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
    self, server: int, event: Mapping[str, Any], body: Iterable[np.ndarray]
  ) -> None:
    """Takes in an answer, or a part of one.

    Args:
      server: Which one.
      event: 'event' is 'saved', with the 'error' if there was one, or
        'snapshot', with its 'size_bytes'; 'id' is the question's.
      body: Bytes of the snapshot; others' messages may come between them.

    Raises:
      Corrupt: If it answers something else than it was asked.
    """
    if not self._orders.asks(server, event['id']):
      raise Corrupt(f'Server {server} answers what it was not asked.')
    if event['event'] == 'saved':
      failed = event.get('error') is not None
      answer = OSError(f'Server {server}: {event["error"]}') if failed else None
      self._orders.answer(server, event['id'], answer)
    else:
      self._take(server, event, body)

  def _take(
    self, server: int, event: Mapping[str, Any], body: Iterable[np.ndarray]
  ) -> None:
    key, size = (server, event['id']), self._orders.held_bytes(server)
    if event['size_bytes'] != size:
      raise Corrupt(f'Expected {size} bytes, got {event["size_bytes"]}.')
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
      self._orders.answer(server, event['id'], vector.view(np.float32))
