"""Measures iterations in a lab and predicts them by the virtual clock.

Labs need root.  Conditions are drawn with a fixed seed from the valid ones;
workers sleep for their compute times.  Virtual links have the nominal rates
without the share of frame headers, and to servers the shares and bursts of
plain TCP transfers and the latency of an iteration without bytes (bench.empty);
predictions with servers are means over seeds.
"""

import contextlib
import json
import pathlib
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bench.hosts import Case
from bench.lab import conditions, running
from bench.lab.conditions import Condition, Lab
from outputs import atomic

_SYNCS = ('bsp', 'bsp', 'bsp', 'asp', 'ssp', 'dssp', 'elastic', 'r2sp')
# Numbers of workers and servers, and True for dedicated servers.
_PLACEMENTS = (
  *((2, 1, True), (4, 1, True), (6, 2, True), (8, 2, True)),
  *((3, 2, True), (4, 4, False), (6, 3, False), (8, 2, False)),
)
_ROUTES = ('ring', 'double_tree', 'forest')
_GROUPED = ('ring', 'hierarchical', 'forest', 'double_tree')
_UNEQUAL = (1.0, 1.5, 2.0, 3.0)
# Numbers of conditions of a lab.
_WITH_SERVERS, _WITHOUT_SERVERS, _IN_GROUPS = 16, 8, 8
_QUICK = 24  # Size of the sample of all conditions.
_RUN_S = {'quick': 3.0, 'full': 12.0}  # Approximate length of a run.
LABS = (
  Lab('100 Mbit', Case([100] * 8, [100] * 8, {}), 2, 100),
  Lab('200 Mbit', Case([200] * 8, [200] * 8, {}), 2, 200),
  Lab(
    'unequal links',
    Case(
      [200, 100, 200, 50, 100, 200, 200, 100],
      [200, 200, 100, 50, 100, 200, 100, 200],
      {},
    ),
    2,
    200,
  ),
  Lab('two racks', Case([200] * 6, [200] * 6, {}, [((3, 4, 5), 50)])),
)


def measure(
  *, seed: int, scale: str, folder: pathlib.Path
) -> Sequence[Mapping[str, Any]]:
  """Returns the error of the prediction per condition, and a record of all.

  Args:
    seed: Number of the repetition; real runs differ anyway.
    scale: 'quick' for a sample of the conditions.
    folder: Folder of the measured times of each lab, which are measured once.
  """
  del seed
  with contextlib.redirect_stdout(sys.stderr):  # Progress of the runs.
    records = [
      record
      for lab, of_lab in draw_conditions(scale)
      for record in compare(lab, of_lab, folder, _RUN_S[scale])
    ]
  misses = [each['miss'] for each in records if each['status'] == 'finished']
  return [
    *records,
    {
      'part': 'all',
      'conditions': len(misses),
      'median': float(np.median(misses)),
      'p95': float(np.quantile(misses, 0.95)),
      'worst': float(np.max(misses)),
    },
  ]


def draw_conditions(scale: str) -> list[tuple[Lab, list[Condition]]]:
  """Returns the conditions of each lab, the same at every call.

  Args:
    scale: 'quick' for some of them; 'full' for all.
  """
  rng = random.Random(0)
  pairs: list[tuple[Lab, Condition]] = []
  for lab in LABS:
    count = _WITH_SERVERS if lab.servers else 0
    of_lab = [_draw_parameter_server(rng) for _ in range(count)]
    routes = _ROUTES if lab.servers else _GROUPED
    count = _WITHOUT_SERVERS if lab.servers else _IN_GROUPS
    of_lab += [
      _draw_allreduce(rng, routes[n % len(routes)], len(lab.workers.up))
      for n in range(count)
    ]
    pairs += [
      (lab, each) for each in {each.name: each for each in of_lab}.values()
    ]
  if scale == 'quick':
    pairs = rng.sample(pairs, _QUICK)
  return [(lab, [c for at, c in pairs if at is lab]) for lab in LABS]


