"""VGG11 at 1/8 width, small enough to compare all schemes over 3 seeds.

Model: Simonyan and Zisserman, ICLR 2015.  Four virtual workers, the slowest
three times slower, 10 % jitter.  The rate is the better one of 0.006 and 0.01
for BSP's time to 95 % of digits; no scheme has one of its own.

python -m tools.compare --out=DIR                      (all schemes, digits)
python -m tools.compare --config=configs/compare.py:fashion_mnist --out=DIR
                                                       (needs its files)
python main.py --config=configs/compare.py             (BSP)

Reached on digits by BSP, seeds 0 to 2: 96.9 % (96.1 to 97.8) after 55 virtual
seconds, 95 % at 23.3; four minutes for all 27 runs and the installation.
"""

import ml_collections

from configs import default


def get_config(variant: str = 'digits') -> ml_collections.ConfigDict:
  """Returns the config that all runs of a comparison share.

  Args:
    variant: 'digits', or 'fashion_mnist'; a quarter of an epoch of the latter
      is ten epochs of digits.

  Raises:
    ValueError: If there is no such variant.
  """
  config = default.get_config()
  config.epochs = 12.0
  config.eval_every = 0.5  # Finer than the differences of time to accuracy.
  config.model.vgg.depth = 11
  config.optimizer.learning_rate = 0.006
  config.schedule.name = 'cosine'  # Constant rates end in noise.
  if variant == 'fashion_mnist':
    config.data.name = variant
    config.epochs = 0.25
    config.eval_every = 0.025
    config.time_to = (0.7, 0.75)
  elif variant != 'digits':
    raise ValueError(
      f"variant: expected 'digits' or 'fashion_mnist', got {variant!r}."
    )
  return config
