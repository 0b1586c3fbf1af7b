"""Cost of updates at servers, as a cause of published times of ASP."""

import ml_collections

from claims.entries import _r2sp, _shared
from claims.published import LESS, Claim, Entry, Measure, near

_SUM_BPS = 4e9
_UPDATE_BPS = 4e9, 1e9, 5e8
_RESNET_BYTES = 95_000_000
_ALL = ', '.join(map(str, _UPDATE_BPS))
# A model's size, computing, links, workers, servers and examples.
_FIELDS = (
  f'{_r2sp.FIELDS} & cluster.network.worker_up_Bps & '
  'cluster.network.worker_down_Bps & cluster.workers & route.server.servers & '
  'model.none.num_train'
)
_FAST = '(1.25e10,)'
_RESNET = (
  f'{_RESNET_BYTES} & 0.175 & {0.35 / 64} & {_FAST} & {_FAST} & {_FAST} & '
  f'{_FAST} & 4 & 1 & {4 * 100 * 32}'
)
_LINE = f'({_shared.BPS},)'
_VGG = f'{_r2sp.values("VGG16")} & {_LINE} & {_LINE} & 16 & 4 & {16 * 40 * 32}'
_GRID = f"""
  {_FIELDS} = {_RESNET}, {_VGG};
  cluster.server.update_Bps = {_ALL};
  sync.name = bsp, asp, ssp, r2sp
"""


def get_config() -> ml_collections.ConfigDict:
  """Returns the shared config: servers add 4 GB of pushes per second."""
  config = _r2sp.base(workers=4, servers=1, iterations=1)
  config.cluster.server.sum_Bps = _SUM_BPS
  return config


def _claim(
  model: str,
  scheme: str,
  other: str,
  paper: float,
  update_Bps: float,
  source: str,
) -> Claim:
  size = _RESNET_BYTES if model == 'ResNet-50' else None
  size = size or _r2sp.WORKLOADS[model].size_bytes
  fields = {
    'model.none.size_bytes': size,
    'cluster.server.update_Bps': update_Bps,
  }
  return Claim(
    text=f'{model}, updates at {update_Bps / 1e9:g} GB/s: time of an '
    f'iteration, {scheme} over {other}',
    source=source,
    mark='derived' if other == 'asp' else 'read off',
    paper=paper,
    measure=Measure(
      'iteration_s',
      {'sync.name': scheme, **fields},
      {'sync.name': other, **fields},
    ),
    confirmed=near(paper, 0.1, LESS if paper < 1 else (1.0, 3.0)),
    shape=LESS if paper < 1 else (1.0, 3.0),
    same_as={'sync.name': 'asp', **fields} if scheme == 'ssp' else None,
  )


ENTRY = Entry(
  family='simulator',
  title='Time of updates at servers',
  published_setup="ElasticBSP's ResNet-50: 4 workers, 100 Gbit/s; ASP and SSP "
  "take longer than BSP. R2SP's VGG16: 16 workers, 4 servers; R2SP is faster "
  'than ASP',
  our_setup='timing-only, as the entries on these figures, but servers add 4 '
  'GB of pushes per second, and update 4, 1 or .5 GB of parameters per second; '
  '95 MB and .35 s of computing for ResNet-50, calibrated links for VGG16',
  differences='rates of published servers are not known; .5 to 4 GB/s are '
  'assumed. .5 was chosen as the rate that arithmetic suggests for the '
  'published ratio, so a confirmed row shows that such a rate exists, not that '
  'it was theirs',
  claims=(
    *(
      _claim('ResNet-50', scheme, 'bsp', paper, rate, 'ElasticBSP, figure')
      for rate in _UPDATE_BPS
      for scheme, paper in (('asp', 1.366), ('ssp', 1.289))
    ),
    *(
      _claim('VGG16', scheme, other, paper, rate, 'R2SP, figure 7')
      for rate in _UPDATE_BPS
      for scheme, other, paper in (
        ('asp', 'bsp', 0.89),
        ('r2sp', 'bsp', 0.67),
        ('r2sp', 'asp', 0.75),
      )
    ),
  ),
  observations='The time of updates can explain why ASP and SSP take longer '
  'than BSP for ResNet-50: a server that updates half a GB per second is busy '
  'all the time, while BSP makes one update of four pushes. With 1 GB/s ASP '
  'is still faster. It does not explain why R2SP is faster than ASP: the '
  'slower updates are, the slower is R2SP beside ASP.',
  grids={'quick': _GRID, 'full': _GRID},
)
