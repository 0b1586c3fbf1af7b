"""Time that virtual servers take to add pushes and to apply updates.

All servers have equal shares of the parameters and work at the same time, so
that one clock stands for all of them.  A server does one thing after the other,
in the order of arrival, while its links send and receive.
"""

import dataclasses
import math
from typing import Any

import jax
from ml_collections import ConfigDict

from configs.checks import require


@dataclasses.dataclass
class Servers:
  """Work of the servers.

  Attributes:
    sum_s: Seconds in which a push is added to an update.
    update_s: Seconds in which an update is applied.
    busy_until: Time at which all work so far is done, seconds.
    version: Number of updates whose work is included.
  """

  is_state = True  # Plain data: checkpoints hold it.

  sum_s: float
  update_s: float
  busy_until: float = 0.0
  version: int = 0

  def add(self, time: float) -> None:
    """Adds the work of a push that has arrived."""
    self.busy_until = max(self.busy_until, time) + self.sum_s

  def evaluate(self, time: float, seconds: float) -> None:
    """Adds the work of an evaluation."""
    self.busy_until = max(self.busy_until, time) + seconds

  def update(self, time: float, version: int) -> None:
    """Adds the work of all updates up to a version."""
    count = version - self.version
    self.busy_until = max(self.busy_until, time) + count * self.update_s
    self.version = version


def make(
  config: ConfigDict,
  *,
  servers: int,
  num_bytes: int,
  learner_state: dict[str, Any],
) -> Servers:
  """Returns servers without work.

  Args:
    config: Config of the run.
    servers: Number of servers.
    num_bytes: Bytes of all parameters and running statistics.
    learner_state: State of the learner, which has the optimizer's slots.

  Raises:
    ValueError: If a rate is finite and servers serve pieces of sums
      (`config.route.server.pipelined`).
  """
  section = config.cluster.server
  for name in ('sum_Bps', 'update_Bps'):
    field = f'config.cluster.server.{name}'
    is_used = not config.route.server.pipelined or math.isinf(section[name])
    expected = 'inf, because config.route.server.pipelined is True'
    require(is_used, field, expected, section[name])
  slots = jax.tree.leaves(learner_state.get('_state', ()))
  slot_bytes = sum(leaf.nbytes for leaf in slots)
  return Servers(
    sum_s=num_bytes / servers / section.sum_Bps,
    update_s=(num_bytes + slot_bytes) / servers / section.update_Bps,
  )
