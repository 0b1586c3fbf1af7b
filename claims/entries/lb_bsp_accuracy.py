"""LB-BSP's iterations to an accuracy beside BSP's, in shorter time."""

import ml_collections

from claims.entries import _shared
from claims.published import LESS, Claim, Entry, Measure, Range, near

_TO, _ITERATIONS = 'time_to.0.93', 'iterations_to.0.93'
_GRID = """
  sync.name & batching.name =
    bsp & fixed, bsp & lb_bsp, bsp & lb_bsp_gpu, asp & fixed, ssp & fixed
"""


def get_config() -> ml_collections.ConfigDict:
  """Returns the shared config: digits, unequal workers, 8 epochs."""
  config = _shared.digits(epochs=8.0)
  config.cluster.speed.slowdown = _shared.UNEQUAL
  config.optimizer.learning_rate = 0.01
  return config


def _of(batching: str, sync: str = 'bsp') -> dict[str, object]:
  return {'sync.name': sync, 'batching.name': batching}


def _claim(
  text: str,
  source: str,
  mark: str,
  measure: Measure,
  confirmed: Range,
  shape: Range | None = None,
  paper: float | None = None,
) -> Claim:
  return Claim(text, source, mark, paper, measure, confirmed, shape)


ENTRY = Entry(
  family='LB-BSP',
  title='The iterations of BSP',
  published_setup='statistical efficiency is that of BSP, unlike that of ASP '
  'and SSP',
  our_setup='virtual, 4 workers 1, 1.5, 2 and 3 times as slow with 10 % '
  'jitter, a dense layer of 128 on digits, batches of 16 in the mean, 8 '
  'epochs, rate .01',
  differences='model and data; the claims are about any model',
  claims=(
    *(
      _claim(
        f'{rule}: iterations to an accuracy over BSP',
        'LB-BSP, text',
        'derived',
        Measure(_ITERATIONS, _of(rule), _of('fixed')),
        near(1.0, 0.1),
        near(1.0, 0.25),
        1.0,
      )
      for rule in ('lb_bsp', 'lb_bsp_gpu')
    ),
    *(
      _claim(
        f'{rule}: final accuracy minus that of BSP',
        'LB-BSP, text',
        'derived',
        Measure('final_accuracy', _of(rule), minus=_of('fixed')),
        (-0.01, 0.01),
      )
      for rule in ('lb_bsp', 'lb_bsp_gpu')
    ),
    *(
      _claim(
        f'{rule}: time to an accuracy over BSP',
        'LB-BSP, abstract: up to 2 times as fast',
        'abstract',
        Measure(_TO, _of(rule), _of('fixed')),
        (0.0, 0.8),
        LESS,
      )
      for rule in ('lb_bsp', 'lb_bsp_gpu')
    ),
    _claim(
      'stragglers are eliminated: share of waiting under lb_bsp',
      'LB-BSP, text: all workers finish together',
      'derived',
      Measure('waiting_share', _of('lb_bsp')),
      (0.0, 0.05),
      (0.0, 0.2),
    ),
    *(
      _claim(
        f'lb_bsp: time to an accuracy over {scheme}',
        'ours',
        'ours',
        Measure(_TO, _of('lb_bsp'), _of('fixed', scheme)),
        (0.0, 0.95),
        LESS,
      )
      for scheme in ('asp', 'ssp')
    ),
  ),
  grids={'quick': _GRID, 'full': _GRID},
)
