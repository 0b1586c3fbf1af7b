"""Signed errors of the virtual clock, by scheme, route, links and workers.

  python -m papers.measures.fidelity [--results=results] [--match=TEXT]
    [--again]

reads the stored results of `simulator` and prints tables.  With --again the
present model predicts the conditions again, which takes minutes and needs no
root: the effect of a change before anything is measured again.

An error is the virtual time of an iteration over the measured one, less 1:
above 0 the virtual clock is too slow.  A scheme whose errors have one sign is
biased, which a median of sizes hides.
"""

import pathlib
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from absl import app, flags

from analysis import printing
from bench.lab import conditions
from configs.checks import require
from outputs import transient
from papers import store
from papers.measures import lab

_NAME = 'simulator'
_WORKERS = re.compile(r'\d+ workers')
# Schemes with servers; conditions of other names are routes among the workers.
_SCHEMES = 'bsp', 'asp', 'ssp', 'dssp', 'elastic', 'r2sp'


class Group(NamedTuple):
  """Signed errors of the virtual clock under a group of conditions.

  Attributes:
    conditions: Number of conditions.
    too_slow: Number of conditions whose virtual time exceeds the measured one.
    mean: Mean error.
    median: Median error.
    least: Smallest error.
    most: Largest error.
  """

  conditions: int
  too_slow: int
  mean: float
  median: float
  least: float
  most: float


def group(
  records: Iterable[Mapping[str, Any]],
  key: Callable[[Mapping[str, Any]], str | None],
) -> dict[str, Group]:
  """Returns the signed errors of finished conditions, by group.

  Args:
    records: Records of papers.measures.lab.
    key: Function that returns the group of a record; None to leave it out.
  """
  errors: dict[str, list[float]] = {}
  for record in records:
    if is_condition(record) and (name := key(record)) is not None:
      errors.setdefault(name, []).append(signed_error(record))
  return {
    name: Group(
      len(found),
      sum(error > 0 for error in found),
      statistics.mean(found),
      statistics.median(found),
      min(found),
      max(found),
    )
    for name, found in sorted(errors.items())
  }


def is_condition(record: Mapping[str, Any]) -> bool:
  """Returns whether a record has the times of a condition."""
  is_one = record.get('condition') is not None
  return is_one and record.get('status') == 'finished'


def signed_error(record: Mapping[str, Any]) -> float:
  """Returns the error of a condition; above 0 if the virtual clock is slow."""
  return float(record['virtual_s'] / record['real_s'] - 1)


def scheme_or_route(record: Mapping[str, Any]) -> str:
  """Returns the scheme of a condition with servers, or else its route."""
  first, second, *_ = record['condition'].split(', ')
  return f'{first}, pipelined' if second == 'pipelined' else str(first)


def asynchronous_workers(record: Mapping[str, Any]) -> str | None:
  """Returns number and speeds of an asynchronous scheme's workers, or None."""
  scheme, *words = record['condition'].split(', ')
  if scheme == 'bsp' or scheme not in _SCHEMES:
    return None
  workers = next(filter(_WORKERS.fullmatch, words), 'workers')
  return f'{workers}, {"unequal" if "unequal" in words else "equal"}'


def print_tables(records: Sequence[Mapping[str, Any]]) -> None:
  """Prints the errors of each group and of each condition, as Markdown."""
  tables = (
    ('scheme or route', scheme_or_route),
    ('links', lambda record: str(record['lab'])),
    ('workers of asynchronous schemes', asynchronous_workers),
    ('all', lambda _: 'all'),
  )
  for title, key in tables:
    lines = [(title, 'conditions', 'too slow', 'mean', 'median', 'range')]
    for name, each in group(records, key).items():
      numbers = map(_percent, (each.mean, each.median, each.least, each.most))
      mean, median, least, most = numbers
      counts = f'{each.conditions}', f'{each.too_slow}'
      lines.append((name, *counts, mean, median, f'{least} to {most}'))
    print(f'{printing.markdown(lines)}\n')
  rows = [('links', 'condition', 'virtual s', 'real s', 'error')]
  for record in sorted(filter(is_condition, records), key=signed_error):
    times = (f'{record[field]:.4f}' for field in ('virtual_s', 'real_s'))
    error = _percent(signed_error(record))
    rows.append((record['lab'], record['condition'], *times, error))
  print(f'{printing.markdown(rows)}\n')


def read(folder: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the records of conditions in the stored results of `simulator`.

  Raises:
    ValueError: If there are none.
    OSError: If they cannot be read.
  """
  results = store.read(folder, _NAME)
  records = results.records if results else ()
  found = [dict(record) for record in records if is_condition(record)]
  require(bool(found), str(folder), f'results of {_NAME!r}', 'none')
  return found


def repredict(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
  """Returns records with the virtual times of the present model.

  Raises:
    ValueError: If a condition is not one that is drawn now; names it.
  """
  drawn = {
    (place.name, condition.name): (place, condition)
    for place, of_lab in lab.draw_conditions('full')
    for condition in of_lab
  }
  found = []
  for record in records:
    name = record['lab'], record['condition']
    if name not in drawn:
      raise ValueError(f'condition: expected a drawn one, got {name}.')
    place, condition = drawn[name]
    run = condition._replace(iterations=record['iterations'])
    virtual_s = conditions.predict(place, run).mean_s
    found.append({**record, 'virtual_s': virtual_s})
  return found


def main(argv: list[str]) -> None:
  """Prints the errors of stored results."""
  values = flags.FLAGS
  try:
    require(len(argv) == 1, 'arguments', 'flags alone', argv[1:])
    records = [
      record
      for record in read(pathlib.Path(values.results))
      if values.match in record['condition']
    ]
    print_tables(repredict(records) if values.again else records)
  except (OSError, ValueError) as error:
    transient.leave(error)


def _percent(share: float) -> str:
  return f'{100 * share:+.1f} %'


if __name__ == '__main__':
  flags.DEFINE_string('results', 'results', 'Folder of results.')
  flags.DEFINE_string('match', '', 'Text in the conditions to print.')
  flags.DEFINE_bool('again', False, 'Predict again, by the present model.')
  app.run(main)
