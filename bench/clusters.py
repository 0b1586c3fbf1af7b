"""Real runs, each of several processes, as benchmarks need them."""

import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

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
) -> list[str]:
  """Returns the command of a run.

  Args:
    workdir: Folder of the run.
    config: Path of its config.
    fields: Changed fields, by dotted name.
    workers: Number of workers; each has a host of its own.
    servers: Number of servers.
    dedicated: True if servers have hosts of their own, too.
    link: Rate of all links of a lab, such as '200mbit'; '' for no lab.
    options: Flags of tools.lab.
    restarts: Most restarts of all processes.
  """
  python = [sys.executable, '-m']
  words = [*python, 'tools.launch', f'--workers={workers}']
  words += [f'--servers={servers}', f'--{"" if dedicated else "no"}dedicated']
  words += [f'--restarts={restarts}', f'--workdir={workdir}']
  words += ['--', f'--config={config}']
  words += [f'--config.{name}={value}' for name, value in fields.items()]
  if link:
    hosts = workers + servers * dedicated
    lab = [*python, 'tools.lab', f'--hosts={hosts}', f'--link={link}']
    words = [*lab, *options, '--', *words]
  return words


def start(words: list[str], log: pathlib.Path) -> subprocess.Popen:
  """Starts a command, in a session of its own; its output goes to a file."""
  log.parent.mkdir(parents=True, exist_ok=True)
  with log.open('wb') as file:
    return subprocess.Popen(
      words,
      env=os.environ | {'JAX_PLATFORMS': 'cpu'},
      stdout=file,
      stderr=subprocess.STDOUT,
      start_new_session=True,
    )


def finish(
  process: subprocess.Popen, log: pathlib.Path, limit_s: float = _LIMIT_S
) -> None:
  """Waits until a command has ended well.

  Args:
    process: Process of `start`.
    log: File of its output.
    limit_s: Seconds after which it is ended.

  Raises:
    RuntimeError: If it fails or takes too long; shows the end of its output.
  """
  try:
    code = process.wait(limit_s)
  except subprocess.TimeoutExpired:
    code = f'none within {limit_s:g} s'
  finally:
    end(process)
  if code != 0:
    lines = log.read_text(errors='replace').splitlines()[-20:]
    raise RuntimeError('\n'.join([f'Expected code 0, got {code}:', *lines]))


def end(process: subprocess.Popen) -> None:
  """Ends a command that still runs, and with it what it has started."""
  for number in (signal.SIGTERM, signal.SIGKILL):
    if process.poll() is None:
      process.send_signal(number)
      try:
        process.wait(_GRACE_S)
      except subprocess.TimeoutExpired:
        continue


def run(workdir: pathlib.Path, *given: Any, **fields: Any) -> pathlib.Path:
  """Makes a run and returns its folder.

  Args:
    workdir: New folder of the run; its output goes to a file beside it.
    *given: Of `command`.
    **fields: Of `command`.

  Raises:
    RuntimeError: If the run fails.
  """
  log = workdir.with_name(f'{workdir.name}.log')
  finish(start(command(workdir, *given, **fields), log), log)
  return workdir


def table(*rows: tuple[str, ...]) -> str:
  """Returns a table in Markdown; the first row is the head."""
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  lines = [
    '| ' + ' | '.join(map(str.ljust, row, widths)) + ' |' for row in rows
  ]
  rule = '| ' + ' | '.join('-' * width for width in widths) + ' |'
  return '\n'.join([lines[0], rule, *lines[1:]])
