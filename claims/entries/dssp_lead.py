"""Largest lead of a worker under DSSP."""

import ml_collections

from claims.entries import _shared
from claims.published import Claim, Entry, Measure

_SLOWEST = 3, 10, 30
_GRID = f"""
  cluster.speed.slowdown =
    {', '.join(f'(1.0, 1.0, 1.0, {n}.0)' for n in _SLOWEST)};
  sync.name = dssp;
  sync.dssp.as_printed = False, True
"""


def get_config() -> ml_collections.ConfigDict:
  """Returns the shared config: 4 workers, 200 iterations in the mean."""
  return _shared.timing(
    workers=4, iterations=200, size_bytes=400_000, compute_s=0.1
  )


def _lead(text: str, slowest: int, *, as_printed: bool) -> Claim:
  return Claim(
    text=f'{text}largest lead, slowest {slowest} times as slow',
    source='DSSP, text',
    mark='found',
    paper=15,
    measure=Measure(
      'largest_lead',
      {
        'cluster.speed.slowdown': (1.0, 1.0, 1.0, float(slowest)),
        'sync.dssp.as_printed': as_printed,
      },
    ),
    confirmed=(1, 15),
    shape=(1, 16),
    unfalsifiable=''
    if as_printed
    else 'our scheme has this bound; tests hold it',
  )


ENTRY = Entry(
  family='DSSP',
  title='Largest leads',
  published_setup='a worker may lead by s to s + r iterations, 3 to 15',
  our_setup='timing-only, 4 workers with 10 % jitter, one of them 3, 10 or 30 '
  'times as slow; our scheme, and the pseudo-code as printed',
  differences='the published pseudo-code gives the fastest worker one more '
  'grant at each request; ours never lets a worker lead by more than 15',
  claims=(
    *(_lead('', n, as_printed=False) for n in _SLOWEST),
    *(_lead('as printed: ', n, as_printed=True) for n in _SLOWEST),
  ),
  observations='A lead is measured when a push arrives: it is 16 at a push '
  'whose worker must then wait.',
  grids={'quick': _GRID, 'full': _GRID},
  derived='leads',
)
