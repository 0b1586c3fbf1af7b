"""Cache of link measurements, for later runs on the same hosts.

The folder '.links' beside the run's folder holds a file for each sequence of
hosts, named by a hash of it.  Hosts are the same if they have the same names,
addresses and network cards, in the same order of workers.
"""

import hashlib
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from cluster.probing import file_format
from outputs import atomic
from system import clock
from topology.clusters import cluster as clusters

FOLDER = '.links'
AGE_S = 24 * 3600.0  # Greatest age of a measurement that is used.
_NAMES = ('hostname', 'address', 'card')


class LinkCache:
  """The cache that the runs of one folder share."""

  def __init__(self, workdir: pathlib.Path, *, age_s: float = AGE_S):
    """Creates the cache; reads no file yet.

    Args:
      workdir: Folder of the run.
      age_s: Age of a measurement after which it is not used, seconds.
    """
    self._workdir, self._age_s = workdir, age_s

  def load(self, hosts: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Returns the measurement of these hosts; None if missing or too old.

    Args:
      hosts: `hostname`, `address` and `card` of each.
    """
    path = self._path(hosts)
    try:
      content: dict[str, Any] = json.loads(path.read_text())
      age_s = clock.wall() - content['measured_at']
      # Readers of the result need all of this: an error shows up here.
      clusters.from_json(content)
      file_format.summary(content)
      is_same = content['identity'] == _identity(hosts)
    except FileNotFoundError:
      return None
    except (OSError, ValueError, KeyError, TypeError) as error:
      logging.warning('%s cannot be read: %r', path, error)
      return None
    if not is_same or not 0 <= age_s < self._age_s:
      return None
    logging.info(
      'Links were measured %.2g h ago; without %s they are measured again.',
      age_s / 3600,
      path,
    )
    return content

  def save(
    self, hosts: Sequence[Mapping[str, Any]], found: Mapping[str, Any]
  ) -> None:
    """Writes the measurement of these hosts; logs a warning if it cannot."""
    path = self._path(hosts)
    try:
      path.parent.mkdir(exist_ok=True)
      _write(path, {**found, 'identity': _identity(hosts)})
    except OSError as error:
      logging.warning('Measured links are not cached: %s', error)

  def read(self) -> dict[str, Any] | None:
    """Returns the measurement in the run's folder; None without one.

    Raises:
      OSError: If it cannot be read.
    """
    return atomic.read_object(self._workdir / 'cluster.json')

  def write(self, found: Mapping[str, Any]) -> pathlib.Path:
    """Writes a measurement into the run's folder; returns its file."""
    path = self._workdir / 'cluster.json'
    _write(path, found)
    return path

  def _path(self, hosts: Sequence[Mapping[str, Any]]) -> pathlib.Path:
    text = json.dumps(_identity(hosts)).encode()
    name = hashlib.sha256(text).hexdigest()[:16]
    return self._workdir.absolute().parent / FOLDER / f'{name}.json'


def _identity(hosts: Sequence[Mapping[str, Any]]) -> list[list[str]]:
  return [[host[name] for name in _NAMES] for host in hosts]


def _write(path: pathlib.Path, found: Mapping[str, Any]) -> None:
  atomic.write(path, json.dumps(found, indent=1) + '\n')
