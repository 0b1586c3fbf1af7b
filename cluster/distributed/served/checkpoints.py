"""Checkpoints of a distributed run: the lead's and one of every server.

A checkpoint is whole if the lead's and those of all servers have its number.
It can be gone on from with another number of servers: shares are joined and
cut anew.
"""

import pathlib
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from absl import logging

from cluster.distributed.served.orders import Orders
from outputs.checkpoints import Checkpoints
from outputs.stores import Npz


class ShardedCheckpoints:
  """Has the methods of `Checkpoints` that a run uses.

  Attributes:
    found: Number of the checkpoint that was restored and how many servers it
      is from; None if there was none.
  """

  def __init__(
    self,
    directory: pathlib.Path,
    *,
    orders: Orders,
    num_servers: int,
    **own: Any,
  ):
    """Creates nothing yet.

    Args:
      directory: Of the run's checkpoints, which all processes share.
      orders: Has the servers write their shares.
      num_servers: How many they are.
      **own: For `Checkpoints`.

    Raises:
      ValueError: If an argument is out of range.
    """
    self.found: tuple[int, int] | None = None
    self._directory = directory
    self._orders = orders
    self._num_servers = num_servers
    self._lead = of_lead(directory, **own)
    self._step = -1
    self._saving: Sequence[Future] = ()

  @property
  def wanted(self) -> bool:
    """Whether the run is to leave any checkpoints."""
    return self._lead.wanted

  def check(self, name: str, value: Any) -> None:
    """Checks that a checkpoint could hold a value: see Checkpoints.check."""
    self._lead.check(name, value)

  def restore(self) -> Any:
    """Returns the lead's state of the newest whole checkpoint, or None.

    Raises:
      ValueError: If there are checkpoints and none is whole.
    """
    steps, reason = self._lead.steps(), ''
    self._step = max(steps, default=-1)
    for step in reversed(steps):
      try:
        state = self._lead.read(step)
        read_servers(self._directory, step, state['num_servers'])
      # What damaged files make Orbax and its layers raise is not documented.
      except Exception as error:
        logging.warning(
          'Checkpoint %d in %s is not whole; the one before it is tried.  '
          '%s: %s',
          step,
          self._directory,
          type(error).__name__,
          str(error).partition('\n')[0],
        )
        reason = reason or str(error).partition('\n')[0]
      else:
        logging.info('Going on from checkpoint %d of %s', step, self._directory)
        self.found = step, state['num_servers']
        return state
    if steps:
      raise ValueError(
        f'workdir: expected a whole checkpoint, got {steps} in '
        f'{self._directory}; move that folder away to start anew.  {reason}'
      )
    return None

  def begin(self, examples: int) -> None:
    """Starts counting time, and examples beyond these."""
    self._lead.begin(examples)

  def due(self, examples: int) -> bool:
    """Returns whether it is time for a checkpoint and the last one is safe."""
    saved = all(future.done() for future in self._saving)
    return saved and self._lead.due(examples)

  def save(self, state: Any, *, examples: int) -> None:
    """Has the lead and all servers write their parts.

    Args:
      state: The lead's.
      examples: In it.
    """
    self._wait()
    self._step += 1
    self._saving = self._orders.save(self._step)
    state = state | {'num_servers': self._num_servers}
    self._lead.save(state, examples=examples, step=self._step)

  def close(self) -> None:
    """Finishes what is being written."""
    self._wait()
    self._lead.close()

  def _wait(self) -> None:
    for future in self._saving:
      future.result()
    self._saving = ()


def of_lead(directory: pathlib.Path, *, keep: int, **own: Any) -> Checkpoints:
  """Returns the checkpoints of the lead."""
  # While one is being written, the one before it has to stay.
  return Checkpoints(directory / 'lead', keep=max(keep, 2), **own)


def of_server(
  directory: pathlib.Path, index: int, *, keep: int, **own: Any
) -> Checkpoints:
  """Returns the checkpoints of one server."""
  return Checkpoints(
    directory / f'server{index}', keep=max(keep, 2), store=Npz, **own
  )


def read_servers(directory: pathlib.Path, step: int, count: int) -> list[Any]:
  """Returns the states of all servers of one checkpoint."""
  own = {'every_s': float('inf'), 'every_examples': 0, 'keep': 2}
  return [
    of_server(directory, index, **own).read(step) for index in range(count)
  ]
