"""Cost of ElasticBSP's search: table II and the figure of variants."""

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
