"""Limit of open file descriptors, of which every connection needs one.

The usual soft limit, 1024, is too low for a run of 100 workers.
"""

import resource

from absl import logging

# For files, devices, and up to 512 connections before their handshake.
_BASE = 640
# For each worker: connections to and from its allreduce executor, its control
# stream, transfers of its state in both directions, a measurement of its links,
# and connections to and from a parameter server.
_PER_WORKER = 10


def needed(workers: int) -> int:
  """Returns the largest number of descriptors that a process needs.

  Args:
    workers: Number of workers of the run.
  """
  return _BASE + _PER_WORKER * workers


def raise_limit(workers: int) -> None:
  """Raises this process's soft limit of open files to its hard limit.

  Logs a warning if the run may need more.

  Args:
    workers: Number of workers of the run.
  """
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  if soft != hard:
    try:
      resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
      soft = hard
    except (OSError, ValueError) as error:
      logging.warning(
        'The limit of open files stays at %d, not %d: %s', soft, hard, error
      )
  if soft != resource.RLIM_INFINITY and soft < needed(workers):
    logging.warning(
      'This process may open %d files; with %d workers it may need %d. Raise '
      'the hard limit ("ulimit -Hn", "LimitNOFILE" of systemd).',
      soft,
      workers,
      needed(workers),
    )
