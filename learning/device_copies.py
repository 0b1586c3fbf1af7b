"""Asynchronous copies between an accelerator and its host.

An accelerator reads and writes pinned (page-locked) memory of its host by
itself, at the full rate of its link and while the processor does other work.
Copies from and to other memory pass through a pinned buffer of the driver, with
the processor's help.  In JAX pinned memory is the memory kind 'pinned_host' of
a sharding; `jax.experimental.array_serialization` writes checkpoints with it.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import numpy as np

PINNED = 'pinned_host'


class DeviceCopies(Protocol):
  """Copies between a device and its host, which run once they are started.

  Copies of one direction end in the order in which they were started.
  """

  def start_to_host(self, arrays: Sequence[jax.Array]) -> Sequence[Any]:
    """Starts copies to the host; returns one for each array.

    The results are for `wait_for_host` alone.
    """

  def wait_for_host(self, copy: Any) -> np.ndarray:
    """Waits for a copy to the host; returns its numbers, not to be changed.

    Args:
      copy: One of the results of `start_to_host`.
    """

  def start_to_device(
    self, arrays: Sequence[np.ndarray]
  ) -> Sequence[jax.Array]:
    """Starts copies to the default device; returns their results.

    Args:
      arrays: Arrays of the host.  They must not change until
        `wait_for_device` of the results, or of what is computed from them.
    """

  def wait_for_device(self, tree: Any) -> None:
    """Waits until all arrays of a pytree are on the device."""


class PageableCopies:
  """`DeviceCopies` by way of any memory of the host.

  For accelerators without pinned memory, and for the CPU, whose arrays are in
  the host's memory: nothing is copied then.
  """

  def start_to_host(self, arrays: Sequence[jax.Array]) -> Sequence[jax.Array]:
    for array in arrays:
      array.copy_to_host_async()
    return arrays

  def wait_for_host(self, copy: jax.Array) -> np.ndarray:
    return np.asarray(copy)

  def start_to_device(
    self, arrays: Sequence[np.ndarray]
  ) -> Sequence[jax.Array]:
    copies: Sequence[jax.Array] = jax.device_put(list(arrays))
    return copies

  def wait_for_device(self, tree: Any) -> None:
    jax.block_until_ready(tree)


class PinnedCopies(PageableCopies):
  """`DeviceCopies` whose copies to the host land in pinned memory.

  XLA itself copies arrays of the host through pinned memory on their way to a
  GPU, in a thread of its own.
  """

  def start_to_host(self, arrays: Sequence[jax.Array]) -> Sequence[jax.Array]:
    shardings = [each.sharding.with_memory_kind(PINNED) for each in arrays]
    copies: Sequence[jax.Array] = jax.device_put(list(arrays), shardings)
    return copies


def has_pinned_memory() -> bool:
  """Returns whether JAX's default device can copy to pinned memory."""
  memories = jax.local_devices()[0].addressable_memories()
  return any(memory.kind == PINNED for memory in memories)


def find_copies() -> DeviceCopies:
  """Returns the fastest copies that JAX's default device has."""
  is_cpu = jax.default_backend() == 'cpu'
  if is_cpu or not has_pinned_memory():
    return PageableCopies()
  return PinnedCopies()
