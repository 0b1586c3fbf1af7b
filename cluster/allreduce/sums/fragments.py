"""Allreduce of one fragment of the model in each iteration, on hosts.

Each fragment has a gradient buffer of its own, so that every iteration sums a
whole buffer: see `learning.fragments`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cluster.allreduce.sums.host import HostReducer, SumBuffers
from cluster.network import memory
from cluster.speed.layers import Bucket
from learning.iteration import Iteration
from learning.layout import FLOAT32, Layout
from learning.learning import Learner


class FragmentReducer(HostReducer):
  """A `HostReducer` whose layout follows the version of the sum."""

  def __init__(
    self,
    index: int,
    *,
    layouts: Sequence[Layout],
    masks: Sequence[Any],
    simulated_parts: Sequence[Sequence[Bucket]] = (),
    **arguments: Any,
  ):
    """Creates a reducer that does not listen yet.

    Args:
      index: Index of this worker.
      layouts: Layout of each fragment, with statistics and step statistics.
      masks: Part of the update of each fragment to apply, as of
        `Payload.arrived`.
      simulated_parts: Without a model: parts of each layout, as of
        `HostReducer`; () with a model.
      **arguments: Other arguments of `HostReducer`.
    """
    parts = simulated_parts or [()] * len(layouts)
    super().__init__(
      index, layout=layouts[0], simulated_parts=parts[0], **arguments
    )
    self._masks = masks
    self._each = [
      SumBuffers(*pair) for pair in zip(layouts, parts, strict=True)
    ]

  def warm_up(
    self, learner: Learner, examples: int | None, *, changing: bool
  ) -> None:
    """Compiles pushes and updates of all fragments."""
    self._gradient.warm_up(learner.params, examples, changing=changing)
    for buffers, mask in zip(self._each, self._masks, strict=True):
      self._warm_up_updates(learner, buffers.layout, mask)

  def compute(
    self,
    learner: Learner,
    iteration: Iteration,
    *,
    stage: int,
    least_s: float,
  ) -> tuple[float | None, bool]:
    """Computes the displacement of a fragment, and sends it before the end."""
    self._use(self._each[iteration.version % len(self._each)])
    return super().compute(learner, iteration, stage=stage, least_s=least_s)

  def apply(
    self, learner: Learner, *, examples: int, weight: float, pushes: int
  ) -> None:
    """Applies the summed buffer to its fragment."""
    payload = self._layout.payload(self._vectors[0])._replace(
      arrived=self._masks[learner.version % len(self._masks)]
    )
    learner.apply(payload, examples, weight=weight, pushes=pushes)

  def apply_copy(
    self,
    learner: Learner,
    sums: Any,
    *,
    examples: int,
    weight: float,
    pushes: int,
  ) -> None:
    """Applies copied buckets to the fragment of the learner's version."""
    number = learner.version % len(self._each)
    layout = self._each[number].layout
    vector = memory.aligned(layout.size * FLOAT32.itemsize).view(np.float32)
    for bucket, numbers in zip(layout.buckets, sums, strict=True):
      vector[bucket.start : bucket.end] = numbers
    payload = layout.payload(vector)._replace(arrived=self._masks[number])
    learner.apply(payload, examples, weight=weight, pushes=pushes)
