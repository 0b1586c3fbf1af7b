"""Real runs on shaped links, beside bounds, a paper and predictions.

  python -m bench.lab [--parts=rounds,sweep,schemes] [--out=DIR]
    [--rounds=16] [--epochs=16] [--link=1gbit] [--congestion=cubic]
    [--slow_start_after_idle]

Needs root, for network namespaces: four workers and, unless said otherwise, a
dedicated server, each on a host of its own (tools.lab).  Every run is a real
one of tools.launch whose workers take at least an injected time to compute.
The tables are Markdown.  Parts take about 7, 9 and 12 minutes on two cores.

rounds: 5 MB each way at 200 Mbit/s, beside C + 2NS/B, and in other placements
of servers, beside the virtual cluster's.  The bound assumes that links are
shared equally.  Whether TCP does so is up to its congestion control: with
BBR who has pulled first pushes while others still pull, BSP's round is shorter
than with CUBIC and R2SP's longer.  B is the nominal rate of a link, of which
frames and their headers take about 4.7 %.
sweep: the same at 400 to 50 Mbit/s, with the paper's share of communication and
what the virtual cluster says of R2SP on nominal links.
schemes: VGG16 (1/8) on digits with workers of speeds 1, 1, 1/2 and 1/3: all six
schemes, beside what tools.calibrate predicts of them from one of the runs.
"""

import argparse
import contextlib
import importlib.util
import io
import pathlib
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

import train
from bench import clusters, moving
from cluster.speed import speed as speeds
from configs import default
from tools import calibrate
from tools.reading import records

_PARTS = ('rounds', 'sweep', 'schemes')
_WORKERS, _SIZE_BYTES = moving.WORKERS, moving.SIZE_BYTES
_COMPUTE_S = 0.1
_SMALL_S = 0.01  # So that communication counts alone.
_RATE_MBIT = 200
_RATES_MBIT = (400, 200, 100, 50)
# R2SP's paper, figure 11: iteration speed-up over BSP, read off the figure.
_PAPER_GBIT = (10, 8, 6, 4, 2)
_PAPER = {
  'VGG16': (32.0, 35.9, 39.8, 44.7, 48.1),
  'AlexNet': (27.3, 31.9, 35.7, 41.7, 46.0),
}
# How many servers there are, and whether they are dedicated.
_PLACED = (
  *((1, True), (2, True), (4, True)),
  *((1, False), (2, False), (3, False), (4, False)),
)
_BSP = {'sync.name': 'bsp'}
_PIPELINED = {'sync.name': 'bsp', 'route.server.pipelined': True}
_R2SP = {'sync.name': 'r2sp'}
_SCHEMES = ('bsp', 'asp', 'ssp', 'dssp', 'elastic', 'r2sp')
# Its transfers seldom meet, so that they show bare links best.
_MEASURED = 'r2sp'  # Whose run the predictions come from.
# Slow enough for two cores: a gradient takes about 13 ms of one.
_FIXED_S = 0.08
_SLOWDOWN = (1.0, 1.0, 2.0, 3.0)
_SIGMA = 0.1
_UNEQUAL = {
  'cluster.speed.injected': True,
  'cluster.speed.fixed_s': _FIXED_S,
  'cluster.speed.per_example_s': 0.0,
  'cluster.speed.slowdown': _SLOWDOWN,
  'cluster.speed.lognormal.sigma': _SIGMA,
  'checkpoint.every_s': 'inf',
}
_LATE = 1.05  # Times the injected time: computing took longer than that.


def main(argv: list[str] | None = None) -> None:
  """Makes the runs of every part and prints its tables."""
  parser = argparse.ArgumentParser(
    prog='bench.lab', description=__doc__.splitlines()[0]
  )
  parser.add_argument('--parts', default=','.join(_PARTS))
  parser.add_argument('--out', help='folder of the runs; a new one by default')
  parser.add_argument('--rounds', type=int, default=16)
  parser.add_argument('--epochs', type=float, default=16.0)
  parser.add_argument('--link', default='1gbit', help='of schemes')
  parser.add_argument('--congestion', default='cubic', help="TCP's")
  parser.add_argument('--slow_start_after_idle', action='store_true')
  given = parser.parse_args(argv)
  options = [f'--congestion={given.congestion}']
  options += ['--slow_start_after_idle'] * given.slow_start_after_idle
  out = pathlib.Path(given.out or tempfile.mkdtemp())
  print(f'runs are in {out}', flush=True)
  for part in given.parts.split(','):
    if part == 'rounds':
      print_rounds(out / part, given.rounds, options)
      print_placements(out / 'placements', given.rounds, options)
    elif part == 'sweep':
      print_sweep(out / part, given.rounds, options)
    elif part == 'schemes':
      print_schemes(out / part, given.epochs, given.link, options)
    else:
      parser.error(f'--parts: expected some of {_PARTS}, got {part!r}.')


