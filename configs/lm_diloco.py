"""DiLoCo."""

import ml_collections

from configs import lm_bsp


def get_config(variant: str = 'tiny') -> ml_collections.ConfigDict:
  """Returns it."""
  config = lm_bsp.get_config(variant)
  config.batching.local_steps = 8
  config.optimizer.reduction = 'sum'
  config.outer.name = 'nesterov'
  config.outer.learning_rate = 0.7
  config.outer.nesterov.momentum = 0.9
  return config
