"""Remedies for stale displacements under ASP, on digits; three seeds.

32 local steps on four workers, 1, 1, 2 and 3 times slower: outer Nesterov
momentum on each push, with weights by staleness, with grace windows, with both,
and delayed momentum.  configs/local_steps.py has the cluster and the model.

python sweep.py --config=configs/sweeps/local_steps_asynchronous.py --out=DIR
"""

import ml_collections

from configs import local_steps

_WAYS = (
  'nesterov & constant & 0.0',
  'nesterov & polynomial & 0.0',
  'nesterov & constant & 0.3',
  'nesterov & polynomial & 0.3',
  'delayed_nesterov & constant & 0.0',
  'delayed_nesterov & polynomial & 0.3',
)
GRID = (
  'outer.learning_rate = 0.3, 0.7; '
  f'outer.name & staleness.name & sync.asp.grace_s = {", ".join(_WAYS)}; '
  'seed = 0, 1, 2'
)


def get_config() -> ml_collections.ConfigDict:
  """Returns the config that all runs share."""
  config = local_steps.experiment('digits')
  config.sync.name = 'asp'
  config.batching.local_steps = 32
  config.optimizer.learning_rate = 2e-3
  return config
