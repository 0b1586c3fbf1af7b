"""Reads files that describe clusters for tools.tune --dry_run.

A file is JSON with fields of config.cluster: `workers`; `speed`, with at least
`slowdown`; `network`, with `worker_up_Bps` and `worker_down_Bps`, and those of
dedicated servers; and `links` among the workers, a file of nodes and links or a
builder.  Tuples are lists.
"""

import json
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from configs import default
from configs.checks import require

_ALLOWED = ('workers', 'speed', 'network', 'links')
_WORKER = ('worker_up_Bps', 'worker_down_Bps')
_SERVER = ('server_up_Bps', 'server_down_Bps')
_MOST = 8  # Servers in workers, to bound the time of a simulation.


class ClusterDescription(NamedTuple):
  """Description of a cluster, read from a file.

  Attributes:
    path: Path of the file.
    workers: Number of workers.
    speed: Fields of config.cluster.speed.
    network: Fields of config.cluster.network.
    links: Value of config.cluster.links.
    hosts_per_worker: Number of hosts that form one worker, an island.
  """

  path: str
  workers: int
  speed: Mapping[str, Any]
  network: Mapping[str, Any]
  links: str
  hosts_per_worker: int = 1

  @property
  def has_server_links(self) -> bool:
    """True if the links between workers and servers are known."""
    return bool(set(_WORKER) & set(self.network))

  @property
  def has_dedicated_servers(self) -> bool:
    """True if servers have their own hosts."""
    return bool(set(_SERVER) & set(self.network))

  @property
  def servers(self) -> int:
    """Number of servers of the file, or one in each of the first workers."""
    if self.has_dedicated_servers:
      return max(len(self.network[link]) for link in _SERVER)
    return min(self.workers, _MOST)

  def apply(self, config: ConfigDict, *, uses_servers: bool) -> None:
    """Sets the cluster of a config, which is changed.

    Args:
      config: Config, whose number of workers, speeds, links and network are
        set.
      uses_servers: True for a route with servers; `links` are for others.

    Raises:
      ValueError: If a field is unknown or of another type; names it.
    """
    config.cluster.workers = self.workers
    config.cluster.hosts_per_worker = self.hosts_per_worker
    among = bool(self.links) and not uses_servers
    config.cluster.links = self.links if among else ''
    for part in ('speed', 'network'):
      _apply(config.cluster[part], getattr(self, part), f'{self.path}: {part}')
    network, defaults = config.cluster.network, default.get_config()
    unused = (*(() if uses_servers else _SERVER), *(_WORKER if among else ()))
    for link in unused:
      network[link] = defaults.cluster.network[link]
    if uses_servers:
      network.servers_in_workers = not self.has_dedicated_servers


def read(
  path: str, speed: Mapping[str, Any] | None = None
) -> ClusterDescription:
  """Returns the cluster of a file.

  Args:
    speed: Fields of config.cluster.speed that replace those of the file; None
      for those of the file.

  Raises:
    ValueError: If a field is missing, unknown or not of its kind; names it.
    OSError: If it cannot be read.
  """
  try:
    data = json.loads(pathlib.Path(path).read_text(encoding='utf-8-sig'))
  except (RecursionError, ValueError) as error:
    raise ValueError(f'{path}: expected JSON, got {error}.') from error
  require(isinstance(data, dict), path, 'a JSON object', data)
  for field in data:
    require(field in _ALLOWED, path, f'fields among {list(_ALLOWED)}', field)
  workers = data.get('workers')
  valid = type(workers) is int and workers > 1
  require(valid, f'{path}: workers', 'an integer of at least 2', workers)
  for part in ('speed', 'network'):
    section = data.get(part, {})
    require(
      isinstance(section, dict), f'{path}: {part}', 'a JSON object', section
    )
  links = data.get('links', '')
  expected = "a file of nodes and links, or a builder such as 'star([1, 1])'"
  require(isinstance(links, str), f'{path}: links', expected, links)
  if speed is not None:
    field, section = f'{path}: speed', data.get('speed')
    require(
      section is None, field, 'none, because the trace has the speeds', section
    )
  speed = data.get('speed', {}) if speed is None else speed
  return check(
    ClusterDescription(path, workers, speed, data.get('network', {}), links)
  )


def check(description: ClusterDescription) -> ClusterDescription:
  """Returns a description after checking that it is complete.

  Raises:
    ValueError: If a field is missing, unknown or not of its kind; names it.
  """
  _check_required(description)
  description.apply(default.get_config(), uses_servers=False)
  return description


def _check_required(description: ClusterDescription) -> None:
  """Rejects a description without a required field."""
  speed, network = description.speed, description.network
  expected = 'the slowdown of each worker relative to the fastest'
  slowdown = speed.get('slowdown')
  field = f'{description.path}: speed.slowdown'
  require(slowdown is not None, field, expected, slowdown)
  expected = 'bytes per second, one value or one of each'
  needed = (
    *(_WORKER if description.has_server_links or not description.links else ()),
    *(_SERVER if description.has_dedicated_servers else ()),
  )
  for link in needed:
    field = f'{description.path}: network.{link}'
    require(link in network, field, expected, network.get(link))
  if description.has_dedicated_servers and not description.has_server_links:
    field = f'{description.path}: network.worker_up_Bps'
    require(False, field, f'{expected}, as there are servers', None)


def _apply(section: ConfigDict, given: Mapping[str, Any], path: str) -> None:
  """Sets the fields of a section from plain data."""
  for field, value in given.items():
    where = f'{path}.{field}'
    require(field in section, where, f'one of {sorted(section)}', field)
    if isinstance(section[field], ConfigDict):
      require(isinstance(value, dict), where, 'a JSON object', value)
      _apply(section[field], value, where)
      continue
    if isinstance(section[field], tuple):
      numbers = isinstance(value, list) and all(
        type(each) in (int, float) for each in value
      )
      require(numbers and value, where, 'a list of numbers', value)
      value = tuple(map(float, value))
    elif isinstance(section[field], float) and type(value) is int:
      value = float(value)
    kind = type(section[field])
    require(type(value) is kind, where, f'a {kind.__name__}', value)
    section[field] = value
