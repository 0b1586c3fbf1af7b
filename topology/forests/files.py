"""Reads clusters and forests from files."""

import json
import pathlib
from typing import Any

from topology.clusters import cluster as clusters
from topology.clusters.builders import build_cluster
from topology.clusters.cluster import Cluster
from topology.forests import export
from topology.forests.trees import Forest


def read(path: str | pathlib.Path) -> tuple[Cluster, Forest | None]:
  """Returns what a JSON file holds: a forest with its cluster, or a cluster.

  Args:
    path: Of a file as `export.to_json` or `cluster.to_json` describe it.

  Raises:
    ValueError: If it holds neither; names the file and the field.
    OSError: If it cannot be read.
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


def read_cluster(spec: str) -> Cluster:
  """Returns the cluster of a file, also of a forest's, or of a builder.

  Args:
    spec: Path of a file as of `read`, or a call as of `build_cluster`.

  Raises:
    ValueError: If it is neither, or describes no cluster.
    OSError: If the file cannot be read.
  """
  if '(' in spec and not pathlib.Path(spec).exists():
    return build_cluster(spec)
  return read(spec)[0]


def _json(path: pathlib.Path) -> dict[str, Any]:
  try:
    data = json.loads(path.read_text(encoding='utf-8'))
  except (RecursionError, ValueError) as error:  # Too deep, or no text.
    raise ValueError(f'{path}: expected JSON, got {error}.') from error
  if not isinstance(data, dict):
    raise ValueError(f'{path}: expected a JSON object, got {data!r}.')
  return data