def print_rounds(
  out: pathlib.Path, rounds: int, options: Sequence[str]
) -> None:
  """Prints rounds in units of their bounds, and R2SP's pace beside BSP's."""
  rate_Bps = _RATE_MBIT * 1e6 / 8
  one_s = _SIZE_BYTES / rate_Bps
  rows = [('', 'bound', 'bound s', 'round s', 'ratio', 'aim')]
  for name, fields, times, aim in (
    ('BSP', _BSP, 2, 1.10),
    ('BSP, pipelined', _PIPELINED, 1, 1.15),
  ):
    if _known(fields):
      took_s = moving.real(
        out, name, fields, _COMPUTE_S, _RATE_MBIT, rounds, options
      )
      bound_s = _COMPUTE_S + times * _WORKERS * one_s
      bound = f'C + {"2" if times == 2 else ""}NS/B'
      row = (f'{bound_s:.3f}', f'{took_s:.3f}', f'{took_s / bound_s:.3f}')
      rows.append((name, bound, *row, f'at most {aim:.2f}'))
  print(
    f'\nRounds of {_WORKERS} equal workers, S = {_SIZE_BYTES / 1e6:g} MB, B = '
    f'{_RATE_MBIT} Mbit/s, C = {_COMPUTE_S:g} s,\nmeans of {rounds - 2}:\n\n'
    f'{clusters.table(*rows)}',
    flush=True,
  )
  rows = [('', 'iterations/s', 'over BSP', 'aim')]
  base = None
  for name, fields, aim in (
    ('BSP', _BSP, ''),
    ('BSP, pipelined', _PIPELINED, ''),
    ('R2SP', _R2SP, 'at least 1.50'),
  ):
    if _known(fields):
      took_s = moving.real(
        out, name, fields, _SMALL_S, _RATE_MBIT, rounds, options
      )
      rate = _WORKERS / took_s
      base = base or rate
      rows.append((name, f'{rate:.3f}', f'{rate / base:.2f}', aim))
  print(
    f'\nThe same links with C = {_SMALL_S:g} s:\n\n{clusters.table(*rows)}',
    flush=True,
  )


def print_placements(
  out: pathlib.Path, rounds: int, options: Sequence[str]
) -> None:
  """Prints rounds by where servers are, real beside virtual."""
  rows = [('servers', 'BSP s', 'virtual s', 'real/virtual')]
  rows[0] += ('pipelined s', 'virtual s', 'real/virtual', 'pipelined/BSP')
  for servers, dedicated in _PLACED:
    placed = {'servers': servers, 'dedicated': dedicated}
    cells, rounds_s = [], []
    for name, fields in (('BSP', _BSP), ('BSP, pipelined', _PIPELINED)):
      if fields is _PIPELINED and not dedicated and servers == _WORKERS:
        cells += ['refused', '-', '-', '-']
        continue
      given = fields, _SMALL_S, _RATE_MBIT, rounds
      took_s = moving.real(out, name, *given, options, **placed)
      virtual_s = moving.virtual(*given, **placed)
      cells += [f'{took_s:.3f}', f'{virtual_s:.3f}']
      cells.append(f'{took_s / virtual_s:.3f}')
      rounds_s.append(took_s)
    if len(rounds_s) == 2:
      cells.append(f'{rounds_s[1] / rounds_s[0]:.2f}')
    where = 'dedicated' if dedicated else 'in workers'
    rows.append((f'{servers} {where}', *cells))
  print(
    f'\nRounds by where servers are, C = {_SMALL_S:g} s.  Virtual links have '
    f'what frames leave\nof {_RATE_MBIT} Mbit/s:\n\n{clusters.table(*rows)}',
    flush=True,
  )


def print_sweep(out: pathlib.Path, rounds: int, options: Sequence[str]) -> None:
  """Prints by how much iterations are shorter than BSP's, by rate."""
  rows = [('Mbit/s', 'BSP s', 'BSP pipelined s', 'R2SP s')]
  rows[0] += ('R2SP virtual s', 'pipelined, shorter by', 'R2SP, shorter by')
  rows[0] += ('R2SP, bound',)
  for rate_mbit in _RATES_MBIT:
    bsp_s, pipelined_s, r2sp_s = (
      moving.real(out, name, fields, _COMPUTE_S, rate_mbit, rounds, options)
      if _known(fields)
      else None
      for name, fields in (
        ('BSP', _BSP),
        ('BSP, pipelined', _PIPELINED),
        ('R2SP', _R2SP),
      )
    )
    one_s = _SIZE_BYTES / (rate_mbit * 1e6 / 8)
    bounds_s = _COMPUTE_S + 2 * one_s, _WORKERS * one_s
    bound = max(bounds_s) / (_COMPUTE_S + 2 * _WORKERS * one_s)
    virtual_s = moving.virtual(
      _R2SP, _COMPUTE_S, rate_mbit, rounds, servers=1, dedicated=True
    )
    times_s = (bsp_s, pipelined_s, r2sp_s, virtual_s)
    cells = [_or_dash('{:.3f}', took) for took in times_s]
    cells += [
      _or_dash('{:.1%}', took and 1 - took / bsp_s)
      for took in (pipelined_s, r2sp_s)
    ]
    rows.append((f'{rate_mbit}', *cells, f'{1 - bound:.1%}'))
    print(f'  {rate_mbit} Mbit/s: {cells}', flush=True)
  comm_s = 2 * _WORKERS * _SIZE_BYTES / (_RATES_MBIT[0] * 1e6 / 8)
  share = comm_s / (_COMPUTE_S + comm_s)
  print(
    f'\nSeconds of an iteration, {_WORKERS} equal workers, S = '
    f'{_SIZE_BYTES / 1e6:g} MB, C = {_COMPUTE_S:g} s; communication is '
    f'{share:.0%} of\na round of BSP at the highest rate (paper: VGG16 91 %, '
    f'AlexNet 86 %):\n\n{clusters.table(*rows)}\n\nR2SP in its paper, figure '
    '11, 16 workers:\n'
  )
  head = ('Gbit/s', *map(str, _PAPER_GBIT))
  papers = [
    (name, *(f'{percent} %' for percent in row)) for name, row in _PAPER.items()
  ]
  print(clusters.table(head, *papers), flush=True)


