"""The entries of the ledger: files of claims/entries/."""

import pathlib
import runpy
from collections.abc import Mapping

from claims.published import MARKS, Claim, Entry
from configs.checks import require

ROOT = pathlib.Path(__file__).parents[1]
ENTRIES = ROOT / 'claims/entries'
SCALES = ('quick', 'full')
FAMILIES = (
  *('ElasticBSP', 'DSSP', 'R2SP', 'LB-BSP', 'forest', 'GradientFlow'),
  *('combinations', 'simulator'),
)


def names() -> list[str]:
  """Returns the names of all entries."""
  return sorted(path.stem for path in ENTRIES.glob('[a-z]*.py'))


def path_of(name: str) -> pathlib.Path:
  """Returns the file of an entry.

  Raises:
    ValueError: If there is none of this name.
  """
  known = names()
  require(name in known, 'NAME', f'one of {", ".join(known)}', name)
  return ENTRIES / f'{name}.py'


def find(name: str) -> Entry:
  """Returns an entry.

  Raises:
    ValueError: If there is none of this name, or if it says nonsense.
  """
  path = path_of(name)
  entry = runpy.run_path(str(path)).get('ENTRY')
  if not isinstance(entry, Entry):
    raise ValueError(f'{path}: expected an ENTRY, got {entry!r}.')
  check(name, entry)
  return entry


def every() -> dict[str, Entry]:
  """Returns all entries by name, those of a family together."""
  found = {name: find(name) for name in names()}
  return dict(
    sorted(found.items(), key=lambda each: FAMILIES.index(each[1].family))
  )


def check(name: str, entry: Entry) -> None:
  """Refuses an entry whose claims cannot be judged.

  Raises:
    ValueError: Names the entry and the claim.
  """
  require(entry.family in FAMILIES, name, f'one of {FAMILIES}', entry.family)
  texts = [claim.text for claim in entry.claims]
  require(len(texts) == len({*texts}), name, 'claims that differ', texts)
  for claim in entry.claims:
    _check(f'{name}: {claim.text}', claim)
  measured = [claim for claim in entry.claims if claim.measure]
  runs = bool(entry.grids or entry.measured or entry.absent)
  require(bool(measured) <= runs, name, 'runs for its claims', entry.grids)


def _check(field: str, claim: Claim) -> None:
  require(claim.mark in MARKS, field, f'one of {[*MARKS]}', claim.mark)
  one = (claim.measure is None) == bool(claim.unavailable)
  require(one, field, 'a measure, or why there is none', claim.unavailable)
  if claim.measure is None:
    return
  ranges = [each for each in (claim.confirmed, claim.shape) if each]
  require(bool(ranges), field, 'a range at least', ranges)
  for low, high in ranges:
    require(low < high, field, 'ranges from low to high', (low, high))
  if claim.confirmed and claim.shape:
    within = (
      claim.shape[0] <= claim.confirmed[0]
      and claim.confirmed[1] <= claim.shape[1]
    )
    require(within, field, 'what is confirmed within the shape', claim.shape)


def rules(entry: Entry) -> dict[str, Mapping[str, object]]:
  """Returns by which rules the claims of an entry are judged, as JSON has it.

  They are stored with results: rules that are changed afterwards show.
  """
  return {
    claim.text: {
      'paper': claim.paper,
      'measure': {
        name: value
        for name, value in claim.measure._asdict().items()
        if value not in (None, '')
      },
      'confirmed': _text(claim.confirmed),
      'shape': _text(claim.shape),
    }
    for claim in entry.claims
    if claim.measure
  }


def _text(limits: tuple[float, float] | None) -> list[str] | None:
  return limits and [format(limit, 'g') for limit in limits]
