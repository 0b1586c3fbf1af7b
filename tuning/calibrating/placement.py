"""Calibrates networks of runs with servers in the processes of workers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from configs import default
from tuning.calibrating.links import FittedLinks


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
  """Sets a config's network for servers that use the links of workers.

  Traffic between a worker and the server of its host crosses no link, so the
  rates of links are lower than those of transfers.
  """
  workers = config.cluster.workers
  crossing = 1 - 1 / workers
  network = config.cluster.network
  for field, links, other in (('up', up, down), ('down', down, up)):
    rates = np.maximum(links.worker_Bps, other.servers_Bps / workers)
    network[f'worker_{field}_Bps'] = round_values(rates * crossing)
  # Both ends of a transfer now add their latency.
  network.worker_latency_s = round_values(
    np.array(network.worker_latency_s) / 2
  )
  unused = default.get_config().cluster.network
  for name in unused:
    if name.startswith('server_'):
      network[name] = unused[name]
  network.servers_in_workers = True


def round_values(values: Sequence[float] | np.ndarray) -> tuple[float, ...]:
  """Returns values rounded to six digits, in the form of configs."""
  return tuple(float(f'{value:.6g}') for value in values)
