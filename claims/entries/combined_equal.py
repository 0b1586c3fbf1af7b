"""Combinations on equal workers and equal links."""

import ml_collections

from claims.entries import _combined
from claims.entries._combined import less, of


def get_config() -> ml_collections.ConfigDict:
  """Returns the config that all runs share."""
  return _combined.config((1.0,), (2e7,))


ENTRY = _combined.entry(
  'equal workers, equal links',
  (
    less(
      'BSP: time of an iteration, forest over ring',
      of(route='forest'),
      of(route='ring'),
      'iteration_s',
      (0.95, 1.05),
    ),
    less(
      'BSP: time of an iteration, ring over a server in each worker',
      of(route='ring'),
      of(),
      'iteration_s',
    ),
    less(
      'BSP: time of an iteration, pipelined servers over servers',
      of(pipelined=True),
      of(),
      'iteration_s',
    ),
    less(
      'BSP, ring: time of an iteration, bfloat16 over float32',
      of(route='ring', dtype='bfloat16'),
      of(route='ring'),
      'iteration_s',
    ),
    less('servers: time to .93, R2SP over BSP', of('r2sp'), of()),
    less('servers: time to .93, ASP over BSP', of('asp'), of()),
    less(
      'time to .93, BSP over a forest in bfloat16, over the fastest of others: '
      'ASP in bfloat16',
      of(route='forest', dtype='bfloat16'),
      of('asp', dtype='bfloat16'),
    ),
    less(
      'BSP: time to .93, LB-BSP over equal batches: nothing to gain',
      of(batching='lb_bsp'),
      of(),
      confirmed=(0.9, 1.1),
    ),
  ),
  observations='With a server in each worker both directions of all links are '
  'busy: rings, forests and pipelines gain nothing, and only smaller messages '
  'do. Differences between schemes are within noise.',
)
