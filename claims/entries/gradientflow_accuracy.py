"""Accuracy with messages of half precision, on digits."""

import ml_collections

from claims.entries import _shared
from claims.published import Claim, Entry, Measure

_GRID = 'wire.dense.dtype = float32, float16, bfloat16'


def get_config() -> ml_collections.ConfigDict:
  """Returns the shared config: digits, BSP, 8 epochs."""
  config = _shared.digits(epochs=8.0)
  config.optimizer.learning_rate = 0.01
  _shared.reduce(config, 'ring')
  return config


def _of(dtype: str) -> dict[str, object]:
  return {'wire.dense.dtype': dtype}


ENTRY = Entry(
  family='GradientFlow',
  title='Accuracy with messages of half precision',
  published_setup='gradients in half precision with a master copy in float32; '
  'ImageNet',
  our_setup='BSP, a ring of 4 virtual workers, a dense layer of 128 on '
  'digits, 8 epochs, rate .01; messages of 32 and 16 bits, sums in float32',
  differences='model and data',
  claims=(
    *(
      Claim(
        text=f'{dtype} costs no accuracy: final accuracy minus that of float32',
        source='GradientFlow, abstract: mixed precision',
        mark='abstract',
        measure=Measure('final_accuracy', _of(dtype), minus=_of('float32')),
        confirmed=(-0.005, 0.005),
        shape=(-0.01, 0.01),
      )
      for dtype in ('float16', 'bfloat16')
    ),
    *(
      Claim(
        text=f'{dtype}: bytes over those of float32',
        source='GradientFlow, text',
        mark='derived',
        paper=0.5,
        measure=Measure('bytes', _of(dtype), _of('float32')),
        confirmed=(0.45, 0.55),
        shape=(0.0, 1.0),
        unfalsifiable='the size of a message is defined so; tests hold it',
      )
      for dtype in ('float16', 'bfloat16')
    ),
  ),
  grids={'quick': _GRID, 'full': _GRID},
)