def compare(
  lab: Lab, of_lab: Sequence[Condition], folder: pathlib.Path, seconds: float
) -> Iterator[dict[str, Any]]:
  """Yields a record for each condition of a lab.

  Args:
    folder: Folder of the measured times, which are measured once.
    seconds: Approximate length of a run.
  """
  for condition, real_s in _measure(lab, of_lab, folder, seconds):
    record = {
      'lab': lab.name,
      'condition': condition.name,
      'iterations': condition.iterations,
      'status': 'finished',
    }
    if isinstance(real_s, str):
      yield record | {'status': 'failed', 'error': real_s}
      continue
    virtual_s = conditions.predict(lab, condition).mean_s
    miss = abs(virtual_s / real_s - 1)
    times = {'virtual_s': virtual_s, 'real_s': real_s}
    yield record | times | {'miss': miss, 'over_real': virtual_s / real_s}


def _draw_parameter_server(rng: random.Random) -> Condition:
  sync = rng.choice(_SYNCS)
  workers, servers, dedicated = rng.choice(_PLACEMENTS)
  words: list[str] = [sync]
  fields: dict[str, Any] = {'sync.name': sync}
  apart = dedicated or servers < workers
  if sync == 'bsp' and apart and rng.random() < 0.3:
    words.append('pipelined')
    fields['route.server.pipelined'] = True
  where = 'of their own' if dedicated else 'in workers'
  words.append(f'{workers} workers, {servers} servers {where}')
  return _condition(
    rng, words, fields, (workers, servers, dedicated), sync == 'bsp'
  )


def _draw_allreduce(rng: random.Random, route: str, most: int) -> Condition:
  # Two racks need workers in both; the second rack has the last hosts.
  workers = most if most == 6 else rng.choice((2, 4, 6, 8))
  words = [route, f'{workers} workers']
  fields = {'route.name': route, 'sync.name': 'bsp'}
  return _condition(rng, words, fields, (workers, 0, False), True)


def _condition(
  rng: random.Random,
  words: list[str],
  fields: dict[str, Any],
  placement: tuple[int, int, bool],
  has_barriers: bool,
) -> Condition:
  """Returns a condition with random sizes, speeds and batching."""
  size, compute_s = rng.choice((5e5, 1e6)), rng.choice((0.05, 0.15))
  is_unequal, is_half = rng.random() < 0.5, rng.random() < 0.3
  fields |= {
    'model.none.size_bytes': int(size),
    'cluster.speed.fixed_s': compute_s / 2,
    'cluster.speed.per_example_s': compute_s / 32,
    'wire.dense.dtype': 'bfloat16' if is_half else 'float32',
  }
  words += [f'{size / 1e6:g} MB', f'{compute_s:g} s']
  if is_half:
    words.append('bfloat16')
  if is_unequal:
    words.append('unequal')
    slowdown = [_UNEQUAL[n % len(_UNEQUAL)] for n in range(placement[0])]
    fields['cluster.speed.slowdown'] = tuple(slowdown)
    if has_barriers and rng.random() < 0.6:
      words.append('lb_bsp')
      fields['batching.name'] = 'lb_bsp'
      fields['batching.lb_bsp.predictor.name'] = 'ema'
  return Condition(', '.join(words), *placement, fields)


def _measure(
  lab: Lab, of_lab: Sequence[Condition], folder: pathlib.Path, seconds: float
) -> list[tuple[Condition, float | str]]:
  """Returns conditions with iterations, and measured seconds or an error."""
  # Conditions are measured once, and then read from a file of the folder.
  path = folder / f'{lab.name}.json'
  if not path.exists():
    chosen = [
      each._replace(iterations=conditions.choose_iterations(lab, each, seconds))
      for each in of_lab
    ]
    out = pathlib.Path(tempfile.mkdtemp(dir=folder))
    results = running.measure(out, lab, chosen)
    rows = {}
    for each in chosen:
      figures = results[each.name]
      real_s = figures.get('mean_s', figures.get('error'))
      rows[each.name] = (each.iterations, real_s)
    atomic.write(path, json.dumps(rows))
  rows = json.loads(path.read_text())
  found = []
  for each in of_lab:
    count, real_s = rows[each.name]
    found.append((each._replace(iterations=count), real_s))
  return found
