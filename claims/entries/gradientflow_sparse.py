"""GradientFlow's sparse chunks and corrections of momentum, on digits."""

from typing import Any

import ml_collections

from claims.entries import _shared
from claims.published import LESS, Claim, Entry, Measure, Range, near

_FIELDS = (
  'wire.name',
  'wire.sparse.sparsity',
  'wire.sparse.chunk',
  'wire.sparse.correction',
  'wire.sparse.momentum',
  'wire.sparse.warmup',
  'optimizer.sgd.momentum',
)
_WARM = '(0.0, 0.5, 0.75)'
_VALUES = (
  'dense & & & & & & 0.9',
  'sparse & 0.9 & 512 & none & & & 0.9',
  'sparse & 0.9 & 512 & masked & & & 0.9',
  f'sparse & 0.9 & 512 & masked & & {_WARM} & 0.9',
  'sparse & 0.9 & 512 & local & 0.9 & & 0.0',
  f'sparse & 0.9 & 512 & local & 0.9 & {_WARM} & 0.0',
)
_GRID = f'{" & ".join(_FIELDS)} = {", ".join(_VALUES)}'
_DENSE = {'wire.name': 'dense'}


def get_config() -> ml_collections.ConfigDict:
  """Returns the shared config: digits, momentum, a ring of slow links."""
  config = _shared.digits(epochs=10.0)
  config.optimizer.learning_rate = 0.001
  _shared.reduce(config, 'ring')
  for way in ('up', 'down'):
    config.cluster.network[f'worker_{way}_Bps'] = (2e7,)
  return config


def _of(correction: str, *, warm: bool) -> dict[str, object]:
  return {
    'wire.name': 'sparse',
    'wire.sparse.correction': correction,
    'wire.sparse.warmup': (0.0, 0.5, 0.75) if warm else (),
  }


def _accuracy(
  text: str, of: dict[str, Any], confirmed: Range, shape: Range
) -> Claim:
  return Claim(
    text=f'{text}: final accuracy minus that of dense messages',
    source='GradientFlow',
    mark='secondary',
    measure=Measure('final_accuracy', of, minus=_DENSE),
    confirmed=confirmed,
    shape=shape,
  )


_SAME, _CLOSE = (-0.005, 0.005), (-0.01, 0.01)

ENTRY = Entry(
  family='GradientFlow',
  title='Sparse chunks',
  published_setup='chunks with the largest norms, summed over workers; '
  'correction of momentum, dense warm-up; ImageNet. Sizes and shares were not '
  'found.',
  our_setup='BSP with momentum .9, a dense layer of 128 on digits, rate .001, '
  '10 epochs; 90 % of chunks of 512 numbers are not sent; warm-up in three '
  'epochs; a ring of 4 virtual workers, links of 20 MB/s',
  differences='model, data and size of chunks; chunks are chosen by the '
  'gradient of the same iteration, after its computation',
  claims=(
    _accuracy(
      'with correction and warm-up nothing is lost (masked)',
      _of('masked', warm=True),
      _SAME,
      _CLOSE,
    ),
    _accuracy(
      'with correction and warm-up nothing is lost (local)',
      _of('local', warm=True),
      _SAME,
      _CLOSE,
    ),
    _accuracy(
      'without correction of momentum it is worse',
      _of('none', warm=False),
      (-1.0, -0.005),
      (-1.0, 0.0),
    ),
    Claim(
      text='correction matters: final accuracy, masked minus none, no warm-up',
      source='GradientFlow',
      mark='derived',
      measure=Measure(
        'final_accuracy',
        _of('masked', warm=False),
        minus=_of('none', warm=False),
      ),
      confirmed=(0.005, 1.0),
      shape=(0.0, 1.0),
    ),
    Claim(
      text='warm-up matters: final accuracy, with minus without, masked',
      source='GradientFlow',
      mark='derived',
      measure=Measure(
        'final_accuracy',
        _of('masked', warm=True),
        minus=_of('masked', warm=False),
      ),
      confirmed=(0.005, 1.0),
      shape=(0.0, 1.0),
    ),
    Claim(
      text='time of an iteration over dense messages, no warm-up',
      source='GradientFlow, abstract',
      mark='abstract',
      measure=Measure('iteration_s', _of('masked', warm=False), _DENSE),
      confirmed=(0.0, 0.95),
      shape=LESS,
    ),
    Claim(
      text='time to .93 over dense messages, with warm-up',
      source='GradientFlow, abstract',
      mark='abstract',
      measure=Measure('time_to.0.93', _of('masked', warm=True), _DENSE),
      shape=LESS,
    ),
    Claim(
      text='bytes over dense messages: (1 - s) P + C',
      source='GradientFlow',
      mark='derived',
      paper=0.102,
      measure=Measure('bytes', _of('masked', warm=False), _DENSE),
      confirmed=near(0.102, 0.1),
      shape=LESS,
      unfalsifiable='the size of a message is defined so; tests hold it',
    ),
  ),
  grids={'quick': _GRID, 'full': _GRID},
)
