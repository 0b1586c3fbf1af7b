"""Fragments beside whole displacements, on digits; six seeds.

32 local steps on four workers, 1, 1, 2 and 3 times slower, that sum over a
ring: the whole model, or four fragments of it in turn.  configs/local_steps.py
has the cluster and the model.

python sweep.py --config=configs/sweeps/local_steps_fragments.py --out=DIR
"""

import ml_collections

from configs import default, local_steps

_WAYS = '1 & 0 & 0.0', '4 & 0 & 0.0', '4 & 1 & 0.5', '4 & 8 & 0.5'
GRID = (
  'route.fragments & route.overlap_steps & route.blend = '
  f'{", ".join(_WAYS)}; seed = 0, 1, 2, 3, 4, 5'
)


def get_config() -> ml_collections.ConfigDict:
  """Returns the config that all runs share."""
  config = local_steps.experiment('digits')
  usual = default.get_config().cluster.network
  for link in ('server_up_Bps', 'server_down_Bps'):  # There are no servers.
    config.cluster.network[link] = usual[link]
  config.route.name = 'ring'
  config.batching.local_steps = 32
  config.optimizer.learning_rate = 2e-3
  config.outer.name = 'nesterov'
  config.outer.learning_rate = 0.3
  return config
