"""Packing of forests in another process.

Packing holds the interpreter for seconds: 10 s with 32 workers.  In the process
of the coordinator it would delay all events.  So a process of its own packs
each forest; it imports Python and NumPy only.

A request is pickled to the standard input of the process, and the result to its
standard output.  The process ends after one forest, at the deadline, if another
request replaces its own, and with its parent, also if that is killed.  If it
dies, the run continues with the forest that it has.
"""

import contextlib
import ctypes
import dataclasses
import logging as levels
import os
import pathlib
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from absl import logging

from route.route import ForestBuilder
from system import processes, threads
from topology import Cluster, Forest
from topology.clusters.cluster import Ends
from topology.packing import pack as packing

FEWEST = 9  # Members for which a process packs; fewer take milliseconds.
DEADLINE_S = 120.0  # Time limit of packing a forest.
_ROOT = pathlib.Path(__file__).parents[2]
_MODULE = 'cluster.allreduce.planning'
_PDEATHSIG = 1  # PR_SET_PDEATHSIG, in <sys/prctl.h>.


class PackingFailed(Exception):
  """Raised if a process has not packed a forest; gives the reason."""


@dataclasses.dataclass(frozen=True)
class PackingRequest:
  """Request to pack a forest.

  Attributes:
    build: Builder of the route.
    cluster: Links among the workers.
    size_bytes: Bytes of the message that is summed.
    latency_s: Latency of every link, or of each by its ends, seconds.
    avoided: Ordered pairs (sender, receiver) of workers whose hop is avoided.
  """

  build: ForestBuilder
  cluster: Cluster
  size_bytes: int
  latency_s: float | Mapping[Ends, float]
  avoided: frozenset[Ends] = frozenset()


def build_forest(request: PackingRequest) -> Forest:
  """Returns the route's forest, or any other if it needs avoided pairs.

  Raises:
    ValueError: If there is none.
    TimeoutError: If it cannot be found in time.
  """
  cluster, avoided = request.cluster, request.avoided
  if not avoided:
    return request.build(cluster, request.size_bytes, request.latency_s)
  with contextlib.suppress(ValueError):
    forest = request.build(cluster, request.size_bytes, request.latency_s)
    hops = (hop for tree in forest.trees for hop in (*tree.up, *tree.down))
    # Nodes of the cluster may forward for a lost pair; executors do not.
    if not avoided & {(hop[0], hop[-1]) for hop in hops}:
      return forest
  logging.warning('The forest of the route needs a link that is lost.')
  return packing.pack(cluster)


def pack_in_process(
  request: bytes,
  *,
  deadline_s: float = DEADLINE_S,
  started: Callable[[subprocess.Popen[bytes]], None] = lambda process: None,
) -> Forest:
  """Returns the result of `build_forest`, called in another process.

  Args:
    request: Pickled `PackingRequest`.
    deadline_s: Time limit, seconds.
    started: Called with the process, which the caller may kill.

  Raises:
    PackingFailed: If there is no forest, or the process dies or takes too long.
  """
  paths = str(_ROOT), os.environ.get('PYTHONPATH')
  command = [sys.executable, '-m', _MODULE, str(processes.getpid())]
  try:
    process = subprocess.Popen(
      command,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      env=os.environ | {'PYTHONPATH': os.pathsep.join(filter(None, paths))},
    )
  except OSError as error:
    raise PackingFailed(f'no process can start: {error}') from error
  with process:
    started(process)
    try:
      output, _ = process.communicate(request, deadline_s)
    except subprocess.TimeoutExpired:
      raise PackingFailed(f'it takes more than {deadline_s:.3g} s') from None
    finally:
      process.kill()
  if process.returncode or not output:
    raise PackingFailed(f'its process has ended with {process.returncode}')
  try:
    result: Forest | str = pickle.loads(output)
  except (pickle.UnpicklingError, EOFError) as error:
    raise PackingFailed(f'its result is damaged: {error}') from error
  if isinstance(result, str):
    raise PackingFailed(result)
  return result


class ForestPlanner:
  """Packs forests in processes, the newest request only.

  For the coordinator's thread, apart from `pack`.
  """

  def __init__(
    self,
    put_result: Callable[[Any, Forest | None, str], None],
    *,
    deadline_s: float = DEADLINE_S,
  ):
    """Creates the planner; it starts no process yet.

    Args:
      put_result: Called from a thread with the key of a request, and the
        forest, or None and the reason for which there is none.
      deadline_s: Time limit of packing a forest.
    """
    self._put_result, self._deadline_s = put_result, deadline_s
    self._lock = threads.Lock()
    self._key: Any = None
    self._process: subprocess.Popen[bytes] | None = None

  def pack(self, request: PackingRequest) -> Forest:
    """Returns a packed forest; waits for it, in any thread.

    Raises:
      PackingFailed: If there is none.
    """
    return pack_in_process(pickle.dumps(request), deadline_s=self._deadline_s)

  def begin(self, key: Any, request: PackingRequest) -> None:
    """Begins to pack a forest, unless that has begun with the same key.

    An earlier request ends without a result.

    Args:
      key: Key of the request, for the result.
      request: The request.
    """
    with self._lock:
      if key == self._key:
        return
      self._key = key
      if self._process:
        self._process.kill()
        self._process = None
    args = key, pickle.dumps(request)
    threads.Thread(target=self._run, args=args, daemon=True).start()

  def _run(self, key: Any, request: bytes) -> None:
    """Packs a forest, and passes the result on if it is still wanted."""

    def set_process(process: subprocess.Popen[bytes]) -> None:
      with self._lock:
        if key == self._key:
          self._process = process
        else:
          process.kill()

    forest, problem = None, ''
    try:
      forest = pack_in_process(
        request, deadline_s=self._deadline_s, started=set_process
      )
    except PackingFailed as error:
      problem = str(error)
    with self._lock:
      if key != self._key:
        return
      self._key = self._process = None
    self._put_result(key, forest, problem)


def main(parent: int) -> None:
  """Packs the forest of a request, in the process that was started for it.

  Args:
    parent: Number of the process that waits for the result.
  """
  ctypes.CDLL(None).prctl(_PDEATHSIG, processes.SIGKILL)
  if os.getppid() != parent:
    sys.exit('The parent has ended.')
  logging.set_verbosity(levels.INFO)
  request: PackingRequest = pickle.load(sys.stdin.buffer)
  result: Forest | str
  try:
    result = build_forest(request)
  except (ValueError, TimeoutError) as error:
    result = str(error) or type(error).__name__
  pickle.dump(result, sys.stdout.buffer)


if __name__ == '__main__':
  main(int(sys.argv[1]))
