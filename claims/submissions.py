"""Comparisons of runs that others submit, and the verdicts on them.

  python -m claims.submissions FORM --ours=A,B,... --others=C,D,... --out=FILE

packs a form and the files of tools.pack_result into one file, a submission;
run k of each side belongs to pair k.  `reproduce.py --check FILE` judges it.
results/submitted/ has the submissions that were accepted.

A form, and a submission, is a JSON object with the fields of `_TEXTS` and a
rule: the field that is measured, and the range of its ratio, ours over others,
that confirms the claim, and that of its shape.  Fields are those of a run's
summary.json, and `iteration_s`, the mean seconds of a worker's iteration.
"""

import argparse
import json
import math
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from claims import judging
from claims.judging import Judgement
from claims.published import MARKS, Claim, Measure
from configs.checks import require
from outputs import atomic, transient

FORMAT, VERSION = 'syncopate.submission', 1
_RESULT = 'syncopate.result'  # Format of tools.pack_result.
# Texts that a form must have; '' is refused, 'none' is not.
_TEXTS = (
  *('claim', 'source', 'mark', 'rule_written', 'cluster'),
  *('other_programs', 'differences', 'left_out'),
)
_FIELDS = frozenset({'format', 'version', *_TEXTS, 'rule'})
_RULE = 'field', 'confirmed', 'shape'
_SIDES = 'ours', 'others'
# Runs of a side: the exact test over pairs enumerates 2 ** 16 signs.
_LEAST_RUNS, _MOST_RUNS = 3, 16
# Parts of the manifest that a submission keeps.
_MANIFEST = 'config', 'command', 'git_revision'
_HARDWARE = 'host', 'cores', 'devices', 'python'


