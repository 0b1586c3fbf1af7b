"""Clusters of bench.forest, read from files or built by name."""

import json
import pathlib
from fractions import Fraction
from typing import NamedTuple

from topology.clusters import cluster as clusters
from topology.clusters.builders import build_cluster
from topology.clusters.cluster import Cluster
from topology.forests import trees

SPREAD = {
  'mesh of 8': 'full_mesh(8, 25)',
  'mesh of 16': 'full_mesh(16, 25)',
  'star of 16': f'star({[25] * 16})',
  'tree 4 x 4': 'tree([4, 4], [25, 25])',
  'fat tree, 16': 'fat_tree(4, 25)',
}
_TWO = ('allreduce', 'allgather')
_ONE = ('allreduce',)
TIMES = (  # Clusters, their gap and their collectives.
  (
    (
      'random_mesh(16, 1, symmetric=True)',
      'random_mesh(16, 1)',
      'dgx_a100(2)',
      'mi250(1)',
    ),
    0,
    trees.COLLECTIVES,
  ),
  (('dgx_a100(4)', 'mi250(2)'), 0, _TWO),
  (
    (
      'tree([8, 8], [40, 10])',
      'torus([8, 8], 25)',
      'bcube(8, 2, 10)',
      'hypercube(6, 25)',
      'dgx_a100(8)',
      'mi250(4)',
    ),
    0,
    _TWO,
  ),
  (('random_mesh(64, 1, symmetric=True)', 'torus([16, 16], 25)'), 0, _ONE),
  (('random_mesh(64, 1, symmetric=True)',), 0.01, _ONE),
  (('random_mesh(64, 1)',), 0.03, _ONE),
  (
    (
      'fat_tree(8, 10)',
      'tree([16, 16], [40, 10])',
      'torus([16, 16], 25)',
      'bcube(16, 2, 10)',
      'hypercube(8, 25)',
      'dgx_a100(32)',
    ),
    0.01,
    _TWO,
  ),
  (
    (
      'tree([32, 32], [80, 10])',
      'torus([32, 32], 25)',
      'fat_tree(16, 10)',
      'dgx_a100(128)',
      'random_mesh(1024, 1, density=0.01, symmetric=True)',
    ),
    0.03,
    _ONE,
  ),
)
FEW_OF = (
  'random_mesh(16, 1, symmetric=True)',
  'random_mesh(16, 1)',
  'torus([4, 4], 25)',
  "dgx_1('v100')",
  'dgx_a100(2)',
  'mi250(1)',
  'mi250(2)',
  'fat_tree(4, 10)',
)
PHASES_OF = (
  'dgx_a100(2)',
  'random_mesh(8, 1, symmetric=True)',
  'random_mesh(16, 1, symmetric=True)',
  'random_mesh(8, 1)',
  'random_mesh(16, 1)',
  'star([100, 100, 100, 50, 50, 10])',
  'star([10, 40, 40, 40, 5], [40, 10, 40, 40, 5])',
  'random_switched(12, 4, 1)',
)
_STAR = 'star([20, 21, 22, 23, 24, 25, 26, 27])'
_UNEQUAL = (
  'mi250([8, 8])',
  'mi250([12, 12])',
  'mi250([8, 16])',
  'dgx_a100([8, 4])',
  'dgx_a100([8, 2])',
  'dgx_a100([8, 8, 4])',
  'dgx_h100([8, 4])',
  'dgx_h100([8, 8, 2])',
)
_BUILT_IN = (
  'full_mesh(8, 25)',
  'ring(8, 25)',
  'line(8, 25)',
  'star([100, 100, 100, 50, 50, 10])',
  'tree([4, 4], [10, 10])',
  'torus([4, 4], 25)',
  'hypercube(4, 25)',
  'fat_tree(4, 10)',
  'bcube(4, 2, 10)',
  'dcell(3, 1, 10)',
  'wan([4, 4], 25, [(3, 4, 1)])',
  "dgx_1('v100')",
  'dgx_a100(2)',
  'dgx_h100(2)',
  'mi250(1)',
  'pcie()',
  'random_mesh(12, 1, symmetric=True)',
  'random_mesh(12, 1)',
  'random_switched(12, 4, 1)',
)


class Topology(NamedTuple):
  """A cluster to compare schemes on.

  Attributes:
    name: Name in the table.
    cluster: Workers, switches and links.
    optimum_GBps: Best rate of an allreduce; None if it is unknown.
  """

  name: str
  cluster: Cluster
  optimum_GBps: Fraction | None


def read(folder: str | pathlib.Path) -> list[Topology]:
  """Returns the topologies of all JSON files of a folder.

  Topologies of a single worker and unconnected ones are skipped.
  """
  topologies = []
  for path in sorted(pathlib.Path(folder).glob('*.json')):
    for row in json.loads(path.read_text(encoding='utf-8'))['topologies']:
      if row['feasible'] and len(row['nodes']) > 1:
        optimum = Fraction(row['allreduce']['rate_GBps'])
        topologies.append(
          Topology(row['name'], clusters.from_json(row), optimum)
        )
  if not topologies:
    raise ValueError(f'--topologies: expected JSON files, got {folder}.')
  return topologies


def unequal_boxes() -> list[Topology]:
  """Returns boxes of which some have fewer GPUs than others."""
  return [Topology(name, build_cluster(name), None) for name in _UNEQUAL]


def exact_specs() -> list[str]:
  """Returns the specs of the clusters that the tables pack exactly."""
  timed_specs = [spec for specs, gap, _ in TIMES if not gap for spec in specs]
  return list(
    dict.fromkeys([_STAR, *_BUILT_IN, *FEW_OF, *PHASES_OF, *timed_specs])
  )


def built_in() -> list[Topology]:
  """Returns one topology of each kind that has a builder."""
  return [Topology(name, build_cluster(name), None) for name in _BUILT_IN]
