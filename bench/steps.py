"""Steps of real models by route in a lab, and how much communication is hidden.

  python -m bench.steps [--parts=steps,hidden] [--cases=equal2,equal4,slow4,
    groups4] [--models=vgg8,vgg4,mlp] [--routes=forest,ring,native,server]
    [--seconds=6] [--out=DIR] [--peers=PYTHON]

Needs root, for network namespaces (tools.lab).  Each run is a real one of
tools.launch; all its processes share this machine's processors, so that
computing is as slow as there are many.  Seconds of a step are medians, but for
the first two.  Routes are told the links, of what frames and their headers
leave of nominal rates; `server` has a server in each worker.

steps: seconds of a step by model and route, and those of the route over the
best.  vgg8, vgg4: VGG16 of 1/8 and 1/4 of the width; mlp: 25 MB in dense
layers; all of CIFAR's size, 16 examples for each worker.  ddp: the same nets
and batch in torch with DDP over gloo, if --peers names an interpreter that has
it (bench.peers), of images in memory; its computing is measured without DDP.

hidden: the same step with and without overlap, where communication takes about
as long as the backward pass.  `allowed` is what an executor that costs nothing
would reach: each range travels when it is ready, by the profile of layers, one
after the other, at the rate that is seen without overlap.  `hidden` is the
share of what could be hidden by that.  vgg2: VGG16 of half the width on two
hosts, whose executors take processors away from computing; slept: four hosts
whose computing is a sleep as long, with the same profile, so that links are
the limit.
"""

import argparse
import itertools
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bench import clusters, shaped
from bench.peers import running as peers
from bench.routes import write_links
from bench.shaped import Case
from cluster.speed import layers
from configs import default
from models import sizes

_ROUTES = ('forest', 'ring', 'native', 'server')
_TOLD = ('forest',)  # Of the links.
_SKIPPED = 2  # Steps.
BATCH = 16
MODELS: dict[str, dict[str, Any]] = {
  'vgg8': {'model.name': 'vgg', 'model.vgg.width': 0.125},
  'vgg4': {'model.name': 'vgg', 'model.vgg.width': 0.25},
  'vgg2': {'model.name': 'vgg', 'model.vgg.width': 0.5},
  'mlp': {'model.name': 'mlp', 'model.mlp.hidden': (1024, 2048, 500)},
}
_CHANNELS = (64, 128, 256, 512, 512)  # Of VGG16's blocks.
_CONVS = (2, 2, 3, 3, 3)


class Steps(NamedTuple):
  """Median times of a run.

  Attributes:
    step_s: Seconds from one update to the next.
    compute_s: Seconds of computing of the slowest worker.
    late: Compilations after the start.
  """

  step_s: float
  compute_s: float
  late: int


def main(argv: list[str] | None = None) -> None:
  """Prints the tables."""
  parser = argparse.ArgumentParser(
    prog='bench.steps', description=__doc__.splitlines()[0]
  )
  parser.add_argument('--parts', default='steps,hidden')
  parser.add_argument('--cases', default=','.join(_cases()))
  parser.add_argument('--models', default='vgg8,vgg4,mlp')
  parser.add_argument('--routes', default=','.join(_ROUTES))
  parser.add_argument('--seconds', type=float, default=6.0, help='of a run')
  parser.add_argument('--out', help='folder of the runs; a new one by default')
  parser.add_argument('--peers', **peers.FLAG)
  given = parser.parse_args(argv)
  parts, cases, models, routes = (
    each.split(',')
    for each in (given.parts, given.cases, given.models, given.routes)
  )
  known = {'steps', 'hidden'}, {*_cases()}, {*MODELS}, {*_ROUTES}
  for chosen, all_of in zip((parts, cases, models, routes), known, strict=True):
    if {*chosen} - all_of:
      parser.error(f'expected some of {sorted(all_of)}, got {chosen}')
  out = pathlib.Path(given.out or tempfile.mkdtemp())
  peers.require_torch(parser, given.peers)
  print(f'runs are in {out}', flush=True)
  if 'steps' in parts:
    for case, model in itertools.product(cases, models):
      print_steps(out, case, model, routes, given.seconds, given.peers)
  if 'hidden' in parts:
    print_hidden(out, given.seconds)


