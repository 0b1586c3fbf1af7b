"""Times of schemes over those of BSP, under the virtual clock and measured."""

from claims.measures import ratios
from claims.published import Claim, Entry, Measure, Range

_NAMES = dict(
  zip(ratios.SCHEMES, ('ASP', 'SSP', 'DSSP', 'ElasticBSP', 'R2SP'), strict=True)
)


def _claim(
  text: str, field: str, part: str, confirmed: Range, shape: Range
) -> Claim:
  return Claim(
    text=text,
    source='ours',
    mark='ours',
    measure=Measure(field, {'part': part}),
    confirmed=confirmed,
    shape=shape,
  )


ENTRY = Entry(
  family='simulator',
  title='Predicted against measured times over BSP',
  published_setup='none; this page judges such ratios',
  our_setup='ASP, SSP, DSSP, ElasticBSP, R2SP and BSP on the same clusters in '
  'a lab (tools.lab): 4 or 8 workers that sleep for their compute times, with '
  '10 % jitter, equal or 1, 1.5, 2 and 3 times as slow; dedicated servers or '
  'servers in workers; .5 and 1 MB; links of 100 and 200 Mbit/s, and unequal '
  'ones. A run takes about 12 s, without its first quarter; six clusters, and '
  'with --scale=quick three for 6 s',
  differences='as of the entry simulator; a ratio has the error of two '
  'single real runs',
  claims=(
    _claim(
      'the virtual time of a scheme over that of BSP misses the measured one '
      'by at most .03: median over schemes and clusters',
      *('median', 'all', (0.0, 0.03), (0.0, 0.06)),
    ),
    _claim(
      'the same, at most .1: p95',
      *('p95', 'all', (0.0, 0.1), (0.0, 0.2)),
    ),
    *(
      _claim(
        f'{name}: mean signed error of its time over that of BSP',
        *('mean_error', scheme, (-0.03, 0.03), (-0.06, 0.06)),
      )
      for scheme, name in _NAMES.items()
    ),
  ),
  observations='With four equal workers, 1 MB and 100 Mbit/s the virtual ASP '
  'is .71 of the measured ratio: real workers take most of the 16 iterations '
  'until they have lost step. Times of whole iterations over 28 to 80 '
  'iterations have an error of +.2 % in the mean for ASP '
  '(docs/benchmarks.md).',
  measurement='ratios',
  evidence='real links',
  seeds={'quick': 1, 'full': 1},
  ranked=('ratio_error', 'virtual_ratio', 'real_ratio'),
  listed=('lab', 'condition'),
)
