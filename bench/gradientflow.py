"""What each technique of GradientFlow gains with 1 to 512 GPUs, computed.

  python -m bench.gradientflow [--parts=ladder,theta,sensitivity] [--most=512]

AlexNet and ResNet-50 as in configs/gradientflow.py, on hosts of 8 GPUs; an
iteration is simulated as the virtual clock does, of workers that are alike.
Speed-ups are over one GPU.  Sun et al. (2019) say 2.5 with 64 GPUs for popular
systems of then, which they do not name where we could read it, and 410.2 with
512 for AlexNet with all techniques.

ladder: one allreduce for each tensor, in float32, one after the other, after
computing; fused into ranges of 8 MB; in float16; while computing goes on; of a
tenth of the chunks, chosen by the norms of the iteration before, which travel
with it at the end.  `wire=sparse` is the latter as this code does it, with
select_lag=1: in float32.
theta: speed-ups by range_bytes, in float16 and while computing goes on.
sensitivity: with each assumption changed, at most GPUs over a ring.

Assumed are the fields of `Assumed`: what of them is published, recalled or
ours is said there.
"""

import argparse
import collections
import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bench import clusters
from cluster.speed import layers, rooflines
from cluster.speed.layers import Layer, Range
from cluster.virtual.reduced import Sums
from configs import gradientflow
from route import hierarchical, ring
from route.links import Links
from topology import Cluster
from topology.clusters import shapes
from topology.forests.dealing import CHUNK_BYTES

MODELS = ('alexnet', 'resnet50')
GPUS = (1, 8, 16, 32, 64, 128, 256, 512)
PARTS = ('ladder', 'theta', 'sensitivity')
THETAS = (0.0, 1e6, 4e6, 8e6, 16e6, 32e6, 64e6, math.inf)
_ROUTES = {'ring': ring.in_order, 'hierarchy': hierarchical.forest}
_HOST = 8  # GPUs; recalled.
_WIRE_CHUNK = 32768  # Numbers of a chunk of the sparse wire; recalled.
_PASSES, _GPU_BPS = 4, 900e9  # Over float32 gradients, to choose; V100.
_SPARSE_HERE = 'wire=sparse'


class Assumed(NamedTuple):
  """What a result hangs on.

  Attributes:
    link_GBps: Of a host's link, each way: 56 Gbit/s, published.
    host_GBps: Of a GPU's link in its host: ours, of PCI Express 3.0 x16.
    near_s: Latency between GPUs of a host: ours.
    far_s: Between hosts: ours.
    launch_s: For which a collective holds links up before it begins: ours.
    apart: Whether it also does so until its first bytes are through, as
      collectives one after the other do: ours.
    rate: Of the examples a second on one GPU of configs/gradientflow.py: 3,297
      for AlexNet, derived from published numbers; 340 for ResNet-50, ours.
    profile: 'roofline' of layers, 'tensor' with eight times the operations a
      second, or 'bytes': in proportion to them.  Ours.
    sparsity: Share of chunks that wait; recalled.
    choose: Passes over the gradients for norms and what waits, beside
      computing: ours.
    range_bytes: Of float32; ours.
    chunk_bytes: What one message carries; ours.
  """

  link_GBps: float = 7.0
  host_GBps: float = 12.0
  near_s: float = 2e-6
  far_s: float = 5e-6
  launch_s: float = 10e-6
  apart: bool = True
  rate: float = 1.0
  profile: str = 'roofline'
  sparsity: float = 0.9
  choose: float = _PASSES
  range_bytes: float = 8e6
  chunk_bytes: int = CHUNK_BYTES


class Rung(NamedTuple):
  """What travels of an iteration.

  Attributes:
    rounds: One after the other.
    compute_s: How long an iteration computes.
  """

  rounds: Sequence[Sequence[Range]]
  compute_s: float


