"""Every process gets the same, whatever its hashes and its BLAS do."""

from absl.testing import absltest

from tests.support import small

_EXPORTED = """
import json
import topology
from topology.baselines import schemes
from topology.clusters import machines
from topology.clusters import randomized
from topology.clusters import shapes
from topology.forests import export, trees

def show(graph, forest):
  print(json.dumps(export.to_json(graph, forest)))

for graph in (randomized.random_mesh(8, 1), shapes.bcube(3, 2, 10),
              shapes.tree([2, 3], [7, 5])):
  for collective in trees.COLLECTIVES:
    show(graph, topology.pack(graph, collective=collective))
show(graph, topology.pack(graph, max_trees=5))
best = topology.pack(graph)
for name, scheme in schemes.build_all(graph, best).items():
  print(name, scheme)
for graph in (randomized.random_mesh(40, 1, symmetric=True),
              randomized.random_switched(18, 5, 1), machines.dgx_a100(3)):
  for collective in trees.COLLECTIVES[:2]:
    forest = topology.pack(graph, collective=collective, gap=0.02)
    show(graph, forest)
show(graph, topology.pack(machines.dgx_a100(3), max_trees=5))
"""


class DeterminismTest(absltest.TestCase):
  def test_hashes_and_threads_do_not_change_a_bit(self):
    printed = set()
    # Prescott's kernels do not fuse products and sums, newer ones do.
    one = {'PYTHONHASHSEED': '1', 'OPENBLAS_NUM_THREADS': '1'}
    two = {'PYTHONHASHSEED': '2', 'OPENBLAS_NUM_THREADS': '2'}
    for environment in (one, two | {'OPENBLAS_CORETYPE': 'Prescott'}):
      done = small.python('-c', _EXPORTED, **environment)
      done.check_returncode()
      printed.add(done.stdout)

    self.assertLen(printed, 1)


if __name__ == '__main__':
  absltest.main()
