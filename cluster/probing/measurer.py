"""A worker's part in measuring the links of its run: it executes orders."""

from cluster.network.errors import TransportError, describe
from cluster.network.messages import (
  CloseEndpoint,
  HostDescription,
  OpenEndpoint,
  Probe,
  ProbeAnswer,
  ProbeOrder,
  Rates,
)
from cluster.network.port import Port
from cluster.probing import transfers, trials
from system import net


class Measurer:
  """Executes the coordinator's orders to measure, one after the other."""

  def __init__(self, index: int, port: Port, timeout_s: float):
    """Creates the measurer; it does not listen yet.

    Args:
      index: Rank of this worker.
      port: Port of this process.
      timeout_s: Silence after which another worker counts as lost.
    """
    self._index, self._port = index, port
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
    except (TransportError, OSError) as error:
      problem = f'worker {self._index}: {describe(error)}'
    return ProbeAnswer(order.number, answer, problem[:200])

  def close(self) -> None:
    """Closes the listener, if it is open."""
    if self._endpoint:
      self._endpoint.close()
      self._endpoint = None

  def _obey(self, order: Probe) -> HostDescription | Rates:
    if isinstance(order, OpenEndpoint):
      self.close()
      self._endpoint = transfers.Endpoint(self._port, timeout_s=self._timeout_s)
      return HostDescription(
        hostname=net.gethostname(),
        address=self._port.host,
        card=net.hardware_address(self._port.host),
        port=self._endpoint.port,
      )
    if isinstance(order, CloseEndpoint):
      self.close()
      return []
    if self._endpoint is None:
      raise transfers.Broken('nothing is open')
    return trials.carry_out(order, self._endpoint)
