"""Combinations of scheme, batching, dtype and route; not an entry.

Half precision is combined only with the schemes, batchings and routes that are
fastest on some cluster.
"""

from typing import Any

import ml_collections

from claims.entries import _shared
from claims.published import LESS, Claim, Entry, Measure

TO = 'time_to.0.93'
_FIELDS = (
  'wire.dense.dtype',
  'sync.name',
  'batching.name',
  'route.name',
  'route.server.servers',
  'route.server.pipelined',
  'cluster.network.servers_in_workers',
)
_WITH_SERVERS = (  # Scheme, batching, pipelined; all in float32.
  ('bsp', 'fixed', False),
  ('bsp', 'fixed', True),
  ('bsp', 'lb_bsp', False),
  ('bsp', 'lb_bsp', True),
  ('bsp', 'lb_bsp_gpu', False),
  ('asp', 'fixed', False),
  ('ssp', 'fixed', False),
  ('dssp', 'fixed', False),
  ('elastic', 'fixed', False),
  ('elastic', 'lb_bsp', False),
  ('r2sp', 'fixed', False),
  ('r2sp', 'r2sp', False),
  ('r2sp', 'r2sp_released', False),
)
_WITH_SERVERS_HALF = (
  ('bsp', 'fixed', False),
  ('asp', 'fixed', False),
  ('elastic', 'fixed', False),
)
_ALLREDUCE = tuple(  # Batching, route.
  (batching, route)
  for batching in ('fixed', 'lb_bsp')
  for route in ('ring', 'double_tree', 'forest')
)
_ALLREDUCE_HALF = ('fixed', 'ring'), ('fixed', 'forest'), ('lb_bsp', 'forest')


def _values(
  dtype: str, with_servers: tuple[Any, ...], allreduce: tuple[Any, ...]
) -> list[str]:
  """Returns the values of the fields; unused fields of a route are empty."""
  return [
    *(
      f'{dtype} & {s} & {b} & server & 8 & {p} & True'
      for s, b, p in with_servers
    ),
    *(f'{dtype} & bsp & {b} & {r} & & &' for b, r in allreduce),
  ]


_VALUES = [
  *_values('float32', _WITH_SERVERS, _ALLREDUCE),
  *_values('bfloat16', _WITH_SERVERS_HALF, _ALLREDUCE_HALF),
]
GRID = f'{" & ".join(_FIELDS)} = {", ".join(_VALUES)}'
_LINK_BPS = 2e7


def config(
  slowdown: tuple[float, ...], links_Bps: tuple[float, ...]
) -> ml_collections.ConfigDict:
  """Returns the config that all runs on a cluster of eight workers share.

  Parameter servers, if there are any, are on the workers' hosts and use their
  links.

  Args:
    slowdown: Slowdown of each worker.
    links_Bps: Bandwidth of the workers' links in both directions, bytes per
      second: one for each worker, or one for all.
  """
  result = _shared.digits(epochs=6.0)
  result.optimizer.learning_rate = 0.005
  result.cluster.workers = 8
  result.cluster.speed.slowdown = slowdown
  network = result.cluster.network
  for host in ('worker', 'server'):
    for way in ('up', 'down'):
      network[f'{host}_{way}_Bps'] = links_Bps if host == 'worker' else (125e6,)
  return result


def of(
  sync: str = 'bsp',
  batching: str = 'fixed',
  route: str = 'server',
  dtype: str = 'float32',
  pipelined: bool = False,
) -> dict[str, object]:
  """Returns the fields that select the records of a combination."""
  return {
    'sync.name': sync,
    'batching.name': batching,
    'route.name': route,
    'route.server.pipelined': pipelined,
    'wire.dense.dtype': dtype,
  }


def less(
  text: str,
  of: dict[str, Any],
  by: dict[str, Any],
  field: str = TO,
  confirmed: tuple[float, float] = (0.0, 0.95),
) -> Claim:
  """Returns the claim that a field is less for `of` than for `by`."""
  return Claim(
    text=text,
    source='ours: what docs/choosing.md advises',
    mark='ours',
    measure=Measure(field, of, by),
    confirmed=confirmed,
    shape=LESS if confirmed[1] <= 1 else None,
  )


def entry(
  cluster: str, claims: tuple[Claim, ...], observations: str = ''
) -> Entry:
  """Returns the entry of a cluster."""
  return Entry(
    family='combinations',
    title=f'When, how much, what and where: {cluster}',
    published_setup='no published table',
    our_setup='8 virtual workers, .06 s of computing for 16 examples with 10 '
    '% jitter, a dense layer of 128 on digits (530 kB), links of 20 MB/s, '
    'rate .005, 6 epochs; servers, if any, are in the workers',
    differences='',
    claims=claims,
    grids={'quick': GRID, 'full': GRID},
    observations=observations,
    ranked=(TO, 'time_to.0.9', 'examples_per_s', 'final_accuracy'),
  )
