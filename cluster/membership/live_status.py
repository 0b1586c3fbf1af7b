"""Status of a running run on real hosts: live.json, for `tools.diagnose`.

The coordinator writes it at each check of the processes.  It is no result of
the run: a reader compares its time with the clock to see whether the
coordinator still handles events.
"""

import platform
from collections.abc import Sequence
from typing import Any

from cluster.coordinator import Progress
from cluster.membership.members import Member
from system import clock, processes


def describe(
  run_s: float,
  members: Sequence[Member],
  workers: Sequence[Progress],
  *,
  beat_s: float,
) -> dict[str, Any]:
  """Returns the content of live.json.

  Args:
    run_s: Seconds on the run's clock.
    members: The workers, as the coordinator knows their processes.
    workers: Their progress, as the coordinator has it.
    beat_s: Seconds between two heartbeats of a process, and between two checks.
  """
  now = clock.monotonic()
  return {
    'written': clock.wall(),
    'time': run_s,
    'host': platform.node(),
    'pid': processes.getpid(),
    'beat_s': beat_s,
    'workers': [
      _describe_worker(index, member, worker, now)
      for index, (member, worker) in enumerate(
        zip(members, workers, strict=True)
      )
    ],
  }


def _describe_worker(
  index: int, member: Member, worker: Progress, now: float
) -> dict[str, Any]:
  """Returns the entry of a worker.

  Args:
    index: Index of the worker.
    member: Its process.
    worker: Its progress.
    now: Monotonic seconds.
  """
  doing, iteration, steps = member.progress.latest
  return {
    'worker': index,
    'host': member.host,
    'alive': member.stream is not None,
    'running': worker.is_iterating,
    'examples': worker.examples,
    'doing': doing,
    'iteration': iteration,
    'steps': steps,
    'still_s': now - member.progress.last_change,
    'silent_s': now - member.last_heartbeat,
  }
