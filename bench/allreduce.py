"""Allreduces between hosts of a lab, beside the fluid optimum.

  python -m bench.allreduce [--cases=equal4,slow4,...] [--sizes=5,25]
    [--rounds=5] [--schemes=forest,ring,...] [--dtype=float32]
    [--mbit=200] [--chunk_bytes=N] [--lanes=1] [--delay_ms=0] [--peers=PYTHON]

Needs root, for network namespaces (tools.lab).  Each host is a process with a
host executor.  All hosts sum float32 buffers of whole numbers, and each checks
the result against the expected sum.  The time of a round lasts from the first
start to the last end; the table has the median of --rounds, after one warm-up
round.  The optimum assumes nominal rates, of which frames and their headers
leave 95.6 %; efficiency is the optimum's time over that of a round.  CPU is the
time of all processes per GB that their executors send.

forest: the forest that the route of this name packs for the size.  ring: a ring
through the hosts in their order; best_ring: in the fastest order; sharded: each
host is the root of an equal shard.  psum: XLA's gloo ring over jax.distributed
in the same lab.  gloo: torch's all_reduce of the same bytes; ddp: a step of its
DDP whose model computes nothing, with layers of 1 MiB; both need an interpreter
that has torch (--peers, bench.peers).

--mbit is the base rate of the cases, Mbit/s: all rates are in proportion to it.
--chunk_bytes fixes the size of chunks, which otherwise follows from rate, size
and forest.  --lanes is the number of lanes.  --delay_ms delays all that
executors send to each other by relays (bench.delayed), which take processor
time themselves; forests are built for this latency.

With --dtype=bfloat16 or float16 all schemes but psum and gloo send messages in
half precision; sizes are those of the float32 buffer.  The table of
bench.packing for this dtype comes first.
"""

import argparse
import json
import os
import pathlib
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from bench import clusters, hosts, packing
from bench.delayed import DelayedRelay
from bench.hosts import Case
from bench.peers import running as peers
from bench.peers import sums
from cluster.allreduce.executor.executor import Executor, Membership
from cluster.allreduce.executor.program import DTYPES
from cluster.network.handshake import Security
from cluster.network.interfaces import interface_address
from cluster.network.port import Port
from launch import lab
from route import forest
from route.route import LATENCY_S
from topology.baselines import schemes
from topology.forests.dealing import CHUNK_BYTES
from topology.forests.trees import Forest
from topology.packing.pack import pack

_USABLE = 0.94  # Share of a nominal rate that is left for payload.
_TIMEOUT_S = 20.0
_PREPARE_S, _PREPARE_S_PER_BYTE = 0.1, 2e-8  # To fill buffers before a round.
_LIMIT_S = 600.0
_SCHEMES = {
  'forest': None,
  'ring': schemes.naive_ring,
  'best_ring': schemes.best_ring,
  'sharded': schemes.sharded_server,
}
_PSUM = 'psum'
_DTYPES = {dtype.name: dtype for dtype in DTYPES}
_ROUNDING = {'float32': 0.0, 'bfloat16': 2.0**-8, 'float16': 2.0**-11}


