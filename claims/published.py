"""What a file of claims/entries/ says: claims, runs, and rules for verdicts.

Such a file has an ENTRY and, if virtual runs are to judge it, `get_config` for
what they share.  Rules are written before the runs: results remember them, and
are refused beside others.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

ANY = -math.inf, math.inf
LESS = 0.0, 1.0  # Ratios below 1.
MORE = 1.0, math.inf  # Ratios above 1.
# How sure it is what was published.
MARKS = {
  'found': 'read in the paper, or in what its authors published',
  'secondary': "read in somebody's notes on the paper",
  'abstract': "read in the paper's abstract",
  'read off': 'read off a figure, to one or two per cent',
  'derived': 'our arithmetic from what was found',
  'ours': 'nobody has published it',
}
Range = tuple[float, float]


class Measure(NamedTuple):
  """A number for each seed, of the records of runs.

  Attributes:
    field: Of a record.
    of: What the record has in other fields; with the seed, it is the only one.
    by: The same of one that the first is divided by.
    minus: The same of one that is subtracted.
    over: A field: the largest number among its values over the smallest.
    over_by: The same spread of `by` divides that of `of`.
  """

  field: str
  of: Mapping[str, Any]
  by: Mapping[str, Any] | None = None
  minus: Mapping[str, Any] | None = None
  over: str = ''
  over_by: str = ''


class Claim(NamedTuple):
  """Something that was published, and what would confirm it.

  Attributes:
    text: What is claimed, with the name of what is measured.
    source: Paper, and table, figure or text.
    mark: How sure it is, a key of MARKS.
    paper: What was published; None if that is no number.
    measure: Ours; None if there is none.
    confirmed: From where to where the median of ours confirms it; None if no
      run of this kind can, as it is too far from theirs.
    shape: The same for 'in shape'; what is outside refutes it.
    unavailable: Why it cannot be had here; '' if it can.
  """

  text: str
  source: str
  mark: str
  paper: float | None = None
  measure: Measure | None = None
  confirmed: Range | None = None
  shape: Range | None = None
  unavailable: str = ''


class Entry(NamedTuple):
  """Claims that the same runs judge.

  Attributes:
    family: Which paper's.
    title: Of the entry.
    theirs: How it was measured there.
    ours: How it is here.
    differs: What of this may matter.
    claims: In their order.
    grids: By scale, 'quick' and 'full', what virtual runs go through, without
      seeds; see docs/sweeps.md.
    derived: Function of claims/derived.py: more fields, from a run's files.
    measured: Module of claims/measures/ that makes records, if any.
    seeds: How many, by scale.
    ranked: Fields by the first of which the page ranks all runs; () for no
      ranking.
    listed: Fields that tell runs apart in it, where there are no grids.
    absent: Why a scale that is in neither is not there: it needs data, say.
    seen: What the results show; which rules proved to be wrong.
  """

  family: str
  title: str
  theirs: str
  ours: str
  differs: str
  claims: tuple[Claim, ...]
  grids: Mapping[str, str] = {}
  derived: str = ''
  measured: str = ''
  seeds: Mapping[str, int] = {'quick': 6, 'full': 10}
  ranked: tuple[str, ...] = ()
  listed: tuple[str, ...] = ()
  absent: str = ''
  seen: str = ''


def near(value: float, share: float, within: Range = ANY) -> Range:
  """Returns what differs from a value by at most this share, in a range."""
  low, high = sorted((value * (1 - share), value * (1 + share)))
  return max(low, within[0]), min(high, within[1])
