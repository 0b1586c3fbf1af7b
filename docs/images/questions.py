"""Draws when.png, how_much.png, what.png and where.png from runs made here.

  python docs/images/questions.py [--runs=DIR]

Each picture shows one of the four questions, from runs of main.py in virtual
time, with real gradients of VGG16 at 1/8 width on digits; the run of where.png
sends 1 GB of gradients and has no model.  Three minutes on two cores; finished
runs in DIR are not repeated.
"""

import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from absl import app, flags
from matplotlib.figure import Figure

_ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(_ROOT))

import analysis  # noqa: E402
from analysis import report, traffic  # noqa: E402
from analysis.figures import look, workers  # noqa: E402

_SCHEMES = ('bsp', 'ssp', 'dssp', 'elastic', 'r2sp', 'asp')
_WIRES = {
  'dense\nfloat32': (),
  'dense\nbfloat16': ('--config.wire.dense.dtype=bfloat16',),
  'sparse\n(1 chunk of 4)': (
    '--config.wire.name=sparse',
    '--config.wire.sparse.sparsity=0.75',
    '--config.wire.sparse.chunk=1024',
  ),
  'topk\n(1 %)': ('--config.wire.name=topk',),
  'quantised\n(8 bits)': ('--config.wire.name=quantised',),
  'lowrank\n(rank 4)': ('--config.wire.name=lowrank',),
}
_NO_SUMS = ('topk\n(1 %)', 'quantised\n(8 bits)')  # Parameter servers only.
_ROUTES = {'server': '#56B4E9', 'ring': '#0072B2'}  # And their colors.
_WIDTH = 0.4  # Width of a bar.
_SHOWN_S = (2.0, 4.0)  # Interval of the timelines, virtual seconds.


def run(folder: pathlib.Path, *words: str) -> analysis.Run:
  """Returns the run in a folder; runs main.py first if it has not finished.

  Args:
    folder: Folder of the run.
    *words: Flags of main.py.

  Raises:
    CalledProcessError: If main.py fails.
  """
  if not (folder / 'summary.json').exists():
    command = [sys.executable, 'main.py', *words, f'--workdir={folder}']
    subprocess.run(command, cwd=_ROOT, check=True)
  return analysis.read(folder)


def draw_when(runs: pathlib.Path) -> Figure:
  """Returns the timelines of four workers under six schemes.

  Args:
    runs: Folder of runs; `run` makes those that are missing.
  """
  timelines = {}
  for scheme in _SCHEMES:
    config = f'--config=configs/vgg16_{scheme}.py'
    found = run(runs / f'when_{scheme}', config, '--config.epochs=2')
    timeline = report.make_timeline(found, _SHOWN_S)
    if timeline is None:
      raise ValueError(f'{found.path}: expected a timeline, got none.')
    waiting = found.rows[-1]['waiting_share']
    timelines[f'{scheme}: {waiting:.0%} of the time is waiting'] = timeline
  return workers.draw_timelines(
    timelines, xlabel='virtual time (s)', width=look.PAGE
  )


@look.styled
def draw_how_much(runs: pathlib.Path) -> Figure:
  """Returns speeds of four workers and the batches that LB-BSP assigns.

  Args:
    runs: Folder of runs; `run` makes the one that is missing.
  """
  found = run(
    runs / 'how_much',
    '--config=configs/vgg16_lb_bsp.py',
    '--config.epochs=4',
    '--config.cluster.speed.name=regime',
    '--config.cluster.speed.slowdown=(1.0, 1.0, 1.5, 2.0)',
    '--config.cluster.speed.fixed_s=0.0',
  )
  pushes = found.events.select(found.events['event'] == 'push')
  figure = Figure((look.PAGE, 3.6))
  above, below = figure.subplots(2, sharex=True)
  for worker in np.unique(pushes['worker']).tolist():
    mine = pushes.select(pushes['worker'] == worker)
    speeds = mine['examples'] / mine['compute_s']
    style = look.line(worker) | {'marker': None}
    above.step(mine['time'], speeds, label=f'worker {worker}', **style)
    below.step(mine['time'], mine['examples'], **style)
  above.set(ylabel='speed (examples/s)', ylim=(0, None))
  below.set(ylabel='worker batch (examples)', ylim=(0, None))
  below.set_xlabel('virtual time (s)')
  look.add_legend(figure)
  return figure


@look.styled
def draw_what(runs: pathlib.Path) -> Figure:
  """Returns bytes of an iteration, by wire and route.

  Args:
    runs: Folder of runs; `run` makes those that are missing.
  """
  figure = Figure((look.PAGE, 2.6))
  axes = figure.subplots()
  for place, (label, changes) in enumerate(_WIRES.items()):
    routes = [
      route for route in _ROUTES if route == 'server' or label not in _NO_SUMS
    ]
    for side, route in enumerate(routes):
      found = run(
        runs / f'what_{route}_{place}',
        '--config=configs/vgg16_bsp.py',
        '--config.epochs=1',
        f'--config.route.name={route}',
        *changes,
      )
      summary = found.summary or {}
      sent_MB = summary['bytes'] / summary['iterations'] / 1e6
      left = place + (side - (len(routes) - 1) / 2) * _WIDTH
      axes.bar(left, sent_MB, _WIDTH, color=_ROUTES[route])
      note = f'{sent_MB:.2f} MB'
      small = {'fontsize': 'x-small', 'ha': 'center', 'va': 'bottom'}
      axes.annotate(note, (left, sent_MB), **small)
  for route, color in _ROUTES.items():
    axes.bar(0, 0, color=color, label=f'route {route}')
  axes.set_xticks(range(len(_WIRES)), list(_WIRES))
  axes.set(ylabel='MB of an iteration')
  axes.margins(y=0.2)
  look.add_legend(figure)
  return figure


def draw_where(runs: pathlib.Path) -> Figure:
  """Returns the loads of unequal links in a run, and trees of its forest.

  Args:
    runs: Folder of runs; `run` makes the one that is missing.
  """
  found = run(
    runs / 'where',
    '--config=configs/vgg16_bsp.py',
    '--config.epochs=0.1',
    '--config.model.name=none',
    '--config.model.none.size_bytes=1_000_000_000',
    '--config.cluster.workers=6',
    '--config.cluster.speed.slowdown=(1.0,)',
    '--config.cluster.links=random_mesh(6, 1, symmetric=True)',
    '--config.route.name=forest',
  )
  return report.draw_forest(traffic.longest_epoch(found), trees=4)


def main(argv: list[str]) -> None:
  """Runs whatever is missing and writes the four pictures beside this file."""
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  runs = pathlib.Path(flags.FLAGS.runs or tempfile.mkdtemp())
  pictures = {
    'when': draw_when,
    'how_much': draw_how_much,
    'what': draw_what,
    'where': draw_where,
  }
  for name, draw in pictures.items():
    path = pathlib.Path(__file__).with_name(f'{name}.png')
    look.save(draw(runs), path)
    print(f'Picture: {path}')


if __name__ == '__main__':
  flags.DEFINE_string('runs', None, 'Folder of the runs; a new one without.')
  app.run(main)