def print_steps(
  out: pathlib.Path,
  case: str,
  model: str,
  routes: Sequence[str],
  seconds: float,
  python: str | None,
) -> None:
  """Prints seconds of a step by route.

  Args:
    out: Folder of all runs.
    case: Name of the hosts.
    model: Name of the model.
    routes: Names.
    seconds: About how long a run takes.
    python: An interpreter that has torch, for its DDP beside them.
  """
  took = {
    route: real(
      out / f'{case}_{model}_{route}',
      _cases()[case],
      MODELS[model] | _route(out, case, route),
      about_s=0.5,
      seconds=seconds,
    )
    for route in routes
  }
  best = min(each.step_s for each in took.values())
  if python:
    steps = max(math.ceil(seconds / best), 6)
    job = peers.step_of(torch_model(model), steps=steps, batch=BATCH)
    (step,) = peers.run(python, _cases()[case], [job])
    took['ddp'] = Steps(step.step_s, step.compute_s, 0)
  rows = [('route', 'step s', 'over the best', 'computing s', 'late')]
  rows += [
    (
      route,
      f'{each.step_s:.3f}',
      f'{each.step_s / best:.2f}',
      f'{each.compute_s:.3f}',
      str(each.late),
    )
    for route, each in took.items()
  ]
  load = os.getloadavg()[0]
  print(f'\n{case}, {model}, load {load:.1f}\n', flush=True)
  print(clusters.table(*rows), flush=True)


def torch_model(model: str) -> dict[str, Any]:
  """Returns one of `MODELS` for `peers.step_of`."""
  fields = MODELS[model]
  if fields['model.name'] == 'mlp':
    return {'name': 'mlp', 'hidden': fields['model.mlp.hidden']}
  width = fields['model.vgg.width']
  blocks = [
    [sizes.scaled(channels, width)] * convs
    for channels, convs in zip(_CHANNELS, _CONVS, strict=True)
  ]
  hidden = sizes.scaled(_CHANNELS[-1], width)
  return {'name': 'vgg', 'blocks': blocks, 'hidden': hidden}


