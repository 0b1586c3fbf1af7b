"""Connection to a Ray cluster, for launchers and sweeps (docs.ray.io).

Ray is optional, and no other module of the project imports it when it is
loaded.  Processes of a run never use Ray: it only starts them.
"""

import os
import pathlib
import secrets
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from configs.checks import require
from outputs import atomic
from system import clock

_SHARED_S = 10.0  # Time in which a shared file system shows a new file.
_POLL_S = 0.2


def require_ray(flag: str) -> Any:
  """Returns the module ray.

  Args:
    flag: Flag that needs it, for the message.

  Raises:
    ValueError: If Ray is not installed.
  """
  try:
    import ray
  except ImportError as error:
    raise ValueError(
      f'{flag}: expected Ray to be installed: '
      f'{sys.executable} -m pip install -r requirements-ray.txt ({error}).'
    ) from error
  return ray


def connect(flag: str) -> Any:
  """Connects this process to the cluster that it runs in; returns Ray.

  The cluster is that of RAY_ADDRESS, else the one of this host.

  Args:
    flag: Flag that needs it, for the message.

  Raises:
    ValueError: If Ray is not installed, or if there is no such cluster.
  """
  ray = require_ray(flag)
  try:
    ray.init(address='auto', log_to_driver=False, logging_level='warning')
  except ConnectionError as error:
    raise ValueError(
      f'{flag}: expected a Ray cluster, that of `ray start` on this host or of '
      f'RAY_ADDRESS, got none ({error}).'
    ) from error
  return ray


def describe_shortage(
  nodes: Sequence[Mapping[str, Any]], bundles: Sequence[Mapping[str, float]]
) -> str:
  """Returns the resources that a cluster lacks in words; '' if it has them.

  Resources that other jobs use count as there.

  Args:
    nodes: Nodes as `ray.nodes()` lists them.
    bundles: Resources of each process, by Ray's names.
  """
  alive = [node['Resources'] for node in nodes if node['Alive']]
  names = sorted({name for bundle in bundles for name in bundle})
  lacks = []
  for name in names:
    needed = sum(bundle.get(name, 0.0) for bundle in bundles)
    largest = max(bundle.get(name, 0.0) for bundle in bundles)
    total = sum(node.get(name, 0.0) for node in alive)
    most = max((node.get(name, 0.0) for node in alive), default=0.0)
    if needed > total + 1e-6:
      lacks.append(f'{needed:g} {name} where {len(alive)} nodes have {total:g}')
    elif largest > most:
      lacks.append(
        f'{largest:g} {name} on a node where the largest has {most:g}'
      )
  return '; '.join(lacks)


class SharedFolder:
  """Check that all nodes see a folder of this host; a context.

  Within the context the folder has a hidden file with a random text, which
  other nodes look for.

  Attributes:
    path: Absolute path of the folder.
    text: Content of the file.
  """

  def __init__(self, path: pathlib.Path):
    """Creates the object, but no file.

    Args:
      path: Existing folder.
    """
    self.path, self.text = path.absolute(), secrets.token_hex(8)

  def __enter__(self) -> 'SharedFolder':
    atomic.write(_marker(self.path, self.text), self.text)
    return self

  def __exit__(self, *exception: object) -> None:
    _marker(self.path, self.text).unlink(missing_ok=True)


def require_shared(path: str, text: str, *, flag: str, node: str) -> None:
  """Checks on another node that it sees a `SharedFolder`.

  Args:
    path: Path of the folder.
    text: Content of its file.
    flag: Flag that names the folder, for the message.
    node: Address of this node, for the message.

  Raises:
    ValueError: If this node does not see the file.
  """
  folder = pathlib.Path(path)
  deadline = clock.monotonic() + _SHARED_S
  while True:
    if folder.is_dir():
      os.listdir(folder)  # NFS caches that a file is missing; this ends it.
      if _marker(folder, text).exists():
        return
    if clock.monotonic() > deadline:
      break
    clock.sleep(_POLL_S)
  expected = 'a folder on a file system that all nodes share'
  require(False, flag, expected, f'{path}, which node {node} does not see')


def _marker(folder: pathlib.Path, text: str) -> pathlib.Path:
  return folder / f'.shared-{text}'
