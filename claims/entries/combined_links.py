"""Combinations on equal workers and unequal links."""

import ml_collections

from claims.entries import _combined
from claims.entries._combined import less, of


def get_config() -> ml_collections.ConfigDict:
  """Returns the config that all runs share."""
  links_Bps = (2e7, 2e7, 2e7, 2e7, 2e7, 1e7, 5e6, 2e6)
  return _combined.config((1.0,), links_Bps)


ENTRY = _combined.entry(
  'equal workers, unequal links',
  (
    less(
      'BSP: time of an iteration, forest over ring',
      of(route='forest'),
      of(route='ring'),
      'iteration_s',
    ),
    less(
      'BSP: time of an iteration, forest over a server in each worker',
      of(route='forest'),
      of(),
      'iteration_s',
    ),
    less(
      'BSP: time of an iteration, forest over double tree',
      of(route='forest'),
      of(route='double_tree'),
      'iteration_s',
    ),
    less(
      'time to .93, BSP over a forest, over ASP',
      of(route='forest'),
      of('asp'),
    ),
    less(
      'time to .93, BSP over a forest, over ElasticBSP',
      of(route='forest'),
      of('elastic'),
    ),
    less(
      'time to .93, BSP over a forest, bfloat16 over float32',
      of(route='forest', dtype='bfloat16'),
      of(route='forest'),
    ),
    less('servers: time to .93, ASP over BSP', of('asp'), of()),
    less('servers: time to .93, R2SP over BSP', of('r2sp'), of()),
  ),
  observations='BSP over a forest with messages of 16 bits is the fastest. A '
  'double tree is as fast as the forest here, which is a tree with its root '
  'at the fastest workers. ASP, SSP and DSSP are the slowest: workers with '
  'fast links compute most examples, but their pulls and pushes wait for '
  'servers behind slow links.',
)
