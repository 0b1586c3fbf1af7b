"""The four workloads of R2SP's paper, as its table I has them; no entry.

Of table I, which is of BSP, 8 workers and 2 servers, everything is calibrated:
computing is iteration time less blocking; the bytes of a parameter server's
links are what 2 N S bytes need for that blocking, S being the parameters.
Those rates are 39, 53 and 54 % of 10 Gbit/s; ResNet32's parameters are 1.9 MB,
not 50, so that its S is what 54 % of the line carry in its blocking time.
"""

from typing import NamedTuple

import ml_collections

from claims.entries import _shared


class Workload(NamedTuple):
  """A model of table I.

  Attributes:
    size_bytes: Bytes of its parameters.
    compute_s: Seconds of computing in an iteration.
    server_Bps: Rate of each server's link, both ways.
    blocking_s: Seconds of communication in an iteration.
  """

  size_bytes: int
  compute_s: float
  server_Bps: float
  blocking_s: float


_WORKERS, _SERVERS = 8, 2


def _made(size_MB: float, blocking_s: float, iteration_s: float) -> Workload:
  rate = 2 * _WORKERS * size_MB * 1e6 / blocking_s / _SERVERS
  compute_s = round(iteration_s - blocking_s, 2)
  return Workload(
    4 * int(size_MB * 1e6 / 4), compute_s, float(round(rate)), blocking_s
  )


_RESNET_MB = 0.11 * 0.54 * _shared.BPS * _SERVERS / (2 * _WORKERS) / 1e6
WORKLOADS = {
  'ResNet32': _made(_RESNET_MB, 0.11, 0.23),
  'AlexNet': _made(240, 2.89, 3.39),
  'VGG16': _made(552, 9.04, 9.74),
  'Inception-v3': _made(108, 1.27, 1.97),
}
# Fields that make a run one of a workload, and their values, for grids.
FIELDS = (
  'model.none.size_bytes & cluster.speed.fixed_s & '
  'cluster.speed.per_example_s & cluster.network.server_up_Bps & '
  'cluster.network.server_down_Bps'
)


def values(name: str, factor: float = 1.0) -> str:
  """Returns a workload's values of FIELDS, servers' links times a factor."""
  own = WORKLOADS[name]
  rate = f'({factor * own.server_Bps},)'
  speeds = f'{own.compute_s / 2} & {own.compute_s / 64}'
  return f'{own.size_bytes} & {speeds} & {rate} & {rate}'


def of(name: str, **fields: object) -> dict[str, object]:
  """Returns what the records of a workload have, and more fields."""
  return {'model.none.size_bytes': WORKLOADS[name].size_bytes, **fields}


def base(
  workers: int, servers: int, iterations: int
) -> ml_collections.ConfigDict:
  """Returns what runs of time alone share; workers' links are of 10 Gbit/s."""
  return _shared.timed(
    workers=workers,
    iterations=iterations,
    size_bytes=1,
    compute_s=1.0,
    servers=servers,
  )


THEIRS = (
  'TensorFlow; cluster A: 16 g3.4xlarge (M60) and 4 servers (c5.9xlarge), 10 '
  'Gbit/s; ResNet32, AlexNet, VGG16 on CIFAR-10 (batch 128), Inception-v3 on '
  'ImageNet (batch 32)'
)
DIFFERS = (
  'links are fair, full duplex and as fast however many transfers share them; '
  'servers apply pushes in no time. What kept theirs at 39 to 54 % of their '
  'line rate is not known.'
)
