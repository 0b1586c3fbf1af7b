"""A transformer on text, byte by byte, with BSP: the baseline of lm_diloco.py.

Model: models/transformer.py.  Text: Python's manual (data/embedded.py), rows of
64 bytes.  Four virtual workers, the slowest three times slower, 10 % jitter,
links of 10 Mbit/s, as between sites.

python main.py --config=configs/lm_bsp.py        (117 thousand parameters)
python main.py --config=configs/lm_bsp.py:124M   (needs a GPU and a token file)

Reached, seed 0: 2.08 bits per byte (perplexity 4.22) after 1,880 virtual
seconds, 3.0 at 471, 2.6 at 627, with 2,304 MB sent; 98 seconds on two cores
that other runs shared.

Other variants than 'tiny' are sizes of the model for corpora of tokens, rows of
1024: docs/language_models.md has the format.  They were not run.
"""

import ml_collections

from configs import default

_LINK_BPS = 1.25e6  # 10 Mbit/s.


def get_config(variant: str = 'tiny') -> ml_collections.ConfigDict:
  """Returns the config that trains a transformer with BSP.

  AdamW's update applies the mean gradient of the 64 rows of all workers.  After
  a short warm-up the rate falls along half a cosine.

  Args:
    variant: Size of the model, one of `models.transformer.SIZES`; an unknown
      one is refused when the run is built.  'tiny' reads the embedded text, the
      others config.data.tokens.
  """
  config = default.get_config()
  config.sync.name = 'bsp'
  config.model.name = 'transformer'
  config.model.transformer.size = variant
  config.epochs = 6.0
  config.eval_every = 0.5
  config.time_to = ()
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
  if variant == 'tiny':
    config.data.name = 'text'
    config.data.text.length = 64
    config.time_to_measure.bits_per_byte = (3.0, 2.6)
    return config
  config.data.name = 'tokens'
  config.epochs = 1.0
  config.eval_every = 0.01
  config.time_to_measure.perplexity = (100.0, 40.0)
  config.optimizer.learning_rate = 6e-4
  config.schedule.warmup_epochs = 0.01
  config.batching.micro_batch = 8
  config.precision.dtype = 'bfloat16'
  return config
