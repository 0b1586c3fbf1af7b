"""Finds a configuration that is faster on a cluster: measure, simulate, try.

  python -m tools.tune --config=configs/X.py --workers=N --out=FILE.py
    [--servers=S] [--dedicated] [--run_s=60] [--allow=staleness,local_steps]
    [--launcher=COMMAND] [--workdir=DIR] [--examples_from=SWEEP --level=0.9]
  python -m tools.tune --dry_run --from_run=DIR [--model=vgg16] [--batch=32]
  python -m tools.tune --dry_run --cluster=FILE --model=vgg16 [--batch=32]
    [--local_steps=1] [--from_trace=CSV]
  python -m tools.tune --from_run=DIR --out=FILE.py [--check=DIR,DIR,...]

The first command runs BSP for a short time to measure speeds and links,
predicts the pace of other schemes, batchings, wires and routes on them, runs
the best three and compares them with the present config (docs/tuning.md).
FILE.py is the config of the winner, if there is one; FILE.json has all
predictions and measurements.  Runs are those of tools.launch, on this machine
or in a lab.  COMMAND starts them elsewhere: it takes the flags of tools.launch,
as in --launcher='srun --ntasks=4 python -m tools.launch --rank'.

--dry_run ranks combinations without runs (docs/choosing.md), on the cluster of
a past run, or on one that a file describes (tuning/clusters.py).

The last command writes what a run has measured as a config of a virtual
cluster: main.py --config=FILE.py predicts other schemes on it.  FILE.csv beside
it has the compute times, FILE.json links that are more than those of hosts.
--check predicts other runs and prints predicted and measured paces.
"""

import datetime
import pathlib
import sys
import tempfile

from absl import app, flags

from analysis import checking
from configs import config_file, paths, sections
from configs.checks import require
from learning import placement
from sweeps import plan
from tuning import (
  calibration,
  candidates,
  chain,
  describing,
  examples,
  problem,
  ranking,
)
from tuning.examples import Ratios
from tuning.measuring import Launcher, RunError

# Flags that only some of the commands use, beside --out.
_CHAIN = ('workers', 'servers', 'dedicated', 'run_s', 'allow', 'launcher')
_DESCRIPTION = ('cluster', 'model', 'batch', 'local_steps', 'from_trace')
_EXAMPLES = ('examples_from', 'level')


def main(argv: list[str]) -> None:
  """Tunes a config, ranks combinations, or writes a virtual cluster."""
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  values = flags.FLAGS
  placement.use_cpu_only()
  try:
    if values.dry_run:
      _refuse('--dry_run', 'config', *_CHAIN, 'workdir', 'out', 'check')
      _rank()
    elif values.config is None:
      _refuse('--from_run', *_CHAIN, 'workdir', *_DESCRIPTION, *_EXAMPLES)
      _calibrate()
    else:
      _refuse('--config', *_DESCRIPTION, 'from_run', 'check')
      _tune()
  except RunError as error:
    sys.exit(f'Failed: {error}')
  except (OSError, ValueError) as error:
    sys.exit(f'Refused: {error}')
  except KeyboardInterrupt:
    sys.exit(130)


def _refuse(beside: str, *names: str) -> None:
  """Raises ValueError if a flag is given that another one would ignore."""
  for name in names:
    flag = flags.FLAGS[name]
    expected = f'no value beside {beside}'
    require(not flag.present, f'--{name}', expected, flag.value)


def _tune() -> None:
  """Measures, simulates candidates, runs the best, and writes the winner."""
  values = flags.FLAGS
  require(values.workers is not None, '--workers', 'processes that train', None)
  if values.workers == 1:
    print(
      'Nothing to tune: a single worker waits for no other, and sends '
      'nothing.  Keep what you have.'
    )
    return
  require(values.workers > 1, '--workers', 'at least 1', values.workers)
  limited = 0 < values.run_s < float('inf')
  require(limited, '--run_s', 'seconds, more than 0', values.run_s)
  out = _config_to_write()
  for path in (out, out.with_suffix('.json')):
    require(not path.exists(), '--out', 'a file that does not exist', str(path))
  now = datetime.datetime.now().strftime('%Y%m%d-%H%M%S')
  outcome = chain.tune(
    values.config,
    Launcher(values.workers, values.servers, values.dedicated, values.launcher),
    folder=pathlib.Path(values.workdir or f'runs/tune-{now}'),
    run_s=values.run_s,
    ratios=_read_ratios(),
    allow=values.allow,
    log=_log,
  )
  file = plan.shared_config(values).file
  print(describing.describe(outcome), end='\n\n')
  print(describing.write(outcome, out, file))


