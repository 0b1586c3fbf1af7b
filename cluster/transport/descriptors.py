"""File descriptors that a process may have open: every connection is one."""

import resource

from absl import logging

# Of files, devices, listeners, and strangers that have connected.
_BASE = 320
# To and from its executor, its control stream, the state that it fetches or
# gives, a measurement of its links, and as many streams to and from servers.
_PER_WORKER = 10


def needed(workers: int) -> int:
  """Returns how many descriptors a process of a run may need, at most."""
  return _BASE + _PER_WORKER * workers


def raise_limit(workers: int) -> None:
  """Lets this process open as many files as its hard limit allows.

  Logs how many a run needs, if that is more.

  Args:
    workers: Of the run.
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
