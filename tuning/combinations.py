"""Combinations of scheme, batching, wire and route that a tuning compares."""

from typing import NamedTuple

# Classes of schemes by staleness: none, bounded, unbounded.  One of the user's
# own has the first: only that scheme, and what is not stale, takes its place.
STALENESS = {
  'bsp': 0,
  **dict.fromkeys(('quorum', 'ssp', 'dssp', 'r2sp'), 1),
  **dict.fromkeys(('elastic', 'asp'), 2),
}


class Combination(NamedTuple):
  """Scheme, batching, dtype and route of a run.

  Attributes:
    sync: Value of config.sync.name.
    batching: Value of config.batching.name.
    dtype: Value of config.wire.dense.dtype.
    route: Value of config.route.name.
    pipelined: Value of config.route.server.pipelined.
    hosts: Hosts of a worker, an island if there are several.
    local_steps: Value of config.batching.local_steps.
    fragments: Value of config.route.fragments.
  """

  sync: str = 'bsp'
  batching: str = 'fixed'
  dtype: str = 'float32'
  route: str = 'server'
  pipelined: bool = False
  hosts: int = 1
  local_steps: int = 1
  fragments: int = 1

  def __str__(self) -> str:
    return f'{self.sync}, {self.batching}, {self.dtype}, {self.where}'

  @property
  def where(self) -> str:
    """Route and its options, as text."""
    parts = [self.route]
    if self.pipelined:
      parts.append('pipelined')
    if self.hosts > 1:
      parts.append(f'islands of {self.hosts}')
    if self.fragments > 1:
      parts.append(f'{self.fragments} fragments')
    return ', '.join(parts)


BSP = Combination()
_WAYS = (
  *(BSP._replace(route=route) for route in ('double_tree', 'forest', 'ring')),
  BSP,
  BSP._replace(pipelined=True),
)
# Omitted batchings: lb_bsp_gpu needs curves, and steps of r2sp grow with the
# inequality of a cluster.
ALL = (
  *_WAYS,
  *(way._replace(batching='lb_bsp') for way in _WAYS),
  *(BSP._replace(dtype='bfloat16', route=r) for r in ('forest', 'ring')),
  BSP._replace(dtype='bfloat16'),
  BSP._replace(batching='lb_bsp', dtype='bfloat16', route='forest'),
  *map(Combination, ('asp', 'dssp', 'elastic', 'r2sp', 'ssp')),
  *(Combination(sync, dtype='bfloat16') for sync in ('asp', 'elastic')),
  Combination('elastic', 'lb_bsp'),
)