def print_hidden(out: pathlib.Path, seconds: float) -> None:
  """Prints what overlap hides; arguments are those of `print_steps`."""
  path = out / 'layers.json'
  out.mkdir(parents=True, exist_ok=True)
  words = [sys.executable, '-m', 'tools.profile_layers', f'--batch={BATCH}']
  words += ['--config=configs/default.py', f'--out={path}']
  words += _words({**MODELS['vgg2'], **_DATA})
  subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
  profile = json.loads(path.read_text())
  appear = layers.read('layers', str(path))
  size_bytes = sum(each.bytes for each in appear)
  backward_s = profile['seconds'] * (1 - appear[0].ready)
  # Two hosts send all of it once, four one and a half times.
  two, four = (
    round(times * size_bytes * 8e-6 / backward_s) for times in (1.0, 1.5)
  )
  slept = {
    'model.name': 'none',
    'model.none.size_bytes': size_bytes,
    'cluster.speed.layers': str(path),
    'cluster.speed.injected': True,
    'cluster.speed.fixed_s': 4 * profile['seconds'],
  }
  rows = [
    ('', 'Mbit/s', 'computing s', 'alone s', 'overlap s', 'allowed s', 'hidden')
  ]
  for name, count, mbit, fields in (
    # Each of two processes has a processor of its own, where one had all.
    ('vgg2', 2, max(two // 2, 1), MODELS['vgg2']),
    ('slept', 4, max(four // 4, 1), slept),
  ):
    hosts = Case([mbit] * count, [mbit] * count, {})
    took = {}
    for overlap in (False, True):
      took[overlap] = real(
        out / f'{name}_{overlap}',
        hosts,
        {**fields, 'route.name': 'ring', 'route.overlap': overlap},
        about_s=2 * profile['seconds'],
        seconds=2 * seconds,
      )
    alone, beside = took[False], took[True]
    allowed_s = allowed(appear, alone, default.get_config().route.bucket_bytes)
    hidden = (alone.step_s - beside.step_s) / (alone.step_s - allowed_s)
    rows.append(
      (
        name,
        str(mbit),
        f'{alone.compute_s:.3f}',
        f'{alone.step_s:.3f}',
        f'{beside.step_s:.3f}',
        f'{allowed_s:.3f}',
        f'{hidden:.2f}',
      )
    )
  print(
    f'\nhidden, {size_bytes / 1e6:.1f} MB, one process takes '
    f'{profile["seconds"]:.3f} s, load {os.getloadavg()[0]:.1f}\n\n'
    f'{clusters.table(*rows)}',
    flush=True,
  )


def allowed(
  appear: Sequence[layers.Layer], alone: Steps, bucket_bytes: float
) -> float:
  """Returns the seconds of a step whose ranges travel once they are ready.

  Args:
    appear: The layers, in their order.
    alone: Step without overlap.
    bucket_bytes: Least bytes of a range.
  """
  parts = layers.buckets(appear, bucket_bytes, 0)
  total = sum(each.bytes for each in parts)
  travel_s = alone.step_s - alone.compute_s
  left = itertools.accumulate(each.bytes for each in parts[::-1])
  pairs = zip(parts, [*left][::-1], strict=True)
  return max(
    part.ready * alone.compute_s + travel_s * rest / total
    for part, rest in pairs
  )


_DATA = {
  'data.name': 'synthetic',
  'data.synthetic.num_test': 64,
  'batching.worker_batch': BATCH,
}


def real(
  path: pathlib.Path,
  hosts: Case,
  fields: Mapping[str, Any],
  *,
  about_s: float,
  seconds: float,
) -> Steps:
  """Returns what a run takes on hosts of a lab.

  Args:
    path: Folder of the run, a new one.
    hosts: Their links.
    fields: Fields that differ from the default config.
    about_s: Approximate seconds of a step.
    seconds: About how long the run takes, after its start.

  Raises:
    RuntimeError: If the run fails.
  """
  count = len(hosts.up)
  steps = max(math.ceil(seconds / about_s), 6) + _SKIPPED
  examples = steps * count * BATCH
  none = fields['model.name'] == 'none'
  data = {'model.none.num_train': examples}
  if not none:
    data = {
      **_DATA,
      'data.synthetic.num_train': examples,
      'optimizer.learning_rate': 1e-4,
    }
  path.parent.mkdir(parents=True, exist_ok=True)
  lab = path.with_name(f'{path.name}_lab.json')
  lab.write_text(json.dumps(hosts.links))
  given = {
    'sync.name': 'bsp',
    'epochs': 1.0,
    'eval_every': 1,
    'log_every': 1000,
    'batching.worker_batch': BATCH,
    'cluster.speed.name': 'constant',
    'cluster.speed.fixed_s': 0.0,
    'cluster.speed.per_example_s': 0.0,
    'cluster.speed.slowdown': (1.0,),
    'cluster.timeout_s': 60.0,
    'checkpoint.every_s': math.inf,
    **data,
    **fields,
  }
  clusters.run(
    path,
    'configs/default.py',
    given,
    workers=count,
    servers=0,
    dedicated=False,
    link=f'{max(hosts.up)}mbit',
    options=[f'--links={lab}'],
  )
  return _steps(path)


def _steps(path: pathlib.Path) -> Steps:
  rows = _rows(path / 'metrics.jsonl')
  times = [row['time'] for row in rows if row['kind'] == 'barrier']
  steps = [b - a for a, b in itertools.pairwise(times)]
  pushes = [
    (event['time'], event['compute_s'])
    for event in _rows(path / 'events.jsonl')
    if event.get('event') == 'push'
  ]
  slowest = [
    max(each for _, each in some)
    for _, some in itertools.groupby(pushes, key=lambda push: push[0])
  ]
  summary = json.loads((path / 'summary.json').read_text())
  return Steps(
    statistics.median(steps[_SKIPPED - 1 :]),
    statistics.median(slowest[_SKIPPED:]),
    summary.get('late_compilations', 0),
  )


def _rows(path: pathlib.Path) -> list[dict[str, Any]]:
  return [*map(json.loads, path.read_text().splitlines())]


def _route(out: pathlib.Path, case: str, route: str) -> dict[str, Any]:
  """Returns the fields of a route, which is told the links."""
  fields: dict[str, Any] = {'route.name': route}
  if route in _TOLD:
    out.mkdir(parents=True, exist_ok=True)
    links = out / f'{case}.json'
    write_links(links, _cases()[case].cluster)
    fields[f'route.{route}.cluster'] = str(links)
  return fields


def _words(fields: Mapping[str, Any]) -> list[str]:
  return [f'--config.{name}={value}' for name, value in fields.items()]


def _cases() -> dict[str, Case]:
  """Returns hosts: two kinds that are alike, and two that are not."""
  cross = {(a, b): 20 for a in range(4) for b in range(4) if (a < 2) != (b < 2)}
  known, base = shaped.cases(), [shaped.BASE_MBIT]
  return {
    'equal2': Case(base * 2, base * 2, {}),
    'equal4': known['equal4'],
    'slow4': known['slow4'],
    'groups4': known['equal4']._replace(pairs=cross),
  }


if __name__ == '__main__':
  main()