def print_schemes(
  out: pathlib.Path, epochs: float, link: str, options: Sequence[str]
) -> None:
  """Prints all schemes, real beside virtual."""
  fields = _UNEQUAL | {'epochs': epochs}
  paths = {}
  for name in _SCHEMES:
    paths[name] = clusters.run(
      out / name,
      f'configs/vgg16_{name}.py',
      fields,
      workers=_WORKERS,
      link=link,
      options=options,
    )
    print(f'  {name}: real run done', flush=True)
  compare(paths, link)


def compare(paths: Mapping[str, pathlib.Path], link: str) -> None:
  """Prints real runs beside predictions that one of them gives.

  Args:
    paths: Folders of the runs, by scheme.
    link: Rate of all links.
  """
  calibration = calibrate.measure(paths[_MEASURED])
  print(f'\n{calibrate.describe(calibration)}\n', flush=True)
  checks = calibrate.check(calibration, [*paths.values()])
  head = ('scheme', 'iterations/s', 'virtual', 'waiting', 'virtual')
  rows = [(*head, 's to 95 %', 'virtual', 'late')]
  for check in checks:
    summary = records.read_summary(check.path)
    reached = (summary['time_to'], _virtual(calibration, check.scheme))
    paces = (check.measured, check.predicted)
    rates = [f'{_WORKERS / pace.iteration_s:.2f}' for pace in paces]
    shares = [f'{pace.waiting_share:.1%}' for pace in paces]
    times = [_or_dash('{:.1f}', each['0.95']) for each in reached]
    late = f'{_late_share(check.path):.1%}'
    rows.append((check.scheme, *rates, *shares, *times, late))
    print(f'  {check.scheme}: virtual run done', flush=True)
  missed = statistics.median(
    abs(check.predicted.iteration_s / check.measured.iteration_s - 1)
    for check in checks
  )
  print(
    f'\nVGG16 (1/8) on digits, links of {link}, injected {_FIXED_S:g} s times '
    f'1, 1, 2, 3;\nvirtual: predicted from the run of {_MEASURED}; late: '
    f'computed for longer than injected:\n\n{clusters.table(*rows)}\n\n'
    f'median |predicted/measured iteration time - 1|: {missed:.1%} '
    '(aim: at most 5 %)',
    flush=True,
  )


def _known(fields: Mapping[str, Any]) -> bool:
  """Returns whether the configs of today have all fields."""
  known = default.get_config().to_dict()
  for name in fields:
    section: Any = known
    for part in name.split('.'):
      if part not in section:
        return False
      section = section[part]
  return True


def _virtual(
  calibration: calibrate.Calibration, scheme: str
) -> Mapping[str, float | None]:
  """Returns when a scheme reaches accuracies on the measured cluster."""
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, 'measured.py')
    calibrate.write(calibration, path)
    config = _load(path)
    recipe = importlib.import_module(f'configs.vgg16_{scheme}').get_config()
    config.sync = recipe.sync
    with contextlib.redirect_stdout(io.StringIO()):  # Its table.
      summary = train.build(config, workdir=f'{folder}/run')()
  return summary['time_to']


def _load(path: pathlib.Path) -> ConfigDict:
  spec = importlib.util.spec_from_file_location('measured', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.get_config()


def _late_share(path: pathlib.Path) -> float:
  """Returns the share of iterations that computed for longer than injected."""
  speed = speeds.Speed(
    fixed_s=_FIXED_S,
    per_example_s=0.0,
    slowdown=_SLOWDOWN,
    model=speeds.lognormal(num_workers=_WORKERS, seed=0, sigma=_SIGMA),
  )
  late, iterations = [], [0] * _WORKERS
  for event in records.events(path):
    if event['told'] == 'push':
      worker = event['worker']
      wanted_s = speed.seconds(worker, iterations[worker], event['examples'])
      late.append(event['compute_s'] > _LATE * wanted_s)
      iterations[worker] += 1
  return statistics.fmean(late)


def _or_dash(form: str, value: float | None) -> str:
  return '-' if value is None else form.format(value)


if __name__ == '__main__':
  main()
