"""Calibrates a virtual cluster with the measurements of a run.

  python -m tools.calibrate RUN_DIR --out=FILE.py
  python -m tools.calibrate RUN_DIR --out=FILE.py --check RUN_DIR [RUN_DIR ...]

FILE.py is a config for main.py: the workload of the run, on the virtual clock,
with the measured links and compute times; FILE.csv beside it has the compute
times, which each worker repeats in a cycle.  With --config.sync.name=ssp,
main.py then predicts another scheme on the same cluster, and after a run on an
allreduce route --config.route.name=ring predicts another such route.  FILE.json
has the links if they are more than the up and down links of hosts.

--check measures the error of such predictions: it predicts other runs of the
same workload on the same cluster and prints predicted and measured paces.
"""

import sys

from absl import app, flags

from analysis import checking
from configs import paths
from learning import placement
from tuning import calibration


def main(argv: list[str]) -> None:
  """Calibrates with the first run, and checks the others."""
  values = flags.FLAGS
  if len(argv) < 2 or values.check != (len(argv) > 2):
    raise app.UsageError(
      f'Expected one folder of a run, and others with --check, got {argv[1:]}.'
    )
  placement.use_cpu_only()
  try:
    checking.import_modules()
    measured = calibration.measure(argv[1])
    calibration.write(measured, values.out)
    print(calibration.describe(measured))
    if values.check:
      print(calibration.compare(calibration.check(measured, argv[2:])))
  except (OSError, ValueError) as error:
    sys.exit(f'Refused: {error}')


if __name__ == '__main__':
  paths.define_path('out', 'Config to write, FILE.py.', required=True)
  flags.DEFINE_list('own', [], checking.OWN)
  flags.DEFINE_bool('check', False, 'Predict the runs that follow.')
  app.run(main)
