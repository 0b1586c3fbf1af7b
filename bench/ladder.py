"""GradientFlow's ladder in a lab: what each technique saves of a step.

  python -m bench.ladder [--routes=ring,native,ddp,factors] [--hosts=4]
    [--mbit=200] [--slowest=200] [--megabytes=25] [--seconds=12] [--out=DIR]
    [--rungs=tensors,fused,...] [--peers=PYTHON]

Needs root, for network namespaces (tools.lab).  Real runs of tools.launch whose
computing is a sleep, so that links are the limit and processors are not: the
gradient of AlexNet's layers, scaled, of which the dense layers come first in
the backward pass and the convolutions take most of its time.

step: seconds from one update to the next, the median but for the first two.
exposed: what of it nobody computes.  bound: what the bytes of a rung take at
the nominal rates of a packed forest, which is 2 (n - 1) / n times each byte
where links are equal, and two messages for each other host.  Rungs add up: one
range for each tensor, ranges of 1 MiB, bfloat16, overlap, and in the place of
bfloat16 a tenth of the chunks, chosen by the norms of before; these in
bfloat16, too.  ahead and float16: overlap in float32 and in float16.
--slowest: rate of the last host's links, of which `forest` is told.

ddp: the same layers and sleep in torch with DDP over gloo (--peers names an
interpreter that has it, see bench.peers), by what its hooks send and the size
of its buckets; all in one bucket leaves nothing to overlap, as fused and half.
factors: `lowrank` and DDP's PowerSGD of the same rank, of the dense layers of
bench.steps, which are computed.

codec: milliseconds that a worker needs beside sending, of random numbers:
packing what travels, and taking in the sum; medians of 20.
"""

import argparse
import itertools
import json
import math
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench import clusters, steps
from bench.peers import running as peers
from bench.routes import write_links
from bench.shaped import Case
from cluster.speed import layers
from learning.layout import Layout
from topology.packing.pack import pack
from wire import sparse
from wire.codec import Workspace
from wire.multi_round import MultiRoundAllreduce

# Thousands of parameters of AlexNet's layers, kernels and biases, in the order
# of the backward pass, and the layer's part of its time (ours: dense layers
# multiply as often as they have parameters, convolutions 55 to 3,025 times).
_ALEXNET = (
  ((1, 4096), 0.02),
  ((4.1, 16777), 0.05),
  ((4.1, 37749), 0.11),
  ((0.26, 442), 0.13),
  ((0.38, 664), 0.19),
  ((0.38, 885), 0.21),
  ((0.26, 307), 0.19),
  ((0.1, 23), 0.10),
)
_FORWARD = 1 / 3
_LATENCY_S = 1e-4  # Of a message in the lab.
_SPARSE = {
  'wire.name': 'sparse',
  'wire.sparse.select_lag': 1,
  'route.overlap': True,
}
_FUSED = {'route.bucket_bytes': 2.0**20, 'route.overlap': False}
_HALF = {**_FUSED, 'wire.dense.dtype': 'bfloat16'}
_RUNGS: dict[str, dict[str, Any]] = {
  'tensors': {'route.bucket_bytes': 0.0, 'route.overlap': False},
  'fused': _FUSED,
  'half': _HALF,
  'overlap': {**_HALF, 'route.overlap': True},
  'ahead': {**_FUSED, 'route.overlap': True},
  'float16': {
    **_FUSED,
    'wire.dense.dtype': 'float16',
    'route.overlap': True,
  },
  'sparse': {**_FUSED, **_SPARSE},
  'both': {**_FUSED, **_SPARSE, 'wire.sparse.dtype': 'bfloat16'},
}
_BESIDE = ('ddp', 'factors')
_ROUTES = ('ring', 'native', *_BESIDE)
_NATIVE = ('tensors', 'fused', 'half')  # XLA begins when all is computed.
_HOOKS = ('none', 'bfloat16', 'float16')
_BUCKETS = (0.0, 2.0**20, 2.0**22, None, math.inf)  # Bytes; None: default.
_RANK = 4
_STEPS = 4  # Of DDP, for each bucket.
_NAMED = {0.0: 'tensors', None: 'default', math.inf: 'one'}


