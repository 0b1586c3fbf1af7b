"""RESULTS.md: a row for every claim, rendered from stored results."""

import itertools
import math
import pathlib
from collections.abc import Mapping
from typing import NamedTuple

from claims import catalog, findings, judging, ranking, store
from claims.judging import Judgement
from claims.published import (
  EVIDENCE,
  MARGIN_DIFFERENCE,
  MARGIN_RATIO,
  MARKS,
  Claim,
  Entry,
  Range,
  find_evidence,
)

NAME = 'RESULTS.md'
_MARGINS = (
  f'{100 * MARGIN_RATIO:g} % of a ratio or {MARGIN_DIFFERENCE} of accuracy'
)
_HEAD = f"""# Published claims

Published claims about synchronisation, and the verdicts of our runs on them.
`reproduce.py` writes this page from the files in `results/`; do not edit it.
`docs/ledger.md` describes how to read it.

A claim is *confirmed* if our median is in the range of its rule, *in shape* if
it is in the range in brackets, and *refuted* if it is in neither: the claim
does not hold in our set-up, which may differ from the published one. A claim
that two schemes differ has *no effect* if the difference is shown to be below
{_MARGINS}, and is *undecided* if neither a
difference nor its absence shows, or if too few seeds have a number. A claim
that two schemes are alike needs a test that the range holds. A claim is *not
falsifiable here* if no result of our runs could refute it.

*Ours* is the median over seeds, its range, and the number of seeds; *95 %* is
the bootstrap interval of the median. *p* is the p-value of the test that the
claim needs, and *Holm* the same, corrected for all claims of a family; verdicts
use the latter. Rules were written before the runs; a row says so if not.

"""
_TITLES = (
  *('claim', 'source', 'evidence', 'paper', 'ours', '95 %', 'ratio'),
  *('p', 'Holm', 'rule', 'verdict'),
)
_LATE = 'rule written after the runs'
_LEAST_P = 1e-6  # Smaller p-values are printed as such.


class Judged(NamedTuple):
  """Entry with its results, and the judgements by the texts of its claims."""

  entry: Entry
  results: store.Results | None
  judgements: dict[str, Judgement]


def render(folder: pathlib.Path) -> str:
  """Returns the page as Markdown.

  Args:
    folder: Folder of the results.

  Raises:
    ValueError: If a file of results has another format.
  """
  judged = judge_all(folder)
  parts, family = [], ''
  for name, each in judged.items():
    has_changed = each.entry.family != family
    title = f'## {each.entry.family}\n\n' if has_changed else ''
    family = each.entry.family
    parts.append(title + _section(name, each))
  marks = ''.join(f'- *{mark}*: {text}\n' for mark, text in MARKS.items())
  kinds = ''.join(f'- *{kind}*: {text}\n' for kind, text in EVIDENCE.items())
  return (
    f'{_HEAD}{_counts(judged)}\n{_findings(judged)}\n'
    f'Evidence, from the strongest:\n\n{kinds}\n'
    f'Certainty of a source:\n\n{marks}\n' + '\n'.join(parts)
  )


def judge_all(folder: pathlib.Path) -> dict[str, Judged]:
  """Returns all entries with their results and judgements, by name.

  Tests are corrected over the claims of all entries of a family.

  Raises:
    ValueError: If a file of results has another format.
  """
  judged: dict[str, Judged] = {}
  families = itertools.groupby(
    catalog.find_all().items(), key=lambda item: item[1].family
  )
  for _, items in families:
    entries = dict(items)
    results = {name: store.read(folder, name) for name in entries}
    judgements = judge_entries(
      [(entry, results[name]) for name, entry in entries.items()]
    )
    judged |= {
      name: Judged(entry, results[name], of_entry)
      for (name, entry), of_entry in zip(
        entries.items(), judgements, strict=True
      )
    }
  return judged


