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


def read_cluster(spec: str) -> Cluster:
  """Returns the cluster of a file of a cluster or forest, or of a builder.

  Args:
    spec: Path of a file as for `read`, or a call as for `build_cluster`.

  Raises:
    ValueError: If `spec` is neither, or describes no cluster.
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