def main(argv: list[str] | None = None) -> None:
  """Prints the tables."""
  parser = argparse.ArgumentParser(
    prog='bench.ladder', description=__doc__.splitlines()[0]
  )
  parser.add_argument('--routes', default=','.join(_ROUTES))
  parser.add_argument('--hosts', type=int, default=4)
  parser.add_argument('--mbit', type=int, default=200)
  parser.add_argument('--slowest', type=int, help='of the last host, Mbit/s')
  parser.add_argument('--megabytes', type=float, default=25.0)
  parser.add_argument('--rungs', default=','.join(_RUNGS))
  parser.add_argument('--seconds', type=float, default=12.0, help='of a run')
  parser.add_argument('--out', help='folder of the runs; a new one by default')
  parser.add_argument('--peers', **peers.FLAG)
  given = parser.parse_args(argv)
  routes = given.routes.split(',')
  if {*routes} - {*_ROUTES, 'forest'}:
    parser.error(f'expected forest or some of {_ROUTES}, got {routes}')
  if {*given.rungs.split(',')} - {*_RUNGS}:
    parser.error(f'expected rungs of {[*_RUNGS]}, got {given.rungs}')
  peers.require_torch(parser, given.peers)
  out = pathlib.Path(given.out or tempfile.mkdtemp())
  print(f'runs are in {out}', flush=True)
  size_bytes = round(given.megabytes * 1e6) // 4 * 4
  if {*routes} - {*_BESIDE}:
    print_codec(size_bytes)
  for route in routes:
    if route == 'factors':
      print_factors(out, given)
    elif route != 'ddp':
      print_ladder(out, route, given, size_bytes)
    elif given.peers:
      print_ddp(given, size_bytes)


def print_ladder(
  out: pathlib.Path, route: str, given: argparse.Namespace, size_bytes: int
) -> None:
  """Prints what a step takes, rung by rung.

  Args:
    out: Folder of all runs.
    route: Route of all rungs.
    given: The flags.
    size_bytes: Bytes of the gradient in float32.
  """
  profile = out / 'layers.json'
  out.mkdir(parents=True, exist_ok=True)
  profile.write_text(json.dumps(_profile(size_bytes)))
  count, bound_s = given.hosts, _bound(given, size_bytes)
  compute_s = _compute_s(given, size_bytes)
  shared = {
    'model.name': 'none',
    'model.none.size_bytes': size_bytes,
    'cluster.speed.layers': str(profile),
    'cluster.speed.injected': True,
    'cluster.speed.fixed_s': compute_s,
    'route.name': route,
  }
  if route == 'native':
    del shared['cluster.speed.layers']
  if route == 'forest':
    links = out / 'links.json'
    write_links(links, _hosts(given).cluster)
    shared['route.forest.cluster'] = str(links)
  chosen = given.rungs.split(',')
  rows = [('rung', 'step s', 'exposed s', 'bound s', 'bound/exposed')]
  for rung, fields in _RUNGS.items():
    if rung not in chosen or (route == 'native' and rung not in _NATIVE):
      continue
    if route == 'native':
      fields = {k: v for k, v in fields.items() if k != 'route.overlap'}
    took = steps.real(
      out / f'{route}_{rung}',
      _hosts(given),
      {**shared, **fields},
      about_s=compute_s + bound_s,
      seconds=given.seconds,
    )
    own_s = _bound(given, travels(rung, size_bytes))
    exposed_s = took.step_s - took.compute_s
    rows.append(
      (
        rung,
        f'{took.step_s:.3f}',
        f'{exposed_s:.3f}',
        f'{own_s:.3f}',
        f'{own_s / exposed_s:.3f}',
      )
    )
  print(
    f'\n{route}, {count} hosts, {_rates(given)} Mbit/s, '
    f'{size_bytes / 1e6:.1f} MB, computing {compute_s:.3f} s, load '
    f'{os.getloadavg()[0]:.1f}\n\n'
    f'{clusters.table(*rows)}',
    flush=True,
  )


