"""Measures the latency of a push or a pull in a lab.

  python -m bench.empty

Workers push and pull 4 kB, so that transfers take no time.  The virtual clock
has the computing of an iteration; the rest is the time of messages between
processes, for a push, the decision of the scheme, and a pull.  Half of it is
the latency with which bench.lab predicts.  Needs root; takes a minute.
"""

import pathlib
import tempfile
from collections.abc import Iterator

from absl import app

from analysis import printing
from bench.hosts import Case
from bench.lab import conditions, running
from bench.lab.conditions import Condition, Lab

LAB = Lab('200 Mbit', Case([200] * 8, [200] * 8, {}), 2, 200)
# Numbers of workers and servers, and True for dedicated servers.
_PLACEMENTS = (
  *((2, 1, True), (4, 1, True), (8, 2, True)),
  *((4, 4, False), (8, 2, False)),
)
_FIELDS = {
  'model.none.size_bytes': 4000,
  'cluster.speed.fixed_s': 0.025,
  'cluster.speed.per_example_s': 0.05 / 32,
}
_ITERATIONS = 60


def make_conditions() -> Iterator[Condition]:
  """Yields BSP and ASP with each number of workers and servers."""
  for scheme in ('bsp', 'asp'):
    for workers, servers, dedicated in _PLACEMENTS:
      where = 'of their own' if dedicated else 'in workers'
      yield Condition(
        f'{scheme}, {workers} workers, {servers} servers {where}, empty',
        *(workers, servers, dedicated),
        _FIELDS | {'sync.name': scheme},
        _ITERATIONS,
      )


def main(argv: list[str]) -> None:
  """Prints measured and virtual times of an iteration without latency."""
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  found = list(make_conditions())
  with tempfile.TemporaryDirectory() as folder:
    measured = running.measure(pathlib.Path(folder), LAB, found)
  rows = [('condition', 'real, ms', 'virtual, ms', 'half of the rest, ms')]
  for each in found:
    figures = measured[each.name]
    if 'error' in figures:
      rows.append((each.name, figures['error'], '', ''))
      continue
    real_s = figures['mean_s']
    virtual_s = conditions.predict(LAB, each, latency_s=0.0).mean_s
    times = real_s, virtual_s, (real_s - virtual_s) / 2
    rows.append((each.name, *(f'{1e3 * seconds:.2f}' for seconds in times)))
  print(printing.text(rows, align='r'))


if __name__ == '__main__':
  app.run(main)
