"""Measures steps of real models by route, and the overlap of communication.

  python -m bench.steps [--parts=steps,hidden] [--cases=equal2,equal4,slow4,
    groups4] [--models=vgg8,vgg4,mlp] [--routes=forest,ring,native,server]
    [--seconds=6] [--out=DIR] [--peers=PYTHON]

Needs root, for network namespaces (tools.lab).  Each run is a real one of
tools.launch; all its processes share this machine's processors, so computation
slows down with their number.  Seconds of a step are medians without the first
two.  The route `forest` reads the links from a file, with the rates that frames
and their headers leave of nominal ones; `server` has a server in each worker.

steps: seconds of a step by model and route, and their ratio to the fastest
route.  vgg8, vgg4: VGG16 of 1/8 and 1/4 of the width; mlp: 25 MB in dense
layers; all on images of CIFAR's size, 16 examples per worker.  ddp: the same
models and batch in torch with DDP over gloo, if --peers names an interpreter
that has it (bench.peers), on images in memory; its computation is measured
without DDP.

hidden: the same step with and without overlap, where communication takes about
as long as the backward pass.  `ideal` is the time with an executor without
costs: buckets travel one after the other, each when it is ready by the profile
of layers, at the rate that is measured without overlap.  `hidden` is the saved
time over the time that the ideal saves.  vgg2: VGG16 of half the width on two
hosts, whose executors compete with computation for processors; sleep: four
hosts on which a sleep of the same length and profile stands for computation, so
that links are the limit.
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

from bench import clusters, hosts
from bench.hosts import Case
from bench.peers import running as peers
from bench.routes import write_links
from cluster.speed import layers
from configs import default
from models import sizes

_ROUTES = ('forest', 'ring', 'native', 'server')
_WITH_LINKS = ('forest',)  # Routes that read a file of links.
_SKIPPED = 2  # First steps, which are not measured.
BATCH = 16
MODELS: dict[str, dict[str, Any]] = {
  'vgg8': {'model.name': 'vgg', 'model.vgg.width': 0.125},
  'vgg4': {'model.name': 'vgg', 'model.vgg.width': 0.25},
  'vgg2': {'model.name': 'vgg', 'model.vgg.width': 0.5},
  'mlp': {'model.name': 'mlp', 'model.mlp.hidden': (1024, 2048, 500)},
}
_CHANNELS = (
  64,
  128,
  256,
  512,
  512,
)  # Channels of VGG16's blocks, and their convolutions.
_CONVS = (2, 2, 3, 3, 3)


class Steps(NamedTuple):
  """Median times of a run.

  Attributes:
    step_s: Seconds from one update to the next.
    compute_s: Seconds of computation of the slowest worker.
    late_compilations: Number of compilations after the start.
  """

  step_s: float
  compute_s: float
  late_compilations: int


def main(argv: list[str] | None = None) -> None:
  """Prints the tables of the chosen parts."""
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
  flags = parser.parse_args(argv)
  parts, cases, models, routes = (
    each.split(',')
    for each in (flags.parts, flags.cases, flags.models, flags.routes)
  )
  allowed = {'steps', 'hidden'}, {*_cases()}, {*MODELS}, {*_ROUTES}
  chosen = parts, cases, models, routes
  for names, all_names in zip(chosen, allowed, strict=True):
    if {*names} - all_names:
      parser.error(f'expected some of {sorted(all_names)}, got {names}')
  out = pathlib.Path(flags.out or tempfile.mkdtemp())
  peers.require_torch(parser, flags.peers)
  print(f'runs are in {out}', flush=True)
  if 'steps' in parts:
    for case, model in itertools.product(cases, models):
      print_steps(out, case, model, routes, flags.seconds, flags.peers)
  if 'hidden' in parts:
    print_hidden(out, flags.seconds)


def print_steps(
  out: pathlib.Path,
  case: str,
  model: str,
  routes: Sequence[str],
  seconds: float,
  python: str | None,
) -> None:
  """Prints the seconds of a step by route.

  Args:
    out: Folder of all runs.
    case: Name of the hosts.
    model: Name of the model.
    routes: Names of the routes.
    seconds: Approximate seconds of a run.
    python: Path of an interpreter that has torch, for a row of its DDP; None
      to omit the row.
  """
  took = {
    route: measure(
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
    job = peers.step_job(torch_model(model), steps=steps, batch=BATCH)
    (step,) = peers.run(python, _cases()[case], [job])
    took['ddp'] = Steps(step.step_s, step.compute_s, 0)
  rows = [('route', 'step s', 'over best', 'compute s', 'late compilations')]
  rows += [
    (
      route,
      f'{each.step_s:.3f}',
      f'{each.step_s / best:.2f}',
      f'{each.compute_s:.3f}',
      str(each.late_compilations),
    )
    for route, each in took.items()
  ]
  load = os.getloadavg()[0]
  print(f'\n{case}, {model}, load {load:.1f}\n', flush=True)
  print(clusters.table(*rows), flush=True)


def torch_model(model: str) -> dict[str, Any]:
  """Returns one of `MODELS` for `peers.step_job`."""
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
  """Prints the share of communication that overlap hides.

  Args:
    out: Folder of all runs.
    seconds: Approximate seconds of half a run.
  """
  path = out / 'layers.json'
  out.mkdir(parents=True, exist_ok=True)
  words = [
    sys.executable,
    '-m',
    'tools.profile',
    '--of=layers',
    f'--batch={BATCH}',
  ]
  words += ['--config=configs/default.py', f'--out={path}']
  words += _config_flags({**MODELS['vgg2'], **_DATA})
  subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
  profile = json.loads(path.read_text())
  ready_layers = layers.read('layers', str(path))
  size_bytes = sum(each.bytes for each in ready_layers)
  backward_s = profile['seconds'] * (1 - ready_layers[0].ready)
  # In a ring of two hosts, each sends the gradient once; of four, 1.5 times.
  two, four = (
    round(times * size_bytes * 8e-6 / backward_s) for times in (1.0, 1.5)
  )
  sleep = {
    'model.name': 'none',
    'model.none.size_bytes': size_bytes,
    'cluster.speed.layers': str(path),
    'cluster.speed.injected': True,
    'cluster.speed.fixed_s': 4 * profile['seconds'],
  }
  rows = [
    (
      '',
      'Mbit/s',
      'compute s',
      'no overlap s',
      'overlap s',
      'ideal s',
      'hidden',
    )
  ]
  for name, count, mbit, fields in (
    # Each of two processes has one processor; the profiled process had both.
    ('vgg2', 2, max(two // 2, 1), MODELS['vgg2']),
    ('sleep', 4, max(four // 4, 1), sleep),
  ):
    lab_hosts = Case([mbit] * count, [mbit] * count, {})
    took = {}
    for overlap in (False, True):
      took[overlap] = measure(
        out / f'{name}_{overlap}',
        lab_hosts,
        {**fields, 'route.name': 'ring', 'route.overlap': overlap},
        about_s=2 * profile['seconds'],
        seconds=2 * seconds,
      )
    without, with_overlap = took[False], took[True]
    bucket_bytes = default.get_config().route.bucket_bytes
    ideal_s = ideal_step_s(ready_layers, without, bucket_bytes)
    saved_s = without.step_s - with_overlap.step_s
    hidden = saved_s / (without.step_s - ideal_s)
    rows.append(
      (
        name,
        str(mbit),
        f'{without.compute_s:.3f}',
        f'{without.step_s:.3f}',
        f'{with_overlap.step_s:.3f}',
        f'{ideal_s:.3f}',
        f'{hidden:.2f}',
      )
    )
  print(
    f'\nhidden, {size_bytes / 1e6:.1f} MB, one process takes '
    f'{profile["seconds"]:.3f} s, load {os.getloadavg()[0]:.1f}\n\n'
    f'{clusters.table(*rows)}',
    flush=True,
  )


def ideal_step_s(
  ready_layers: Sequence[layers.Layer], without: Steps, bucket_bytes: float
) -> float:
  """Returns the seconds of a step whose buckets travel once they are ready.

  Args:
    ready_layers: Layers in the order of the backward pass.
    without: Step without overlap.
    bucket_bytes: Least bytes of a bucket.
  """
  parts = layers.buckets(ready_layers, bucket_bytes, 0)
  total = sum(each.bytes for each in parts)
  communication_s = without.step_s - without.compute_s
  remaining = itertools.accumulate(each.bytes for each in parts[::-1])
  pairs = zip(parts, [*remaining][::-1], strict=True)
  return max(
    part.ready * without.compute_s + communication_s * rest / total
    for part, rest in pairs
  )


_DATA = {
  'data.name': 'synthetic',
  'data.synthetic.num_test': 64,
  'batching.worker_batch': BATCH,
}


def measure(
  path: pathlib.Path,
  lab_hosts: Case,
  fields: Mapping[str, Any],
  *,
  about_s: float,
  seconds: float,
) -> Steps:
  """Returns the times of a step of a real run in a lab.

  Args:
    path: New folder of the run.
    lab_hosts: Hosts of the lab and their links.
    fields: Fields that differ from the default config.
    about_s: Approximate seconds of a step.
    seconds: Approximate seconds of the run after its start.

  Raises:
    RuntimeError: If the run fails.
  """
  count = len(lab_hosts.up)
  steps = max(math.ceil(seconds / about_s), 6) + _SKIPPED
  examples = steps * count * BATCH
  has_model = fields['model.name'] != 'none'
  data = {'model.none.num_train': examples}
  if has_model:
    data = {
      **_DATA,
      'data.synthetic.num_train': examples,
      'optimizer.learning_rate': 1e-4,
    }
  path.parent.mkdir(parents=True, exist_ok=True)
  lab = path.with_name(f'{path.name}_lab.json')
  lab.write_text(json.dumps(lab_hosts.links))
  config = {
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
  if config.get('route.name', 'server') == 'server':
    config['route.server.mirror_s'] = 0.0
  clusters.run(
    path,
    'configs/default.py',
    config,
    workers=count,
    servers=0,
    dedicated=False,
    link=f'{max(lab_hosts.up)}mbit',
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
    max(compute_s for _, compute_s in superstep)
    for _, superstep in itertools.groupby(pushes, key=lambda push: push[0])
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
  """Returns the fields of a route, with its file of links."""
  fields: dict[str, Any] = {'route.name': route}
  if route in _WITH_LINKS:
    out.mkdir(parents=True, exist_ok=True)
    links = out / f'{case}.json'
    write_links(links, _cases()[case].cluster)
    fields[f'route.{route}.cluster'] = str(links)
  return fields


def _config_flags(fields: Mapping[str, Any]) -> list[str]:
  return [f'--config.{name}={value}' for name, value in fields.items()]


def _cases() -> dict[str, Case]:
  """Returns two cases of equal hosts and two of unequal ones, by name."""
  cross = {(a, b): 20 for a in range(4) for b in range(4) if (a < 2) != (b < 2)}
  base_cases, base = hosts.cases(), [hosts.BASE_MBIT]
  return {
    'equal2': Case(base * 2, base * 2, {}),
    'equal4': base_cases['equal4'],
    'slow4': base_cases['slow4'],
    'groups4': base_cases['equal4']._replace(pairs=cross),
  }


if __name__ == '__main__':
  main()
