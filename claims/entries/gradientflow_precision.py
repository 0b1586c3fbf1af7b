"""Accuracy of layers that compute in half precision, on digits."""

import ml_collections

from claims.entries import _shared
from claims.published import Claim, Entry, Measure

_GRID = """
  precision.dtype & precision.loss_scaling & wire.dense.dtype =
    float32 & & float32, bfloat16 & & float32, bfloat16 & & bfloat16,
    float16 & dynamic & float32
"""


def get_config() -> ml_collections.ConfigDict:
  """Returns the shared config: digits, BSP, 4 epochs."""
  config = _shared.digits(epochs=4.0)
  config.eval_every = 1.0
  config.time_to = ()
  config.optimizer.learning_rate = 0.01
  config.schedule.name = 'cosine'
  _shared.reduce(config, 'ring')
  return config


def _of(dtype: str, wire: str = 'float32') -> dict[str, object]:
  return {'precision.dtype': dtype, 'wire.dense.dtype': wire}


_FLOAT32 = _of('float32')
_CHANGED = {
  'layers in bfloat16': _of('bfloat16'),
  'layers and messages in bfloat16': _of('bfloat16', 'bfloat16'),
  'layers in float16 with a loss scale': _of('float16'),
}

ENTRY = Entry(
  family='GradientFlow',
  title='Accuracy of layers that compute in half precision',
  published_setup='mixed precision: layers and messages in half precision, '
  'a master copy and updates in float32, a loss scale; ImageNet',
  our_setup='BSP, a ring of 4 virtual workers, a dense layer of 128 on '
  'digits, 4 epochs along a cosine from .01, so equal examples; activations '
  'and gradients of layers in 16 bits, parameters, norms, losses and sums in '
  'float32',
  differences='model and data; CPUs compute 16 bits by converting them, so '
  'no time is judged',
  claims=(
    *(
      Claim(
        text=f'{label} cost no accuracy: final accuracy minus that of float32',
        source='GradientFlow, abstract: mixed precision',
        mark='abstract',
        measure=Measure('final_accuracy', of, minus=_FLOAT32),
        confirmed=(-0.005, 0.005),
        shape=(-0.01, 0.01),
      )
      for label, of in _CHANGED.items()
    ),
    Claim(
      text='half precision is faster in computing',
      source='GradientFlow, text',
      mark='derived',
      unavailable='needs GPUs with units for 16 bits',
    ),
  ),
  observations='Three claims about test losses were dropped when the runs had '
  'ended, before their numbers were seen: these runs did not evaluate losses.',
  grids={'quick': _GRID, 'full': _GRID},
  seeds={'quick': 16, 'full': 16},
)