def main(argv: list[str] | None = None) -> None:
  """Prints a table per case."""
  parser = argparse.ArgumentParser(
    prog='bench.allreduce', description=__doc__.splitlines()[0]
  )
  parser.add_argument('--cases', default=','.join(hosts.cases()))
  parser.add_argument('--schemes', default=','.join([*_SCHEMES, _PSUM]))
  parser.add_argument('--sizes', default='5,25', help='MB')
  parser.add_argument('--rounds', type=int, default=5)
  parser.add_argument('--mbit', type=int, default=hosts.BASE_MBIT)
  parser.add_argument('--delay_ms', type=float, default=0.0, help='one way')
  parser.add_argument('--chunk_bytes', type=int, help='default: by rate')
  parser.add_argument('--lanes', type=int, default=1)
  parser.add_argument('--dtype', default='float32', choices=[*_DTYPES])
  parser.add_argument('--peers', **peers.FLAG)
  parser.add_argument('--worker', help='for itself')
  parser.add_argument('--coordinator', help='for itself')
  flags = parser.parse_args(argv)
  if flags.worker:
    _Worker(json.loads(flags.worker)).run()
    return
  if flags.coordinator:
    _coordinator(pathlib.Path(flags.coordinator))
    return
  chosen = flags.schemes.split(',')
  unknown = set(chosen) - {*_SCHEMES, _PSUM}
  if unknown or set(flags.cases.split(',')) - {*hosts.cases()}:
    parser.error(
      f'expected cases of {[*hosts.cases()]}, schemes of {[*_SCHEMES]}'
    )
  sizes = [round(float(size) * 1e6) for size in flags.sizes.split(',')]
  settings = {
    'chunk_bytes': flags.chunk_bytes,
    'delay_s': flags.delay_ms / 1e3,
    'lanes': flags.lanes,
  }
  cases = hosts.scaled_cases(flags.mbit)
  peers.require_torch(parser, flags.peers)
  packing.print_table(
    flags.dtype, max(sizes), flags.chunk_bytes or CHUNK_BYTES, flags.rounds
  )
  for name in flags.cases.split(','):
    print_case(
      name,
      cases[name],
      chosen,
      sizes,
      flags.rounds,
      settings,
      flags.dtype,
      flags.peers,
    )


def print_case(
  name: str,
  case: Case,
  chosen: Sequence[str],
  sizes: Sequence[int],
  rounds: int,
  settings: dict[str, Any],
  dtype: str,
  python: str | None,
) -> None:
  """Prints the time of a round of every scheme on the hosts of a case.

  Args:
    name: Name of the case.
    case: Links of the case.
    chosen: Names of schemes.
    sizes: Bytes of buffers; only the forest is measured with all of them.
    rounds: Number of measurements, of which the median is taken.
    settings: Settings of the executors, their number of `lanes`, and `delay_s`
      between them.
    dtype: Dtype of messages.
    python: Path of an interpreter that has torch, for the rows of gloo and
      DDP; None to omit them.
  """
  jobs = [
    (f'{each}, {size / 1e6:g} MB' if each == 'forest' else each, size)
    for each in chosen
    for size in (sizes if each == 'forest' else sizes[:1])
  ]
  forests, results = measure_case(case, jobs, rounds, settings, dtype)
  bound_Bps = float(pack(case.cluster).bound_Bps or 1)
  rows = [('', 'MB', 'trees', 'depth', 'optimum s', 'round s', 'efficiency')]
  rows[0] += ('CPU s/GB',)
  for (each, size), result in zip(jobs, results, strict=True):
    shape = ('', '')
    if forest_used := forests.get(each):
      deepest = max(tree.depth for tree in forest_used.trees)
      shape = (str(len(forest_used.trees)), str(deepest))
    share = 1.0 if each == _PSUM else _DTYPES[dtype].itemsize / 4
    optimum_s = share * size / bound_Bps
    cells = ('failed', '', '')
    if result:
      took_s = statistics.median(result['took_s'])
      cells = (f'{took_s:.3f}', f'{optimum_s / took_s:.3f}')
      cpu = result.get('cpu_s_per_GB')
      cells += ('' if cpu is None else f'{cpu:.2f}',)
    rows.append(
      (
        each.split(',')[0],
        f'{size / 1e6:g}',
        *shape,
        f'{optimum_s:.3f}',
        *cells,
      )
    )
  if python:
    rows += sums.rows(python, case, sizes[0], rounds, dtype)
  print(f'\n{name}\n\n{clusters.table(*rows)}', flush=True)


