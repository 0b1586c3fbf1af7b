"""Runs one experiment: python main.py --config=configs/vgg16_elastic.py.

Exit codes: 0, the run has finished; 1 and 2, a permanent error; 75, an error
that may pass, after which the same command resumes the run; 129, 130 and 143,
SIGHUP, SIGINT and SIGTERM.
"""

import functools
import pathlib
import sys

from absl import app, flags, logging

import train
from cluster.process import exits
from cluster.process.exits import (
  DRAINED,
  LOST,
  HandedOver,
  Reason,
  Unmendable,
  end,
)
from cluster.training_loop import Run
from configs import config_file, paths, sections
from outputs import transient

_CONFIG = config_file.define_flag(
  None,
  'Experiment, FILE.py or FILE.py:VARIANT; --config.SECTION.FIELD=VALUE '
  'changes a field: see --help_fields.',
)
_WORKDIR = paths.define_path(
  'workdir', 'Folder for the outputs; by default a new one under runs/.'
)
_PROCESS = {
  'role': flags.DEFINE_string(
    'role',
    '',
    "Of a distributed run's process: worker:2, server:0, or worker:2.1 of an "
    'island.',
  ),
  'coordinator': flags.DEFINE_string(
    'coordinator', '', 'HOST:PORT where the coordinator listens.'
  ),
}
paths.require_config()


def main(argv: list[str]) -> None:
  """Builds the run that the flags describe, and runs it."""
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  process = {name: flag.value for name, flag in _PROCESS.items() if flag.value}
  folder = pathlib.Path(_WORKDIR.value) if _WORKDIR.value else None
  try:
    with exits.ExitRecord(folder, process.get('role', 'process')):
      _run_or_end(process)
  except KeyboardInterrupt:
    sys.exit(130)


def _run_or_end(process: dict[str, str]) -> None:
  """Trains; an error that a restart may mend ends the process at once."""
  try:
    _run(process)
  except HandedOver as error:
    logging.info('%s', error)
    end(DRAINED, Reason.DRAINED, str(error))
  except Unmendable as error:
    logging.error('%s', error)
    # Threads may wait for other processes for ever.
    end(LOST, Reason.UNMENDABLE, str(error), error)


def _run(process: dict[str, str]) -> None:
  """Trains; a transient error ends the process with the code LOST."""
  config = _CONFIG.value
  build = functools.partial(
    train.build,
    config,
    workdir=_WORKDIR.value,
    process=process,
    own_process=True,
  )
  try:
    run = transient.retry(
      build,
      limit_s=lambda: transient.start_limit_s(config.cluster),
      what='The start',
    )
  except (OSError, ValueError) as error:
    # Not sys.exit: jax.distributed waits at the end for all other processes.
    code = transient.exit_code(error)
    reason = Reason.TRANSIENT if code == LOST else Reason.INVALID
    end(code, reason, str(error), error)
  if isinstance(run, Run):
    exits.describe_process(folder=run.files.workdir)
  try:
    run()
  except MemoryError as error:
    logging.exception('The host is out of memory')
    end(LOST, Reason.TRANSIENT, str(error), error)
  except OSError as error:
    if not transient.is_transient(error):
      raise
    logging.exception('The run has met a transient error')
    end(LOST, Reason.TRANSIENT, str(error), error)


def _parse(argv: list[str]) -> list[str]:
  with sections.reject_unknown_flags(argv):
    return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
