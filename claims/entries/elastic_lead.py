"""Largest lead of a worker under ElasticBSP."""

from typing import Any

import ml_collections

from claims.entries import _shared
from claims.published import Claim, Entry, Measure

_SLOWEST = 3, 10, 30
_GRID = f"""
  cluster.speed.slowdown =
    {', '.join(f'(1.0, 1.0, 1.0, {n}.0)' for n in _SLOWEST)};
  sync.name & sync.elastic.lookahead & sync.elastic.bound =
    elastic & 15 &, elastic & 15 & 15.0
"""


def get_config() -> ml_collections.ConfigDict:
  """Returns the shared config: 4 workers, 200 iterations in the mean."""
  return _shared.timing(
    workers=4, iterations=200, size_bytes=400_000, compute_s=0.1
  )


def _claim(
  text: str, source: str, slowest: int, scheme: dict[str, Any]
) -> Claim:
  of = scheme | {'cluster.speed.slowdown': (1.0, 1.0, 1.0, float(slowest))}
  return Claim(
    text=f'{text}: largest lead since a barrier, slowest {slowest} times as '
    'slow',
    source=source,
    mark='found' if source.startswith('Elastic') else 'ours',
    paper=15,
    measure=Measure('largest_lead', of),
    confirmed=(1, 15),
    shape=(1, 16),
    unfalsifiable='our scheme has this bound; tests hold it'
    if scheme == _BOUNDED
    else '',
  )


_ELASTIC = {'sync.name': 'elastic', 'sync.elastic.bound': 'inf'}
_BOUNDED = {'sync.name': 'elastic', 'sync.elastic.bound': 15.0}

ENTRY = Entry(
  family='ElasticBSP',
  title='Largest leads',
  published_setup='according to the text, R bounds the difference of '
  'iterations, which the proof of convergence requires',
  our_setup='timing-only, 4 workers with 10 % jitter, one of them 3, 10 or 30 '
  'times as slow; R = 15',
  differences='no known difference: a search needs two pushes of each worker '
  'since the last barrier, and leads are not bounded until then',
  claims=(
    *(
      _claim('R = 15 bounds leads', 'ElasticBSP, text', n, _ELASTIC)
      for n in _SLOWEST
    ),
    *(
      _claim('a bound of 15 of our own does', 'ours', n, _BOUNDED)
      for n in _SLOWEST
    ),
  ),
  observations='The first rule measured leads over the whole run, which have '
  'no bound; it was changed after the runs.',
  grids={'quick': _GRID, 'full': _GRID},
  derived='leads',
)
