"""Times of iterations in a lab beside those of the virtual clock.  Needs root.

Conditions are drawn by a fixed seed from those that make sense; compute times
are slept.  Nothing is fitted: virtual links have what frames and their headers
leave of nominal rates, and no latency.
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

from bench import conditions
from bench.conditions import Condition, Lab
from bench.shaped import Case
from claims.measures import asked
from outputs import atomic

_SYNCS = ('bsp', 'bsp', 'bsp', 'asp', 'ssp', 'dssp', 'elastic', 'r2sp')
# Workers, servers, and whether these have hosts of their own.
_PLACED = (
  *((2, 1, True), (4, 1, True), (6, 2, True), (8, 2, True)),
  *((3, 2, True), (4, 4, False), (6, 3, False), (8, 2, False)),
)
_ROUTES = ('ring', 'double_tree', 'forest')
_GROUPED = ('ring', 'hierarchical', 'forest', 'double_tree')
_UNEQUAL = (1.0, 1.5, 2.0, 3.0)
_SERVED, _REDUCED, _IN_GROUPS = 16, 8, 8  # Conditions of a lab.
_QUICK = 24  # Of all, by the same seed.
_SECONDS = {'quick': 3.0, 'full': 12.0}  # Of a run, about.
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
  *, seed: int, scale: str, kept: pathlib.Path
) -> Sequence[Mapping[str, Any]]:
  """Returns a record per condition, and one of all: by how much it misses.

  Args:
    seed: Of the repetition; real runs differ anyway.
    scale: 'quick' for a sample of the conditions.
    kept: Folder in which a lab that has been measured is not again.
  """
  del seed
  with contextlib.redirect_stdout(sys.stderr):  # Where runs say how they go.
    found = [
      record
      for lab, own in drawn(scale)
      for record in _compared(lab, own, kept, _SECONDS[scale])
    ]
  misses = [each['miss'] for each in found if each['status'] == 'finished']
  return [
    *found,
    {
      'part': 'all',
      'conditions': len(misses),
      'median': float(np.median(misses)),
      'p95': float(np.quantile(misses, 0.95)),
      'worst': float(np.max(misses)),
    },
  ]


def drawn(scale: str) -> list[tuple[Lab, list[Condition]]]:
  """Returns the conditions of each lab, the same at every call."""
  chance = random.Random(0)
  every: list[tuple[Lab, Condition]] = []
  for lab in LABS:
    count = _SERVED if lab.servers else 0
    own = [_served(chance) for _ in range(count)]
    routes = _ROUTES if lab.servers else _GROUPED
    count = _REDUCED if lab.servers else _IN_GROUPS
    own += [
      _reduced(chance, routes[n % len(routes)], len(lab.workers.up))
      for n in range(count)
    ]
    every += [
      (lab, each) for each in {each.name: each for each in own}.values()
    ]
  if scale == 'quick':
    every = chance.sample(every, _QUICK)
  return [(lab, [c for at, c in every if at is lab]) for lab in LABS]


def _served(chance: random.Random) -> Condition:
  sync = chance.choice(_SYNCS)
  workers, servers, dedicated = chance.choice(_PLACED)
  words: list[str] = [sync]
  fields: dict[str, Any] = {'sync.name': sync}
  apart = dedicated or servers < workers
  if sync == 'bsp' and apart and chance.random() < 0.3:
    words.append('pipelined')
    fields['route.server.pipelined'] = True
  where = 'of their own' if dedicated else 'in workers'
  words.append(f'{workers} workers, {servers} servers {where}')
  return _condition(
    chance, words, fields, (workers, servers, dedicated), sync == 'bsp'
  )


def _reduced(chance: random.Random, route: str, most: int) -> Condition:
  # Racks need members in both, which are the last ones.
  workers = most if most == 6 else chance.choice((2, 4, 6, 8))
  words = [route, f'{workers} workers']
  fields = {'route.name': route, 'sync.name': 'bsp'}
  return _condition(chance, words, fields, (workers, 0, False), True)


def _condition(
  chance: random.Random,
  words: list[str],
  fields: dict[str, Any],
  placed: tuple[int, int, bool],
  barriers: bool,
) -> Condition:
  """Returns a condition; the rest of it is drawn."""
  size, compute_s = chance.choice((5e5, 1e6)), chance.choice((0.05, 0.15))
  unequal, half = chance.random() < 0.5, chance.random() < 0.3
  fields |= {
    'model.none.size_bytes': int(size),
    'cluster.speed.fixed_s': compute_s / 2,
    'cluster.speed.per_example_s': compute_s / 32,
    'wire.dense.dtype': 'bfloat16' if half else 'float32',
  }
  words += [f'{size / 1e6:g} MB', f'{compute_s:g} s']
  if half:
    words.append('bfloat16')
  if unequal:
    words.append('unequal')
    own = [_UNEQUAL[n % len(_UNEQUAL)] for n in range(placed[0])]
    fields['cluster.speed.slowdown'] = tuple(own)
    if barriers and chance.random() < 0.6:
      words.append('lb_bsp')
      fields['batching.name'] = 'lb_bsp'
      fields['batching.lb_bsp.predictor.name'] = 'ema'
  return Condition(', '.join(words), *placed, fields)


def _compared(
  lab: Lab, own: Sequence[Condition], kept: pathlib.Path, seconds: float
) -> Iterator[Mapping[str, Any]]:
  """Yields a record for each condition of a lab."""
  for condition, count, real_s in _real(lab, own, kept, seconds):
    record = {
      'lab': lab.name,
      'condition': condition.name,
      'iterations': count,
      'status': 'finished',
    }
    if isinstance(real_s, str):
      yield record | {'status': 'failed', 'error': real_s}
      continue
    virtual_s = conditions.virtual(lab, condition, count)
    miss = abs(virtual_s / real_s - 1)
    times = {'virtual_s': virtual_s, 'real_s': real_s}
    yield record | times | {'miss': miss, 'over_real': virtual_s / real_s}


def _real(
  lab: Lab, own: Sequence[Condition], kept: pathlib.Path, seconds: float
) -> list[tuple[Condition, int, float | str]]:
  """Returns what conditions are measured to take, once for all."""
  path = kept / f'{lab.name}.json'
  if not path.exists():
    runs = [(each, conditions.iterations(lab, each, seconds)) for each in own]
    took = conditions.real(pathlib.Path(tempfile.mkdtemp(dir=kept)), lab, runs)
    rows = {each.name: (count, took[each.name]) for each, count in runs}
    atomic.write(path, json.dumps(rows))
  found = json.loads(path.read_text())
  return [(each, *found[each.name]) for each in own]


if __name__ == '__main__':
  asked.answer(measure, keeps=True)
