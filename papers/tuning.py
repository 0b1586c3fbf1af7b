"""Learning rates with the smallest mean test loss in a sweep for validation.

python -m papers.tuning DIR

prints a line for each scheme and batching: the mean `final_test_loss` over
seeds at each rate, and the best rate.  The
sweep is one of configs/sweeps/tuned_*.py; entries of the ledger have the rates.
"""

import csv
import math
import pathlib
import sys
from collections.abc import Iterable, Mapping

RATE, LOSS = 'optimizer.learning_rate', 'final_test_loss'
_SELECTED = 'sync.name', 'batching.name'


def choose_rates(
  rows: Iterable[Mapping[str, str]],
) -> dict[tuple[str, ...], tuple[float, dict[float, float]]]:
  """Returns the best rate of each scheme, and the mean losses of all.

  Args:
    rows: Rows of a sweep's results.csv.  A diverged run has an infinite loss.

  Raises:
    ValueError: If a run has neither finished nor diverged.
  """
  losses: dict[tuple[str, ...], dict[float, list[float]]] = {}
  for row in rows:
    if row['status'] not in ('finished', 'diverged'):
      raise ValueError(
        f"status: expected 'finished' or 'diverged', got {row['status']!r} of "
        f'{row["run"]}.'
      )
    key = tuple(row[field] for field in _SELECTED if field in row)
    loss = float(row[LOSS]) if row['status'] == 'finished' else math.inf
    losses.setdefault(key, {}).setdefault(float(row[RATE]), []).append(loss)
  means = {
    key: {
      rate: math.fsum(each) / len(each)
      for rate, each in sorted(by_rate.items())
    }
    for key, by_rate in losses.items()
  }
  return {
    key: (min(by_rate, key=by_rate.__getitem__), by_rate)
    for key, by_rate in means.items()
  }


def main(folder: str) -> None:
  """Prints the mean losses and the best rate of each scheme."""
  with pathlib.Path(folder, 'results.csv').open(encoding='utf-8') as file:
    chosen = choose_rates(csv.DictReader(file))
  for key, (best, by_rate) in sorted(chosen.items()):
    means = '  '.join(f'{rate:g}: {loss:.4f}' for rate, loss in by_rate.items())
    print(f'{" ".join(key):28} best {best:g}   {means}')


if __name__ == '__main__':
  main(*sys.argv[1:])
