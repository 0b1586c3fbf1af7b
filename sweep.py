"""Trains all runs that a config and a grid of values describe.

  python sweep.py --config=configs/vgg16_elastic.py --out=DIR
    --grid='sync.name=bsp,ssp,elastic; cluster.workers=4,16; seed=0,1,2'

The same command resumes a sweep that was interrupted.
"""

import sys

from absl import app, flags

from configs import config_file, paths, sections
from outputs import transient
from sweeps import driver


def main(argv: list[str]) -> None:
  """Runs the sweep that the flags describe."""
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  values = flags.FLAGS
  try:
    code = driver.run_sweep(
      values,
      values.grid,
      driver.Options(
        out=values.out,
        jobs=values.jobs,
        is_dry=bool(values['dry-run'].value),
        command_list=values.list,
        submit=values.submit,
        submit_with=values.submit_with,
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
  paths.define_path('out', 'Folder of the sweep.', required=True)
  flags.DEFINE_integer(
    'jobs', 0, 'Runs at a time; by default one on each GPU, or core.'
  )
  flags.DEFINE_bool('dry-run', False, 'Print the runs, and train none.')
  flags.DEFINE_string(
    'list',
    None,
    'Write the commands of runs that are left to this file; train none.',
  )
  flags.DEFINE_enum(
    'submit',
    None,
    ['slurm', 'local', 'ray'],
    'Train runs as jobs of submitit, or as tasks in a Ray cluster.',
  )
  flags.DEFINE_list(
    'submit_with',
    [],
    'Parameters of submitit: timeout_min=60,slurm_partition=gpu; or options of '
    "Ray's tasks: num_cpus=4,num_gpus=1.",
  )
  with sections.reject_unknown_flags(argv):
    config_file.define_flag(
      None,
      'Config that the runs share, FILE.py or FILE.py:VARIANT; '
      '--config.SECTION.FIELD=VALUE changes a field.',
    )
    paths.require_config()
    return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
