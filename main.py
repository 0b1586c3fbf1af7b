"""Runs one experiment: python main.py --config=configs/vgg16_elastic.py."""

import sys

from absl import app, flags, logging
from ml_collections import config_flags

import train
from cluster.distributed.process import end
from cluster.transport.heart import LOST, Unmendable
from configs import sections

_CONFIG = config_flags.DEFINE_config_file(
  'config',
  None,
  'Experiment, FILE.py or FILE.py:VARIANT; --config.SECTION.FIELD=VALUE '
  'changes a field.',
)
_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Folder for the outputs; by default a new one under runs/.'
)
_PROCESS = {
  'role': flags.DEFINE_string(
    'role', '', "Of a distributed run's process: worker:2 or server:0."
  ),
  'lead': flags.DEFINE_string('lead', '', 'HOST:PORT where all meet.'),
}
flags.mark_flag_as_required('config')


def main(argv: list[str]) -> None:
  """Builds the run that the flags describe, and runs it."""
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  process = {name: flag.value for name, flag in _PROCESS.items() if flag.value}
  try:
    _run(process)
  except KeyboardInterrupt:
    sys.exit(130)
  except Unmendable as error:
    logging.error('%s', error)
    end(LOST)  # Threads may wait for others for ever.


def _run(process: dict[str, str]) -> None:
  try:
    run = train.build(_CONFIG.value, workdir=_WORKDIR.value, process=process)
  except (OSError, ValueError) as error:
    sys.exit(f'Refused: {error}')
  run()


def _parse(argv: list[str]) -> list[str]:
  with sections.known_fields(argv):
    return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
