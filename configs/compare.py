"""VGG11 at 1/8 width on digits: small enough to compare all schemes, 3 seeds.

Model: Simonyan and Zisserman, ICLR 2015.  Four virtual workers, the slowest
three times slower, 10 % jitter.  The rate is the better one of 0.006 and 0.01
for BSP's time to 95 %; no scheme has one of its own.

python -m tools.compare --out=DIR                      (all schemes)
python main.py --config=configs/compare.py             (BSP)

Reached on digits by BSP, seeds 0 to 2: 96.9 % (96.1 to 97.8) after 55 virtual
seconds, 95 % at 23.3; four minutes for all 27 runs and the installation.
"""

import ml_collections

from configs import default


def get_config() -> ml_collections.ConfigDict:
  """Returns what every run of a comparison shares."""
  config = default.get_config()
  config.epochs = 12.0
  config.eval_every = 0.5  # Finer than the differences of time to accuracy.
  config.model.vgg.depth = 11
  config.optimizer.learning_rate = 0.006
  config.schedule.name = 'cosine'  # Constant rates end in noise.
  return config
