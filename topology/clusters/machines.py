"""Accelerator machines, alone and joined by their network cards.

Workers are GPUs or the dies of one, in the order in which their makers number
them.  A job may have only some GPUs of a box, the first ones: where `boxes` is
a list, it has the number of GPUs in each box.  Default capacities that a
docstring calls a maker's figures are nominal: measure them where it matters.
Other arguments are as in `clusters.shapes`.
"""

from collections.abc import Sequence

from topology.clusters import parts
from topology.clusters.cluster import Cluster
from topology.clusters.parts import Capacity

# NVLinks between the V100s of a DGX-1, by the number of them between two; the
# P100s have one between each pair.
_CUBE_MESH = {1: '01 02 13 26 37 45 46 57', 2: '03 04 12 15 23 47 56 67'}
# xGMI links between the dies of eight MI250s, in hexadecimal, of which 2 i and
# 2 i + 1 share a package.
_MI250 = {
  1: '08 15 19 1a 26 29 2a 3b 46 56 57 9d ae ce de df',
  2: '04 37 8c bf',
  4: '01 23 45 67 89 ab cd ef',
}


def dgx_1(gpu: str) -> Cluster:
  """Returns the 8 workers of an NVIDIA DGX-1, a hybrid cube mesh.

  The cube's twelve edges and the diagonals of two opposite faces are NVLinks,
  no switch.  Shape and capacities are NVIDIA's ("DGX-1 System Architecture",
  white paper WP-08437-001, 2017): 20 GB/s each way over each of the P100's 4
  NVLinks, 25 over each of the V100's 6, of which some are doubled.

  Args:
    gpu: 'p100' or 'v100'.

  Raises:
    ValueError: If `gpu` is another text.
  """
  if gpu not in ('v100', 'p100'):
    raise ValueError(f"gpu: expected 'v100' or 'p100', got {gpu!r}.")
  names = parts.make_names('w', 8)
  links = []
  for count, pairs in _pairs(_CUBE_MESH, names):
    links += parts.make_links(pairs, 25 * count if gpu == 'v100' else 20)
  return parts.make_cluster(names, (), links)


def dgx_a100(
  boxes: int | Sequence[int],
  *,
  box_GBps: Capacity = 300,
  rail_GBps: Capacity = 25,
) -> Cluster:
  """Returns boxes of up to 8 workers around a switch, joined by two rails.

  The switch stands for a DGX A100's NVSwitches.  NVIDIA's figures: 300 GB/s
  each way over the 12 NVLinks of a GPU, 200 Gbit/s for its network card.  One
  rail for even GPUs and one for odd ones are those of ForestColl (Zhao et al.,
  arXiv 2402.06787, 2024).  A rail is a switch for all boxes; a single box has
  none.  Capacities are those of a worker's links to and from the switches.

  Args:
    boxes: Number of boxes of 8, or the number of GPUs in each, 1 to 8.
    box_GBps: Capacity of a worker's links to and from the switch of its box.
    rail_GBps: Capacity of its links to and from its rail.

  Example:
    >>> len(dgx_a100([8, 4]).workers)
    12
  """
  return _switched(boxes, 2, box_GBps, rail_GBps)


def dgx_h100(
  boxes: int | Sequence[int],
  *,
  box_GBps: Capacity = 450,
  rail_GBps: Capacity = 50,
) -> Cluster:
  """Returns boxes of up to 8 workers around a switch, joined by eight rails.

  The switch stands for a DGX H100's NVSwitches, used without their sums and
  copies.  NVIDIA's figures: 450 GB/s each way over the 18 NVLinks of a GPU,
  400 Gbit/s for its network card.  A rail joins the GPUs of one index, as in
  NVIDIA's rail-optimized fabrics; rails are not joined to each other here.
  Arguments are as of `dgx_a100`.
  """
  return _switched(boxes, 8, box_GBps, rail_GBps)


