"""The four workloads of table I of R2SP's paper; not an entry.

All values are calibrated from table I, for BSP with 8 workers and 2 servers.
Compute time is iteration time minus blocking time.  The rate of the servers'
links is that with which 2 N S bytes, for parameters of S bytes, take the
blocking time.  These rates are 39, 53 and 54 % of 10 Gbit/s.  The parameters of
ResNet32 have 1.9 MB and not the published 50; S is here the size that 54 % of
the line rate transfer in the blocking time.
"""

from typing import NamedTuple

import ml_collections

from claims.entries import _shared


class Workload(NamedTuple):
  """Model of table I.

  Attributes:
    size_bytes: Bytes of the parameters.
    compute_s: Seconds of computation in an iteration.
    server_Bps: Rate of each server's link in each direction, bytes per second.
    blocking_s: Seconds of communication in an iteration.
  """

  size_bytes: int
  compute_s: float
  server_Bps: float
  blocking_s: float


_WORKERS, _SERVERS = 8, 2


def _calibrate(
  size_MB: float, blocking_s: float, iteration_s: float
) -> Workload:
  rate = 2 * _WORKERS * size_MB * 1e6 / blocking_s / _SERVERS
  compute_s = round(iteration_s - blocking_s, 2)
  return Workload(
    4 * int(size_MB * 1e6 / 4), compute_s, float(round(rate)), blocking_s
  )


_RESNET_MB = 0.11 * 0.54 * _shared.BPS * _SERVERS / (2 * _WORKERS) / 1e6
WORKLOADS = {
  'ResNet32': _calibrate(_RESNET_MB, 0.11, 0.23),
  'AlexNet': _calibrate(240, 2.89, 3.39),
  'VGG16': _calibrate(552, 9.04, 9.74),
  'Inception-v3': _calibrate(108, 1.27, 1.97),
}
# Fields of grids that determine the workload of a run.
FIELDS = (
  'model.none.size_bytes & cluster.speed.fixed_s & '
  'cluster.speed.per_example_s & cluster.network.server_up_Bps & '
  'cluster.network.server_down_Bps'
)


def values(name: str, factor: float = 1.0) -> str:
  """Returns a workload's values of FIELDS, with scaled rates of servers."""
  workload = WORKLOADS[name]
  rate = f'({factor * workload.server_Bps},)'
  speeds = f'{workload.compute_s / 2} & {workload.compute_s / 64}'
  return f'{workload.size_bytes} & {speeds} & {rate} & {rate}'


def of(name: str, **fields: object) -> dict[str, object]:
  """Returns the fields that select the records of a workload."""
  return {'model.none.size_bytes': WORKLOADS[name].size_bytes, **fields}


def base(
  workers: int, servers: int, iterations: int
) -> ml_collections.ConfigDict:
  """Returns a timing-only config; workers' links have 10 Gbit/s."""
  return _shared.timing(
    workers=workers,
    iterations=iterations,
    size_bytes=1,
    compute_s=1.0,
    servers=servers,
  )


PUBLISHED_SETUP = (
  'TensorFlow; cluster A: 16 g3.4xlarge (M60) and 4 servers (c5.9xlarge), 10 '
  'Gbit/s; ResNet32, AlexNet, VGG16 on CIFAR-10 (batch 128), Inception-v3 on '
  'ImageNet (batch 32)'
)
DIFFERENCES = (
  'links are fair and full duplex, and lose no rate when transfers share '
  'them; servers apply pushes in no time. The published links reached 39 to 54 '
  '% of their line rate for an unknown reason.'
)
