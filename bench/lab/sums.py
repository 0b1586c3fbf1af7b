"""Sums of executors between hosts, without a run: one scheme after the other.

All hosts sum float32 buffers of whole numbers, and each checks the result
against the expected sum.  They meet by files in a folder that all see.
"""

import contextlib
import dataclasses
import json
import pathlib
import time
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from cluster.allreduce.executor.executor import Executor, Membership
from cluster.allreduce.executor.program import DTYPES
from cluster.network.handshake import Security
from cluster.network.interfaces import interface_address
from cluster.network.port import Port
from outputs import atomic
from route import forest, selection
from topology.baselines import schemes
from topology.clusters.cluster import Cluster
from topology.forests import export
from topology.forests.trees import Forest
from topology.packing.pack import pack

PSUM = 'psum'
SCHEMES = {
  'ring': schemes.naive_ring,
  'best_ring': schemes.best_ring,
  'sharded': schemes.sharded_server,
}
FOREST = 'forest'
_TIMEOUT_S = 20.0
_LIMIT_S = 300.0
_POLL_S = 0.01
_PREPARE_S = 0.1  # Until all have seen that all are ready.
_DTYPES = {dtype.name: dtype for dtype in DTYPES}
_ROUNDING = {'float32': 0.0, 'bfloat16': 2.0**-8, 'float16': 2.0**-11}


def build_forest(scheme: str, nominal: Cluster, size_bytes: int) -> Forest:
  """Returns the forest of a scheme.

  Args:
    scheme: FOREST for that of the route of this name, or one of `SCHEMES`: a
      ring through the hosts in their order or in the fastest one, or equal
      shards, each with another host as its root.
    size_bytes: Bytes of the buffer.
  """
  if scheme == FOREST:
    usable_bytes = round(size_bytes / selection.GOODPUT)
    return forest.build_forest(nominal, usable_bytes)
  return SCHEMES[scheme](nominal, pack(nominal))


def with_usable_rate(nominal: Forest) -> Forest:
  """Returns a forest with the part of its rate that is left for payload."""
  rate_Bps = (nominal.rate_Bps or 0) * Fraction(str(selection.GOODPUT))
  return dataclasses.replace(nominal, rate_Bps=rate_Bps)


def with_forest(fields: Mapping[str, Any], nominal: Cluster) -> dict[str, Any]:
  """Returns the arguments of `run`, from those of a condition and its links."""
  content = None
  if fields['scheme'] != PSUM:
    built = build_forest(fields['scheme'], nominal, fields['size_bytes'])
    content = export.to_json(nominal, built)
  return {**fields, 'content': content, 'workers': len(nominal.workers)}


def run(
  folder: pathlib.Path,
  place: int,
  *,
  scheme: str,
  size_bytes: int,
  rounds: int,
  workers: int,
  content: Any,
  dtype: str = 'float32',
) -> None:
  """Sums on this host, and writes start and end of each round and the costs.

  Args:
    folder: Folder of this condition, which all hosts see.
    place: Number of this host.
    scheme: PSUM for XLA's sum; else executors sum over the forest.
    size_bytes: Bytes of the buffer in float32.
    rounds: Number of measured rounds, after one that is not.
    content: Forest of the executors, as `export.to_json` has it.
    dtype: Dtype of the executors' messages.

  Raises:
    RuntimeError: If a sum is wrong.
  """
  if scheme == PSUM:
    times = _psum(place, workers, size_bytes, rounds)
    meet(folder / 'result', place, workers, {'rounds': times})
    return
  cluster, built = export.from_json(content)
  port = Port(interface_address('eth0'), 0, Security('of the lab'))
  executor = Executor(place, port=port, timeout_s=_TIMEOUT_S)
  with contextlib.closing(executor):
    addresses = meet(folder / 'address', place, workers, executor.address)
    names = {worker: i for i, worker in enumerate(cluster.workers)}
    members = dict(enumerate(addresses))
    executor.form(Membership(1, members, with_usable_rate(built), names))
    found = [
      _sum(executor, folder / f'round{n}', place, workers, n, size_bytes, dtype)
      for n in range(rounds + 1)
    ][1:]
    result = {
      'rounds': [(start_s, end_s) for start_s, end_s, *_ in found],
      'cpu_s': sum(cpu_s for _, _, cpu_s, _ in found),
      'sent_bytes': sum(sent_bytes for *_, sent_bytes in found),
      'trees': len(built.trees),
      'depth': max(tree.depth for tree in built.trees),
    }
    # Before that the others may need this executor.
    meet(folder / 'result', place, workers, result)


