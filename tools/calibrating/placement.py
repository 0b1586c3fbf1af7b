"""Networks of runs whose servers were in the processes of the workers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from configs import default
from tools.calibrating.links import FittedLinks


def in_workers(recorded: Mapping[str, Any]) -> bool:
  """Returns whether there was a server in each worker of a run.

  With fewer servers, a transfer crosses links with different parts of its
  bytes, which the fit does not model: such servers count as dedicated ones.
  """
  cluster, route = recorded['cluster'], recorded['route']['server']
  if route['servers'] != cluster['workers']:
    return False
  if cluster['runtime'] == 'virtual':
    return bool(cluster['network']['servers_in_workers'])
  return not route['dedicated']


def put(config: ConfigDict, down: FittedLinks, up: FittedLinks) -> None:
  """Changes a config's network to one whose servers have no links of their own.

  What a worker exchanges with the server of its own host crosses no link, so
  that rates are lower than transfers seem.
  """
  workers = config.cluster.workers
  crossing = 1 - 1 / workers
  network = config.cluster.network
  for field, own, other in (('up', up, down), ('down', down, up)):
    rates = np.maximum(own.worker_Bps, other.servers_Bps / workers)
    network[f'worker_{field}_Bps'] = rounded(rates * crossing)
  # Both ends of a transfer have it now.
  network.worker_latency_s = rounded(np.array(network.worker_latency_s) / 2)
  unused = default.get_config().cluster.network
  for name in unused:
    if name.startswith('server_'):
      network[name] = unused[name]
  network.servers_in_workers = True


def rounded(values: Sequence[float] | np.ndarray) -> tuple[float, ...]:
  """Returns values as configs have them, to six digits."""
  return tuple(float(f'{value:.6g}') for value in values)
