"""State of a network's flows and links; plain data."""

import dataclasses
import math


@dataclasses.dataclass(slots=True)
class Flow:
  """A flow that has not drained, and the group or pool that it is in."""

  is_state = True  # Plain data: checkpoints hold it.

  ends: list[tuple[int, int]]  # Each finite link and the other one, or itself.
  latency: float
  left: float  # Bytes left at the time at which it last was in no group.
  weight: float = 1.0  # Its share of a link, over that of a flow of weight 1.
  owner: int = -1  # Link whose group it is in; -1 for none.
  # Bytes that the group has served to a weight of 1 once it has drained.
  mark: float = 0.0
  home: int = -1  # Link whose pool it is in; -1 for none.
  cap: float = math.inf  # Capacity of its other link.


@dataclasses.dataclass(slots=True)
class Link:
  """A link, the group of flows that it limits, and its pool."""

  is_state = True  # Plain data: checkpoints hold it.

  capacity: float
  spare: float = 0.0  # Bytes that could pass at once at time `since`.
  since: float = 0.0
  count: int = 0  # Number of flows that cross it.
  weight: float = 0.0  # Sum of their weights.
  # Weights of these flows, by the other link that they cross.
  flows: dict[int, dict[int, float]] = dataclasses.field(default_factory=dict)
  level: float = math.inf  # Rate of a flow of weight 1 of the group.
  served: float = 0.0  # Bytes that such a flow could have sent by `stamp`.
  stamp: float = 0.0
  due: float = math.inf  # Time of the first drain.
  queue: list[tuple[float, int]] = dataclasses.field(default_factory=list)
  queued: float = 0.0  # Sum of the weights of the flows in `queue`.
  # Pooled flows of lower caps, by their caps over their weights.
  caps: list[tuple[float, int]] = dataclasses.field(default_factory=list)
  split: int = 0  # Number of `caps` below the level of the pool.
  taken: float = 0.0  # Sum of these caps.
  share: float = 0.0  # Key in the order for filling; 0 when not in it.

  def serve(self, now: float) -> None:
    """Counts the bytes that the group has been served until now."""
    if not self.queue:
      # From zero again, so that equal histories at different links stay equal.
      self.served = 0.0
    elif now > self.stamp:
      self.served += self.level * (now - self.stamp)
    self.stamp = now

  def drain_time(self) -> float:
    """Returns the time of the group's first drain, seconds."""
    return self.stamp + (self.queue[0][0] - self.served) / self.level

  def refill(self, now: float, most: float) -> None:
    """Adds the bytes that have not passed since the link was last full.

    Args:
      now: Seconds.
      most: Most bytes that may pass at once.
    """
    if not self.queue:
      self.spare += self.capacity * (now - self.since)
      self.spare, self.since = min(self.spare, most), now

  def pool_level(self) -> float:
    """Returns the rate of a flow of weight 1 of the pool, below its cap."""
    if self.queue:
      return (self.capacity - self.taken) / self.queued
    return math.inf if self.taken <= self.capacity else 0.0

  def release(self, cap: float) -> None:
    """Removes one flow from those at their caps."""
    self.split -= 1
    # Exactly zero without flows: rounding errors must not add up.
    self.taken = self.taken - cap if self.split else 0.0
