"""Sets of nodes that grow together, with a label to tell them apart."""


class Components:
  """Nodes 0 to n - 1, at first each in a set of its own.

  Attributes:
    label: Per node, which is the same for all nodes of a set.
  """

  def __init__(self, nodes: int) -> None:
    self.label = list(range(nodes))
    self._members = [[node] for node in range(nodes)]

  def join(self, a: int, b: int) -> bool:
    """Merges the sets of two nodes; returns False if they are in one set.

    O(n log n) for all calls together.
    """
    kept, lost = self.label[a], self.label[b]
    if kept == lost:
      return False
    if len(self._members[kept]) < len(self._members[lost]):
      kept, lost = lost, kept
    for node in self._members[lost]:
      self.label[node] = kept
    self._members[kept] += self._members[lost]
    return True
