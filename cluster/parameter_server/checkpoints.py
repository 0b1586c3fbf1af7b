"""Checkpoints of a distributed run: a part of the coordinator and one of every server.

And of every worker that keeps what it has not sent of gradients.  They write
theirs first.  The coordinator's part, which makes a checkpoint whole,
follows once all are safe, and then the coordinator alone removes what is not needed
any more.  So at any moment the newest that has the coordinator's part is whole,
whoever dies.  It can be gone on from with another number of servers: shares are
joined and cut anew.
"""

import pathlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from absl import logging

from cluster.parameter_server import residuals
from cluster.parameter_server.servers import Orders
from cluster.process.deadlines import Jobs
from configs.checks import require
from outputs import checkpoints, stores
from outputs.checkpoints import Rhythm, Tree


class ShardedCheckpoints:
  """Has the methods of `Checkpoints` that a run uses.

  Attributes:
    found: Number of the checkpoint that was restored and how many servers it
      is from; None if there was none.
    wanted: As of `Rhythm`, and so are `check` and `begin`.
  """

  def __init__(
    self,
    directory: pathlib.Path,
    *,
    orders: Orders,
    num_servers: int,
    jobs: Jobs,
    every_s: float,
    every_examples: int,
    keep: int,
  ):
    """Creates nothing yet.

    Args:
      directory: Of the run's checkpoints, which all processes share.
      orders: Has the servers write their parts.
      num_servers: How many they are.
      jobs: Has them while they are written.
      every_s: As of `Rhythm`.
      every_examples: The same.
      keep: How many of the newest are kept.

    Raises:
      ValueError: If an argument is out of range.
    """
    require(keep >= 1, 'keep', 'at least 1', keep)
    self.found: tuple[int, int] | None = None
    self._rhythm = Rhythm(every_s=every_s, every_examples=every_examples)
    self.wanted, self.check = self._rhythm.wanted, self._rhythm.check
    self.begin = self._rhythm.begin
    self._directory = directory
    self._orders = orders
    self._num_servers = num_servers
    self._jobs = jobs
    self._keep = keep
    self._step = -1
    self._pool = ThreadPoolExecutor(1)
    self._saving: Future | None = None

  def restore(self) -> Any:
    """Returns the coordinator's state of the newest whole checkpoint, or None.

    What lacks the coordinator's part is removed; its numbers are not used again.

    Raises:
      ValueError: If there are checkpoints and none is whole.
    """
    left = [p for part in self._parts() for p in stores.folders(part)]
    self._step = max(map(stores.number, left), default=-1)
    steps = whole(self._directory)
    state = checkpoints.newest(
      self._directory / 'coordinator', steps, self._read
    )
    self._remove_all_but(steps)
    return state

  def due(self, examples: int) -> bool:
    """Returns whether it is time for a checkpoint and the last one is safe.

    Raises:
      OSError: If the last one could not be written.
      Unmendable: If a server is lost.
    """
    due = self._rhythm.due(examples)
    if self._saving and not self._saving.done():
      if due:
        logging.log_every_n_seconds(
          logging.WARNING,
          'A checkpoint is due, and %d is still being written.',
          30,
          self._step,
        )
      return False
    self._wait()
    return due

  def save(self, state: Any, *, examples: int) -> None:
    """Has all servers write their parts, and then the coordinator's.

    Args:
      state: The coordinator's.
      examples: In it.

    Raises:
      OSError: If the checkpoint before could not be written.
      Unmendable: If a server is lost.
    """
    self._wait()
    self._step += 1
    tree = checkpoints.frozen(state | {'num_servers': self._num_servers})
    self._jobs.begin('a checkpoint')
    parts = self._orders.save(self._step)
    self._saving = self._pool.submit(self._write, self._step, tree, parts)
    self.begin(examples)

  def close(self) -> None:
    """Finishes what is being written; raises what `save` does."""
    self._wait()
    self._pool.shutdown()

  def _wait(self) -> None:
    saving, self._saving = self._saving, None
    if saving:
      saving.result()

  def _write(
    self, step: int, tree: Callable[[], Tree], parts: Sequence[Future]
  ) -> None:
    try:
      for part in parts:
        part.result()
      stores.write(self._directory / 'coordinator' / str(step), tree())
    except OSError as error:
      raise checkpoints.not_written(self._directory, step, error) from error
    finally:
      self._jobs.end('a checkpoint')
    self._remove_all_but(whole(self._directory)[-self._keep :])

  def _remove_all_but(self, kept: Sequence[int]) -> None:
    for part in self._parts():  # The coordinator's first: what it has is whole.
      stores.remove_all_but(part, kept)

  def _read(self, step: int) -> Any:
    state = checkpoints.thawed(
      stores.read(self._directory / 'coordinator' / str(step))
    )
    read_servers(self._directory, step, state['num_servers'])
    for worker in residuals.in_checkpoint(self._directory, step):
      stores.read(residuals.of_worker(self._directory, worker) / str(step))
    self.found = step, state['num_servers']
    return state

  def _parts(self) -> list[pathlib.Path]:
    """Returns the folders of the coordinator and of all others that there were."""
    others = [
      *self._directory.glob('server*'),
      *self._directory.glob('worker*'),
    ]
    return [self._directory / 'coordinator', *others]


def whole(directory: pathlib.Path) -> list[int]:
  """Returns the numbers of a run's checkpoints, which are whole, ascending."""
  return stores.steps(directory / 'coordinator')


def read_servers(directory: pathlib.Path, step: int, count: int) -> list[Any]:
  """Returns the states of all servers of one checkpoint."""
  parts = [of_server(directory, index) / str(step) for index in range(count)]
  return [checkpoints.thawed(stores.read(part)) for part in parts]


def of_server(directory: pathlib.Path, index: int) -> pathlib.Path:
  """Returns the folder of one server's parts."""
  return directory / f'server{index}'
