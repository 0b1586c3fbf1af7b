"""Parts that several entries share; not an entry."""

import ml_collections

from configs import default
from configs import timing as timing_fields

BPS = 1.25e9  # 10 Gbit/s.
EQUAL = (1.0,)
UNEQUAL = (1.0, 1.5, 2.0, 3.0)


def timing(
  *,
  workers: int,
  iterations: int,
  size_bytes: int,
  compute_s: float,
  servers: int = 1,
  worker_Bps: float = BPS,
  server_Bps: float = BPS,
) -> ml_collections.ConfigDict:
  """Returns the config of a timing-only run of equal workers with 10 % jitter.

  Args:
    workers: Number of workers.
    iterations: Iterations of each worker, with a batch of 32.
    size_bytes: Bytes of a push and of a pull.
    compute_s: Seconds of an iteration, half of them independent of the batch.
    servers: Number of servers.
    worker_Bps: Rate of each worker's link in each direction, bytes per second.
    server_Bps: The same for each server's link.
  """
  config = timing_fields.config(
    timing_fields.fields(
      workers=workers, iterations=iterations, size_bytes=size_bytes, batch=32
    ),
    timing_fields.links(worker_Bps, server_Bps),
  )
  config.route.server.servers = servers
  config.cluster.speed.slowdown = EQUAL
  config.cluster.speed.fixed_s = compute_s / 2
  config.cluster.speed.per_example_s = compute_s / 64
  config.checkpoint.every_examples = 10**9  # Sweeps require a number.
  return config


def digits(*, epochs: float) -> ml_collections.ConfigDict:
  """Returns the config of a dense layer of 128 on digits.

  Evaluations take place every eighth of an epoch.  Four workers with batches of
  16 compute for .06 s with 10 % jitter; links of 10 Gbit/s add a thirtieth.
  """
  config = default.get_config()
  config.model.name = 'mlp'
  config.epochs = epochs
  config.eval_every = 0.125
  config.time_to = (0.85, 0.9, 0.93)
  config.cluster.speed.slowdown = EQUAL
  config.update_from_flattened_dict(timing_fields.links(BPS, BPS))
  return config


def reduce(config: ml_collections.ConfigDict, route: str) -> None:
  """Sets an allreduce route, without servers and their links."""
  defaults = default.get_config()
  config.route.name = route
  config.route.server = defaults.route.server
  for way in ('server_up_Bps', 'server_down_Bps'):
    config.cluster.network[way] = defaults.cluster.network[way]
