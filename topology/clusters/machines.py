"""Accelerator machines, alone and joined by their network cards.

Workers are GPUs or the dies of one, in the order in which their makers number
them.  Docstrings name the default capacities that are nominal, the maker's
figures; measure them where it matters.  Arguments are as in `clusters.shapes`.
"""

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
  boxes: int, *, box_GBps: Capacity = 300, rail_GBps: Capacity = 25
) -> Cluster:
  """Returns boxes of 8 workers around a switch, joined by two rails.

  The switch stands for a DGX A100's NVSwitches.  NVIDIA's figures: 300 GB/s
  each way over the 12 NVLinks of a GPU, 200 Gbit/s for its network card.  One
  rail for even GPUs and one for odd ones are those of ForestColl (Zhao et al.,
  arXiv 2402.06787, 2024).  A rail is a switch for all boxes; a single box has
  none.  Capacities are those of a worker's links to and from the switches.
  """
  return _switched(boxes, 2, box_GBps, rail_GBps)


def dgx_h100(
  boxes: int, *, box_GBps: Capacity = 450, rail_GBps: Capacity = 50
) -> Cluster:
  """Returns boxes of 8 workers around a switch, joined by eight rails.

  The switch stands for a DGX H100's NVSwitches, used without their sums and
  copies.  NVIDIA's figures: 450 GB/s each way over the 18 NVLinks of a GPU,
  400 Gbit/s for its network card.  A rail joins the GPUs of one index, as in
  NVIDIA's rail-optimized fabrics; rails are not joined to each other here.
  Arguments are as of `dgx_a100`.
  """
  return _switched(boxes, 8, box_GBps, rail_GBps)


def mi250(
  boxes: int, *, xgmi_GBps: Capacity = 50, rail_GBps: Capacity = 16
) -> Cluster:
  """Returns boxes of 16 workers, the dies of 8 MI250s, joined by one switch.

  50 GB/s each way per link is AMD's figure for 16 lanes of xGMI at 25 GT/s, as
  are four links within a package.  The other links of the box, and 16 GB/s
  between each die and one switch for all boxes, are those of ForestColl (Zhao
  et al., arXiv 2402.06787, 2024).

  Args:
    boxes: Number of them, at least 1; a single one has no switch.
    xgmi_GBps: Capacity of one link in a box; some dies share two or four.
    rail_GBps: Capacity of a worker's links to and from the switch.
  """
  names = parts.make_names('w', 16 * parts.check_integer(boxes, 'boxes'))
  unit = parts.check_capacity(xgmi_GBps, 'xgmi_GBps')
  links = []
  for box in range(boxes):
    for count, pairs in _pairs(_MI250, names[16 * box :]):
      links += parts.make_links(pairs, count * unit)
  rails = parts.make_links([(w, 's0') for w in names], rail_GBps, 'rail_GBps')
  several = boxes > 1
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


def _pairs(
  table: dict[int, str], names: list[str]
) -> list[tuple[int, list[tuple[str, str]]]]:
  """Pairs of nodes by the number of links between them."""
  found = []
  for count, each in table.items():
    ends = [[names[int(digit, 16)] for digit in pair] for pair in each.split()]
    found.append((count, [(a, b) for a, b in ends]))
  return found


def _switched(
  boxes: int, rails: int, box_GBps: Capacity, rail_GBps: Capacity
) -> Cluster:
  """Boxes of 8 around a switch; worker i of each is on rail i % rails."""
  names = parts.make_names('w', 8 * parts.check_integer(boxes, 'boxes'))
  inner = [(name, f's{i // 8}') for i, name in enumerate(names)]
  outer = [(name, f's{boxes + i % rails}') for i, name in enumerate(names)]
  box = parts.make_links(inner, box_GBps, 'box_GBps')
  rail = parts.make_links(outer, rail_GBps, 'rail_GBps')
  if boxes == 1:
    return parts.make_cluster(names, ['s0'], box)
  return parts.make_cluster(
    names, parts.make_names('s', boxes + rails), [*box, *rail]
  )
