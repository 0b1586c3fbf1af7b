"""Diagnoses and tunes unequal clusters in the lab: python -m bench.cookbook.

  python -m bench.cookbook --out=DIR [--clusters=gpus,sites,...] [--run_s=20]
    [--peers=PYTHON] [--picture=FILE]

For each cluster of docs/cookbook.md, in a lab with its links and speeds:

1. tools.tune runs BSP, predicts other configs and runs the best three.
2. tools.diagnose says what is slow in the run of BSP.
3. All configs of a list fixed beforehand run as well.  BSP over parameter
   servers, a ring and a forest, with equal batches and those of LB-BSP, learns
   as the run does.  Five other schemes over servers, and 8 local steps over
   each route, change learning.
4. With --peers, DDP of torch over gloo takes as many steps on the same hosts,
   with sleeps as long as the slowest worker of the run of BSP computes.  It
   takes no part where workers are killed.

Workers train nothing, so that two cores suffice: computing is a sleep, and
gradients are zeros.  The chosen config is compared with the best of those of
the list that learn as it does, and its measured gain over BSP with the
predicted one.  The seconds of the others are multiplied by the examples that
they needed over those of BSP in the ledger's runs.  DIR/NAME has the runs of a
cluster, and DIR/cookbook.json all figures; --picture draws them.  Needs root.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from ml_collections import ConfigDict

from analysis import iterations
from bench.hosts import Case
from bench.peers import running as peers
from bench.run_processes import RunProcesses
from cluster.speed.layers import Layer
from configs import default
from diagnosis.costs import Estimate
from tools import diagnose
from tuning import candidates, measuring, needed, writing
from tuning.calibrating import tables
from tuning.measuring import Launcher, Measurement, RunError
from tuning.needed import BSP

_BYTES = 2_000_000  # Of the parameters.
_BATCH = 16
_FIELDS = {
  'cluster.runtime': 'distributed',
  'cluster.speed.injected': True,
  'cluster.speed.name': 'lognormal',
  'cluster.speed.lognormal.sigma': 0.05,
  'cluster.speed.fixed_s': 0.02,
  'cluster.speed.per_example_s': 0.005,
  'cluster.speed.slowdown': (1.0,),
  'model.name': 'none',
  'model.none.size_bytes': _BYTES,
  'optimizer.sgd.momentum': 0.0,
  'route.server.mirror_s': 0.0,
  'sync.name': 'bsp',
}
_LAYERS = 8  # Of the model of DDP, ready one after the other.
_ATTEMPTS = 3  # For each run of the list.
_LIMIT_S = 1500.0  # Of the runs of one cluster.


class Recipe(NamedTuple):
  """A cluster of the cookbook.

  Attributes:
    title: Its name in tables.
    hosts: Links of its hosts, each with a worker.
    fields: Fields of the config that differ, by dotted name.
    kill_s: Mean seconds from one SIGKILL of a worker to the next; 0 for none.
  """

  title: str
  hosts: Case
  fields: Mapping[str, Any]
  kill_s: float = 0.0


def _equal(count: int, mbit: int) -> list[int]:
  return [mbit] * count


RECIPES = {
  'gpus': Recipe(
    'two GPU generations, the older 2.2 times slower; 1 Gbit/s',
    Case(_equal(4, 1000), _equal(4, 1000), {}),
    {'cluster.speed.slowdown': (1.0, 1.0, 2.2, 2.2)},
  ),
  'sites': Recipe(
    'two sites at 200 Mbit/s, 50 ms there and back',
    Case(_equal(4, 1000), _equal(4, 1000), {}, [((2, 3), 200)], 25.0),
    {'model.none.size_bytes': 2 * _BYTES},
  ),
  'noisy': Recipe(
    'noisy neighbours: each worker is 3 times slower at times; 1 Gbit/s',
    Case(_equal(4, 1000), _equal(4, 1000), {}),
    {
      'cluster.speed.name': 'regime',
      'cluster.speed.regime.sigma': 0.05,
      'cluster.speed.lognormal.sigma': 0.1,  # The default, as it is not used.
    },
  ),
  'nic': Recipe(
    'one bad NIC: 50 Mbit/s of 500',
    Case([500, 50, 500, 500], [500, 50, 500, 500], {}),
    {},
  ),
  'islands': Recipe(
    'three islands of two hosts at 500 Mbit/s, 50 Mbit/s between',
    Case(
      _equal(6, 500),
      _equal(6, 500),
      {},
      [((0, 1), 50), ((2, 3), 50), ((4, 5), 50)],
    ),
    {},
  ),
  'preemptible': Recipe(
    'preemptible nodes: a worker is killed every 10 s; 1 Gbit/s',
    Case(_equal(4, 1000), _equal(4, 1000), {}),
    {'route.server.mirror_s': 1.0, 'cluster.timeout_s': 2.0},
    kill_s=10.0,
  ),
}
_ROUTES = ('server', 'ring', 'forest')
_BATCHINGS = ('fixed', 'lb_bsp')
_STALE = (
  *(BSP._replace(sync=name) for name in ('ssp', 'asp', 'dssp', 'elastic')),
  BSP._replace(sync='elastic', batching='lb_bsp'),
  BSP._replace(sync='r2sp'),
)
_STEPS = 8  # Local steps of the configs that have some.


class ListedConfig(NamedTuple):
  """A config of the list.

  Attributes:
    config: The config.
    changes: Whether its updates are others than those of BSP.
    examples: Measured examples to an accuracy over those of BSP, at least 1.
  """

  config: ConfigDict
  changes: bool = False
  examples: float = 1.0


def main(argv: list[str] | None = None) -> None:
  """Runs the clusters that the flags name, and prints tables."""
  parser = argparse.ArgumentParser(
    prog='bench.cookbook', description=__doc__.splitlines()[0]
  )
  parser.add_argument('--clusters', default=','.join(RECIPES))
  parser.add_argument('--run_s', type=float, default=20.0)
  parser.add_argument('--out', required=True, help='a new folder')
  parser.add_argument('--peers', **peers.FLAG)
  parser.add_argument('--picture', help='file of a picture of all times')
  parser.add_argument('--class_of', choices=RECIPES, help=argparse.SUPPRESS)
  flags = parser.parse_args(argv)
  out = pathlib.Path(flags.out).resolve()
  if flags.class_of:  # In the lab.
    _run_class(RECIPES[flags.class_of], out, flags.run_s)
    return
  names = flags.clusters.split(',')
  if unknown := {*names} - {*RECIPES}:
    parser.error(f'--clusters: expected some of {[*RECIPES]}, got {unknown}')
  if out.exists():
    parser.error(f'--out: expected a folder that does not exist, got {out}')
  peers.require_torch(parser, flags.peers)
  found = {}
  for name in names:
    found[name] = _run(name, out / name, flags.run_s, flags.peers)
    text = json.dumps(found, indent=1, allow_nan=False)
    (out / 'cookbook.json').write_text(text + '\n')
    print(describe(found[name]), flush=True)
  if flags.picture:
    draw(found).savefig(flags.picture)


def draw(found: Mapping[str, Mapping[str, Any]]) -> Figure:
  """Returns a picture of the times of iterations over those of BSP.

  Args:
    found: Figures by cluster, as in cookbook.json.
  """
  figure = Figure((8, 3.6), layout='constrained', dpi=110)
  axes = figure.subplots()
  bars: dict[str, list[float | None]] = {}
  for each in found.values():
    bsp_s = _bsp_s(each)
    best_s = _best_s(each, changes=False)
    times = {
      'DDP of torch': each['ddp_s'],
      'best of the list': best_s,
      'best with other learning': _best_s(each, changes=True),
      'tools.tune, predicted': _chosen_s(each['tuned'], 'predicted_s'),
      'tools.tune, measured': _chosen_s(each['tuned'], 'measured'),
    }
    for name, seconds in times.items():
      share = None if seconds is None else seconds / bsp_s
      bars.setdefault(name, []).append(share)
  width = 0.8 / len(bars)
  for number, (name, shares) in enumerate(bars.items()):
    middle = (len(bars) - 1) / 2
    places = [k + (number - middle) * width for k in range(len(shares))]
    heights = [share or 0.0 for share in shares]
    axes.bar(places, heights, width, label=name)
  axes.axhline(1.0, color='black', linewidth=0.8)
  axes.set(ylabel='time of an iteration over BSP')
  axes.set_xticks(range(len(found)), [*found])
  axes.grid(axis='y', alpha=0.3)
  axes.legend(ncols=3, loc='upper center', bbox_to_anchor=(0.5, 1.22))
  return figure


def _config(recipe: Recipe) -> ConfigDict:
  """Returns the config of BSP on a cluster."""
  config = default.get_config()
  config.batching.worker_batch = _BATCH
  config.update_from_flattened_dict({**_FIELDS, **recipe.fields})
  return config


def list_configs(recipe: Recipe) -> dict[str, ListedConfig]:
  """Returns the list by name, those that keep the learning of BSP first."""
  base, ratios = _config(recipe), needed.read_ratios()
  members = [
    ListedConfig(
      candidates.apply(base, BSP._replace(route=route, batching=batching), 1)
    )
    for route in _ROUTES
    for batching in _BATCHINGS
  ]
  members += [
    ListedConfig(candidates.apply(base, each, 1), True, ratios[each].predicted)
    for each in _STALE
  ]
  examples = needed.read_local_ratio().predicted
  for route in _ROUTES:
    config = candidates.apply(base, BSP._replace(route=route), _STEPS)
    members.append(ListedConfig(config, True, examples))
  return {candidates.name(each.config): each for each in members}


def _run(
  name: str, out: pathlib.Path, run_s: float, python: str | None
) -> dict[str, Any]:
  """Returns the figures of a cluster."""
  recipe = RECIPES[name]
  out.mkdir(parents=True)
  file = out / 'bsp.py'
  writing.write_config(file, _config(recipe), f'BSP on {recipe.title}.')
  words = [f'--config={file}', f'--workers={len(recipe.hosts.up)}']
  words += [f'--run_s={run_s}', f'--out={out}/tuned.py']
  words += [f'--workdir={out}/runs']
  with _preemptions(out, recipe.kill_s):
    tuned_text = _in_lab(recipe, out, 'tools.tune', words)
    words = [f'--class_of={name}', f'--out={out}/class', f'--run_s={run_s}']
    _in_lab(recipe, out, 'bench.cookbook', words)
  tuned = json.loads((out / 'tuned.json').read_text())
  pushes, _ = iterations.read_run(out / 'runs' / 'bsp' / 'run')
  step = None
  if python and not recipe.kill_s:  # DDP does not survive a death.
    layers = [
      Layer(_size(recipe) // _LAYERS, (k + 1) / _LAYERS) for k in range(_LAYERS)
    ]
    seconds = slowest_s(pushes.compute_s, pushes.workers)
    model = peers.sleeping_model(layers, seconds)
    job = peers.step_job(model, steps=30)
    (result,) = peers.run(python, recipe.hosts, [job])
    step = result.step_s
  return {
    'title': recipe.title,
    'diagnosis': [
      each.text for each in diagnose.diagnose_run(out / 'runs' / 'bsp' / 'run')
    ],
    'tuned': tuned,
    'text': tuned_text,
    'class': json.loads((out / 'class' / 'class.json').read_text()),
    'ddp_s': step,
  }


@contextlib.contextmanager
def _preemptions(out: pathlib.Path, mean_s: float) -> Iterator[None]:
  """Kills random workers of the newest run, as a cloud preempts nodes.

  Args:
    out: Folder of the runs.
    mean_s: Mean seconds between kills; 0 for none.
  """
  ended, rng = threading.Event(), random.Random(0)

  def kill() -> None:
    runs: dict[pathlib.Path, RunProcesses] = {}
    while not ended.wait(rng.expovariate(1 / mean_s)):
      files = out.glob('**/run/launch.jsonl')
      newest = max(files, key=lambda file: file.stat().st_mtime, default=None)
      if newest is None:
        continue
      processes = runs.setdefault(newest, RunProcesses(newest.parent))
      processes.update()
      if processes.pushes and (victims := processes.victims('worker')):
        processes.kill(rng.choice(victims))

  thread = threading.Thread(target=kill)
  if mean_s:
    thread.start()
  try:
    yield
  finally:
    ended.set()
    if mean_s:
      thread.join()


def _size(recipe: Recipe) -> int:
  size: int = {**_FIELDS, **recipe.fields}['model.none.size_bytes']
  return size


def slowest_s(compute_s: np.ndarray, workers: np.ndarray) -> float:
  """Returns the mean time of the slowest worker of an iteration, seconds."""
  own = [compute_s[workers == k] for k in np.unique(workers)]
  count = min(map(len, own))
  return float(np.max([each[:count] for each in own], axis=0).mean())


def _in_lab(
  recipe: Recipe, out: pathlib.Path, module: str, words: Sequence[str]
) -> str:
  """Runs a module in a lab of a cluster; returns its output.

  Raises:
    RuntimeError: If it fails; has the end of its output.
  """
  hosts = recipe.hosts
  links = out / 'links.json'
  links.write_text(json.dumps(hosts.links))
  python = [sys.executable, '-m']
  lab = [*python, 'tools.lab', f'--hosts={len(hosts.up)}']
  lab += [f'--link={max(hosts.up)}mbit', f'--links={links}', '--']
  done = subprocess.run(
    [*lab, *python, module, *words],
    env=os.environ | {'JAX_PLATFORMS': 'cpu'},
    capture_output=True,
    text=True,
    timeout=_LIMIT_S,
  )
  if done.returncode:
    raise RuntimeError(f'{module} failed:\n{done.stderr[-2000:]}')
  return done.stdout


def _run_class(recipe: Recipe, out: pathlib.Path, run_s: float) -> None:
  """Runs all configs of the list in this lab; writes class.json."""
  launcher = Launcher(len(recipe.hosts.up))
  found = {}
  for number, (name, each) in enumerate(list_configs(recipe).items()):
    measured = _measure(launcher, each.config, out / f'{number}', run_s)
    more = {'changes': each.changes, 'examples': each.examples}
    found[name] = {**_plain(measured), **more}
  (out / 'class.json').write_text(json.dumps(found, indent=1) + '\n')


def _measure(
  launcher: Launcher, config: ConfigDict, folder: pathlib.Path, run_s: float
) -> Measurement:
  """Measures a config, again if its run fails, as a kill may end it.

  Raises:
    RunError: If it fails each time.
  """
  path = folder
  for attempt in range(1, _ATTEMPTS):
    try:
      return measuring.run(launcher, config, path, run_s)
    except RunError as error:
      print(f'Runs {folder} again: {error}', file=sys.stderr)
      path = folder.with_name(f'{folder.name}-{attempt}')
  return measuring.run(launcher, config, path, run_s)


def _plain(measured: Measurement) -> dict[str, Any]:
  value, low, high = measured.iteration_s
  return {'s': value, 'low': low, 'high': high, 'count': measured.iterations}


def describe(found: Mapping[str, Any]) -> str:
  """Returns the figures of a cluster as text."""
  tuned, members = found['tuned'], found['class']
  rows = [('', 'iteration, s', 'examples over BSP', 'to the loss of BSP, s')]
  rows += [
    (
      name,
      Estimate(each['s'], each['low'], each['high']).text(3),
      f'{each["examples"]:.2f}',
      f'{each["examples"] * each["s"]:.3f}',
    )
    for name, each in members.items()
  ]
  if found['ddp_s'] is not None:
    seconds = f'{found["ddp_s"]:.3f}'
    rows.append(('DDP of torch over gloo', seconds, '1.00', seconds))
  lines = [found['title'], *found['diagnosis'], tables.table(rows)]
  best = _best_s(found, changes=False)
  own = _chosen_s(tuned, 'measured')
  if tuned['winner'] is None:
    lines.append(f'tools.tune keeps BSP: {tuned["reason"]}')
  else:
    gain, predicted = _gains(tuned)
    lines.append(
      f'tools.tune chooses {tuned["winner"]}: {gain:.3f} of the time, '
      f'predicted {predicted:.3f} ({predicted / gain - 1:+.1%})'
    )
  lines.append(f'Over the best of the list that learns alike: {own / best:.3f}')
  other = _best_s(found, changes=True)
  lines.append(f'Over the best with other learning: {own / other:.3f}')
  if found['ddp_s'] is not None:
    lines.append(f'Over DDP: {own / found["ddp_s"]:.3f}')
  return '\n'.join(lines) + '\n'


def _best_s(found: Mapping[str, Any], *, changes: bool) -> float:
  """Returns the least seconds to the loss of BSP, per iteration of BSP.

  Args:
    found: Figures of a cluster.
    changes: Whether to look among configs that change learning.
  """
  return min(
    each['s'] * each['examples']
    for each in found['class'].values()
    if each['changes'] == changes
  )


def _bsp_s(found: Mapping[str, Any]) -> float:
  """Returns the mean seconds of BSP in the runs of tools.tune."""
  rows = found['tuned']['present']['measured']
  return sum(row['iteration_s']['value'] for row in rows) / len(rows)


def _chosen(tuned: Mapping[str, Any]) -> Mapping[str, Any]:
  """Returns the row of the chosen config; that of BSP without a winner."""
  for row in tuned['candidates']:
    if row['name'] == tuned['winner']:
      return dict(row)
  present = tuned['present']
  return {**present, 'measured': present['measured'][0]}


def _chosen_s(tuned: Mapping[str, Any], field: str) -> float:
  """Returns the seconds of the chosen config: 'measured' or 'predicted_s'."""
  value = _chosen(tuned)[field]
  return value if field == 'predicted_s' else value['iteration_s']['value']


def _gains(tuned: Mapping[str, Any]) -> tuple[float, float]:
  """Returns the measured and the predicted time over that of BSP."""
  return tuned['gain']['value'], _chosen(tuned)['predicted_time']['value']


if __name__ == '__main__':
  main()