def main(argv: list[str] | None = None) -> None:
  """Prints the tables."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--parts', default=','.join(PARTS))
  parser.add_argument('--most', type=int, default=GPUS[-1])
  given = parser.parse_args(argv)
  for part in given.parts.split(','):
    if part == 'ladder':
      print_ladder([gpus for gpus in GPUS if gpus <= given.most])
    elif part == 'theta':
      print_theta([gpus for gpus in (64, 512) if gpus <= given.most])
    elif part == 'sensitivity':
      print_sensitivity(given.most)
    else:
      parser.error(f'--parts: expected some of {PARTS}, got {part!r}.')


def print_ladder(many: Sequence[int]) -> None:
  """Prints a table of speed-ups for each model and route."""
  found = {
    (route, gpus): ladder(Assumed(), gpus, route)
    for route in _ROUTES
    for gpus in many
  }
  for model in MODELS:
    for route in _ROUTES:
      rows = [('GPUs', *map(str, many))]
      for name in found[route, many[0]][model]:
        each = [found[route, gpus][model][name] for gpus in many]
        rows.append((name, *(f'{speedup:.1f}' for speedup in each)))
      print(f'\n{model}, {route}:\n\n{clusters.table(*rows)}', flush=True)


def print_theta(many: Sequence[int]) -> None:
  """Prints speed-ups by bytes of a range."""
  rows = [('MB', *(f'{each / 1e6:g}' for each in THETAS))]
  for gpus in many:
    for route in _ROUTES:
      curves = {
        model: {
          str(theta): overlapped(Assumed(range_bytes=theta), model)
          for theta in THETAS
        }
        for model in MODELS
      }
      for model, each in speedups(Assumed(), gpus, route, curves).items():
        best = max(each.values())
        cells = (f'{x:.1f}{" *" if x == best else ""}' for x in each.values())
        rows.append((f'{model}, {gpus}, {route}', *cells))
  print(f'\nBy the bytes of a range (*: best):\n\n{clusters.table(*rows)}')


def print_sensitivity(gpus: int) -> None:
  """Prints speed-ups with each assumption changed, over a ring."""
  none = Assumed()
  changed = {
    'as assumed': none,
    'latencies x 4': none._replace(near_s=8e-6, far_s=2e-5),
    'latencies / 4': none._replace(near_s=5e-7, far_s=1.25e-6),
    'collectives pipelined': none._replace(apart=False, launch_s=0.0),
    'launch 100 us': none._replace(launch_s=1e-4),
    'host links at 70 %': none._replace(link_GBps=4.9),
    'GPU links 6 GB/s': none._replace(host_GBps=6.0),
    'GPU links 48 GB/s': none._replace(host_GBps=48.0),
    'one GPU x 2': none._replace(rate=2.0),
    'one GPU / 2': none._replace(rate=0.5),
    'layers: tensor cores': none._replace(profile='tensor'),
    'layers: by bytes': none._replace(profile='bytes'),
    'sparsity 80 %': none._replace(sparsity=0.8),
    'sparsity 95 %': none._replace(sparsity=0.95),
    'choosing x 4': none._replace(choose=4.0 * _PASSES),
    'chunks of 24 KiB': none._replace(chunk_bytes=CHUNK_BYTES // 2),
    'chunks of 96 KiB': none._replace(chunk_bytes=CHUNK_BYTES * 2),
  }
  names = '+ overlap', '+ sparse'
  rows = [('', *(f'{model} {name}' for model in MODELS for name in names))]
  for title, assumed in changed.items():
    rungs = {
      model: {
        names[0]: overlapped(assumed, model),
        names[1]: sparse(assumed, model),
      }
      for model in MODELS
    }
    found = speedups(assumed, gpus, 'ring', rungs)
    cells = [found[model][name] for model in MODELS for name in names]
    rows.append((title, *(f'{each:.1f}' for each in cells)))
  title = f'With each assumption changed, {gpus} GPUs, ring'
  print(f'\n{title}:\n\n{clusters.table(*rows)}', flush=True)


def ladder(
  assumed: Assumed, gpus: int, route: str
) -> dict[str, dict[str, float]]:
  """Returns the speed-up of each model with each rung."""
  rungs = {}
  for model in MODELS:
    own, alone_s = appear(assumed, model), compute_s(assumed, model)
    parts = layers.ranges(own, assumed.range_bytes, 0)
    fused = [part._replace(ready=1.0) for part in parts]
    rungs[model] = {
      'a tensor each': Rung([[Range(x.bytes, 1.0)] for x in own], alone_s),
      '+ fused': Rung([fused], alone_s),
      '+ half': Rung([_shorter(fused, 1 / 2)], alone_s),
      '+ overlap': overlapped(assumed, model),
      '+ sparse': sparse(assumed, model),
      _SPARSE_HERE: _sparse_here(assumed, model),
    }
  return speedups(assumed, gpus, route, rungs)


def overlapped(assumed: Assumed, model: str) -> Rung:
  """Returns ranges in float16, each as soon as it is there."""
  parts = layers.ranges(appear(assumed, model), assumed.range_bytes, 0)
  return Rung([_shorter(parts, 1 / 2)], compute_s(assumed, model))


def sparse(assumed: Assumed, model: str) -> Rung:
  """Returns the same of the chosen chunks, and at the end the norms of all."""
  (parts,), alone_s = overlapped(assumed, model)
  norms = Range(4 * _wire_chunks(assumed, model), 1.0)
  return Rung(
    [[*_shorter(parts, 1 - assumed.sparsity), norms]],
    alone_s + _choose_s(assumed, model),
  )


def speedups(
  assumed: Assumed,
  gpus: int,
  route: str,
  rungs: Mapping[str, Mapping[str, Rung]],
) -> dict[str, dict[str, float]]:
  """Returns by how much more is computed in a second than by one GPU.

  Args:
    assumed: Of the cluster, and of the GPU.
    gpus: How many.
    route: 'ring' or 'hierarchy'.
    rungs: By model and name.
  """
  # Rounds are alike: each is simulated once.
  rounds = {
    tuple(each): number
    for number, each in enumerate(
      dict.fromkeys(
        tuple(each)
        for of_model in rungs.values()
        for rung in of_model.values()
        for each in rung.rounds
      )
    )
  }
  sums = _sums(assumed, gpus, route, [*rounds])

  def seconds(rung: Rung) -> float:
    """Of an iteration; rounds after the first have nothing to overlap."""
    first, *others = (rounds[tuple(each)] for each in rung.rounds)
    end_s = _ends(sums, gpus, rung.compute_s, first)
    counted = collections.Counter(others)
    return end_s + sum(
      n * _ends(sums, gpus, 0.0, x) for x, n in counted.items()
    )

  return {
    model: {
      name: gpus * compute_s(assumed, model) / seconds(rung)
      if gpus > 1
      else compute_s(assumed, model) / rung.compute_s
      for name, rung in of_model.items()
    }
    for model, of_model in rungs.items()
  }


def appear(assumed: Assumed, model: str) -> list[Layer]:
  """Returns when the gradients of a model's layers appear, of float32."""
  batch = _config(model).batching.worker_batch
  flops = {'tensor': 125e12}.get(assumed.profile, 15.7e12)
  found = [Layer(*x) for x in rooflines.profile(model, batch, flops=flops)]
  if assumed.profile == 'bytes':
    return layers.in_proportion([each.bytes for each in found])
  return found