def pack(
  form: Mapping[str, Any],
  ours: Sequence[Mapping[str, Any]],
  others: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
  """Returns a submission.

  Args:
    form: Content of the form.
    ours: Results of tools.pack_result that the claim is about.
    others: Those that it compares them with, in the same order.

  Raises:
    ValueError: If a part is missing or wrong; names it.
  """
  runs = {
    side: [_shorten(f'{side}[{n}]', each) for n, each in enumerate(results)]
    for side, results in zip(_SIDES, (ours, others), strict=True)
  }
  head = {'format': FORMAT, 'version': VERSION}
  submission = {**head, **form, 'runs': runs}
  check(submission)
  return submission


def check(submission: Mapping[str, Any]) -> None:
  """Rejects a submission that lacks a part, or whose parts do not agree.

  Args:
    submission: Content of its file.

  Raises:
    ValueError: If a part is missing or wrong; names it.
  """
  expected = f'format {FORMAT}, version {VERSION}'
  found = submission.get('format'), submission.get('version')
  require(found == (FORMAT, VERSION), 'submission', expected, found)
  unknown = sorted(submission.keys() - _FIELDS - {'runs'})
  require(not unknown, 'submission', f'fields of {sorted(_FIELDS)}', unknown)
  for name in _TEXTS:
    value = submission.get(name)
    is_text = isinstance(value, str) and bool(value.strip())
    require(is_text, name, "a text; 'none' if there is none", value)
  mark = submission['mark']
  require(mark in MARKS, 'mark', f'one of {[*MARKS]}', mark)
  _check_rule(submission.get('rule'))
  runs = submission.get('runs')
  is_object = isinstance(runs, Mapping) and set(runs) == {*_SIDES}
  if not isinstance(runs, Mapping) or not is_object:
    raise ValueError(f'runs: expected the sides {_SIDES}, got {runs!r}.')
  counts = {side: _check_side(side, runs[side]) for side in _SIDES}
  require(len({*counts.values()}) == 1, 'runs', 'as many on each side', counts)
  is_few = _LEAST_RUNS <= counts['ours'] <= _MOST_RUNS
  expected = f'{_LEAST_RUNS} to {_MOST_RUNS} of each side'
  require(is_few, 'runs', expected, counts['ours'])
  _check_repeats(runs)
  for side in _SIDES:
    for number, run in enumerate(runs[side]):
      _measured(f'{side}[{number}]', submission['rule']['field'], run)


def judge(submission: Mapping[str, Any]) -> Judgement:
  """Returns the verdict on a submission that has been checked."""
  rule = submission['rule']
  field = rule['field']
  claim = Claim(
    text=submission['claim'],
    source=submission['source'],
    mark=submission['mark'],
    measure=Measure(field, {'side': 'ours'}, by={'side': 'others'}),
    confirmed=_range(rule['confirmed']),
    shape=_range(rule['shape']),
  )
  records = [
    {
      'seed': number,
      'status': 'finished',
      'side': side,
      field: _measured(f'{side}[{number}]', field, run),
    }
    for side in _SIDES
    for number, run in enumerate(submission['runs'][side])
  ]
  return judging.judge(claim, records)


def render(submission: Mapping[str, Any]) -> str:
  """Returns the verdict on a submission and its runs, as Markdown."""
  row = judge(submission)
  rule = submission['rule']
  field = rule['field']
  numbers = (
    f'{row.median:.3g} ({row.least:.3g} to {row.most:.3g}), n = {row.seeds}'
    if None not in (row.median, row.least, row.most)
    else ''
  )
  lines = [
    ('claim', 'source', f'{field}, ours over others', 'p', 'rule', 'verdict'),
    (
      submission['claim'],
      f'{submission["source"]} ({submission["mark"]})',
      numbers,
      '' if row.p is None else f'{row.p:.3g}',
      f'{_limits(rule["confirmed"])} ({_limits(rule["shape"])})',
      f'**{row.verdict}**' + (f': {row.reason}' if row.reason else ''),
    ),
  ]
  text = _table(lines)
  rows: list[tuple[str, ...]] = [('run', field, *_HARDWARE, 'revision')]
  for side in _SIDES:
    for number, run in enumerate(submission['runs'][side]):
      name = f'{side}[{number}]'
      hardware = (_text(run['hardware'].get(each)) for each in _HARDWARE)
      revision = str(run['manifest']['git_revision'])[:10]
      value = f'{_measured(name, field, run):.5g}'
      rows.append((name, value, *hardware, revision))
  notes = ''.join(
    f'- {name.replace("_", " ")}: {submission[name]}\n' for name in _TEXTS[3:]
  )
  return f'{text}\n{_table(rows)}\n{notes}'


def read(path: pathlib.Path) -> dict[str, Any]:
  """Returns the content of a JSON file.

  Raises:
    ValueError: If there is no such file, or no JSON object in it.
    OSError: If it cannot be read.
  """
  content = atomic.read_object(path)
  if content is None:
    raise ValueError(f'{path}: expected a JSON object, got none.')
  return content


def check_file(path: str) -> int:
  """Checks a submission and prints the verdict; returns the exit code, 0.

  Raises:
    ValueError: If it is no submission, or a wrong one; names file and part.
    OSError: If it cannot be read.
  """
  submission = read(pathlib.Path(path))
  try:
    check(submission)
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error
  print(render(submission))
  return 0


def main(argv: list[str] | None = None) -> int:
  """Packs a submission; returns the exit code."""
  parser = argparse.ArgumentParser(
    prog='claims.submissions', description=(__doc__ or '').split('\n')[0]
  )
  parser.add_argument('form', help='JSON file of the form')
  for side in _SIDES:
    parser.add_argument(f'--{side}', required=True, help='files, with commas')
  parser.add_argument('--out', required=True, help='file of the submission')
  args = parser.parse_args(argv)
  try:
    form = read(pathlib.Path(args.form))
    ours, others = (
      [read(pathlib.Path(each)) for each in getattr(args, side).split(',')]
      for side in _SIDES
    )
    atomic.write(args.out, _dump(pack(form, ours, others)))
  except (OSError, ValueError) as error:
    return transient.exit_code(error)
  print(f'Submission: {args.out}')
  return 0


def _shorten(name: str, result: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the parts of a packed result that a submission keeps."""
  found = result.get('format')
  require(found == _RESULT, f'{name}: format', repr(_RESULT), found)
  manifest = result.get('manifest') or {}
  return {
    'manifest': {each: manifest.get(each) for each in _MANIFEST},
    'summary': result.get('summary'),
    'hardware': result.get('hardware'),
    'files': result.get('files'),
  }


def _check_rule(rule: Any) -> None:
  is_rule = isinstance(rule, Mapping) and set(rule) == {*_RULE}
  require(is_rule, 'rule', f'the fields {_RULE}', rule)
  field = rule['field']
  require(
    isinstance(field, str) and bool(field), 'rule: field', 'a text', field
  )
  for name in ('confirmed', 'shape'):
    limits = rule[name]
    place = f'rule: {name}'
    if limits is None:
      continue
    is_pair = isinstance(limits, list) and len(limits) == 2
    is_range = (
      is_pair
      and all(each is None or _is_number(each) for each in limits)
      and (None in limits or limits[0] < limits[1])
      and limits != [None, None]
    )
    expected = 'null, or two numbers from low to high; null for no limit'
    require(is_range, place, expected, limits)
  some = rule['confirmed'] is not None or rule['shape'] is not None
  require(some, 'rule', 'a range', rule)


def _check_side(side: str, runs: Any) -> int:
  """Returns the number of runs on a side."""
  if not isinstance(runs, list):
    raise ValueError(f'runs: {side}: expected a list of runs, got {runs!r}.')
  for number, run in enumerate(runs):
    parts = 'manifest', 'summary', 'hardware', 'files'
    for part in parts:
      found = run.get(part) if isinstance(run, Mapping) else None
      is_object = isinstance(found, Mapping) and bool(found)
      require(is_object, f'{side}[{number}]: {part}', 'an object', found)
    summary, manifest = run['summary'], run['manifest']
    ended, revision = summary.get('ended'), manifest.get('git_revision')
    place = f'{side}[{number}]'
    require(ended == 'finished', f'{place}: ended', "'finished'", ended)
    require(bool(revision), f'{place}: git_revision', 'a commit', revision)
  return len(runs)


def _check_repeats(runs: Mapping[str, Any]) -> None:
  """Rejects the same run twice, by the checksums of its files."""
  seen: dict[str, str] = {}
  for side in _SIDES:
    for number, run in enumerate(runs[side]):
      key = json.dumps(run['files'], sort_keys=True)
      name = f'{side}[{number}]'
      before = seen.setdefault(key, name)
      require(before == name, name, 'a run of its own', f'that of {before}')


def _measured(name: str, field: str, run: Mapping[str, Any]) -> float:
  """Returns the measured number of a run."""
  summary = run['summary']
  if field == 'iteration_s':
    cluster = (run['manifest'].get('config') or {}).get('cluster') or {}
    times = summary.get('time_s'), summary.get('iterations')
    parts = [times[0], cluster.get('workers'), times[1]]
    valid = all(_is_number(each) and each > 0 for each in parts)
    expected = 'time_s, workers and iterations above 0'
    require(valid, f'{name}: iteration_s', expected, parts)
    return float(parts[0] * parts[1] / parts[2])
  value = summary.get(field)
  valid = _is_number(value) and value > 0
  require(valid, f'{name}: {field}', 'a number above 0', value)
  return float(value)


def _is_number(value: Any) -> bool:
  return (
    isinstance(value, (int, float))
    and not isinstance(value, bool)
    and math.isfinite(value)
  )


def _range(limits: Sequence[float | None] | None) -> tuple[float, float] | None:
  if limits is None:
    return None
  low, high = limits
  return (
    -math.inf if low is None else float(low),
    math.inf if high is None else float(high),
  )


def _limits(limits: Sequence[float | None] | None) -> str:
  if limits is None:
    return 'never'
  low, high = limits
  if low is None:
    return f'≤ {high:g}'
  return f'≥ {low:g}' if high is None else f'{low:g} to {high:g}'


def _text(value: Any) -> str:
  if isinstance(value, list):
    return ', '.join(map(str, value))
  return '' if value is None else str(value)


def _dump(submission: Mapping[str, Any]) -> str:
  """Returns a submission as JSON with a line for each run."""
  runs = ',\n'.join(
    f'  {json.dumps(side)}: [\n'
    + ',\n'.join(f'   {json.dumps(run)}' for run in submission['runs'][side])
    + '\n  ]'
    for side in _SIDES
  )
  head = {name: each for name, each in submission.items() if name != 'runs'}
  return f'{json.dumps(head, indent=1)[:-2]},\n "runs": {{\n{runs}\n }}\n}}\n'


def _table(rows: Sequence[Sequence[str]]) -> str:
  lines = [rows[0], ['---'] * len(rows[0]), *rows[1:]]
  return ''.join(f'| {" | ".join(line)} |\n' for line in lines)


if __name__ == '__main__':
  sys.exit(main())
