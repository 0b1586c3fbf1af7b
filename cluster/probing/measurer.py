"""A worker's part in measuring the links of its run: it executes orders."""

import socket

from cluster.network.interfaces import card
from cluster.network.messages import (
  CloseEndpoint,
  HostDescription,
  OpenEndpoint,
  Probe,
  ProbeAnswer,
  ProbeOrder,
  Rates,
)
from cluster.probing import transfers, trials


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

  def __call__(self, order: ProbeOrder) -> ProbeAnswer:
    """Executes an order of the coordinator.

    Args:
      order: The order of the coordinator.

    Returns:
      The answer to it.
    """
    answer: HostDescription | Rates | None = None
    problem = ''
    try:
      answer = self._obey(order.probe)
    except transfers.Broken as error:
      problem = f'worker {self._index} with {error}'
    except OSError as error:
      problem = f'worker {self._index}: {error.strerror or error}'
    return ProbeAnswer(order.number, answer, problem[:200])

  def close(self) -> None:
    """Closes the listener, if it is open."""
    if self._endpoint:
      self._endpoint.close()
      self._endpoint = None

  def _obey(self, order: Probe) -> HostDescription | Rates:
    if isinstance(order, OpenEndpoint):
      self.close()
      self._endpoint = transfers.Endpoint(self._host, timeout_s=self._timeout_s)
      return HostDescription(
        hostname=socket.gethostname(),
        address=self._host,
        card=card(self._host),
        port=self._endpoint.port,
      )
    if isinstance(order, CloseEndpoint):
      self.close()
      return []
    if self._endpoint is None:
      raise transfers.Broken('nothing is open')
    return trials.carry_out(order, self._endpoint)
