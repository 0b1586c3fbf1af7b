"""Copies of summed buckets to the device, while later ones are summed."""

from collections.abc import Sequence

import jax
import numpy as np

from learning.device_copies import DeviceCopies
from learning.layout import Layout
from wire.codec import Payload


class BucketReturn:
  """A gradient buffer that is copied to the device bucket by bucket."""

  def __init__(self, layout: Layout, vector: np.ndarray, copies: DeviceCopies):
    """Starts no copy yet.

    Args:
      layout: Layout of the buffer.
      vector: The buffer, float32 [layout.size].
      copies: Copies to the device.
    """
    on_host = layout.payload(vector)
    leaves, self._tree = jax.tree.flatten(on_host.gradient)
    stats, self._stats_tree = jax.tree.flatten(on_host.stats)
    self._on_host: Sequence[np.ndarray] = [*leaves, *stats]
    # Indices of the arrays that become complete with each bucket.
    self._parts = [[*bucket.leaves] for bucket in layout.buckets]
    self._parts[-1] += range(len(leaves), len(self._on_host))
    self._on_device: dict[int, jax.Array] = {}
    self._copies, self._num_leaves = copies, len(leaves)

  def start(self, bucket: int) -> None:
    """Starts the copies of a bucket that has its sums."""
    part = self._parts[bucket]
    if part:
      copies = self._copies.start_to_device([self._on_host[k] for k in part])
      self._on_device.update(zip(part, copies, strict=True))

  def payload(self) -> Payload:
    """Returns gradient and statistics on the device; all were started."""
    arrays = [self._on_device[k] for k in range(len(self._on_host))]
    return Payload(
      jax.tree.unflatten(self._tree, arrays[: self._num_leaves]),
      jax.tree.unflatten(self._stats_tree, arrays[self._num_leaves :]),
    )

  def wait(self) -> None:
    """Waits until all started copies have ended: the buffer may change."""
    self._copies.wait_for_device([*self._on_device.values()])
