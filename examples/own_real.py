"""The model and data of own_model.py, on real processes.

  python -m tools.launch --workers=2 --workdir=DIR --module=examples.own_real \
    -- --config=configs/default.py --config.epochs=6 \
    --config.optimizer.learning_rate=0.05

tools.launch starts this module in every process, in place of main.py, with
flags for its role.  Each process builds the same task and data set.  The
coordinator prints the table of the run.  Takes about 15 s on two cores.
"""

from absl import app, flags

import train
from configs import config_file, sections
from data.dataset import Dataset
from examples.own_model import learned, signals
from learning import compilations

_CONFIG = config_file.define_flag(None, 'Config of the run.')
_WORKDIR = flags.DEFINE_string('workdir', None, 'Folder of the run.')
_ROLE = flags.DEFINE_string('role', '', 'Role of this process.')
_COORDINATOR = flags.DEFINE_string('coordinator', '', 'HOST:PORT.')


def main(argv: list[str]) -> None:
  """Trains this process's part of the run."""
  del argv
  process = {'role': _ROLE.value, 'coordinator': _COORDINATOR.value}
  compilations.configure(_CONFIG.value)  # XLA's flags, before the model.
  train.run(
    _CONFIG.value,
    workdir=_WORKDIR.value,
    task=learned(),
    dataset=Dataset(train=signals(1600, seed=1), test=signals(400, seed=2)),
    process={name: value for name, value in process.items() if value},
  )


def _parse(argv: list[str]) -> list[str]:
  with sections.reject_unknown_flags(argv):
    return app.parse_flags_with_usage(argv)


if __name__ == '__main__':
  app.run(main, flags_parser=_parse)
