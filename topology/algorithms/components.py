"""Sets of nodes that grow together, with a label to tell them apart."""


class Components:
  """Nodes 0 to n - 1, at first each in a set of its own.

  Attributes:
    label: Label of each node's set; nodes of a set have the same label.
  """

  def __init__(self, nodes: int) -> None:
    self.label = list(range(nodes))
    self._members = [[node] for node in range(nodes)]

  def join(self, a: int, b: int) -> bool:
    """Merges the sets of two nodes; returns False if they are the same set.

    O(n log n) for all calls together.
    """
    larger, smaller = self.label[a], self.label[b]
    if larger == smaller:
      return False
    if len(self._members[larger]) < len(self._members[smaller]):
      larger, smaller = smaller, larger
    for node in self._members[smaller]:
      self.label[node] = larger
    self._members[larger] += self._members[smaller]
    return True
