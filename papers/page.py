"""RESULTS.md: all published tables with the verdicts of stored results."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from analysis import printing
from outputs import atomic
from papers import figures, judge, rendering, schema, store
from papers.judge import Judged
from papers.schema import Entry, Table

NAME = 'RESULTS.md'
_FIGURES = 'figures'
_OURS = 'Ours:'  # Papers of this name come last.
_HEAD = """# Published tables, and ours

`reproduce.py` writes this page from the files beside it; do not edit it.
[How to read and repeat it](../docs/ledger.md).

A cell is *published / ours*, with the interval of our median over seeds in
brackets: the exact one of 95 %, or the range of fewer than six seeds.

{marks}
Rules are in `papers/*.toml` and precede the runs. p-values are corrected within
a table (Holm). Where model or data are not the authors', nothing can match.
"""

_CONDITIONS = {
  judge.MATCH: 'our median is within the range of the rule, and a test over '
  'seeds shows it',
  judge.SAME: 'the same with the wider range of the published direction',
  judge.DIFFERS: 'it is in neither; or two that are said to differ are shown '
  'to be alike, within 5 % or 0.01 of accuracy',
  judge.UNDECIDED: 'neither shows over our seeds',
  judge.UNAVAILABLE: 'with what it needs',
}


class Section(NamedTuple):
  """Entry with its results and verdicts.

  Attributes:
    name: Name of the entry.
    entry: The entry.
    results: Its results; None if nothing has run.
    tables: Its tables with the verdicts on their cells.
  """

  name: str
  entry: Entry
  results: store.Results | None
  tables: Sequence[tuple[Table, Sequence[Judged]]]


def read(folder: pathlib.Path, name: str) -> Section:
  """Returns an entry with the verdicts of stored results.

  Args:
    folder: Folder of results.  Without a file of this entry, `results` is None.
    name: Name of the entry.

  Raises:
    ValueError: If entry or results cannot be read.
  """
  entry = schema.read(name)
  results = store.read(folder, name)
  records = results.records if results else None
  return Section(
    name,
    entry,
    results,
    [
      (table, judge.judge(schema.cells(table), records))
      for table in entry.table
    ],
  )


def write(folder: pathlib.Path) -> pathlib.Path:
  """Writes RESULTS.md, the page of all entries, and its figures.

  Args:
    folder: Folder with the results of runs, one file for each entry.  The page
      is written into it, and the figures into `figures` in it.

  Returns:
    The file of the page.

  Raises:
    ValueError: If an entry or its results cannot be read.
    OSError: If a file cannot be written.
  """
  sections = [read(folder, name) for name in schema.names()]
  sections.sort(
    key=lambda each: (each.entry.paper.startswith(_OURS), each.entry.paper)
  )
  marks = [['', 'verdict', 'condition']]
  marks += [[rendering.MARKS[v], v, said] for v, said in _CONDITIONS.items()]
  shown = printing.markdown(marks, is_padded=False)
  head = _HEAD.format(marks=f'{shown}\n')
  parts = [head, _summary(sections), _legend()]
  for section in sections:
    parts.append(_section(section, folder))
  path = folder / NAME
  atomic.write(path, '\n'.join(parts))
  return path


def changed_rules(section: Section) -> list[str]:
  """Returns the names of tables whose rules are not those of the runs."""
  if section.results is None:
    return []
  now = store.rules_of(section.entry)
  return [x for x, rule in now.items() if section.results.rules.get(x) != rule]


def command(section: Section) -> str:
  """Returns the command that runs an entry and stores its results."""
  results = section.results
  return (
    str(results.about['command'])
    if results
    else f'python reproduce.py {section.name}'
  )


def _summary(sections: Sequence[Section]) -> str:
  lines = [
    [
      'paper',
      'table',
      'reproduced',
      'largest difference',
      'evidence',
      'command',
    ]
  ]
  for section in sections:
    for table, rows in section.tables:
      link = f'[`{section.name}`](#{section.name.replace("_", "-")})'
      lines.append(
        [
          section.entry.paper,
          table.name,
          rendering.marks(rows),
          rendering.largest_difference(rows),
          table.evidence or section.entry.evidence,
          link,
        ]
      )
  every = [one for s in sections for _, rows in s.tables for one in rows]
  return (
    f'\n{printing.markdown(lines, is_padded=False)}\n\n'
    f'All {len(every)} cells: {rendering.counts(every)}. A command is the '
    'argument of `python reproduce.py`.\n'
  )


def _legend() -> str:
  kinds = '\n'.join(f'- *{k}*: {v}' for k, v in schema.EVIDENCE.items())
  marks = '; '.join(f'*{k}*: {v}' for k, v in schema.CERTAINTIES.items())
  return (
    f'Evidence, from the strongest:\n\n{kinds}\n\n'
    f'Certainty of published numbers: {marks}.\n'
  )


def _section(section: Section, folder: pathlib.Path) -> str:
  entry, about = section.entry, _about(section)
  parts = [f'## {section.name.replace("_", " ")}\n', f'{entry.paper}.\n']
  for title, said in (
    ('Published', entry.published),
    ('Ours', entry.ours),
    ('Differences', entry.differences),
    ('Observed', entry.notes),
  ):
    if said:
      parts.append(f'{title}: {" ".join(said.split())}\n')
  changed = changed_rules(section)
  for table, rows in section.tables:
    parts.append(f'### {table.name}: {table.title}\n')
    lines = rendering.grid(table, rows)
    parts.append(f'{printing.markdown(lines, is_padded=False)}\n')
    parts.append(_under(table, rows, entry, is_changed=table.name in changed))
    if table.figure and section.results:
      parts.append(_figure(section, table, rows, folder))
  parts.append(f'{about}\n')
  return '\n'.join(parts)


def _under(
  table: Table, rows: Sequence[Judged], entry: Entry, *, is_changed: bool
) -> str:
  """Returns what is said below a table."""
  kinds = ', '.join(sorted({one.cell.certainty for one in rows}))
  said = [f'{table.evidence or entry.evidence}; published: {kinds}.']
  said[0] = said[0][0].upper() + said[0][1:]
  reasons: dict[str, list[Judged]] = {}
  for one in rows:
    if one.reason:
      reasons.setdefault(one.reason, []).append(one)
  for reason, found in reasons.items():
    mark = rendering.MARKS[found[0].verdict]
    said.append(f'{mark} {_places(found, rows)}: {reason}.')
  if is_changed:
    said.append('**Its rules are not those of the time of these runs.**')
  return ' '.join(said) + '\n'


def _places(found: Sequence[Judged], rows: Sequence[Judged]) -> str:
  """Returns the names of cells, or of the columns that they are."""
  if len(found) == len(rows):
    return 'all cells'
  columns = {one.cell.column for one in found}
  if len({one.cell.column for one in rows}) == 1:
    return '; '.join(one.cell.row for one in found)
  if len(found) == sum(one.cell.column in columns for one in rows):
    return '; '.join(sorted(columns))
  return '; '.join(
    ', '.join(filter(None, (one.cell.row, one.cell.column))) for one in found
  )


def _figure(
  section: Section,
  table: Table,
  rows: Sequence[Judged],
  folder: pathlib.Path,
) -> str:
  place = [x.name for x in section.entry.table].index(table.name)
  path = folder / _FIGURES / f'{section.name}_{place + 1}.svg'
  path.parent.mkdir(exist_ok=True)
  atomic.write(path, figures.draw(table, rows))
  return f'![{table.title}]({_FIGURES}/{path.name})\n'


def _about(section: Section) -> str:
  if section.results is None:
    needs = ', '.join(section.entry.needs)
    return f'Not run{f": needs {needs}" if needs else ""}.'
  about: Mapping[str, Any] = section.results.about
  failed = sum(x['status'] == 'failed' for x in section.results.records)
  revision = str(about.get('git_revision') or 'unknown')[:10]
  ended = f', {failed} failed' if failed else ''
  minutes = about['wall_s'] / 60
  repeat = about['command'].replace(' --scale=quick', '')  # The default.
  return (
    f'`{repeat}`, {about["date"]}, {minutes:.1f} min, revision '
    f'{revision}: {len(section.results.records)} records{ended}.'
  )
