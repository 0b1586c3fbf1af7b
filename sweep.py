"""Runs what a config and a grid of values describe, all of them.

  python sweep.py --config=configs/vgg16_elastic.py --out=DIR
    --grid='sync.name=bsp,ssp,elastic; cluster.workers=4,16; seed=0,1,2'

The same command goes on where it was.
"""

import sys

from absl import app, flags
from ml_collections import config_flags

from configs import sections
from outputs import transient
from sweeps import whole


def main(argv: list[str]) -> None:
  """Does what the flags say."""
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  given = flags.FLAGS
  try:
    code = whole.sweep(
      given,
      whole.Wanted(
        grid=given.grid,
        out=given.out,
        jobs=given.jobs,
        dry=given['dry-run'].value,
        listed=given.list,
        submit=given.submit,
        submit_with=given.submit_with,
      ),
    )
  except (OSError, ValueError) as error:
    transient.leave(error)
  except KeyboardInterrupt:
    sys.exit(130)
  sys.exit(code)


def _parse(argv: list[str]) -> list[str]:
  flags.DEFINE_string(
    'grid', None, 'FIELD=VALUE,VALUE; ...; by default GRID of the config file.'
  )
  flags.DEFINE_string('out', None, 'Folder of the sweep.', required=True)
  flags.DEFINE_integer(
    'jobs', 0, 'Runs at a time; by default one on each GPU, or core.'
  )
  flags.DEFINE_bool('dry-run', False, 'Print the runs, and run nothing.')
  flags.DEFINE_string(
    'list', None, 'Write commands of what is left to this file, and run none.'
  )
  flags.DEFINE_enum(
    'submit', None, ['slurm', 'local'], 'Run as jobs, by submitit.'
  )
  flags.DEFINE_list(
    'submit_with', [], 'Of submitit: timeout_min=60,slurm_partition=gpu.'
  )
  with sections.reject_unknown_flags(argv):
    config_flags.DEFINE_config_file(
      'config',
      None,
      'What the runs share, FILE.py or FILE.py:VARIANT; '
      '--config.SECTION.FIELD=VALUE changes a field.',
    )
    flags.mark_flag_as_required('config')
    return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
