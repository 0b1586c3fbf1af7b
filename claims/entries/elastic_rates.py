"""SSP's bound needs tuning for each learning rate, and R does not."""

from typing import Any

import ml_collections

from claims.entries import _shared
from claims.published import LESS, Claim, Entry, Measure

_RATES = (0.01, 0.04, 0.16)
_TO = 'time_to.0.93'
_GRID = f"""
  optimizer.learning_rate = {', '.join(map(str, _RATES))};
  sync.name & sync.ssp.bound & sync.elastic.lookahead =
    ssp & 1 &, ssp & 3 &, ssp & 10 &, ssp & 30 &,
    elastic & & 15, elastic & & 60, elastic & & 240
"""


def get_config() -> ml_collections.ConfigDict:
  """Returns the shared config: digits, unequal workers, 4 epochs."""
  config = _shared.digits(epochs=4.0)
  config.cluster.speed.slowdown = _shared.UNEQUAL
  return config


def _spread(scheme: str, rate: float) -> dict[str, Any]:
  return {'sync.name': scheme, 'optimizer.learning_rate': rate}


ENTRY = Entry(
  family='ElasticBSP',
  title="SSP's bound and ElasticBSP's look-ahead over learning rates",
  published_setup='according to the text, s has to be tuned and R has little '
  'effect',
  our_setup='digits as in the entry of accuracy, workers 1, 1.5, 2 and 3 '
  'times as slow, 4 epochs, rates .01, .04 and .16; s = 1, 3, 10, 30 and R = '
  '15, 60, 240',
  differences='model and data',
  claims=tuple(
    Claim(
      text=f'at rate {rate}: slowest over fastest time to .93, of R over that '
      'of s',
      source='ElasticBSP, text',
      mark='found',
      measure=Measure(
        _TO,
        _spread('elastic', rate),
        _spread('ssp', rate),
        over='sync.elastic.lookahead',
        over_by='sync.ssp.bound',
      ),
      confirmed=(0.0, 0.8),
      shape=LESS,
    )
    for rate in _RATES
  )
  + tuple(
    Claim(
      text=f'at rate {rate}: slowest over fastest time to .93 of R = 15, 60, '
      '240',
      source='ElasticBSP, text',
      mark='found',
      measure=Measure(
        _TO, _spread('elastic', rate), over='sync.elastic.lookahead'
      ),
      confirmed=(1.0, 1.15),
      shape=(1.0, 1.4),
    )
    for rate in _RATES
  ),
  observations='At rate .16 no run reached .93, and few verdicts are certain '
  'at .04: spreads over R are the noise of single times to an accuracy.',
  grids={'quick': _GRID, 'full': _GRID},
)
