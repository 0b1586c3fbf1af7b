"""Reads clusters and forests from files."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from topology.clusters import cluster as clusters
from topology.clusters.builders import build_cluster
from topology.clusters.cluster import Cluster
from topology.clusters.parts import Capacity
from topology.forests import export
from topology.forests.trees import Forest
from topology.readers import matrix, nccl, nvidia_smi, slurm
from topology.readers.capacities import Capacities

_FORMATS = (
  'JSON of nodes and links, `nvidia-smi topo -m`, an XML file of NCCL, '
  'topology.conf of SLURM, or a matrix'
)


def read(path: str | pathlib.Path) -> tuple[Cluster, Forest | None]:
  """Returns the cluster of a JSON file, and its forest if there is one.

  Args:
    path: Path of a file with the data of `export.to_json` or `cluster.to_json`.

  Raises:
    ValueError: If the content is neither; names the file and the field.
    OSError: If the file cannot be read.
  """
  data = _json(pathlib.Path(path))
  try:
    if 'format' in data:
      return export.from_json(data)
    if 'nodes' not in data:
      raise ValueError(f'nodes: expected a cluster or a forest, got {[*data]}.')
    return clusters.from_json(data), None
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error


def read_cluster(
  spec: str, capacities: Mapping[str, Capacity] = {}, hosts: str = ''
) -> Cluster:
  """Returns the cluster of a file, or of a builder.

  The content of a file tells its format: one of `read`, or of the modules
  `nvidia_smi`, `nccl`, `slurm` and `matrix` of `topology.readers`.

  Args:
    spec: Path of a file, or a call as for `build_cluster`.
    capacities: GB/s each way of kinds of links, by the names of the readers,
      such as `pcie_GBps`, where the file does not have them.
    hosts: Hosts of a topology.conf to use; '' for all.

  Raises:
    ValueError: If `spec` is neither, describes no cluster, lacks a capacity, or
      has no link of a given capacity's kind.
    OSError: If the file cannot be read.
  """
  given = Capacities(capacities)
  path = pathlib.Path(spec)
  is_call = '(' in spec and not path.exists()
  cluster = build_cluster(spec) if is_call else _read_any(path, given, hosts)
  given.check_used()
  return cluster


def _read_any(path: pathlib.Path, given: Capacities, hosts: str) -> Cluster:
  """Returns the cluster of a file of any format."""
  data = path.read_bytes()
  try:
    if matrix.is_npy(data):
      return matrix.read_npy(data, given)
    try:
      text = data.decode('utf-8-sig')
    except UnicodeDecodeError as error:
      raise ValueError(f'expected {_FORMATS}, got {error}.') from error
    if slurm.matches(text):
      return slurm.read(text, given, hosts)
    if hosts:
      raise ValueError(f'hosts: expected none but for SLURM, got {hosts!r}.')
    if nccl.matches(text):
      return nccl.read(text, given)
    if nvidia_smi.matches(text):
      return nvidia_smi.read(text, given)
    is_json = text.lstrip().startswith('{')
    if not is_json and matrix.matches(text):
      return matrix.read(text, given)
    if not is_json:
      raise ValueError(f'expected {_FORMATS}, got {text[:60]!r}.')
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error
  return read(path)[0]


def _json(path: pathlib.Path) -> dict[str, Any]:
  try:
    data = json.loads(path.read_text(encoding='utf-8-sig'))
  except (RecursionError, ValueError) as error:  # Too deep, or no text.
    raise ValueError(f'{path}: expected JSON, got {error}.') from error
  if not isinstance(data, dict):
    raise ValueError(f'{path}: expected a JSON object, got {data!r}.')
  return data
