"""Cost of ElasticBSP's search: table II and the figure of variants."""

import math

from claims.published import LESS, MORE, Claim, Entry, Measure, Range, near

_TABLE, _FIGURE = 'ElasticBSP, table II', 'ElasticBSP, figure of variants'
# Powers of n between 100 and 400 workers, or 100 and 1,000 in table II.
_SLOPES = (
  ('zipline', 15, 1.80, _FIGURE),
  ('zipline', 150, 1.52, _FIGURE),
  ('opt', 15, 1.94, _FIGURE),
  ('opt', 150, 1.45, _FIGURE),
  ('opt_bs', 15, 1.70, _FIGURE),
  ('opt_bs', 150, 1.22, _FIGURE),
  ('grid_scan', 15, 0.83, _TABLE),
  ('grid_scan', 150, 0.77, _TABLE),
  ('full_grid_scan', 15, 1.70, _TABLE),
)
_RATIOS = (
  ('full_grid_scan', 'zipline', 10, 15, 10.3, _TABLE),
  ('full_grid_scan', 'zipline', 10, 150, 35.4, _TABLE),
  ('full_grid_scan', 'zipline', 100, 15, 12.8, _TABLE),
  ('full_grid_scan', 'zipline', 100, 150, 43.1, _TABLE),
  ('grid_scan', 'zipline', 10, 15, 1.13, _TABLE),
  ('grid_scan', 'zipline', 10, 150, 4.17, _TABLE),
  ('grid_scan', 'zipline', 100, 15, 0.174, _TABLE),
  ('grid_scan', 'zipline', 100, 150, 0.878, _TABLE),
  ('opt', 'zipline', 400, 15, 0.37, _FIGURE),
  ('opt', 'zipline', 400, 150, 0.35, _FIGURE),
  ('opt', 'opt_bs', 100, 15, 0.89, _FIGURE),
  ('opt', 'opt_bs', 100, 150, 0.83, _FIGURE),
  ('opt', 'opt_bs', 400, 15, 1.25, _FIGURE),
  ('opt', 'opt_bs', 400, 150, 1.14, _FIGURE),
)
# Power of n with which n log n grows between 100 and 400 workers.
_N_LOG_N = 1 + math.log(math.log(400) / math.log(100)) / math.log(4)


def _slope(method: str, points: int, paper: float, source: str) -> Claim:
  return Claim(
    text=f'cost of {method} grows with this power of n, R = {points}',
    source=source,
    mark='derived',
    paper=paper,
    measure=Measure('slope', {'method': method, 'slope_of': points}),
    confirmed=near(paper, 0.15),
    shape=near(paper, 0.3),
  )


def _ratio(
  method: str, other: str, n: int, points: int, paper: float, source: str
) -> Claim:
  at = {'n': n, 'R': points}
  return Claim(
    text=f'cost of {method} over {other}, n = {n}, R = {points}',
    source=source,
    mark='found' if source == _TABLE else 'read off',
    paper=paper,
    measure=Measure('us', {'method': method, **at}, {'method': other, **at}),
    confirmed=near(paper, 0.15, _side(paper)),
    shape=_side(paper),
  )


def _side(paper: float) -> Range:
  """Returns the range of the shape: the same side of 1 if clearly off 1."""
  if 0.85 < paper < 1.18:
    return paper / 2, 2 * paper
  return LESS if paper < 1 else MORE


ENTRY = Entry(
  family='ElasticBSP',
  title='The cost of the search for a barrier',
  published_setup='C++11, 24 x Xeon E5-2620v3, means of 10 trials; n to '
  '1,000, R 15, 150',
  our_setup='the published algorithms in Python and NumPy, one core, the '
  'fastest of up to 21 calls; times drawn as by the published generator; a '
  'stable sort of the same points as a control',
  differences='the language, so only powers and ratios are judged, not '
  'absolute times. GridScans are vectorised and the others are loops, which '
  'favours GridScans. At most 400 workers, not 1,000.',
  claims=(
    Claim(
      text='ZipLine finds the least wait: share of 40 small searches',
      source='ElasticBSP, text',
      mark='found',
      paper=1.0,
      measure=Measure('exact.zipline', {'part': 'exact'}),
      confirmed=(1.0, 2.0),
      unfalsifiable='tests hold it on many more searches',
    ),
    Claim(
      text='GridScan is a heuristic: share of searches with the least wait',
      source='ElasticBSP, text',
      mark='found',
      measure=Measure('exact.grid_scan', {'part': 'exact'}),
      confirmed=(0.0, 0.999),
    ),
    Claim(
      text='ZipLine in microseconds, n = 100, R = 150',
      source=_TABLE,
      mark='found',
      paper=4.99e4,
      measure=Measure('us', {'method': 'zipline', 'n': 100, 'R': 150}),
      shape=(0.0, 4.99e4),
    ),
    *(_slope(*each) for each in _SLOPES),
    *(_ratio(*each) for each in _RATIOS),
    *(
      Claim(
        text=f'cost of {method} grows linearly with R: R = 150 over R = 15, '
        'n = 100',
        source='ElasticBSP, text: O(Rn^2), O(Rn log n)',
        mark='derived',
        paper=10.0,
        measure=Measure(
          'us',
          {'method': method, 'n': 100, 'R': 150},
          {'method': method, 'n': 100, 'R': 15},
        ),
        confirmed=near(10.0, 0.25),
        shape=near(10.0, 0.5),
      )
      for method in ('zipline', 'opt', 'opt_bs')
    ),
    *(
      Claim(
        text=f'cost of {method} is at most {bound}: power of n between 100 and '
        f'400 workers, R = {points}, at most {power:.2f}',
        source=f'ElasticBSP, text: {bound}',
        mark='derived',
        paper=round(power, 2),
        measure=Measure('slope', {'method': method, 'slope_of': points}),
        confirmed=(0.0, 1.05 * power),
        shape=(0.0, 1.2 * power),
      )
      for method, bound, power in (
        ('zipline', 'O(Rn^2)', 2.0),
        ('opt_bs', 'O(Rn log n)', _N_LOG_N),
      )
      for points in (15, 150)
    ),
    Claim(
      text='all of table II at n = 1,000 in absolute times',
      source=_TABLE,
      mark='found',
      unavailable='the C++ was not published, and the machine is not available',
    ),
  ),
  measurement='zipline',
  evidence='timed',
)
