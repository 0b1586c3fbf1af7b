"""RESULTS.md: a row for every claim, rendered from stored results."""

import math
import pathlib
from collections.abc import Mapping

from claims import catalog, judging, ranking, store
from claims.judging import Judgement
from claims.published import MARKS, Claim, Entry, Range

NAME = 'RESULTS.md'
_HEAD = """# Published claims

Published claims about synchronisation, and the verdicts of our runs on them.
`reproduce.py` writes this page from the files in `results/`; do not edit it.
`docs/ledger.md` describes the rules.

A claim is *confirmed* if our median is in the range of its rule, *in shape* if
it is in the range in brackets, and *refuted* if it is in neither: the claim
does not hold in our set-up, which may differ from the published one. It is
*undecided* if two schemes do not differ over the seeds, or if too few seeds
have a number. *Ours* is the median over seeds, its range, and the number of
seeds that have one; *p* is the p-value of a paired signed-rank test over seeds.
Rules were written before the runs; an entry whose rule changed after them has a
note.

"""
_TITLES = ('claim', 'source', 'paper', 'ours', 'ratio', 'p', 'rule', 'verdict')


def render(folder: pathlib.Path) -> str:
  """Returns the page as Markdown.

  Args:
    folder: Folder of the results.

  Raises:
    ValueError: If a file of results has another format.
  """
  parts, counts = [], dict.fromkeys(judging.VERDICTS, 0)
  family = ''
  for name, entry in catalog.find_all().items():
    results, judgements = read_judgements(folder, name, entry)
    for each in judgements.values():
      counts[each.verdict] += 1
    title = f'## {entry.family}\n\n' if entry.family != family else ''
    family = entry.family
    parts.append(title + _section(name, entry, results, judgements))
  cells = ' | '.join(counts)
  values = ' | '.join(str(count) for count in counts.values())
  table = f'| {cells} |\n|{" --- |" * len(counts)}\n| {values} |\n\n'
  marks = ''.join(f'- *{mark}*: {text}\n' for mark, text in MARKS.items())
  return f'{_HEAD}{table}Certainty of a source:\n\n{marks}\n' + '\n'.join(parts)


def read_judgements(
  folder: pathlib.Path, name: str, entry: Entry
) -> tuple[store.Results | None, dict[str, Judgement]]:
  """Returns the results of an entry, or None, and the judgements by claim."""
  try:
    results = store.read(folder, name, entry)
  except store.Stale:
    return None, judge_claims(entry, None, 'its rules have changed since')
  return results, judge_claims(entry, results, entry.missing_reason)


def judge_claims(
  entry: Entry, results: store.Results | None, missing_reason: str
) -> dict[str, Judgement]:
  """Returns the judgements by the texts of claims.

  Args:
    entry: Entry with the claims.
    results: Its results, or None.
    missing_reason: Reason why there are none.
  """
  verdict = (
    judging.UNAVAILABLE
    if missing_reason == entry.missing_reason != ''
    else judging.NOT_RUN
  )
  not_run = Judgement(verdict, reason=missing_reason)
  records = results.records if results else ()
  return {
    claim.text: not_run
    if claim.measure and results is None
    else judging.judge(claim, records)
    for claim in entry.claims
  }


def table(entry: Entry, judgements: Mapping[str, Judgement]) -> str:
  """Returns the claims of an entry with their verdicts, as Markdown."""
  lines = [_TITLES, ('---',) * len(_TITLES)]
  lines += [_cells(claim, judgements[claim.text]) for claim in entry.claims]
  return ''.join(f'| {" | ".join(line)} |\n' for line in lines)


def _section(
  name: str,
  entry: Entry,
  results: store.Results | None,
  judgements: Mapping[str, Judgement],
) -> str:
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


def _cells(claim: Claim, row: Judgement) -> tuple[str, ...]:
  source = f'{claim.source} ({claim.mark})'
  verdict = f'**{row.verdict}**' + (f': {row.reason}' if row.reason else '')
  return (
    claim.text,
    source,
    _number(claim.paper),
    _ours(row),
    _number(row.ratio),
    _number(row.p),
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
