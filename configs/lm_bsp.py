"""A transformer that predicts the next byte, with BSP: one update per step.

Model: models/transformer.py.  Inner loop of the comparison with DiLoCo, see
configs/lm_diloco.py.
"""

import ml_collections

from configs import default

_LINK_BPS = 1.25e6  # 10 Mbit/s, as between sites.


def get_config(variant: str = 'tiny') -> ml_collections.ConfigDict:
  """Returns it."""
  config = default.get_config()
  config.sync.name = 'bsp'
  config.model.name = 'transformer'
  config.model.transformer.size = variant
  config.data.name = 'text'
  config.data.text.length = 64
  config.epochs = 6.0
  config.eval_every = 0.5
  config.time_to = ()
  config.time_to_bits_per_byte = (3.0, 2.5)
  config.optimizer.name = 'adamw'
  config.optimizer.learning_rate = 3e-3
  config.optimizer.clip_norm = 1.0
  config.optimizer.reduction = 'mean'
  config.optimizer.adamw.b2 = 0.95
  config.optimizer.adamw.weight_decay = 0.1
  config.schedule.name = 'cosine'
  config.schedule.cosine.final = 0.1
  config.schedule.warmup_epochs = 0.1
  for host in ('worker', 'server'):
    for link in ('up', 'down'):
      config.cluster.network[f'{host}_{link}_Bps'] = (_LINK_BPS,)
  return config
