"""Computes the speed-up of each GradientFlow technique on 1 to 512 GPUs.

AlexNet and ResNet-50 as in configs/gradientflow.py, on hosts of 8 GPUs.  One
iteration of identical workers is simulated by the virtual clock's model of an
allreduce; speed-ups are over one GPU.  Sun et al. (2019) publish 2.5 with 64
GPUs for open-source systems, whose names the abstract does not give, and 410.2
with 512 for AlexNet with all techniques.

`ladder` adds one technique at a time: one float32 allreduce for each tensor,
one after the other, after computing; buckets of 8 MB; float16; overlap with
the backward pass; a tenth of the chunks, chosen by the norms of the iteration
before, with all norms sent at the end.  Its last rung, `wire=sparse`, is the
sparse wire of this project with select_lag=1, in float32.

The docstring of `Assumed` marks inputs as published, recalled or ours.
"""

import collections
import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ml_collections import ConfigDict

from cluster.speed import layers, rooflines
from cluster.speed.layers import Bucket, Layer
from cluster.virtual.allreduce import Sums
from configs import gradientflow
from route import hierarchical, ring
from route.links import Links
from route.route import LATENCY_S
from route.selection import Latency
from topology import Cluster, Forest
from topology.clusters import shapes
from topology.forests.dealing import CHUNK_BYTES

MODELS = ('alexnet', 'resnet50')
GPUS = (1, 8, 16, 32, 64, 128, 256, 512)
THETAS = (0.0, 1e6, 4e6, 8e6, 16e6, 32e6, 64e6, math.inf)
_ROUTES = {'ring': ring.build_in_order, 'hierarchy': hierarchical.build_forest}
_HOST = 8  # GPUs; recalled.
_WIRE_CHUNK = 32768  # Numbers of a chunk of the sparse wire; recalled.
# Passes over float32 gradients to choose chunks, and memory rate of a V100.
_PASSES, _GPU_BPS = 4, 900e9
_SPARSE_WIRE = 'wire=sparse'


class Assumed(NamedTuple):
  """Assumptions of a result.

  Attributes:
    link_GBps: Link of a host, each way: 56 Gbit/s, published.
    host_GBps: Link of a GPU in its host: ours, PCI Express 3.0 x16.
    near_s: Latency between GPUs of a host: ours.
    far_s: Latency between hosts: ours.
    launch_s: Time for which a collective occupies links before it starts: ours.
    apart: True if it also occupies them until its first bytes have arrived, as
      sequential collectives do: ours.
    rate: Factor on the examples per second of one GPU in
      configs/gradientflow.py: 3,297 for AlexNet, derived from published
      numbers; 340 for ResNet-50, ours.
    profile: Times of layers: 'roofline', 'tensor' with eight times the
      operations per second, or 'bytes' in proportion to their size.  Ours.
    sparsity: Share of chunks that are not sent; recalled.
    choose: Passes over the gradients for norms and residuals, not overlapped
      with computing: ours.
    bucket_bytes: Bytes of a bucket in float32; ours.
    chunk_bytes: Bytes of one message; ours.
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
  bucket_bytes: float = 8e6
  chunk_bytes: int = CHUNK_BYTES


class Rung(NamedTuple):
  """Buckets that one iteration sends.

  Attributes:
    rounds: Buckets of each round; rounds follow one another.
    compute_s: Seconds of computation in an iteration.
  """

  rounds: Sequence[Sequence[Bucket]]
  compute_s: float


def ladder(
  assumed: Assumed, gpus: int, route: str
) -> dict[str, dict[str, float]]:
  """Returns the speed-up over one GPU, by model and rung of the ladder.

  Args:
    assumed: Rates and latencies of the machine.
    gpus: Number of GPUs; as of `cluster_of`.
    route: 'ring' or 'hierarchy'; within one host always 'ring'.
  """
  rungs = {}
  for model in MODELS:
    gradients = gradient_layers(assumed, model)
    alone_s = compute_s(assumed, model)
    parts = layers.buckets(gradients, assumed.bucket_bytes, 0)
    fused = [part._replace(ready=1.0) for part in parts]
    rungs[model] = {
      'a tensor each': Rung(
        [[Bucket(x.bytes, 1.0)] for x in gradients], alone_s
      ),
      '+ fused': Rung([fused], alone_s),
      '+ half': Rung([_shorter(fused, 1 / 2)], alone_s),
      '+ overlap': overlap_rung(assumed, model),
      '+ sparse': sparse_rung(assumed, model),
      _SPARSE_WIRE: _sparse_wire(assumed, model),
    }
  return speedups(assumed, gpus, route, rungs)


def overlap_rung(assumed: Assumed, model: str) -> Rung:
  """Returns float16 buckets, each sent as soon as it is complete."""
  parts = layers.buckets(
    gradient_layers(assumed, model), assumed.bucket_bytes, 0
  )
  return Rung([_shorter(parts, 1 / 2)], compute_s(assumed, model))


def sparse_rung(assumed: Assumed, model: str) -> Rung:
  """Returns float16 buckets of the chosen chunks, then all chunks' norms."""
  (parts,), alone_s = overlap_rung(assumed, model)
  norms = Bucket(4 * _wire_chunks(assumed, model), 1.0)
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
  """Returns the examples per second of each rung over those of one GPU.

  Args:
    route: 'ring' or 'hierarchy'.
    rungs: Rungs by model and name.
  """
  # Equal rounds are simulated once.
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
    """Returns the time of an iteration; later rounds overlap with nothing."""
    first, *others = (rounds[tuple(each)] for each in rung.rounds)
    end_s = _ends(sums, gpus, rung.compute_s, first)
    counts = collections.Counter(others)
    return end_s + sum(n * _ends(sums, gpus, 0.0, x) for x, n in counts.items())

  return {
    model: {
      name: gpus * compute_s(assumed, model) / seconds(rung)
      if gpus > 1
      else compute_s(assumed, model) / rung.compute_s
      for name, rung in of_model.items()
    }
    for model, of_model in rungs.items()
  }


