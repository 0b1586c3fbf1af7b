"""A small MLP on digits with BSP and a slow worker, for `make demo`.

Four workers, the last one three times slower without jitter, which a real run
gets with --config.cluster.speed.injected=True.

python main.py --config=configs/demo.py
"""

import ml_collections

from configs import default


def get_config() -> ml_collections.ConfigDict:
  """Returns the config of the demonstration."""
  config = default.get_config()
  config.model.name = 'mlp'
  config.model.mlp.hidden = (256,)
  config.cluster.speed.name = 'constant'
  config.cluster.speed.slowdown = (1.0, 1.0, 1.0, 3.0)
  return config
