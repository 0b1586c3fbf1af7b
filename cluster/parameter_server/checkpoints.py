"""Checkpoints of a run with parameter servers.

The format is that of `outputs.checkpoints`.  Servers write their shards, and
workers with a residual write that; the coordinator's part follows once all are
on the disk.  A run can continue with another number of servers: shards are
joined and split again.
"""

import contextlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from cluster.parameter_server.store import ShardedParameterStore
from cluster.process.deadlines import Jobs
from learning.layout import required_shards, reshard
from outputs import checkpoints


class ShardedCheckpoints(checkpoints.Checkpoints):
  """Checkpoints with a part of every server."""

  def __init__(
    self,
    directory: pathlib.Path,
    *,
    store: ShardedParameterStore,
    num_servers: int,
    jobs: Jobs,
    keep: int,
  ):
    """Creates no file yet.

    Args:
      directory: Folder of the run's checkpoints, which all processes share.
      store: Parameter store, which makes the servers write their parts.
      num_servers: Number of servers.
      jobs: Register of long jobs, which excuses the coordinator while a
        checkpoint is written.
      keep: Number of the newest complete checkpoints that are kept.

    Raises:
      ValueError: If `keep` is out of range.
    """

    @contextlib.contextmanager
    def job() -> Iterator[None]:
      jobs.begin('a checkpoint')
      try:
        yield
      finally:
        jobs.end('a checkpoint')

    super().__init__(
      directory,
      keep=keep,
      required=[server_part(index) for index in range(num_servers)],
      save_others=store.save,
      job=job,
      waits=False,
    )

  @property
  def found(self) -> tuple[int, int] | None:
    """Number of the restored checkpoint, and of the servers in it, if any."""
    if self.restored is None:
      return None
    number, parts = self.restored
    return number, sum(part.startswith(server_part('')) for part in parts)

  @property
  def restored_bytes(self) -> int:
    """Size of the restored checkpoint's files; 0 without one."""
    if self.restored is None:
      return 0
    folder = self._directory / str(self.restored[0])
    return sum(p.stat().st_size for p in folder.rglob('*') if p.is_file())


def read_servers(directory: pathlib.Path, number: int, count: int) -> list[Any]:
  """Returns the states of all servers in a checkpoint, in order."""
  names = [server_part(index) for index in range(count)]
  return [*checkpoints.read(directory, number, names).values()]


def read_share(
  directory: pathlib.Path,
  number: int,
  count: int,
  sizes: Sequence[tuple[int, int]],
  index: int,
) -> Any:
  """Returns a server's state from the parts of a checkpoint that it overlaps.

  Args:
    directory: Folder of the run's checkpoints.
    number: Number of the checkpoint.
    count: Number of servers that have written it.
    sizes: Numbers of parameters and statistics of each server that there is.
    index: Index of the server.
  """
  wanted = required_shards(count, sizes, index)
  names = [server_part(k) for k in wanted]
  states = checkpoints.read(directory, number, names).values()
  found = dict(zip(wanted, states, strict=True))
  return reshard(found, count, sizes, index)


def server_part(index: int | str) -> str:
  """Returns the name of a server's part of checkpoints."""
  return f'server{index}'
