"""Finds a configuration that is measured to be faster than the present one.

  python -m tools.tune --config=configs/X.py --workers=N --out=FILE.py
    [--servers=S] [--dedicated] [--run_s=60] [--allow=staleness,local_steps]
    [--launcher=COMMAND] [--workdir=DIR]

Runs BSP for a short time to measure speeds and links, predicts the pace of
other schemes, batchings, wires and routes on them, runs the best three and
compares them with the present config (docs/tuning.md).  FILE.py is the config
of the winner, if there is one; FILE.json has all predictions and measurements.

Runs are those of tools.launch, on this machine or in a lab.  COMMAND starts
them elsewhere: it takes the flags of tools.launch, as in
--launcher='srun --ntasks=4 python -m tools.launch --rank'.
"""

import datetime
import pathlib
import sys

from absl import app, flags

from configs import config_file, paths, sections
from configs.checks import require
from learning import placement
from sweeps import plan
from tuning import candidates, chain, describing
from tuning.measuring import Launcher, RunError


def main(argv: list[str]) -> None:
  """Tunes the config that the flags describe."""
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  values = flags.FLAGS
  placement.use_cpu_only()
  now = datetime.datetime.now().strftime('%Y%m%d-%H%M%S')
  try:
    if values.workers == 1:
      print(
        'Nothing to tune: a single worker waits for no other, and sends '
        'nothing.  Keep what you have.'
      )
      return
    out = pathlib.Path(values.out)
    _check(out, values.run_s, values.workers)
    outcome = chain.tune(
      values.config,
      Launcher(
        values.workers, values.servers, values.dedicated, values.launcher
      ),
      folder=pathlib.Path(values.workdir or f'runs/tune-{now}'),
      run_s=values.run_s,
      allow=values.allow,
      log=_log,
    )
    file = plan.shared_config(values).file
    print(describing.describe(outcome), end='\n\n')
    print(describing.write(outcome, out, file))
  except RunError as error:
    sys.exit(f'Failed: {error}')
  except (OSError, ValueError) as error:
    sys.exit(f'Refused: {error}')
  except KeyboardInterrupt:
    sys.exit(130)


def _check(out: pathlib.Path, run_s: float, workers: int) -> None:
  require(workers > 1, '--workers', 'at least 1', workers)
  require(out.suffix == '.py', '--out', 'the path of a .py file', str(out))
  for path in (out, out.with_suffix('.json')):
    require(not path.exists(), '--out', 'a file that does not exist', str(path))
  require(out.parent.is_dir(), '--out', 'a file in a folder', str(out))
  limited = 0 < run_s < float('inf')
  require(limited, '--run_s', 'seconds, more than 0', run_s)


def _log(text: str) -> None:
  print(text, file=sys.stderr, flush=True)


def _parse(argv: list[str]) -> list[str]:
  flags.DEFINE_integer('workers', None, 'Processes that train.', required=True)
  flags.DEFINE_integer(
    'servers', 0, 'Shards of the parameters; 0: one in each worker.'
  )
  flags.DEFINE_bool('dedicated', False, 'Servers are processes of their own.')
  paths.define_path('out', 'Config to write, FILE.py.', required=True)
  paths.define_path('workdir', 'Folder of the runs; by default a new one.')
  flags.DEFINE_float('run_s', 60.0, 'Seconds of each run.')
  flags.DEFINE_list(
    'allow', [], f'Allowed changes of learning: {candidates.ALLOWED}.'
  )
  flags.DEFINE_string(
    'launcher', '', 'Command that starts a run, in place of tools.launch.'
  )
  config = 'Present config; --config.SECTION.FIELD=VALUE changes a field.'
  with sections.reject_unknown_flags(argv):
    config_file.define_flag(None, config)
    paths.require_config()
    return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