def measure_case(
  case: Case,
  jobs: Sequence[tuple[str, int]],
  rounds: int,
  settings: dict[str, Any],
  dtype: str,
) -> tuple[dict[str, Forest], list[Any]]:
  """Returns the forests of jobs, and the times of their rounds in a new lab.

  Args:
    case: Links of the hosts.
    jobs: Scheme, and bytes of its buffer, of each job; the forest's names begin
      with 'forest'.
    rounds: Number of rounds of each job.
    settings: Settings of the executors, their number of `lanes`, and `delay_s`
      between them.
    dtype: Dtype of messages.

  Returns:
    The forests by the names of jobs, and for each job `took_s`, the seconds of
    each round, and `cpu_s_per_GB`, unless it is a psum.

  Raises:
    RuntimeError: If the lab fails.
  """
  cluster = case.cluster
  best = pack(cluster)
  latency_s = settings['delay_s'] or LATENCY_S
  forests = {
    each: with_usable_rate(
      make(cluster, best)
      if (make := _SCHEMES.get(each))
      else forest.build_forest(cluster, round(size / _USABLE), latency_s)
    )
    for each, size in jobs
    if each != _PSUM
  }
  task = {
    'names': {worker: i for i, worker in enumerate(cluster.workers)},
    'forests': forests,
    'jobs': jobs,
    'rounds': rounds,
    'settings': settings,
    'dtype': dtype,
  }
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder)
    (path / 'links.json').write_text(json.dumps(case.links))
    (path / 'task').write_bytes(pickle.dumps(task))
    words = [sys.executable, '-m', 'tools.lab', f'--hosts={len(case.up)}']
    words += [
      f'--link={max(*case.up, *case.down)}mbit',
      f'--links={path}/links.json',
      '--',
    ]
    words += [sys.executable, '-m', 'bench.allreduce', f'--coordinator={path}']
    done = subprocess.run(
      words,
      timeout=_LIMIT_S,
      stdout=sys.stdout,  # Wherever it is redirected.
      stderr=subprocess.PIPE,
      text=True,
    )
    if done.returncode:
      raise RuntimeError(f'The lab failed:\n{done.stderr}')
    results = json.loads((path / 'results').read_text())
  return forests, results


def with_usable_rate(nominal: Forest) -> Forest:
  """Returns a forest with the part of its rate that is left for payload."""
  share = Fraction(str(_USABLE))
  rate = (nominal.rate_Bps or Fraction(0)) * share
  return Forest(
    nominal.collective,
    nominal.trees,
    rate,
    nominal.bound_Bps,
    nominal.certificate,
  )


