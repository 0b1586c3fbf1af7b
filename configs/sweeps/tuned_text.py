"""Rates of seven schemes on text, on a split for validation; two seeds.

A transformer of one layer and width 32 on Python's manual, byte by byte, one
epoch, batches of four rows of 32 bytes; configs/tuned.py has the schemes and
the cluster.  The end of the text's first nine tenths is for validation; the
file configs/sweeps/local_steps_text.py has the command that writes them into
the folder SYNCOPATE_DATA.  Five rates: 70 runs, .3 CPU hours.  The entry
tuned_text of the ledger has the rates with the smallest mean test loss, which
the second command prints:

python sweep.py --config=configs/sweeps/tuned_text.py --out=runs/tuned_text
python -m tools.table runs/tuned_text --rows=sync.name,batching.name
  --columns=optimizer.learning_rate --value=final_test_loss
"""

import ml_collections

from configs import tuned

_RATES = 3e-4, 1e-3, 3e-3, 1e-2, 3e-2
GRID = (
  f'{tuned.schemes_grid()}; '
  f'optimizer.learning_rate = {", ".join(map(str, _RATES))}; seed = 0, 1'
)


def get_config() -> ml_collections.ConfigDict:
  """Returns the config that all runs share."""
  config = tuned.text()
  config.data.text.file = 'tuning.txt'
  return config
