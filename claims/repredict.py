"""Signed errors of the present virtual clock against stored measurements.

  python -m claims.repredict [--results=results/simulator-full.json]
    [--match=TEXT]

predicts the conditions of stored results of the entry `simulator` again, which
takes minutes and needs no root, and prints the tables of claims.fidelity: the
effect of a change of the model, before anything is measured again.
"""

import argparse
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bench.lab import conditions
from claims import fidelity
from claims.measures import lab
from outputs import transient


def repredict(
  records: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
  """Returns records with the virtual times of the present model.

  Args:
    records: Records of claims.measures.lab.

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


def main(argv: list[str] | None = None) -> int:
  """Prints the errors of the present model; returns the exit code."""
  parser = argparse.ArgumentParser(
    prog='claims.repredict', description=(__doc__ or '').split('\n')[0]
  )
  parser.add_argument('--results', default='results/simulator-full.json')
  parser.add_argument('--match', default='', help='text in a condition')
  args = parser.parse_args(argv)
  try:
    records = fidelity.read(pathlib.Path(args.results))
    chosen = [each for each in records if args.match in each['condition']]
    fidelity.print_tables(repredict(chosen))
  except (OSError, ValueError) as error:
    return transient.exit_code(error)
  return 0


if __name__ == '__main__':
  sys.exit(main())