def compute_s(assumed: Assumed, model: str) -> float:
  """Returns how long one GPU computes an iteration."""
  config = _config(model)
  per_example_s = config.cluster.speed.per_example_s
  return per_example_s * config.batching.worker_batch / assumed.rate


def cluster_of(assumed: Assumed, gpus: int) -> Links:
  """Returns GPUs in hosts of 8 around a switch, and latencies of links."""
  near, far = assumed.host_GBps, assumed.link_GBps
  if gpus <= _HOST:
    cluster = shapes.star([near] * gpus)
  else:
    cluster = shapes.tree([gpus // _HOST, _HOST], [far, near])
  of_gpu = set(cluster.workers)
  between_s = (assumed.far_s - assumed.near_s) / 2
  return Links(
    cluster,
    {
      ends: assumed.near_s / 2 if of_gpu & set(ends) else between_s
      for ends in cluster.capacity_Bps
    },
  )


def _sums(
  assumed: Assumed, gpus: int, route: str, rounds: Sequence[Sequence[Range]]
) -> Sums:
  """Returns what simulates each of these."""
  links = cluster_of(assumed, gpus)
  own = route if gpus > _HOST else 'ring'  # Of one host there is no hierarchy.

  def made(range_s: float, *each: Sequence[Range]) -> Sums:
    return Sums(
      links,
      believed=None,
      forest=functools.partial(_forest, own),
      stages=[[parts] for parts in each],
      overlap=True,
      range_s=range_s,
      chunk_bytes=assumed.chunk_bytes,
    )

  range_s = assumed.launch_s
  if assumed.apart:
    range_s += _ends(made(0.0, [Range(4, 1.0)]), gpus, 0.0, 0)
  return made(range_s, *rounds)


@functools.cache
def _forests(route: str, cluster: Cluster) -> object:
  return _ROUTES[route](cluster)


def _forest(route: str, cluster: Cluster, *_: object) -> object:
  return _forests(route, cluster)


def _ends(sums: Sums, gpus: int, computed_s: float, stage: int) -> float:
  begun = dict.fromkeys(range(gpus), 0.0)
  return sums.ends(begun, dict.fromkeys(begun, computed_s), stage)


def _sparse_here(assumed: Assumed, model: str) -> Rung:
  """Returns what config.wire.name='sparse' sends, with select_lag=1."""
  chunks = _wire_chunks(assumed, model)
  sent = chunks - int(assumed.sparsity * chunks)
  parts = layers.ranges(appear(assumed, model), assumed.range_bytes, 0)
  said = layers.shortened(parts, 4 * sent * _WIRE_CHUNK)
  alone_s = compute_s(assumed, model) + _choose_s(assumed, model)
  return Rung([[*said, Range(4 * chunks, 1.0)]], alone_s)


def _choose_s(assumed: Assumed, model: str) -> float:
  size = sum(each.bytes for each in appear(assumed, model))
  return assumed.choose * size / _GPU_BPS


def _wire_chunks(assumed: Assumed, model: str) -> int:
  size = sum(each.bytes for each in appear(assumed, model))
  return math.ceil(size / 4 / _WIRE_CHUNK)


def _shorter(parts: Sequence[Range], share: float) -> list[Range]:
  """Returns ranges of so much of the bytes."""
  return [part._replace(bytes=round(part.bytes * share)) for part in parts]


@functools.cache
def _config(model: str) -> object:
  return gradientflow.get_config(f'{model}_64_time')


if __name__ == '__main__':
  main()
