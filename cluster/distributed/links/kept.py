"""Where measured links are kept, for the next run of the same hosts.

In '.links' beside the folder of the run, a file for each sequence of hosts,
under a name that is made of them.  Hosts are the same if they have the same
names, addresses and network cards, in the same order of workers.
"""

import hashlib
import json
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from cluster.distributed.links import content
from outputs import atomic
from topology.clusters import cluster as clusters

FOLDER = '.links'
AGE_S = 24 * 3600.0  # After which links are measured anew.
_NAMES = ('hostname', 'address', 'card')


class Kept:
  """The files of a folder of runs."""

  def __init__(self, workdir: pathlib.Path, *, age_s: float = AGE_S):
    """Reads nothing yet.

    Args:
      workdir: Folder of the run.
      age_s: After which links are measured anew.
    """
    self._workdir, self._age_s = workdir, age_s

  def load(self, hosts: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Returns what was measured of these hosts, unless that is too old.

    Args:
      hosts: Of each its `hostname`, `address` and `card`.
    """
    path = self._path(hosts)
    try:
      kept = json.loads(path.read_text())
      age_s = time.time() - kept['measured_at']
      # Whoever goes on with it needs all of this.
      clusters.from_json(kept)
      content.summary(kept)
      same = kept['identity'] == _identity(hosts)
    except FileNotFoundError:
      return None
    except (OSError, ValueError, KeyError, TypeError) as error:
      logging.warning('%s cannot be read: %r', path, error)
      return None
    if not same or not 0 <= age_s < self._age_s:
      return None
    logging.info(
      'Links were measured %.2g h ago; without %s they are measured anew.',
      age_s / 3600,
      path,
    )
    return kept

  def save(
    self, hosts: Sequence[Mapping[str, Any]], found: Mapping[str, Any]
  ) -> None:
    """Keeps what was measured of these hosts, if that can be written."""
    path = self._path(hosts)
    try:
      path.parent.mkdir(exist_ok=True)
      _write(path, {**found, 'identity': _identity(hosts)})
    except OSError as error:
      logging.warning('Measured links are not kept: %s', error)

  def write(self, found: Mapping[str, Any]) -> pathlib.Path:
    """Writes what is known of the links into the run's folder."""
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
