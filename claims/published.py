"""Types of the files of claims/entries/: claims, their runs and their rules.

Such a file defines ENTRY and, if it has virtual runs, `get_config` for the
config that they share.  Rules are written before the runs: results contain
them, and are refused if the rules of the entry have changed.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

ANY = -math.inf, math.inf
LESS = 0.0, 1.0  # Ratios below 1.
MORE = 1.0, math.inf  # Ratios above 1.
# Sources of a published number by certainty.  RESULTS.md prints these texts.
MARKS = {
  'found': 'read in the paper, or in what its authors published',
  'secondary': 'read in notes of others on the paper',
  'abstract': "read in the paper's abstract",
  'read off': 'read off a figure, to one or two per cent',
  'derived': 'our arithmetic from what was found',
  'ours': 'our own claim, not published',
}
# Kinds of evidence, from the strongest.  RESULTS.md prints these texts.
EVIDENCE = {
  'real links': 'times of real processes over real links',
  'timed': 'times of our code on this machine, without a network',
  'trained': 'a model is trained; times are those of the virtual clock',
  'simulated': 'virtual clock or synthetic traces; no model is trained',
  'arithmetic': 'computed from sizes and capacities; nothing runs',
}
# Prefix of times to a value of bits per byte; `time_to.` is of accuracies.
IN_BITS = 'time_to_bits_per_byte.'
# Kinds of fields that differ from the kind of their entry, by prefix.
_EVIDENCE_OF_FIELDS = {
  'final_accuracy': 'trained',
  'final_bits_per_byte': 'trained',
  'final_test_loss': 'trained',
  'time_to.': 'trained',
  'iterations_to.': 'trained',
  'examples_to.': 'trained',
  IN_BITS: 'trained',
  'exact.': 'arithmetic',
  'bytes': 'arithmetic',
  'bytes_per_s': 'simulated',
  'ms': 'timed',
}
# Differences below these are 'no effect': of a ratio from 1, and of accuracies.
MARGIN_RATIO, MARGIN_DIFFERENCE = 0.05, 0.01
Range = tuple[float, float]


class Measure(NamedTuple):
  """Quantity with one number per seed, computed from the records of runs.

  Attributes:
    field: Field of the records that has the number.
    of: Values of other fields that select one record of each seed.
    by: Values that select a second record, whose number divides the first.
    minus: Values that select a second record, whose number is subtracted.
    over: A further field; the records `of` selects differ in it, and the ratio
      of the largest number to the smallest replaces the number.
    over_by: The same field for the records that `by` selects.
    mean_over: A further field; the records `of` selects, and those that `by` or
      `minus` selects, differ in it, and the mean of their numbers replaces the
      number, as in cross-validation.
  """

  field: str
  of: Mapping[str, Any]
  by: Mapping[str, Any] | None = None
  minus: Mapping[str, Any] | None = None
  over: str = ''
  over_by: str = ''
  mean_over: str = ''


class Claim(NamedTuple):
  """Published statement, and the rule that judges it.

  Attributes:
    text: The statement, with the name of the measured quantity.
    source: Paper, and table, figure or text.
    mark: Certainty of the source, a key of MARKS.
    paper: Published number; None if there is none.
    measure: Quantity that our runs measure; None if they cannot.
    confirmed: Range of our medians that confirms the claim; None if runs of
      this kind are too far from the published ones to confirm it.
    shape: Range of medians 'in shape'; medians outside of it refute the claim.
    unavailable: Reason why the quantity cannot be measured here, or ''.
    unfalsifiable: Reason why no result of these runs could refute the claim, or
      ''.
    same_as: Values that select the records of a scheme without the setting that
      the claim is about.  If their numbers equal those of the measure, the
      setting has never acted, and the claim was not put to a test.
  """

  text: str
  source: str
  mark: str
  paper: float | None = None
  measure: Measure | None = None
  confirmed: Range | None = None
  shape: Range | None = None
  unavailable: str = ''
  unfalsifiable: str = ''
  same_as: Mapping[str, Any] | None = None


class Entry(NamedTuple):
  """Claims that the same runs judge.

  Attributes:
    family: System of the paper, one of `catalog.FAMILIES`.
    title: Title of the section of the page.
    published_setup: Description of the published experiment.
    our_setup: Description of our experiment.
    differences: Differences that may matter.
    claims: Claims in the order of the page.
    grids: Grids of virtual runs without seeds, by scale, 'quick' and 'full';
      see docs/sweeps.md.
    derived: Function of claims/derived.py that adds fields to records, or ''.
    measurement: Module of claims/measures/ that makes records, or ''.
    seeds: Numbers of seeds, by scale.
    ranked: Fields of the page's ranking of all runs, which is sorted by the
      first; () for no ranking.
    listed: Fields that identify rows of the ranking; () for all in which the
      grid's runs differ.
    missing_reason: Reason why a scale has no runs, such as missing data.
    observations: Observations on the results, and rules that were wrong.
    evidence: Kind of evidence of the runs, a key of EVIDENCE; some fields have
      another, see `find_evidence`.
  """

  family: str
  title: str
  published_setup: str
  our_setup: str
  differences: str
  claims: tuple[Claim, ...]
  grids: Mapping[str, str] = {}
  derived: str = ''
  measurement: str = ''
  seeds: Mapping[str, int] = {'quick': 6, 'full': 10}
  ranked: tuple[str, ...] = ()
  listed: tuple[str, ...] = ()
  missing_reason: str = ''
  observations: str = ''
  evidence: str = 'simulated'


def find_evidence(entry: Entry, claim: Claim) -> str:
  """Returns the kind of evidence for a claim, a key of EVIDENCE.

  It is that of the entry, except for fields that only training changes, and for
  those that follow from sizes alone.  It is '' for a claim without a measure.
  """
  if claim.measure is None:
    return ''
  field = claim.measure.field
  prefixes = [
    each
    for each in _EVIDENCE_OF_FIELDS
    if field == each or (each[-1] == '.' and field.startswith(each))
  ]
  return _EVIDENCE_OF_FIELDS[prefixes[0]] if prefixes else entry.evidence


def near(value: float, share: float, within: Range = ANY) -> Range:
  """Returns the range of relative deviation `share` from a value.

  Args:
    value: Middle of the range.
    share: Largest relative deviation.
    within: Range to which the result is clipped.
  """
  low, high = sorted((value * (1 - share), value * (1 + share)))
  return max(low, within[0]), min(high, within[1])
