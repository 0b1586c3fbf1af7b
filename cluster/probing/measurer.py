"""A worker's part in measuring the links of its run: it executes orders."""

import socket
from collections.abc import Mapping
from typing import Any

from cluster.membership import checked
from cluster.network.interfaces import card
from cluster.probing import transfers, trials

_MOST = 4096  # Workers in an answer.


class Measurer:
  """Executes the coordinator's orders to measure, one after the other."""

  def __init__(self, index: int, host: str, timeout_s: float):
    """Creates the measurer; it does not listen yet.

    Args:
      index: Rank of this worker.
      host: IPv4 address of this host, to listen on.
      timeout_s: Silence after which another worker counts as lost.
    """
    self._index, self._host = index, host
    # A worker that waits for a peer has to report it before it is lost itself.
    self._timeout_s = timeout_s / 2
    self._endpoint: transfers.Endpoint | None = None

  def __call__(self, told: Mapping[str, Any]) -> dict[str, Any]:
    """Executes an order of the coordinator.

    Args:
      told: By `Survey`: number and order.

    Returns:
      What to tell the coordinator.
    """
    answer: Any = None
    problem = ''
    try:
      answer = self._obey(told['order'])
    except transfers.Broken as error:
      problem = f'worker {self._index} with {error}'
    except OSError as error:
      problem = f'worker {self._index}: {error.strerror or error}'
    return {
      'event': 'answered',
      'number': told['number'],
      'answer': answer,
      'problem': problem[:200],
    }

  def close(self) -> None:
    """Closes the listener, if it is open."""
    if self._endpoint:
      self._endpoint.close()
      self._endpoint = None

  def _obey(self, order: Mapping[str, Any]) -> Any:
    if order['do'] == 'open':
      self.close()
      self._endpoint = transfers.Endpoint(self._host, timeout_s=self._timeout_s)
      return {
        'hostname': socket.gethostname(),
        'address': self._host,
        'card': card(self._host),
        'port': self._endpoint.port,
      }
    if order['do'] == 'close':
      self.close()
      return []
    if self._endpoint is None:
      raise transfers.Broken('nothing is open')
    return trials.carry_out(order, self._endpoint)


def _is_answer(value: Any) -> bool:
  """Returns whether it is None, rates by worker, or what a host says."""
  if isinstance(value, dict):
    texts = all(
      checked.is_text(value.get(name)) and len(value[name]) < _MOST
      for name in ('hostname', 'address', 'card')
    )
    return texts and checked.is_count(value.get('port'))
  if value is None:
    return True
  return (
    isinstance(value, list)
    and len(value) <= _MOST
    and all(
      isinstance(row, list)
      and len(row) == 2
      and checked.is_count(row[0])
      and checked.is_number(row[1])
      for row in value
    )
  )


ANSWERED: checked.Fields = {
  'number': checked.is_count,
  'answer': _is_answer,
  'problem': checked.is_text,
}
