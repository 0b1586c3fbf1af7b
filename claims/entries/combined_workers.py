"""Combinations on unequal workers and equal links."""

import ml_collections

from claims.entries import _combined
from claims.entries._combined import less, of


def get_config() -> ml_collections.ConfigDict:
  """Returns the config that all runs share."""
  slowdown = (1.0, 1.0, 1.0, 1.0, 1.0, 1.5, 2.0, 4.0)
  return _combined.config(slowdown, (2e7,))


ENTRY = _combined.entry(
  'unequal workers, equal links',
  (
    less('BSP: time to .93, LB-BSP over equal', of(batching='lb_bsp'), of()),
    less(
      'BSP, forest: time to .93, LB-BSP over equal batches',
      of(batching='lb_bsp', route='forest'),
      of(route='forest'),
    ),
    less(
      'time to .93, BSP with LB-BSP over a forest, over ElasticBSP',
      of(batching='lb_bsp', route='forest'),
      of('elastic'),
    ),
    less(
      'time to .93, BSP with LB-BSP over a forest, over ASP',
      of(batching='lb_bsp', route='forest'),
      of('asp'),
    ),
    less('servers: time to .93, ElasticBSP over BSP', of('elastic'), of()),
    less(
      'servers: time to .93, ElasticBSP over DSSP', of('elastic'), of('dssp')
    ),
    less('servers: time to .93, ElasticBSP over SSP', of('elastic'), of('ssp')),
    less(
      'time to .93, ElasticBSP with LB-BSP over ElasticBSP',
      of('elastic', 'lb_bsp'),
      of('elastic'),
    ),
    less(
      'time to .93, R2SP with its batches over R2SP',
      of('r2sp', 'r2sp'),
      of('r2sp'),
    ),
  ),
  observations='ASP and ElasticBSP with messages of 16 bits are the fastest. '
  'With float32, ElasticBSP, ASP and BSP with LB-BSP are within noise of each '
  'other, and twice as fast as BSP, SSP and R2SP, which run at the pace of '
  'the slowest worker. With float32, batches tuned as in R2SP have the most '
  'examples per second and the worst accuracy, because steps grow with '
  'batches. With the batches as released, most runs do not reach .93.',
)