def gradient_layers(assumed: Assumed, model: str) -> list[Layer]:
  """Returns float32 bytes and ready time of the gradient of each layer."""
  batch = _config(model).batching.worker_batch
  flops = {'tensor': 125e12}.get(assumed.profile, 15.7e12)
  profile = [Layer(*x) for x in rooflines.profile(model, batch, flops=flops)]
  if assumed.profile == 'bytes':
    return layers.in_proportion([each.bytes for each in profile])
  return profile


def compute_s(assumed: Assumed, model: str) -> float:
  """Returns the seconds of computation of one GPU in an iteration."""
  config = _config(model)
  per_example_s = config.cluster.speed.per_example_s
  batch = config.batching.worker_batch
  return float(per_example_s * batch / assumed.rate)


def cluster_of(assumed: Assumed, gpus: int) -> Links:
  """Returns a cluster of GPUs in hosts of 8 at a switch, with latencies.

  Args:
    assumed: Rates and latencies of the links.
    gpus: Number of GPUs.  Beyond 8 it should be a multiple of 8: only whole
      hosts are built.
  """
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
  assumed: Assumed, gpus: int, route: str, rounds: Sequence[Sequence[Bucket]]
) -> Sums:
  """Returns the simulator of an allreduce of each round."""
  links = cluster_of(assumed, gpus)
  route = route if gpus > _HOST else 'ring'  # One host has no hierarchy.

  def forest(
    cluster: Cluster, size_bytes: int, latency_s: Latency = LATENCY_S
  ) -> Forest:
    del size_bytes, latency_s  # These routes depend only on the cluster.
    return _forest(route, cluster)

  def simulator(range_s: float, *each: Sequence[Bucket]) -> Sums:
    return Sums(
      links,
      assumed=None,
      forest=forest,
      stages=[[parts] for parts in each],
      overlap=True,
      range_s=range_s,
      chunk_bytes=assumed.chunk_bytes,
    )

  range_s = assumed.launch_s
  if assumed.apart:
    range_s += _ends(simulator(0.0, [Bucket(4, 1.0)]), gpus, 0.0, 0)
  return simulator(range_s, *rounds)


@functools.cache
def _forest(route: str, cluster: Cluster) -> Forest:
  return _ROUTES[route](cluster)


def _ends(sums: Sums, gpus: int, computed_s: float, stage: int) -> float:
  starts = dict.fromkeys(range(gpus), 0.0)
  return sums.ends(starts, dict.fromkeys(starts, computed_s), stage)


def _sparse_wire(assumed: Assumed, model: str) -> Rung:
  """Returns the buckets of config.wire.name='sparse' with select_lag=1."""
  chunks = _wire_chunks(assumed, model)
  sent = chunks - int(assumed.sparsity * chunks)
  parts = layers.buckets(
    gradient_layers(assumed, model), assumed.bucket_bytes, 0
  )
  values = layers.shorten(parts, 4 * sent * _WIRE_CHUNK)
  alone_s = compute_s(assumed, model) + _choose_s(assumed, model)
  return Rung([[*values, Bucket(4 * chunks, 1.0)]], alone_s)


def _choose_s(assumed: Assumed, model: str) -> float:
  size = sum(each.bytes for each in gradient_layers(assumed, model))
  return assumed.choose * size / _GPU_BPS


def _wire_chunks(assumed: Assumed, model: str) -> int:
  size = sum(each.bytes for each in gradient_layers(assumed, model))
  return math.ceil(size / 4 / _WIRE_CHUNK)


def _shorter(parts: Sequence[Bucket], share: float) -> list[Bucket]:
  """Returns buckets with a share of their bytes."""
  return [part._replace(bytes=round(part.bytes * share)) for part in parts]


@functools.cache
def _config(model: str) -> ConfigDict:
  return gradientflow.get_config(f'{model}_64_time')