def judge_entries(
  entries: list[tuple[Entry, store.Results | None]],
) -> list[dict[str, Judgement]]:
  """Returns the judgements of a family's entries by the texts of claims."""
  rows = [_not_judged(entry, results) for entry, results in entries]
  open_claims = [
    (place, claim, results.records if results else ())
    for place, (entry, results) in enumerate(entries)
    for claim in entry.claims
    if claim.text not in rows[place]
  ]
  judgements = judging.judge_family(
    [(claim, records) for _, claim, records in open_claims]
  )
  for (place, claim, _), judgement in zip(open_claims, judgements, strict=True):
    rows[place][claim.text] = judgement
  for row, (entry, results) in zip(rows, entries, strict=True):
    for text in store.find_late(results, entry) if results else ():
      if row[text].verdict != judging.NOT_RUN:
        reasons = [reason for reason in (row[text].reason, _LATE) if reason]
        row[text] = row[text]._replace(reason='; '.join(reasons))
  return [
    {claim.text: row[claim.text] for claim in entry.claims}
    for row, (entry, _) in zip(rows, entries, strict=True)
  ]


def _not_judged(
  entry: Entry, results: store.Results | None
) -> dict[str, Judgement]:
  """Returns the rows of the claims whose rules cannot be applied."""
  if results is None:
    reason = entry.missing_reason
    verdict = judging.UNAVAILABLE if reason else judging.NOT_RUN
    return {
      claim.text: Judgement(verdict, reason=reason)
      for claim in entry.claims
      if claim.measure
    }
  changed = store.find_changed(results, entry)
  late = store.find_late(results, entry)
  rows = {}
  for claim in entry.claims:
    if claim.text in changed:
      reason = 'its rule has changed since the runs'
    elif claim.text in late and not judging.has_records(claim, results.records):
      reason = 'the runs do not have what it needs'
    else:
      continue
    rows[claim.text] = Judgement(judging.NOT_RUN, reason=reason)
  return rows


def _counts(judged: Mapping[str, Judged]) -> str:
  """Returns the numbers of verdicts by kind of evidence, as Markdown."""
  rows = [
    (find_evidence(each.entry, claim), each.judgements[claim.text], claim)
    for each in judged.values()
    for claim in each.entry.claims
  ]
  lines: list[tuple[str, ...]] = [('evidence', *judging.VERDICTS)]
  lines.append(('---',) * len(lines[0]))
  for kind in (*EVIDENCE, '', None):
    verdicts = [
      row.verdict for of, row, _ in rows if kind is None or of == kind
    ]
    title = 'all' if kind is None else kind or 'none'
    lines.append(
      (title, *(str(verdicts.count(each)) for each in judging.VERDICTS))
    )
  confirmed = [
    (row, claim)
    for _, row, claim in rows
    if row.verdict == judging.CONFIRMED and row.interval
  ]
  within = sum(_is_within(row, claim) for row, claim in confirmed)
  late = sum(_LATE in row.reason for _, row, _ in rows)
  table = ''.join(f'| {" | ".join(line)} |\n' for line in lines)
  return (
    f'{table}\nOf {len(confirmed)} confirmed claims with several seeds, '
    f'{within} have their whole interval in the range of the rule. The rules '
    f'of {late} claims were written after the runs.\n'
  )


def _findings(judged: Mapping[str, Judged]) -> str:
  """Returns the findings with the numbers of their claims, as Markdown.

  Only those of the given entries.
  """
  lines: list[tuple[str, ...]] = [
    ('finding', 'evidence', 'claim', 'ours', '95 %', 'verdict')
  ]
  lines.append(('---',) * len(lines[0]))
  for each in findings.FINDINGS:
    if each.entry not in judged:
      continue
    entry, _, judgements = judged[each.entry]
    (claim,) = (claim for claim in entry.claims if claim.text == each.claim)
    row = judgements[each.claim]
    what = f'{entry.title}: {each.claim}'
    kind = find_evidence(entry, claim)
    lines.append(
      (each.text, kind, what, _ours(row), _interval(row), row.verdict)
    )
  table = ''.join(f'| {" | ".join(line)} |\n' for line in lines)
  return f'## Ten findings for users\n\n{table}'


