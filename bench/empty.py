"""Measures the latency of a push or a pull in a lab: python -m bench.empty.

Workers push and pull 4 kB, so that transfers take no time.  The virtual clock
has the computing of an iteration; the rest is the time of messages between
processes, for a push, the decision of the scheme, and a pull.  Half of it is
the latency that bench.conditions predicts with.  Needs root; takes a minute.
"""

import argparse
import pathlib
import tempfile
from collections.abc import Iterator

from bench import conditions
from bench.conditions import Condition, Lab
from bench.hosts import Case
from tuning.calibrating import tables

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
      )


def main(argv: list[str] | None = None) -> None:
  """Prints measured and virtual times of an iteration without latency."""
  parser = argparse.ArgumentParser(
    prog='bench.empty', description=(__doc__ or '').split('\n')[0]
  )
  parser.parse_args(argv)
  found = list(make_conditions())
  with tempfile.TemporaryDirectory() as folder:
    runs = [(each, _ITERATIONS) for each in found]
    measured = conditions.measure(pathlib.Path(folder), LAB, runs)
  rows = [('condition', 'real, ms', 'virtual, ms', 'half of the rest, ms')]
  for each in found:
    real_s = measured[each.name]
    if isinstance(real_s, str):
      rows.append((each.name, real_s, '', ''))
      continue
    virtual_s = conditions.predict(LAB, each, _ITERATIONS, latency_s=0.0)
    times = real_s, virtual_s, (real_s - virtual_s) / 2
    rows.append((each.name, *(f'{1e3 * seconds:.2f}' for seconds in times)))
  print(tables.table(rows))


if __name__ == '__main__':
  main()
