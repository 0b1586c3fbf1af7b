"""Sets of nodes that grow together, against NetworkX."""

import random

import networkx as nx
from absl.testing import absltest

from topology.algorithms.components import Components


class ComponentsTest(absltest.TestCase):
  def test_labels_are_equal_within_a_set_and_only_there(self):
    rng = random.Random(0)
    graph, components = nx.empty_graph(30), Components(30)
    for _ in range(60):
      a, b = rng.sample(range(30), 2)
      if components.label[a] != components.label[b]:
        self.assertFalse(nx.has_path(graph, a, b))
        components.join(a, b)
        graph.add_edge(a, b)
      for nodes in nx.connected_components(graph):
        self.assertLen({components.label[node] for node in nodes}, 1)
      self.assertLen(
        set(components.label), nx.number_connected_components(graph)
      )


if __name__ == '__main__':
  absltest.main()