class _Worker:
  """Host of the lab that executes requests read from standard input."""

  def __init__(self, settings: dict[str, Any]):
    self._index = settings['index']
    self._task = pickle.loads(pathlib.Path(settings['task']).read_bytes())
    self._host = interface_address('eth0')
    settings = dict(self._task['settings'])
    delay_s, self._lanes = settings.pop('delay_s'), settings.pop('lanes')
    # A relay has another address than the one that a token's proof is of.
    token = '' if delay_s else 'of the lab'
    self._executor = Executor(
      self._index,
      port=Port(self._host, 0, Security(token)),
      timeout_s=_TIMEOUT_S,
      **settings,
    )
    self._address = self._executor.address
    if delay_s:
      relay = DelayedRelay(self._host, self._address, delay_s)
      self._address = relay.address
    self._iteration = 0
    # XLA writes to standard output.
    self._answers = os.fdopen(os.dup(sys.stdout.fileno()), 'w')
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

  def run(self) -> None:
    self._answer(self._address)
    for line in sys.stdin:
      request = json.loads(line)
      self._answer(getattr(self, f'_{request.pop("request")}')(**request))
    self._executor.close()

  def _answer(self, answer: Any) -> None:
    print(json.dumps(answer), file=self._answers, flush=True)

  def _form(self, generation: int, scheme: str, addresses: list[str]) -> None:
    forest = self._task['forests'][scheme]
    members = dict(enumerate(addresses))
    names, lanes = self._task['names'], self._lanes
    membership = Membership(generation, members, forest, names, lanes)
    self._executor.form(membership)
    self._members = len(members)

  def _sum(self, size: int, at_s: float) -> dict[str, float]:
    dtype, base = _DTYPES[self._task['dtype']], np.arange(size // 4) % 1000
    buffer = (base + self._index).astype(np.float32)
    self._iteration += 1
    sent = self._sent_bytes()
    time.sleep(max(at_s - time.monotonic(), 0.0))
    cpu_s, start_s = time.process_time(), time.monotonic()
    buckets = [(0, buffer.size)]
    dtypes = [dtype] if dtype.itemsize == 2 else None
    reduction = self._executor.begin(
      self._iteration, buffer, buckets, dtypes=dtypes
    )
    reduction.ready(0)
    reduction.wait(_LIMIT_S)
    end_s = time.monotonic()
    cpu_s = time.process_time() - cpu_s
    n = self._members
    expected = (base * n + n * (n - 1) // 2).astype(np.float32)
    # Half precision rounds each contribution and the sum of each hop.
    if np.any(np.abs(buffer - expected) > n * expected * _ROUNDING[dtype.name]):
      raise RuntimeError('The sum is wrong.')
    sent = self._sent_bytes() - sent
    return {'start': start_s, 'end': end_s, 'cpu': cpu_s, 'sent': sent}

  def _sent_bytes(self) -> int:
    return sum(u.sent_bytes for u in self._executor.traffic().values())

  def _psum(self, size: int, rounds: int, address: str) -> list[list[float]]:
    return _psum(self._index, len(self._task['names']), address, size, rounds)


def _psum(
  index: int, count: int, address: str, size: int, rounds: int
) -> list[list[float]]:
  """Returns start and end of each round of XLA's psum."""
  import jax

  if not jax.distributed.is_initialized():
    jax.config.update('jax_platforms', 'cpu')
    jax.config.update('jax_cpu_collectives_implementation', 'gloo')
    jax.distributed.initialize(
      address, count, index, coordinator_bind_address=address
    )
  mesh = jax.make_mesh((count,), ('w',))
  spec = jax.sharding.PartitionSpec('w')
  total = jax.jit(
    jax.shard_map(
      lambda x: jax.lax.psum(x, 'w'), mesh=mesh, in_specs=spec, out_specs=spec
    )
  )
  local = np.full((1, size // 4), index, np.float32)
  sharding = jax.sharding.NamedSharding(mesh, spec)
  values = jax.make_array_from_process_local_data(sharding, local)
  times = []
  for number in range(rounds + 1):
    start_s = time.monotonic()
    result = jax.block_until_ready(total(values))
    if number:
      times.append([start_s, time.monotonic()])
  got = np.asarray(result.addressable_data(0))
  if not (got == count * (count - 1) / 2).all():
    raise RuntimeError('The sum is wrong.')
  return times


def _coordinator(folder: pathlib.Path) -> None:
  """Starts the hosts of a lab, sends them all jobs and writes the results."""
  task = pickle.loads((folder / 'task').read_bytes())
  workers = []
  for index, host in enumerate(os.environ['SYNCOPATE_HOSTS'].split(',')):
    text = json.dumps({'index': index, 'task': f'{folder}/task'})
    words = [sys.executable, '-m', 'bench.allreduce', f'--worker={text}']
    workers.append(
      subprocess.Popen(
        lab.command(host, words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
      )
    )
  addresses = [json.loads(worker.stdout.readline()) for worker in workers]

  def request(name: str, **kwargs: Any) -> list[Any]:
    for worker in workers:
      worker.stdin.write(json.dumps({'request': name, **kwargs}) + '\n')
      worker.stdin.flush()
    return [json.loads(worker.stdout.readline()) for worker in workers]

  results: list[Any] = []
  for generation, (scheme, size) in enumerate(task['jobs'], start=1):
    if scheme == _PSUM:
      host = addresses[0].rpartition(':')[0]
      rounds = request(
        'psum', size=size, rounds=task['rounds'], address=f'{host}:9999'
      )
      took = [
        max(end for _, end in each) - min(start for start, _ in each)
        for each in zip(*rounds, strict=True)
      ]
      results.append({'took_s': took})
      continue
    request('form', generation=generation, scheme=scheme, addresses=addresses)
    each = []
    for _ in range(1 + task['rounds']):
      # By then all hosts have filled their buffers; they start together.
      at_s = time.monotonic() + _PREPARE_S + size * _PREPARE_S_PER_BYTE
      each.append(request('sum', size=size, at_s=at_s))
    del each[0]
    parts = [part for some in each for part in some]
    results.append(
      {
        'took_s': [
          max(p['end'] for p in some) - min(p['start'] for p in some)
          for some in each
        ],
        'cpu_s_per_GB': 1e9
        * sum(p['cpu'] for p in parts)
        / sum(p['sent'] for p in parts),
      }
    )
  (folder / 'results').write_text(json.dumps(results))
  for worker in workers:
    worker.stdin.close()
  # JAX ends its processes together, so all inputs are closed first.
  for worker in workers:
    worker.wait()


if __name__ == '__main__':
  main()
