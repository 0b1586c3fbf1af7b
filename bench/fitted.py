"""Runs of a lab predicted by what one of them has shown of its links.

  python -m bench.fitted [--cases=equal4,pairs4] [--out=DIR]

Needs root, for network namespaces (tools.lab).  In each case one run, a ring of
10 MB in ranges of 1 MiB after computing, is taken by tools.calibrate, which
finds how fast links are.  With these the virtual clock predicts the others:
other sizes and ranges, other routes, while computing goes on, in half of
float32, a tenth of the chunks.  Seconds of an iteration, medians but for the
first two; computing is a sleep.  What a range costs beside its bytes follows
from ranges of 64 KiB; a model of no layers has one range with `native`.
"""

import argparse
import contextlib
import io
import json
import os
import pathlib
import statistics
import tempfile
from typing import Any

import train
from bench import clusters, routes
from bench.shaped import Case
from configs import default
from tools import calibrate

_COMPUTE_S, _ITERATIONS = 0.3, 12
_MB = 1_000_000
_FIRST: dict[str, Any] = {
  'route.name': 'ring',
  'model.none.size_bytes': 10 * _MB,
  'route.range_bytes': 2.0**20,
  'route.overlap': False,
}
_SMALL = 'ranges of 64 KiB'
_SPARSE = {'wire.name': 'sparse', 'wire.sparse.select_lag': 1}
_OTHERS: dict[str, dict[str, Any]] = {
  '25 MB': {'model.none.size_bytes': 25 * _MB},
  '2 MB': {'model.none.size_bytes': 2 * _MB},
  _SMALL: {'route.range_bytes': 2.0**16},
  'one range': {'route.range_bytes': float('inf')},
  'overlap': {'route.overlap': True},
  'bfloat16': {'wire.dense.dtype': 'bfloat16'},
  'sparse': _SPARSE,
  'sparse, overlap, bfloat16': {
    **_SPARSE,
    'wire.sparse.dtype': 'bfloat16',
    'route.overlap': True,
  },
  'double tree': {'route.name': 'double_tree'},
  'hierarchy': {'route.name': 'hierarchical'},
  'forest': {'route.name': 'forest'},
  'native': {'route.name': 'native'},
}
_ACROSS = [(a, b) for a in (0, 1) for b in (2, 3)]
# Hosts, and runs that are predicted: of 4 that are alike, and of 2 x 2, of whom
# those of two sides have a third of the rate.
_CASES = {
  'equal4': (
    Case([200] * 4, [200] * 4, {}),
    [name for name in _OTHERS if name not in ('hierarchy', 'forest')],
  ),
  'pairs4': (
    Case(
      [200] * 4,
      [200] * 4,
      {each: 66 for a, b in _ACROSS for each in ((a, b), (b, a))},
    ),
    ['2 MB', 'bfloat16', 'sparse', 'hierarchy', 'forest', 'native'],
  ),
}


def main(argv: list[str] | None = None) -> None:
  """Prints a table per case."""
  parser = argparse.ArgumentParser(
    prog='bench.fitted', description=__doc__.splitlines()[0]
  )
  parser.add_argument('--cases', default=','.join(_CASES))
  parser.add_argument(
    '--out', help='folder of the runs; those that are there are not made again'
  )
  given = parser.parse_args(argv)
  cases = given.cases.split(',')
  if {*cases} - {*_CASES}:
    parser.error(f'--cases: expected some of {[*_CASES]}, got {cases}')
  out = pathlib.Path(given.out or tempfile.mkdtemp())
  out.mkdir(parents=True, exist_ok=True)
  print(f'runs are in {out}', flush=True)
  for case in cases:
    print_case(out, case)


