"""Runs one experiment: python main.py --config=configs/vgg16_elastic.py.

Exit codes: 0, the run has finished; 1 and 2, a permanent error; 75, an error
that may pass, after which the same command resumes the run; 129, 130 and 143,
SIGHUP, SIGINT and SIGTERM.
"""

import sys

from absl import app, flags

import train
from configs import config_file, paths, sections

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
  try:
    train.run_process(_CONFIG.value, workdir=_WORKDIR.value, process=process)
  except KeyboardInterrupt:
    sys.exit(130)


def _parse(argv: list[str]) -> list[str]:
  with sections.reject_unknown_flags(argv):
    return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