def read_results(
  folder: pathlib.Path, workers: int
) -> list[dict[str, Any]] | None:
  """Returns what each host has written at its end; None if one has not."""
  return _read_all(folder / 'result', workers)


def meet(
  folder: pathlib.Path, place: int, workers: int, value: Any
) -> list[Any]:
  """Returns the values of all hosts, once each host has given its own.

  Args:
    place: Number of this host.
    value: Plain data.

  Raises:
    TimeoutError: If a host does not come.
  """
  folder.mkdir(parents=True, exist_ok=True)
  atomic.write(folder / f'{place}.json', json.dumps(value))
  deadline = time.monotonic() + _LIMIT_S
  while (values := _read_all(folder, workers)) is None:
    if time.monotonic() > deadline:
      raise TimeoutError(f'{folder}: expected {workers} hosts to meet.')
    time.sleep(_POLL_S)
  return values


def _read_all(folder: pathlib.Path, workers: int) -> list[Any] | None:
  paths = [folder / f'{place}.json' for place in range(workers)]
  if not all(path.exists() for path in paths):
    return None
  return [json.loads(path.read_text()) for path in paths]


def _sum(
  executor: Executor,
  meeting: pathlib.Path,
  place: int,
  workers: int,
  number: int,
  size_bytes: int,
  dtype: str,
) -> tuple[float, float, float, int]:
  """Returns start and end of a sum, its CPU seconds and its sent bytes."""
  base = np.arange(size_bytes // 4) % 1000
  buffer = (base + place).astype(np.float32)
  is_half = _DTYPES[dtype].itemsize == 2
  sent_bytes = _count_sent_bytes(executor)
  starts = meet(meeting, place, workers, time.monotonic() + _PREPARE_S)
  time.sleep(max(max(starts) - time.monotonic(), 0.0))
  cpu_s, start_s = time.process_time(), time.monotonic()
  reduction = executor.begin(
    number + 1,
    buffer,
    [(0, buffer.size)],
    dtypes=[_DTYPES[dtype]] if is_half else None,
  )
  reduction.ready(0)
  reduction.wait(_LIMIT_S)
  end_s = time.monotonic()
  cpu_s = time.process_time() - cpu_s
  expected = (base * workers + workers * (workers - 1) // 2).astype(np.float32)
  # Half precision rounds each contribution and the sum of each hop.
  tolerance = workers * expected * _ROUNDING[dtype]
  if np.any(np.abs(buffer - expected) > tolerance):
    raise RuntimeError('The sum is wrong.')
  return start_s, end_s, cpu_s, _count_sent_bytes(executor) - sent_bytes


def _count_sent_bytes(executor: Executor) -> int:
  return sum(usage.sent_bytes for usage in executor.traffic().values())


def _psum(
  place: int, workers: int, size_bytes: int, rounds: int
) -> Sequence[tuple[float, float]]:
  """Returns start and end of each round of XLA's psum, after the first."""
  import jax  # Executors do not need it.

  jax.config.update('jax_platforms', 'cpu')
  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  address = 'host0:9999'
  jax.distributed.initialize(
    address, workers, place, coordinator_bind_address=address
  )
  mesh = jax.make_mesh((workers,), ('w',))
  spec = jax.sharding.PartitionSpec('w')
  total = jax.jit(
    jax.shard_map(
      lambda x: jax.lax.psum(x, 'w'), mesh=mesh, in_specs=spec, out_specs=spec
    )
  )
  local = np.full((1, size_bytes // 4), place, np.float32)
  sharding = jax.sharding.NamedSharding(mesh, spec)
  values = jax.make_array_from_process_local_data(sharding, local)
  times = []
  for _ in range(rounds + 1):
    start_s = time.monotonic()
    result = jax.block_until_ready(total(values))
    times.append((start_s, time.monotonic()))
  got = np.asarray(result.addressable_data(0))
  if not (got == workers * (workers - 1) / 2).all():
    raise RuntimeError('The sum is wrong.')
  return times[1:]
