"""Commands and processes of the real runs that benchmarks start."""

import contextlib
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launch import processes
from launch.processes import Command, Group

_LIMIT_S = 600.0
_GRACE_S = 40.0  # For the launcher, which gives its coordinator 30 s.


def command(
  workdir: pathlib.Path,
  config: str,
  fields: Mapping[str, Any],
  *,
  workers: int,
  servers: int = 1,
  dedicated: bool = True,
  link: str = '',
  options: Sequence[str] = (),
  restarts: int = 3,
  hosts_per_worker: int = 1,
) -> list[str]:
  """Returns the command line that launches a run.

  Args:
    config: Path of its config.
    fields: Changed fields, by dotted name.
    workers: Number of workers, each on hosts of its own.
    link: Rate of all links of a lab, such as '200mbit'; '' for no lab.
    options: Further flags of tools.lab.
  """
  python = [sys.executable, '-m']
  words = [*python, 'tools.launch', f'--workers={workers}']
  words += [f'--servers={servers}', f'--{"" if dedicated else "no"}dedicated']
  words += [f'--restarts={restarts}', f'--workdir={workdir}']
  if hosts_per_worker > 1:
    words += [f'--hosts_per_worker={hosts_per_worker}']
  words += ['--', f'--config={config}']
  words += [
    f'--config.{name}={value}'
    for name, value in fields.items()
    if name != 'cluster.workers'  # The launcher sets it.
  ]
  if link:
    hosts = workers * hosts_per_worker + servers * dedicated
    lab = [*python, 'tools.lab', f'--hosts={hosts}', f'--link={link}']
    words = [*lab, *options, '--', *words]
  return words


@contextlib.contextmanager
def start(words: Sequence[str], workdir: pathlib.Path) -> Iterator[Group]:
  """Starts the command of a run, which ends with the context.

  Args:
    words: The command; its name in the group is that of the run's folder.
    workdir: New folder of the run; the output goes to a file beside it.
  """
  run = Command(workdir.name, words, {'JAX_PLATFORMS': 'cpu'})
  with processes.start([run], workdir.parent, grace_s=_GRACE_S) as group:
    yield group


def run(workdir: pathlib.Path, *args: Any, **kwargs: Any) -> pathlib.Path:
  """Executes a run to its end and returns its folder.

  Args:
    workdir: New folder of the run; its output goes to a file beside it.
    *args: Positional arguments of `command` after the folder.
    **kwargs: Keyword arguments of `command`.

  Raises:
    ProcessError: If the run fails.
  """
  words = command(workdir, *args, **kwargs)
  return execute(words, workdir)


def execute(
  words: Sequence[str], workdir: pathlib.Path, limit_s: float = _LIMIT_S
) -> pathlib.Path:
  """Executes the command of a run to its end and returns the run's folder.

  Args:
    workdir: New folder of the run; the output goes to a file beside it.
    limit_s: Time after which it is stopped.

  Raises:
    ProcessError: If the run fails or takes too long.
  """
  with start(words, workdir) as group:
    group.finish(limit_s)
  return workdir