def print_ddp(given: argparse.Namespace, size_bytes: int) -> None:
  """Prints what the same step takes torch's DDP; arguments as above."""
  compute_s = _compute_s(given, size_bytes)
  rows = layers.parse(_profile(size_bytes))
  chosen = [*itertools.product(_HOOKS, _BUCKETS)]
  jobs = [
    peers.step_of(
      peers.slept(rows, compute_s), steps=_STEPS, bucket_bytes=size, hook=hook
    )
    for hook, size in chosen
  ]
  took = peers.run(given.peers, _hosts(given), jobs)
  table = [('hook', 'buckets', 'step s', 'exposed s', 'bound/exposed', 'CPU s')]
  for (hook, size), each in zip(chosen, took, strict=True):
    share = 1 if hook == 'none' else 2
    exposed_s = each.step_s - each.compute_s
    bound_s = _bound(given, size_bytes // share)
    table.append(
      (
        hook,
        _NAMED[size] if size in _NAMED else f'{size / 2**20:g} MiB',
        f'{each.step_s:.3f}',
        f'{exposed_s:.3f}',
        f'{bound_s / exposed_s:.3f}',
        f'{each.cpu_s:.2f}',
      )
    )
  print(
    f'\nddp, {given.hosts} hosts, {_rates(given)} Mbit/s, computing '
    f'{compute_s:.3f} s, load {os.getloadavg()[0]:.1f}\n\n'
    f'{clusters.table(*table)}',
    flush=True,
  )


def print_factors(out: pathlib.Path, given: argparse.Namespace) -> None:
  """Prints steps of dense layers whose matrices travel as thin ones."""
  fields = {'wire.name': 'lowrank', 'wire.lowrank.rank': _RANK}
  own = steps.real(
    out / 'factors',
    _hosts(given),
    {**steps.MODELS['mlp'], **fields, 'route.name': 'ring'},
    about_s=0.2,
    seconds=given.seconds,
  )
  took: dict[str, Any] = {'lowrank, ring': own}
  if given.peers:
    # In one bucket: of several, the hook waits in gloo's two threads for what
    # these would have to send.
    job = peers.step_of(
      steps.torch_model('mlp'),
      steps=math.ceil(given.seconds / own.step_s),
      batch=steps.BATCH,
      bucket_bytes=math.inf,
      hook='powersgd',
      rank=_RANK,
    )
    (took['PowerSGD, ddp'],) = peers.run(given.peers, _hosts(given), [job])
  rows = [('factors', 'step s', 'computing s')]
  for name, each in took.items():
    rows.append((name, f'{each.step_s:.3f}', f'{each.compute_s:.3f}'))
  print(
    f'\nrank {_RANK}, {_rates(given)} Mbit/s, load {os.getloadavg()[0]:.1f}\n\n'
    f'{clusters.table(*rows)}',
    flush=True,
  )


def travels(rung: str, size_bytes: int) -> int:
  """Returns the bytes that are summed in a rung, without books."""
  if rung in ('sparse', 'both'):
    dtype = 'bfloat16' if rung == 'both' else 'float32'
    return sum(_multi_round(size_bytes // 4, dtype).size_bytes(-1))
  halves = ('half', 'overlap', 'float16')
  return size_bytes // 2 if rung in halves else size_bytes


def print_codec(size_bytes: int) -> None:
  """Prints the milliseconds that compressing a gradient takes on this host.

  One row each: rounding to bfloat16, back to float32, and both sides of a
  sparse allreduce without sending, in float32 and in bfloat16.  Medians of 20,
  wall time, random numbers.

  Args:
    size_bytes: Bytes of the gradient in float32.
  """
  size = size_bytes // 4
  rng = np.random.default_rng(0)
  gradient = rng.normal(size=_multi_round(size).size).astype(np.float32)

  half = jax.jit(lambda numbers: numbers.astype(jnp.bfloat16))
  whole = jax.jit(lambda numbers: numbers.astype(jnp.float32))
  vector = jnp.asarray(gradient)
  packed = half(vector)
  rows = [('codec', 'ms')]
  for name, function in (
    ('bfloat16, packing', lambda: jax.block_until_ready(half(vector))),
    ('bfloat16, taking in', lambda: jax.block_until_ready(whole(packed))),
    ('sparse, both', _conversing(size, gradient, 'float32')),
    ('and bfloat16', _conversing(size, gradient, 'bfloat16')),
  ):
    rows.append((name, f'{_ms(function):.1f}'))
  print(f'\n{size_bytes / 1e6:.1f} MB\n\n{clusters.table(*rows)}', flush=True)


def _conversing(
  size: int, gradient: np.ndarray, dtype: str
) -> Callable[[], None]:
  """Returns what a worker does in a sum, but for sending."""
  multi_round, workspace = _multi_round(size, dtype), Workspace()
  state = multi_round.init(0)
  # The residual lies in one of them.
  vectors = [gradient.copy() for _ in range(2)]

  def converse() -> None:
    nonlocal state
    vectors.reverse()
    rounds = multi_round.start(
      state, vectors[0], stage=0, scale=1.0, workspace=workspace
    )
    contribution = next(rounds)
    try:
      while True:
        contribution = rounds.send(contribution)
    except StopIteration as end:
      _, state = end.value

  return converse


def _ms(function: Callable[[], object]) -> float:
  took = []
  function()
  for _ in range(20):
    start = time.perf_counter()
    function()
    took.append(time.perf_counter() - start)
  return 1e3 * statistics.median(took)


def _multi_round(size: int, dtype: str = 'float32') -> MultiRoundAllreduce:
  wire = sparse.make(
    dtype=dtype,
    sparsity=0.9,
    chunk=32768,
    correction='masked',
    momentum=0.0,
    select_lag=1,
    warmup=(),
    warmup_epochs=1.0,
  )
  of_pool = {'bucket_bytes': math.inf, 'step_statistics': 0}
  multiple = wire.push.padding
  blank = Layout((), blank=size, multiple=multiple, **of_pool)
  return MultiRoundAllreduce(wire, blank.gradient_size, (), uses_numpy=True)


def _bound(given: argparse.Namespace, size_bytes: int) -> float:
  """Returns what a sum of so many bytes takes at least, seconds."""
  rate_Bps = float(pack(_hosts(given).cluster).rate_Bps or 1)
  return size_bytes / rate_Bps + 2 * (given.hosts - 1) * _LATENCY_S


def _compute_s(given: argparse.Namespace, size_bytes: int) -> float:
  """Returns what a step computes.

  Its backward pass takes as long as communication in half of float32.
  """
  return _bound(given, size_bytes) / 2 / (1 - _FORWARD)


def _hosts(given: argparse.Namespace) -> Case:
  mbit = [given.mbit] * (given.hosts - 1) + [given.slowest or given.mbit]
  return Case(mbit, mbit, {})


def _rates(given: argparse.Namespace) -> str:
  one = f' (one {given.slowest})' if given.slowest else ''
  return f'{given.mbit}{one}'


def _profile(size_bytes: int) -> dict[str, Any]:
  """Returns AlexNet's layers as tools.profile_layers writes them."""
  thousands: Sequence[float] = [n for own, _ in _ALEXNET for n in own]
  sizes = [
    round(size_bytes * n / sum(thousands)) // 4 * 4 for n in thousands[:-1]
  ]
  sizes.append(size_bytes - sum(sizes))
  ready, rows = _FORWARD, []
  for number, (_, part) in enumerate(_ALEXNET):
    ready = min(ready + part * (1 - _FORWARD), 1.0)
    for which, size in enumerate(sizes[2 * number : 2 * number + 2]):
      name = f'{number}/{("bias", "kernel")[which]}'
      rows.append({'name': name, 'bytes': size, 'ready': ready})
  return {'version': layers.VERSION, 'layers': rows}


if __name__ == '__main__':
  main()
