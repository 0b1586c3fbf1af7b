"""Measures the step time of GradientFlow's techniques, one added at a time.

  python -m bench.ladder [--routes=ring,native,ddp,factors] [--hosts=4]
    [--mbit=200] [--slowest=200] [--megabytes=25] [--seconds=12] [--out=DIR]
    [--rungs=tensors,fused,...] [--peers=PYTHON]

Needs root, for network namespaces (tools.lab).  Executes real runs of
tools.launch in which a sleep stands for the computation, so that links and not
processors are the limit.  The gradient has AlexNet's layers, scaled: the dense
layers come first in the backward pass, and the convolutions take most of its
time.

step: median seconds from one update to the next, without the first two steps.
exposed: the part of a step in which no worker computes.  bound: seconds for the
bytes of a rung at the nominal rates of a packed forest (on equal links each
byte travels 2 (n - 1) / n times), plus two messages to every other host.

Rungs add up: tensors (one bucket per tensor), fused (buckets of 1 MiB), half
(bfloat16), overlap.  sparse replaces bfloat16 by a tenth of the chunks, chosen
by the norms of the step before; both adds bfloat16 again.  ahead and float16:
overlap in float32 and in float16.  --slowest: rate of the last host's links,
which the route `forest` receives in its file of links.

ddp: the same layers and sleep in torch with DDP over gloo (--peers names an
interpreter that has it, see bench.peers), by communication hook and size of
buckets; a single bucket leaves nothing to overlap, as in fused and half.
factors: `lowrank` and DDP's PowerSGD of the same rank, on the dense layers of
bench.steps, which are really computed.

codec: milliseconds that a worker needs to encode and decode a gradient of
random numbers, without sending; medians of 20.
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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bench import clusters, steps
from bench.hosts import Case
from bench.peers import running as peers
from bench.routes import write_links
from cluster.speed import layers
from learning.layout import Layout
from topology.packing.pack import pack
from wire import sparse
from wire.codec import Workspace
from wire.multi_round import MultiRoundAllreduce

# Thousands of parameters of AlexNet's layers, kernels and biases, in the order
# of the backward pass, and the layer's part of its time (our estimate: dense
# layers use each parameter once per example, convolutions 55 to 3,025 times).
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
_LATENCY_S = 1e-4  # Delay of a message in the lab.
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
_OTHER_TABLES = ('ddp', 'factors')
_ROUTES = ('ring', 'native', *_OTHER_TABLES)
# Rungs without overlap: XLA begins when the whole gradient is computed.
_NATIVE = ('tensors', 'fused', 'half')
_HOOKS = ('none', 'bfloat16', 'float16')
_BUCKETS = (0.0, 2.0**20, 2.0**22, None, math.inf)  # Bytes; None: default.
_RANK = 4
_STEPS = 4  # Steps of DDP for each size of buckets.
_BUCKET_NAMES = {0.0: 'tensors', None: 'default', math.inf: 'one'}


class Setup(NamedTuple):
  """Hosts and gradient of a ladder.

  Attributes:
    hosts: Hosts and their links.
    size_bytes: Bytes of the gradient in float32.
    seconds: Approximate seconds of a run.
  """

  hosts: Case
  size_bytes: int
  seconds: float


def main(argv: list[str] | None = None) -> None:
  """Prints the tables of the chosen routes."""
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
  flags = parser.parse_args(argv)
  routes = flags.routes.split(',')
  if {*routes} - {*_ROUTES, 'forest'}:
    parser.error(f'expected forest or some of {_ROUTES}, got {routes}')
  if {*flags.rungs.split(',')} - {*_RUNGS}:
    parser.error(f'expected rungs of {[*_RUNGS]}, got {flags.rungs}')
  peers.require_torch(parser, flags.peers)
  out = pathlib.Path(flags.out or tempfile.mkdtemp())
  print(f'runs are in {out}', flush=True)
  size_bytes = round(flags.megabytes * 1e6) // 4 * 4
  mbit = [flags.mbit] * (flags.hosts - 1) + [flags.slowest or flags.mbit]
  setup = Setup(Case(mbit, mbit, {}), size_bytes, flags.seconds)
  if {*routes} - {*_OTHER_TABLES}:
    print_codec(size_bytes)
  for route in routes:
    if route == 'factors':
      print_factors(out, setup, flags.peers)
    elif route != 'ddp':
      print_ladder(out, route, setup, flags.rungs.split(','))
    elif flags.peers:
      print_ddp(flags.peers, setup)


def print_ladder(
  out: pathlib.Path, route: str, setup: Setup, rungs: Sequence[str]
) -> None:
  """Prints the times of a step on a route, by rung.

  Args:
    out: Folder of all runs.
    route: Route of all rungs.
    setup: Hosts and gradient.
    rungs: Names of rungs; the route `native` has some of them.
  """
  rows = [('rung', 'step s', 'exposed s', 'bound s', 'bound/exposed')]
  for rung in rungs:
    if route == 'native' and rung not in _NATIVE:
      continue
    took = measure_rung(out, route, rung, setup)
    rung_bound_s = bound_s(setup, message_bytes(rung, setup.size_bytes))
    exposed_s = took.step_s - took.compute_s
    rows.append(
      (
        rung,
        f'{took.step_s:.3f}',
        f'{exposed_s:.3f}',
        f'{rung_bound_s:.3f}',
        f'{rung_bound_s / exposed_s:.3f}',
      )
    )
  print(
    f'\n{route}, {len(setup.hosts.up)} hosts, {_rates(setup)} Mbit/s, '
    f'{setup.size_bytes / 1e6:.1f} MB, computing {_compute_s(setup):.3f} s, '
    f'load {os.getloadavg()[0]:.1f}\n\n'
    f'{clusters.table(*rows)}',
    flush=True,
  )


def measure_rung(
  out: pathlib.Path, route: str, rung: str, setup: Setup
) -> steps.Steps:
  """Returns the times of a step of a real run in a new lab.

  Args:
    out: Folder of all runs.
    route: Route of the rung.
    rung: Name of the rung.
    setup: Hosts and gradient.

  Raises:
    RuntimeError: If the run fails.
  """
  out.mkdir(parents=True, exist_ok=True)
  compute_s = _compute_s(setup)
  fields = {
    'model.name': 'none',
    'model.none.size_bytes': setup.size_bytes,
    'cluster.speed.injected': True,
    'cluster.speed.fixed_s': compute_s,
    'route.name': route,
    **_RUNGS[rung],
  }
  if route == 'native':
    fields.pop('route.overlap', None)
  else:
    profile = out / 'layers.json'
    profile.write_text(json.dumps(_profile(setup.size_bytes)))
    fields['cluster.speed.layers'] = str(profile)
  if route == 'forest':
    links = out / 'links.json'
    write_links(links, setup.hosts.cluster)
    fields['route.forest.cluster'] = str(links)
  return steps.measure(
    out / f'{route}_{rung}',
    setup.hosts,
    fields,
    about_s=compute_s + bound_s(setup, setup.size_bytes),
    seconds=setup.seconds,
  )


def print_ddp(python: str, setup: Setup) -> None:
  """Prints the times of the same step in torch's DDP.

  Args:
    python: Path of an interpreter that has torch.
    setup: Hosts and gradient.
  """
  chosen = [*itertools.product(_HOOKS, _BUCKETS)]
  jobs = [ddp_job(setup, *each) for each in chosen]
  took = peers.run(python, setup.hosts, jobs)
  table = [('hook', 'buckets', 'step s', 'exposed s', 'bound/exposed', 'CPU s')]
  for (hook, size), each in zip(chosen, took, strict=True):
    share = 1 if hook == 'none' else 2
    exposed_s = each.step_s - each.compute_s
    share_bound_s = bound_s(setup, setup.size_bytes // share)
    table.append(
      (
        hook,
        _BUCKET_NAMES[size]
        if size in _BUCKET_NAMES
        else f'{size / 2**20:g} MiB',
        f'{each.step_s:.3f}',
        f'{exposed_s:.3f}',
        f'{share_bound_s / exposed_s:.3f}',
        f'{each.cpu_s:.2f}',
      )
    )
  print(
    f'\nddp, {len(setup.hosts.up)} hosts, {_rates(setup)} Mbit/s, computing '
    f'{_compute_s(setup):.3f} s, load {os.getloadavg()[0]:.1f}\n\n'
    f'{clusters.table(*table)}',
    flush=True,
  )


def ddp_job(
  setup: Setup, hook: str, bucket_bytes: float | None
) -> dict[str, Any]:
  """Returns a job of the same step in torch's DDP, for `peers.run`.

  Args:
    setup: Hosts and gradient.
    hook: Communication hook.
    bucket_bytes: Bytes of a bucket; 0 for one per tensor, None for DDP's
      default.
  """
  rows = layers.parse(_profile(setup.size_bytes))
  model = peers.sleeping_model(rows, _compute_s(setup))
  return peers.step_job(
    model, steps=_STEPS, bucket_bytes=bucket_bytes, hook=hook
  )


def print_factors(out: pathlib.Path, setup: Setup, python: str | None) -> None:
  """Prints the times of a step with low-rank gradients of dense layers.

  Args:
    out: Folder of all runs.
    setup: Hosts; the model is that of bench.steps.
    python: Path of an interpreter that has torch, or None.
  """
  lowrank = measure_lowrank(out, setup)
  took: dict[str, Any] = {'lowrank, ring': lowrank}
  if python:
    count = math.ceil(setup.seconds / lowrank.step_s)
    (powersgd,) = peers.run(python, setup.hosts, [powersgd_job(count)])
    took['PowerSGD, ddp'] = powersgd
  rows = [('factors', 'step s', 'computing s')]
  for name, each in took.items():
    rows.append((name, f'{each.step_s:.3f}', f'{each.compute_s:.3f}'))
  print(
    f'\nrank {_RANK}, {_rates(setup)} Mbit/s, load {os.getloadavg()[0]:.1f}'
    f'\n\n{clusters.table(*rows)}',
    flush=True,
  )


def measure_lowrank(out: pathlib.Path, setup: Setup) -> steps.Steps:
  """Returns the times of a step of dense layers with low-rank gradients."""
  fields = {'wire.name': 'lowrank', 'wire.lowrank.rank': _RANK}
  return steps.measure(
    out / 'factors',
    setup.hosts,
    {**steps.MODELS['mlp'], **fields, 'route.name': 'ring'},
    about_s=0.2,
    seconds=setup.seconds,
  )


def powersgd_job(count: int) -> dict[str, Any]:
  """Returns a job of the same step in DDP with PowerSGD, for `peers.run`.

  Args:
    count: Number of steps.
  """
  # One bucket: with several, the hook blocks gloo's two threads while it
  # waits for messages that these threads would have to send.
  return peers.step_job(
    steps.torch_model('mlp'),
    steps=count,
    batch=steps.BATCH,
    bucket_bytes=math.inf,
    hook='powersgd',
    rank=_RANK,
  )


def message_bytes(rung: str, size_bytes: int) -> int:
  """Returns the bytes that a rung sums, without step statistics.

  Args:
    rung: Name of the rung.
    size_bytes: Bytes of the gradient in float32.
  """
  if rung in ('sparse', 'both'):
    dtype = 'bfloat16' if rung == 'both' else 'float32'
    return sum(_multi_round(size_bytes // 4, dtype).size_bytes(-1))
  half_precision = ('half', 'overlap', 'float16')
  return size_bytes // 2 if rung in half_precision else size_bytes


def print_codec(size_bytes: int) -> None:
  """Prints the milliseconds to encode and decode a gradient, by codec.

  Args:
    size_bytes: Bytes of the gradient in float32.
  """
  size = size_bytes // 4
  rng = np.random.default_rng(0)
  gradient = rng.normal(size=_multi_round(size).size).astype(np.float32)

  to_half = jax.jit(lambda numbers: numbers.astype(jnp.bfloat16))
  to_float = jax.jit(lambda numbers: numbers.astype(jnp.float32))
  vector = jnp.asarray(gradient)
  encoded = to_half(vector)
  rows = [('codec', 'ms')]
  for name, function in (
    ('bfloat16, encoding', lambda: jax.block_until_ready(to_half(vector))),
    ('bfloat16, decoding', lambda: jax.block_until_ready(to_float(encoded))),
    ('sparse, both', _allreduce(size, gradient, 'float32')),
    ('sparse in bfloat16, both', _allreduce(size, gradient, 'bfloat16')),
  ):
    rows.append((name, f'{_ms(function):.1f}'))
  print(f'\n{size_bytes / 1e6:.1f} MB\n\n{clusters.table(*rows)}', flush=True)


def _allreduce(
  size: int, gradient: np.ndarray, dtype: str
) -> Callable[[], None]:
  """Returns a function that encodes and decodes one sparse allreduce."""
  multi_round, workspace = _multi_round(size, dtype), Workspace()
  state = multi_round.init(0)
  # The codec keeps its residual in one of the two.
  vectors = [gradient.copy() for _ in range(2)]

  def allreduce() -> None:
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

  return allreduce


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
  layout = {'bucket_bytes': math.inf, 'step_statistics': 0}
  multiple = wire.push.padding
  blank = Layout((), blank=size, multiple=multiple, **layout)
  return MultiRoundAllreduce(wire, blank.gradient_size, (), uses_numpy=True)


def bound_s(setup: Setup, size_bytes: int) -> float:
  """Returns a lower bound on the seconds of an allreduce of a size."""
  rate_Bps = float(pack(setup.hosts.cluster).rate_Bps or 1)
  messages = 2 * (len(setup.hosts.up) - 1)
  return size_bytes / rate_Bps + messages * _LATENCY_S


def _compute_s(setup: Setup) -> float:
  """Returns the seconds of computation in a step.

  The backward pass takes as long as communication in half precision.
  """
  return bound_s(setup, setup.size_bytes) / 2 / (1 - _FORWARD)


def _rates(setup: Setup) -> str:
  first, *_, last = setup.hosts.up
  return f'{first} (one {last})' if last != first else f'{first}'


def _profile(size_bytes: int) -> dict[str, Any]:
  """Returns a profile of AlexNet's layers, in the form of tools.profile."""
  thousands: Sequence[float] = [size for layer, _ in _ALEXNET for size in layer]
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