def print_case(out: pathlib.Path, case: str) -> None:
  """Prints what runs take, and were predicted to.

  Args:
    out: Folder of all runs.
    case: Name of the hosts.
  """
  first = real(out, case, 'first', _FIRST)
  found = calibrate.measure(first)
  print(f'\n{case}, load {os.getloadavg()[0]:.1f}\n')
  print(calibrate.describe(found))
  rows = [('run', 'predicted s', 'measured s', 'ratio')]
  with tempfile.TemporaryDirectory() as folder:
    calibrate.write(found, pathlib.Path(folder, 'found.py'))
    links = {'cluster.links': str(pathlib.Path(folder, 'found.json'))}
    off = []
    for name in ('first', *_CASES[case][1]):
      fields = _FIRST | _OTHERS.get(name, {})
      if fields['route.name'] == 'native':
        del fields['route.overlap']
      measured_s = routes.iteration_s(real(out, case, name, fields))
      predicted_s = virtual(case, fields, links)
      ratio = predicted_s / measured_s
      longer_s = measured_s - predicted_s
      many = fields['model.none.size_bytes'] / fields['route.range_bytes']
      if name == 'first':
        at_first = longer_s, many
      else:
        off.append(abs(ratio - 1))
      if name == _SMALL:
        each_s = (longer_s - at_first[0]) / (many - at_first[1])
        print(f'\nA range costs {1e6 * each_s:.1f} us beside its bytes.')
      rows.append(
        (name, f'{predicted_s:.4f}', f'{measured_s:.4f}', f'{ratio:.3f}')
      )
  print(f'\n{clusters.table(*rows)}\n')
  print(
    f'|ratio - 1| of the others: median {statistics.median(off):.1%}, at most '
    f'{max(off):.1%}.',
    flush=True,
  )


def real(
  out: pathlib.Path, case: str, name: str, fields: dict[str, Any]
) -> pathlib.Path:
  """Returns the folder of a run on hosts of a lab.

  Args:
    out: Folder of all runs.
    case: Name of the hosts.
    name: Of the run, in the table.
    fields: What differs from the default.

  Raises:
    RuntimeError: If the run fails.
  """
  path = out / case / name.replace(' ', '_').replace(',', '')
  if (path / 'summary.json').exists():
    return path
  hosts, _ = _CASES[case]
  count = len(hosts.up)
  links, lab = out / f'{case}.json', out / f'{case}_lab.json'
  routes.write_links(links, hosts.cluster)
  lab.write_text(json.dumps(hosts.links))
  fields = _moving(fields, count) | {
    'cluster.speed.injected': True,
    'cluster.timeout_s': 60.0,
  }
  if fields['route.name'] != 'native':
    fields[f'route.{fields["route.name"]}.cluster'] = str(links)
  return routes.in_lab(path, fields, hosts, lab, workers=count)


def virtual(case: str, fields: dict[str, Any], links: dict[str, Any]) -> float:
  """Returns the seconds of an iteration under the virtual clock.

  Args:
    case: Name of the hosts.
    fields: As of `real`.
    links: Fields of them.
  """
  count = len(_CASES[case][0].up)
  fields = _moving(fields, count) | links | {'cluster.workers': count}
  if fields['route.name'] != 'native':
    name = f'route.{fields["route.name"]}.cluster'
    fields[name] = links['cluster.links']
  config = default.get_config()
  config.update_from_flattened_dict(fields)
  with (
    tempfile.TemporaryDirectory() as folder,
    contextlib.redirect_stdout(io.StringIO()),  # Its table.
  ):
    train.build(config, workdir=f'{folder}/run')()
    return routes.iteration_s(pathlib.Path(folder, 'run'))


def _moving(fields: dict[str, Any], workers: int) -> dict[str, Any]:
  """Returns what makes a config one that only moves bytes."""
  examples = _ITERATIONS * workers * default.get_config().batching.worker_batch
  return {
    'epochs': 1.0,
    'eval_every': 1,
    'log_every': 1000,
    'model.name': 'none',
    'model.none.num_train': examples,
    'cluster.speed.name': 'constant',
    'cluster.speed.fixed_s': _COMPUTE_S,
    'cluster.speed.per_example_s': 0.0,
    'cluster.speed.slowdown': (1.0,),
    'checkpoint.every_s': float('inf'),
    **fields,
  }


if __name__ == '__main__':
  main()
