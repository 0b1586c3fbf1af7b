"""Rates of 17 methods of communicating rarely, on digits; two seeds.

A dense layer of 32, 8 epochs, batches of 2; configs/local_steps.py has the
methods.  Fold 1 is for validation.  The entry local_steps_digits of the ledger
has the rates with the highest mean accuracy, six seeds and fold 0.

python sweep.py --config=configs/sweeps/local_steps_digits.py --out=runs/digits
"""

import ml_collections

from configs import local_steps

GRID = local_steps.tuning(
  local_steps.METHODS, inner=(2e-3, 6e-3), outer=(0.3, 0.7)
)


def get_config() -> ml_collections.ConfigDict:
  """Returns the config that all runs share."""
  config = local_steps.experiment('digits')
  config.data.digits.fold = 1
  return config