def mi250(
  boxes: int | Sequence[int],
  *,
  xgmi_GBps: Capacity = 50,
  rail_GBps: Capacity = 16,
) -> Cluster:
  """Returns boxes of up to 16 workers, dies of 8 MI250s, joined by one switch.

  50 GB/s each way per link is AMD's figure for 16 lanes of xGMI at 25 GT/s, as
  are four links within a package.  The other links of the box, and 16 GB/s
  between each die and one switch for all boxes, are those of ForestColl (Zhao
  et al., arXiv 2402.06787, 2024).

  Args:
    boxes: Number of boxes of 16, or the number of dies in each, 1 to 16; a
      single box has no switch.
    xgmi_GBps: Capacity of one link in a box; some dies share two or four.
    rail_GBps: Capacity of a worker's links to and from the switch.
  """
  counts = _counts(boxes, 16)
  names = parts.make_names('w', sum(counts))
  unit = parts.check_capacity(xgmi_GBps, 'xgmi_GBps')
  links, first = [], 0
  for count in counts:
    for times, pairs in _pairs(_MI250, names[first : first + count]):
      links += parts.make_links(pairs, times * unit)
    first += count
  rails = parts.make_links([(w, 's0') for w in names], rail_GBps, 'rail_GBps')
  several = len(counts) > 1
  return parts.make_cluster(names, ['s0'] * several, links + rails * several)


def pcie(
  *,
  gpu_GBps: Capacity = 12,
  uplink_GBps: Capacity = 12,
  socket_GBps: Capacity = 10,
) -> Cluster:
  """Returns 8 workers without NVLink, in a machine of two sockets.

  's0' to 's3' are PCIe switches with two workers each, 's4' and 's5' the
  sockets with two switches each, joined to each other: a common shape, not of
  one product.  12 GB/s is about what PCIe 3.0 x16 carries of its nominal 15.75
  each way; 10 GB/s between sockets is a round assumption.  Uplinks are those
  between a switch and its socket.
  """
  names, switches = parts.make_names('w', 8), parts.make_names('s', 6)
  gpus = [(name, switches[i // 2]) for i, name in enumerate(names)]
  uplinks = [(switches[i], switches[4 + i // 2]) for i in range(4)]
  links = [
    *parts.make_links(gpus, gpu_GBps, 'gpu_GBps'),
    *parts.make_links(uplinks, uplink_GBps, 'uplink_GBps'),
    *parts.make_links([('s4', 's5')], socket_GBps, 'socket_GBps'),
  ]
  return parts.make_cluster(names, switches, links)


def _counts(boxes: object, full: int) -> list[int]:
  """Returns the number of workers in each box; an integer means full boxes."""
  if not isinstance(boxes, list | tuple):
    return [full] * parts.check_integer(boxes, 'boxes')
  counts = parts.check_list(boxes, 'boxes', parts.check_integer)
  if max(counts) > full:
    raise ValueError(
      f'boxes: expected at most {full} workers in each, got {counts}.'
    )
  return counts


def _pairs(
  table: dict[int, str], names: Sequence[str]
) -> list[tuple[int, list[tuple[str, str]]]]:
  """Pairs of the nodes that are there, by the number of links between them."""
  found = []
  for count, each in table.items():
    ends = [[int(digit, 16) for digit in pair] for pair in each.split()]
    there = [(a, b) for a, b in ends if max(a, b) < len(names)]
    found.append((count, [(names[a], names[b]) for a, b in there]))
  return found


def _switched(
  boxes: object, rails: int, box_GBps: Capacity, rail_GBps: Capacity
) -> Cluster:
  """Boxes of up to 8 around a switch; worker i of each is on rail i % rails."""
  counts = _counts(boxes, 8)
  places = [(box, i) for box, n in enumerate(counts) for i in range(n)]
  names = parts.make_names('w', len(places))
  inner, outer = [], []
  for name, (box, i) in zip(names, places, strict=True):
    inner.append((name, f's{box}'))
    outer.append((name, f's{len(counts) + i % rails}'))
  inside = parts.make_links(inner, box_GBps, 'box_GBps')
  rail = parts.make_links(outer, rail_GBps, 'rail_GBps')
  if len(counts) == 1:
    return parts.make_cluster(names, ['s0'], inside)
  switches = parts.make_names('s', len(counts) + min(rails, max(counts)))
  return parts.make_cluster(names, switches, [*inside, *rail])
