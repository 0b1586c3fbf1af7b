"""RESULTS.md: a row for every claim, of stored results alone."""

import math
import pathlib
from collections.abc import Mapping

from claims import catalog, judging, ranking, store
from claims.judging import Judged
from claims.published import MARKS, Claim, Entry, Range

NAME = 'RESULTS.md'
_HEAD = """# Published claims

What was published about synchronisation, and what our runs say of it. This page
is made by `reproduce.py` of the files in `results/`, and nobody edits it;
`docs/ledger.md` says how.

A claim is *confirmed* if the median of ours is where its rule says, *in shape*
if it is where the rule says in brackets, and *refuted* if it is neither: it
does not hold in our set-up, which may differ from theirs. It is *undecided* if
two schemes do not differ over the seeds, or if too few seeds have a number.
*Ours* is the median over seeds, its range, and how many seeds have a number;
*p* is that of a paired signed-rank test over seeds. Rules were written before
the runs; where one was changed after them, the entry says so.

"""
_TITLES = ('claim', 'source', 'paper', 'ours', 'ratio', 'p', 'rule', 'verdict')


def made(folder: pathlib.Path) -> str:
  """Returns the page.

  Args:
    folder: Of the results.

  Raises:
    ValueError: If results are of another format.
  """
  parts, counts = [], dict.fromkeys(judging.VERDICTS, 0)
  family = ''
  for name, entry in catalog.every().items():
    stored, rows = found(folder, name, entry)
    for each in rows.values():
      counts[each.verdict] += 1
    title = f'## {entry.family}\n\n' if entry.family != family else ''
    family = entry.family
    parts.append(title + _section(name, entry, stored, rows))
  cells = ' | '.join(counts)
  values = ' | '.join(str(count) for count in counts.values())
  table = f'| {cells} |\n|{" --- |" * len(counts)}\n| {values} |\n\n'
  marks = ''.join(f'- *{mark}*: {said}\n' for mark, said in MARKS.items())
  return f'{_HEAD}{table}How sure a source is:\n\n{marks}\n' + '\n'.join(parts)


def found(
  folder: pathlib.Path, name: str, entry: Entry
) -> tuple[store.Stored | None, dict[str, Judged]]:
  """Returns an entry's results, if it has any, and the verdicts by claim."""
  try:
    stored = store.read(folder, name, entry)
  except store.Stale:
    return None, judged(entry, None, 'its rules have changed since')
  return stored, judged(entry, stored, entry.absent)


def judged(
  entry: Entry, stored: store.Stored | None, absent: str
) -> dict[str, Judged]:
  """Returns the verdicts by the texts of claims.

  Args:
    entry: Whose claims they are.
    stored: Its results; None if there are none.
    absent: Why there are none.
  """
  why = judging.UNAVAILABLE if absent == entry.absent != '' else judging.NOT_RUN
  not_run = Judged(why, reason=absent)
  records = stored.records if stored else ()
  return {
    claim.text: not_run
    if claim.measure and stored is None
    else judging.judge(claim, records)
    for claim in entry.claims
  }


def table(entry: Entry, rows: Mapping[str, Judged]) -> str:
  """Returns the claims of an entry with their verdicts, as Markdown."""
  lines = [_TITLES, ('---',) * len(_TITLES)]
  lines += [_cells(claim, rows[claim.text]) for claim in entry.claims]
  return ''.join(f'| {" | ".join(line)} |\n' for line in lines)


def _section(
  name: str,
  entry: Entry,
  stored: store.Stored | None,
  rows: Mapping[str, Judged],
) -> str:
  text = f'### {entry.title}\n\n'
  for title, said in (
    ('Theirs', entry.theirs),
    ('Ours', entry.ours),
    ('What differs', entry.differs),
    ('Seen', entry.seen),
  ):
    text += f'{title}: {said}\n\n' if said else ''
  text += f'{table(entry, rows)}\n'
  if stored and entry.ranked:
    text += f'{ranking.table(entry, stored)}\n'
  if stored:
    text += _made_by(stored)
  elif any(claim.measure for claim in entry.claims):
    text += f'Not run: `python reproduce.py {name}`. {entry.absent}\n'
  return text


def _made_by(stored: store.Stored) -> str:
  about = stored.about
  bad = [each for each in stored.records if each['status'] != 'finished']
  text = (
    f'`{about["command"]}`, {about["date"]}, {about["cores"]} cores, '
    f'{about["wall_s"]:.0f} s, revision {str(about["git_revision"])[:10]}: '
    f'{len(stored.records)} records'
  )
  if not bad:
    return f'{text}, all finished.\n'
  text += f', {len(bad)} of them not finished:\n\n'
  for each in bad:
    what = each.get('run', f'seed {each["seed"]}')
    text += f'- {what}: {each["status"]}. {each.get("error", "")}\n'
  return text


def _cells(claim: Claim, row: Judged) -> tuple[str, ...]:
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


def _ours(row: Judged) -> str:
  if row.median is None:
    return ''
  text = _number(row.median)
  if row.least != row.most:
    text += f' ({_number(row.least)} to {_number(row.most)})'
  lost = f', {row.lost} without' if row.lost else ''
  return f'{text}, n = {row.seeds}{lost}'


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
