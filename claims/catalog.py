"""Entries of the ledger of published claims: the files of claims/entries/."""

import pathlib
import runpy
from collections.abc import Mapping

from claims.published import EVIDENCE, MARKS, Claim, Entry
from configs.checks import require

ROOT = pathlib.Path(__file__).parents[1]
ENTRIES = ROOT / 'claims/entries'
SCALES = ('quick', 'full')
FAMILIES = (
  *('ElasticBSP', 'DSSP', 'R2SP', 'LB-BSP', 'forest', 'GradientFlow'),
  *('local steps', 'combinations', 'tuned rates', 'real links', 'simulator'),
)


def names() -> list[str]:
  """Returns the names of all entries."""
  return sorted(path.stem for path in ENTRIES.glob('[a-z]*.py'))


def path_of(name: str) -> pathlib.Path:
  """Returns the file of an entry.

  Raises:
    ValueError: If no entry has this name.
  """
  all_names = names()
  require(name in all_names, 'NAME', f'one of {", ".join(all_names)}', name)
  return ENTRIES / f'{name}.py'


def find(name: str) -> Entry:
  """Returns an entry.

  Raises:
    ValueError: If no entry has this name, or if its claims cannot be judged.
  """
  path = path_of(name)
  entry = runpy.run_path(str(path)).get('ENTRY')
  if not isinstance(entry, Entry):
    raise ValueError(f'{path}: expected an ENTRY, got {entry!r}.')
  check(name, entry)
  return entry


def find_all() -> dict[str, Entry]:
  """Returns all entries by name, sorted by family."""
  entries = {name: find(name) for name in names()}
  return dict(
    sorted(entries.items(), key=lambda item: FAMILIES.index(item[1].family))
  )


def check(name: str, entry: Entry) -> None:
  """Rejects an entry whose claims cannot be judged.

  Raises:
    ValueError: If a claim cannot be judged; names the entry and the claim.
  """
  require(entry.family in FAMILIES, name, f'one of {FAMILIES}', entry.family)
  kinds = f'one of {[*EVIDENCE]}'
  require(entry.evidence in EVIDENCE, name, kinds, entry.evidence)
  texts = [claim.text for claim in entry.claims]
  require(len(texts) == len({*texts}), name, 'claims that differ', texts)
  for claim in entry.claims:
    _check_claim(f'{name}: {claim.text}', claim)
  needs_runs = any(claim.measure for claim in entry.claims)
  has_runs = bool(entry.grids or entry.measurement or entry.missing_reason)
  expected = 'runs for its claims'
  require(has_runs or not needs_runs, name, expected, entry.grids)


def _check_claim(field: str, claim: Claim) -> None:
  require(claim.mark in MARKS, field, f'one of {[*MARKS]}', claim.mark)
  has_either = (claim.measure is None) == bool(claim.unavailable)
  expected = 'a measure, or a reason why there is none'
  require(has_either, field, expected, claim.unavailable)
  if claim.measure is None:
    return
  ranges = [each for each in (claim.confirmed, claim.shape) if each]
  require(bool(ranges), field, 'a range at least', ranges)
  for low, high in ranges:
    require(low < high, field, 'ranges from low to high', (low, high))
  if claim.confirmed and claim.shape:
    is_within = (
      claim.shape[0] <= claim.confirmed[0]
      and claim.confirmed[1] <= claim.shape[1]
    )
    expected = 'the confirming range within the range of the shape'
    require(is_within, field, expected, claim.shape)


def rules(entry: Entry) -> dict[str, Mapping[str, object]]:
  """Returns the rules that judge the claims of an entry, as JSON has them.

  Results contain the rules of their time, so that later changes are detected.
  """
  return {
    claim.text: {
      'paper': claim.paper,
      'measure': {
        name: value
        for name, value in claim.measure._asdict().items()
        if value not in (None, '')
      },
      'confirmed': _range_text(claim.confirmed),
      'shape': _range_text(claim.shape),
    }
    for claim in entry.claims
    if claim.measure
  }


def _range_text(limits: tuple[float, float] | None) -> list[str] | None:
  return limits and [format(limit, 'g') for limit in limits]
