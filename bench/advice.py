"""Is what is advised the best of what real runs show?  On three clusters.

  python -m bench.advice [--clusters=equal,workers,links] [--seconds=4]
    [--out=DIR]

Needs root, for network namespaces (tools.lab).  Four workers with a server in
each move real bytes of no model and sleep for as long as they would compute.
All combinations that tools.advise compares are run, about 2 minutes for a
cluster; the same command with --out goes on where it was.  A time is that to an
accuracy over that of BSP in the same lab: the examples that the ledger's runs
needed over the examples per second of the lab.  `advised/best` is that of the
advised combination over the smallest.

equal: links of 100 Mbit/s.  workers: they are 1, 1.5, 2 and 3 times as slow.
links: of 200, 200, 100 and 50 Mbit/s.
"""

import argparse
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

from bench import clusters, conditions
from bench.conditions import Condition, Lab
from bench.routes import LEFT
from bench.shaped import Case
from tools.advise import needed, ranking, simulating
from tools.advise.clusters import Described, checked
from tools.advise.needed import Combination
from tools.advise.simulating import Workload

_WORKERS = 4
_EQUAL = [100] * _WORKERS
_UNEQUAL_LINKS = [200, 200, 100, 50]
_ALIKE, _UNEQUAL = [1.0] * _WORKERS, [1.0, 1.5, 2.0, 3.0]
CLUSTERS = {
  'equal': (_EQUAL, _ALIKE),
  'workers': (_EQUAL, _UNEQUAL),
  'links': (_UNEQUAL_LINKS, _ALIKE),
}
_PLACED = (  # What a condition says by itself.
  *('route.server.servers', 'route.server.pipelined'),
  'cluster.network.servers_in_workers',
)
_WORKLOAD = Workload(size_bytes=1_000_000, batch=32)
_SPEED = {'fixed_s': 0.02, 'per_example_s': 0.0025}


def main(argv: list[str] | None = None) -> None:
  """Prints a table for each cluster, and how far the advice is from best."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--clusters', default=','.join(CLUSTERS))
  parser.add_argument('--seconds', type=float, default=4.0, help='of a run')
  parser.add_argument('--out', help='folder of the runs; a new one by default')
  given = parser.parse_args(argv)
  names = given.clusters.split(',')
  if {*names} - {*CLUSTERS}:
    parser.error(f'--clusters: expected some of {[*CLUSTERS]}, got {names}')
  out = pathlib.Path(given.out or tempfile.mkdtemp())
  print(f'runs are in {out}', flush=True)
  for name in names:
    print_cluster(name, out, given.seconds)


def print_cluster(name: str, out: pathlib.Path, seconds: float) -> None:
  """Prints combinations with their times in the lab, the best one first.

  Args:
    name: Of the cluster.
    out: Folder of all runs.
    seconds: Of a run, about.
  """
  rates, slowdown = CLUSTERS[name]
  cluster = described(name)
  advice = ranking.advise(cluster, _WORKLOAD, needed.measured())
  lab = Lab(name, Case(rates, rates, {}))
  runs = {
    row: condition(cluster, row.combination)
    for row in advice.rows
    if not row.combination.pipelined  # Refused with a server in each worker.
  }
  taken_s = conditions.real(
    out,
    lab,
    [
      (each, conditions.iterations(lab, each, seconds))
      for each in runs.values()
    ],
  )
  failed = {key: said for key, said in taken_s.items() if isinstance(said, str)}
  speeds = {
    row: _WORKERS * _WORKLOAD.batch / float(taken_s[each.name])
    for row, each in runs.items()
    if each.name not in failed
  }
  base = speeds[advice.base]
  times = {row: row.needed.used * base / x for row, x in speeds.items()}
  lines = [('combination', 'examples/s', 'predicted', 'time', 'predicted', '')]
  lines += [
    (
      str(row.combination),
      f'{speeds[row]:.1f}',
      f'{row.pace.examples_per_s:.1f}',
      f'{times[row]:.3f}',
      f'{row.time:.3f}',
      'advised' if row is advice.best else '',
    )
    for row in sorted(times, key=times.__getitem__)
  ]
  ratio = times[advice.best] / min(times.values())
  print(
    f'\n{name}: links of {rates} Mbit/s, workers {slowdown} times as slow\n\n'
    f'{clusters.table(*lines)}\n\nadvised/best: {ratio:.3f} of {len(times)} '
    f'combinations (aim: at most 1.05)',
    flush=True,
  )
  for key, said in failed.items():
    print(f'failed: {key}: {said}', flush=True)


def described(name: str) -> Described:
  """Returns a cluster as its file would describe it."""
  rates, slowdown = CLUSTERS[name]
  Bps = [mbit * 1e6 / 8 * float(LEFT) for mbit in rates]
  return checked(
    Described(
      name,
      _WORKERS,
      {**_SPEED, 'slowdown': slowdown},
      {'worker_up_Bps': Bps, 'worker_down_Bps': Bps},
      '',
    )
  )


def condition(cluster: Described, combination: Combination) -> Condition:
  """Returns the run of a combination in the lab."""
  fields: dict[str, Any] = {
    field: value
    for field, value in simulating.fields(cluster, combination).items()
    if field not in _PLACED
  }
  fields |= _timed(cluster.speed)
  fields['batching.worker_batch'] = _WORKLOAD.batch
  fields['model.none.size_bytes'] = _WORKLOAD.size_bytes
  servers = cluster.servers if combination.route == 'server' else 0
  return Condition(str(combination), _WORKERS, servers, False, fields)


def _timed(speed: Mapping[str, Any]) -> dict[str, Any]:
  return {
    f'cluster.speed.{field}': tuple(value) if field == 'slowdown' else value
    for field, value in speed.items()
  }


if __name__ == '__main__':
  main()
