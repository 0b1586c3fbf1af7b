"""Rates of 17 methods of communicating rarely, on text; two seeds.

A transformer of one layer and width 32 on Python's manual, one epoch, batches
of two rows of 32 bytes; configs/local_steps.py has the methods.  The end of the
text's first nine tenths is for validation.  This command writes them into the
folder SYNCOPATE_DATA:

python -c "from data import embedded; text = embedded.read()[0].encode();
open('tuning.txt', 'wb').write(text[: len(text) * 9 // 10])"

python sweep.py --config=configs/sweeps/local_steps_text.py --out=runs/text

The entry local_steps_text of the ledger has the rates with the fewest bits per
byte in the mean, six seeds and the last tenth.
"""

import ml_collections

from configs import local_steps

CORE = 'bsp', 'local_8', 'local_32', 'asp_naive', 'elastic_balanced'
_OTHERS = [name for name in local_steps.METHODS if name not in CORE]
GRID = local_steps.tuning(
  (*CORE, *_OTHERS), inner=(3e-3, 1e-2), outer=(0.3, 0.7)
)


def get_config() -> ml_collections.ConfigDict:
  """Returns the config that all runs share."""
  config = local_steps.experiment('text')
  config.data.text.file = 'tuning.txt'
  return config
