"""R2SP's figure 11: the gain on slower links."""

import ml_collections

from claims.entries import _r2sp
from claims.published import LESS, Claim, Entry, Measure, near

_GBPS = (10, 8, 6, 4, 2)
# Share of BSP's time of an iteration that R2SP saves.
_PAPER = {
  'AlexNet': (0.273, 0.319, 0.357, 0.417, 0.460),
  'VGG16': (0.320, 0.359, 0.398, 0.447, 0.481),
}
_FIELDS = _r2sp.FIELDS
_VALUES = ', '.join(
  _r2sp.values(model, gbps / 10) for model in _PAPER for gbps in _GBPS
)
_GRID = f'{_FIELDS} = {_VALUES}; sync.name = bsp, r2sp'


def get_config() -> ml_collections.ConfigDict:
  """Returns the shared config: 16 workers, 4 servers, 60 iterations each."""
  return _r2sp.base(workers=16, servers=4, iterations=60)


def _of(model: str, gbps: int, scheme: str) -> dict[str, object]:
  rate = (gbps / 10 * _r2sp.WORKLOADS[model].server_Bps,)
  fields = {'cluster.network.server_up_Bps': rate, 'sync.name': scheme}
  return _r2sp.of(model, **fields)


ENTRY = Entry(
  family='R2SP',
  title='Figure 11: slower links',
  published_setup=_r2sp.PUBLISHED_SETUP + "; servers' links of 10 to 2 Gbit/s",
  our_setup='as figure 7; rates of links as calibrated from table I, times .2 '
  'to 1',
  differences=_r2sp.DIFFERENCES,
  claims=(
    *(
      Claim(
        text=f'{model}, {gbps} Gbit/s: time of an iteration, R2SP over BSP',
        source='R2SP, figure 11',
        mark='read off',
        paper=round(1 - saved, 3),
        measure=Measure(
          'iteration_s', _of(model, gbps, 'r2sp'), _of(model, gbps, 'bsp')
        ),
        confirmed=near(1 - saved, 0.1),
        shape=LESS,
      )
      for model, papers in _PAPER.items()
      for gbps, saved in zip(_GBPS, papers, strict=True)
    ),
    *(
      Claim(
        text=f'{model}: the gain grows as links get slower: slowest over '
        'fastest iteration of all rates, R2SP over BSP',
        source='R2SP, figure 11',
        mark='derived',
        paper=round((1 - papers[-1]) / (1 - papers[0]), 3),
        measure=Measure(
          'iteration_s',
          _r2sp.of(model, **{'sync.name': 'r2sp'}),
          _r2sp.of(model, **{'sync.name': 'bsp'}),
          over='cluster.network.server_up_Bps',
          over_by='cluster.network.server_up_Bps',
        ),
        confirmed=near((1 - papers[-1]) / (1 - papers[0]), 0.1, LESS),
        shape=LESS,
      )
      for model, papers in _PAPER.items()
    ),
  ),
  observations='The first rule of the last two rows used 2 Gbit/s only, which '
  'repeats the rows above; it was changed after the runs.',
  grids={'quick': _GRID, 'full': _GRID},
)