def _is_within(row: Judgement, claim: Claim) -> bool:
  if not row.interval or not claim.confirmed:
    return False
  low, high = claim.confirmed
  return low <= row.interval[0] and row.interval[1] <= high


def table(entry: Entry, judgements: Mapping[str, Judgement]) -> str:
  """Returns the claims of an entry with their verdicts, as Markdown."""
  lines = [_TITLES, ('---',) * len(_TITLES)]
  lines += [
    _cells(entry, claim, judgements[claim.text]) for claim in entry.claims
  ]
  return ''.join(f'| {" | ".join(line)} |\n' for line in lines)


def _section(name: str, judged: Judged) -> str:
  entry, results, judgements = judged
  text = f'### {entry.title}\n\n'
  for title, paragraph in (
    ('Published set-up', entry.published_setup),
    ('Our set-up', entry.our_setup),
    ('Differences', entry.differences),
    ('Observations', entry.observations),
  ):
    text += f'{title}: {paragraph}\n\n' if paragraph else ''
  text += f'{table(entry, judgements)}\n'
  if results and entry.ranked:
    text += f'{ranking.table(entry, results)}\n'
  if results:
    for dropped in store.find_dropped(results, entry):
      text += f'Dropped since the runs: {dropped}\n\n'
    text += _describe_runs(results)
  elif any(claim.measure for claim in entry.claims):
    text += f'Not run: `python reproduce.py {name}`. {entry.missing_reason}\n'
  return text


def _describe_runs(results: store.Results) -> str:
  about = results.about
  unfinished = [
    each for each in results.records if each['status'] != 'finished'
  ]
  text = (
    f'`{about["command"]}`, {about["date"]}, {about["cores"]} cores, '
    f'{about["wall_s"]:.0f} s, revision {str(about["git_revision"])[:10]}: '
    f'{len(results.records)} records'
  )
  if not unfinished:
    return f'{text}, all finished.\n'
  text += f', {len(unfinished)} of them not finished:\n\n'
  for each in unfinished:
    name = each.get('run', f'seed {each["seed"]}')
    text += f'- {name}: {each["status"]}. {each.get("error", "")}\n'
  return text


def _cells(entry: Entry, claim: Claim, row: Judgement) -> tuple[str, ...]:
  source = f'{claim.source} ({claim.mark})'
  verdict = f'**{row.verdict}**' + (f': {row.reason}' if row.reason else '')
  return (
    claim.text,
    source,
    find_evidence(entry, claim),
    _number(claim.paper),
    _ours(row),
    _interval(row),
    _number(row.ratio),
    _p(row.p),
    _p(row.holm),
    _rule(claim) if claim.measure else '',
    verdict,
  )


def _ours(row: Judgement) -> str:
  if row.median is None:
    return ''
  text = _number(row.median)
  if row.least != row.most:
    text += f' ({_number(row.least)} to {_number(row.most)})'
  missing = f', {row.missing} without' if row.missing else ''
  return f'{text}, n = {row.seeds}{missing}'


def _interval(row: Judgement) -> str:
  if row.interval is None or row.least == row.most:
    return ''
  return ' to '.join(map(_number, row.interval))


def _p(p: float | None) -> str:
  return f'< {_LEAST_P:g}' if p is not None and p < _LEAST_P else _number(p)


def _rule(claim: Claim) -> str:
  text = _limits(claim.confirmed) if claim.confirmed else 'never'
  return f'{text} ({_limits(claim.shape)})' if claim.shape else text


def _limits(limits: Range) -> str:
  low, high = limits
  if low == -math.inf or (low == 0 and high < math.inf):
    return f'≤ {_number(high)}'
  return (
    f'≥ {_number(low)}'
    if high == math.inf
    else (f'{_number(low)} to {_number(high)}')
  )


def _number(value: float | None) -> str:
  if value is None:
    return ''
  return '∞' if value == math.inf else format(value, '.3g')
