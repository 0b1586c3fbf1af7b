"""Builds the model of compute times from a config."""

from ml_collections import ConfigDict

from cluster.speed import islands
from cluster.speed import speed as speeds
from configs import sections
from configs.sections import Choose, error_prefix
from learning.learning import Learning


def make(config: ConfigDict, choose: Choose, learned: Learning) -> speeds.Speed:
  """Returns the model of compute times that config.cluster.speed describes.

  Args:
    config: Checked config.
    choose: Function that chooses a section of it.
    learned: Model and data of the run.

  Raises:
    ValueError: If a setting is out of range; names the field.
  """
  name, own = choose('cluster.speed')
  workers, section = config.cluster.workers, config.cluster.speed
  hosts = config.cluster.hosts_per_worker
  with error_prefix(f'config.cluster.speed.{name}'):
    model = getattr(speeds, name)(
      num_workers=workers * hosts, seed=config.seed, **own
    )
  links = islands.make(config, learned)
  with error_prefix('config.cluster.speed'):
    slowdown = section.slowdown
    if len(slowdown) != workers * hosts:  # The same for a worker's processes.
      each = sections.expand_values('slowdown', slowdown, workers)
      slowdown = [value for value in each for _ in range(hosts)]
    return speeds.Speed(
      fixed_s=section.fixed_s,
      per_example_s=section.per_example_s,
      least_s=section.least_s,
      slowdown=slowdown,
      model=model,
      hosts=hosts,
      links=links,
    )
