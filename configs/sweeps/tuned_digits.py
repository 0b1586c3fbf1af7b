"""Rates of seven schemes on digits, on a split for validation; two seeds.

A dense layer of 64, 4 epochs; configs/tuned.py has the schemes.  Runs learn
folds 2 to 4 and test fold 1; six rates, 84 runs, three minutes of CPU.  The
entry tuned_digits of the ledger has the rates with the smallest mean test loss,
which the second command prints:

python sweep.py --config=configs/sweeps/tuned_digits.py --out=runs/tuned_digits
python -m tools.table runs/tuned_digits --rows=sync.name,batching.name
  --columns=optimizer.learning_rate --value=final_test_loss
"""

import ml_collections

from configs import tuned

GRID = (
  f'{tuned.schemes_grid()}; '
  f'optimizer.learning_rate = {", ".join(map(str, tuned.RATES))}; seed = 0, 1'
)


def get_config() -> ml_collections.ConfigDict:
  """Returns the config that all runs share."""
  config = tuned.digits()
  config.data.digits.validation = True
  return config