def _rank() -> None:
  """Prints the ranking of combinations on a cluster, and the advice."""
  values = flags.FLAGS
  checking.import_modules()
  with tempfile.TemporaryDirectory() as folder:
    cluster, workload = problem.read_problem(
      pathlib.Path(folder),
      model=values.model,
      batch=values.batch,
      local_steps=values.local_steps,
      file=values.cluster,
      run=values.from_run,
      trace=values.from_trace,
    )
    advice = ranking.advise(cluster, workload, _read_ratios(), _log)
  print(ranking.table(advice), ranking.explain(advice), sep='\n\n')


def _calibrate() -> None:
  """Writes the cluster of a run as a virtual one, and checks predictions."""
  values = flags.FLAGS
  expected = 'the folder of a run, or --config, or --dry_run'
  require(bool(values.from_run), '--from_run', expected, values.from_run)
  out = _config_to_write()
  checking.import_modules()
  measured = calibration.measure(values.from_run)
  calibration.write(measured, out)
  print(calibration.describe(measured))
  if values.check:
    print(calibration.compare(calibration.check(measured, values.check)))


def _config_to_write() -> pathlib.Path:
  """Returns the path of --out."""
  value = flags.FLAGS.out
  out = pathlib.Path(value or '')
  require(out.suffix == '.py', '--out', 'the path of a .py file', value)
  require(out.parent.is_dir(), '--out', 'a file in a folder', value)
  return out


def _read_ratios() -> Ratios:
  """Returns what the runs of --examples_from tell; nothing without it."""
  values = flags.FLAGS
  if not values.examples_from:
    return {}
  return examples.read_ratios(pathlib.Path(values.examples_from), values.level)


def _log(text: str) -> None:
  print(text, file=sys.stderr, flush=True)


def _parse(argv: list[str]) -> list[str]:
  paths.define_path('out', 'Config to write, FILE.py.')
  flags.DEFINE_integer('workers', None, 'Number of processes that train.')
  flags.DEFINE_integer(
    'servers', 0, 'Shards of the parameters; 0: one in each worker.'
  )
  flags.DEFINE_bool('dedicated', False, 'Servers are processes of their own.')
  paths.define_path('workdir', 'Folder of the runs; by default a new one.')
  flags.DEFINE_float('run_s', 60.0, 'Length of each run, seconds.')
  flags.DEFINE_list(
    'allow', [], f'Allowed changes of learning: {candidates.ALLOWED}.'
  )
  flags.DEFINE_string(
    'launcher', '', 'Command that starts a run, in place of tools.launch.'
  )
  flags.DEFINE_bool('dry_run', False, 'Rank combinations, without runs.')
  paths.define_path('from_run', 'Folder of a run, whose cluster is used.')
  paths.define_path('cluster', 'JSON file that describes the cluster.')
  paths.define_path('from_trace', 'CSV file of times of iterations.')
  flags.DEFINE_string(
    'model', None, 'Name of a network, or bytes of its parameters: 100MB.'
  )
  flags.DEFINE_integer(
    'batch',
    None,
    f"Examples of an iteration; {problem.BATCH}, or the run's, by default.",
    1,
  )
  flags.DEFINE_integer('local_steps', 1, 'Local steps of an iteration.', 1)
  flags.DEFINE_list('check', [], 'Folders of runs to predict.')
  flags.DEFINE_list('own', [], checking.OWN)
  paths.define_path(
    'examples_from', 'Folder of runs that tell how many examples schemes need.'
  )
  flags.DEFINE_string('level', '0.9', 'Accuracy of --examples_from.')
  config = 'Present config; --config.SECTION.FIELD=VALUE changes a field.'
  with sections.reject_unknown_flags(argv):
    config_file.define_flag(None, config)
    return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
