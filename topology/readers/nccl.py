"""NCCL's description of a host's topology (NCCL_TOPO_DUMP_FILE), an XML file.

Its elements are processors with trees of PCIe devices below them, of which some
are GPUs.  A GPU lists its NVLinks by what they lead to: another GPU, or chips
of an NVSwitch, which are one switch here.  Capacities are the makers' nominal
ones, not the estimates by which NCCL chooses rings: that of an NVLink follows
from the GPU's compute capability, that of a PCIe link from its speed and width.
PCIe is used if NVLinks do not join all GPUs.
"""

import itertools
import re
from collections.abc import Iterator
from fractions import Fraction
from xml.etree import ElementTree

from topology.clusters import parts
from topology.clusters.cluster import Cluster
from topology.readers.capacities import Capacities
from topology.readers.pcie import Branch, Builder

# GB/s each way of one NVLink, by compute capability (NVIDIA's white papers on
# Pascal, Volta, Ampere, Hopper and Blackwell).
_NVLINK_GBps = {60: 20, 70: 25, 80: 25, 90: 25, 100: 50, 103: 50}
# Share of the bits that are data, by gigatransfers per second of a lane:
# 8b/10b, 128b/130b, and 236 of the 256 bytes of a flit.
_ENCODING = {
  Fraction(5, 2): Fraction(4, 5),
  Fraction(5): Fraction(4, 5),
  Fraction(8): Fraction(64, 65),
  Fraction(16): Fraction(64, 65),
  Fraction(32): Fraction(64, 65),
  Fraction(64): Fraction(59, 64),
}
_SPEED = re.compile(r'(\d+(?:\.\d+)?) GT/s')
_GPU_CLASSES, _SWITCH_CLASS = ('0x0300', '0x0302'), '0x0680'

_Element = ElementTree.Element


def matches(text: str) -> bool:
  """Returns whether a text may be NCCL's description: it looks like XML."""
  return text.lstrip().startswith('<')


def read(text: str, capacities: Capacities) -> Cluster:
  """Returns the GPUs of a file, as workers GPU0, GPU1 and so on.

  Args:
    text: Content of the file.
    capacities: `nvlink_GBps` of one NVLink and `pcie_GBps` of a PCIe link
      replace those of the file, and are needed where it has none; `socket_GBps`
      between processors is never in it.

  Raises:
    ValueError: If the file has no GPU, or is none of NCCL's; names the element,
      or the capacity that is missing.
  """
  try:
    system = ElementTree.fromstring(text)
  except ElementTree.ParseError as error:
    raise ValueError(f'line {error.position[0]}: {error}.') from error
  if system.tag != 'system':
    raise ValueError(f'system: expected this root element, got {system.tag!r}.')
  devices = {
    _bus(device): gpu
    for device in system.iter('pci')
    for gpu in device.findall('gpu')
  }
  if not devices:
    raise ValueError('gpu: expected one element or more, got none.')
  if next(system.iter('xgmi'), None) is not None:
    raise ValueError('xgmi: expected NVLinks, as links of AMD are not read.')
  names = _names(devices)
  builder = Builder()
  joined = _add_nvlinks(devices, names, builder, capacities)
  if not joined:
    _add_pcie(system, names, builder, capacities)
  return parts.make_cluster(
    list(names.values()), builder.switches, builder.links
  )


def _names(devices: dict[str, _Element]) -> dict[str, str]:
  """Returns names of GPUs by bus, numbered by device, or by rank on hosts."""
  for key in ('dev', 'rank'):
    numbers = [_integer(gpu, key) for gpu in devices.values()]
    if len(set(numbers)) == len(numbers):
      ordered = sorted(zip(numbers, devices, strict=True))
      return {bus: f'GPU{number}' for number, bus in ordered}
  raise ValueError(
    'gpu.rank: expected one of its own for each GPU, got equals.'
  )


def _add_nvlinks(
  devices: dict[str, _Element],
  names: dict[str, str],
  builder: Builder,
  capacities: Capacities,
) -> bool:
  """Adds NVLinks; returns whether they join all GPUs."""
  replaced = None
  if any(gpu.findall('nvlink') for gpu in devices.values()):
    replaced = capacities.get('nvlink_GBps')
  to_switch: dict[str, Fraction] = {}
  reached: dict[str, set[str]] = {name: set() for name in names.values()}
  for bus, gpu in devices.items():
    name = names[bus]
    for link in gpu.findall('nvlink'):
      GBps = _integer(link, 'count') * (
        replaced or _nvlink_GBps(gpu, name, capacities)
      )
      kind = link.get('tclass', '')[:6]
      target = link.get('target', '').lower()
      if kind == _SWITCH_CLASS and link.get('tclass') != '0x068001':
        to_switch[name] = to_switch.get(name, Fraction(0)) + GBps
      elif kind not in _GPU_CLASSES:
        raise ValueError(
          f'{name}, nvlink.tclass: expected a GPU or an NVSwitch, got '
          f'{link.get("tclass")!r}.'
        )
      elif target in names:  # Others are hidden from this run.
        builder.links.append((name, names[target], GBps))
        reached[name].add(names[target])
  if to_switch:
    builder.switches.append('nvswitch')
    for name, GBps in to_switch.items():
      builder.connect(name, 'nvswitch', GBps)
      reached[name] |= to_switch.keys()
  found: set[str] = set()
  new = {next(iter(reached))}
  while new:
    found |= new
    new = {other for name in new for other in reached[name]} - found
  return len(found) == len(reached)


def _nvlink_GBps(gpu: _Element, name: str, capacities: Capacities) -> Fraction:
  known = _NVLINK_GBps.get(_integer(gpu, 'sm'))
  if known is None:
    return capacities.need('nvlink_GBps', f'one NVLink of {name}')
  return Fraction(known)


def _add_pcie(
  system: _Element,
  names: dict[str, str],
  builder: Builder,
  capacities: Capacities,
) -> None:
  """Adds the trees of PCIe switches below the processors that have GPUs."""
  replaced, numbers = capacities.get('pcie_GBps'), itertools.count()

  def branches(element: _Element) -> Iterator[Branch]:
    for device in element.findall('pci'):
      own = names.get(_bus(device))
      below = [Branch(own, Fraction(0))] if own else list(branches(device))
      if not below:
        continue  # A network card, or a switch of cards.
      GBps = replaced or _pcie_GBps(device, capacities)
      if own:
        yield Branch(own, GBps)
      else:
        yield builder.join(f'pcie{next(numbers)}', below, GBps)

  sockets = []
  for number, processor in enumerate(system.findall('cpu')):
    if below := list(branches(processor)):
      name = f'cpu{processor.get("numaid", number)}'
      sockets.append(builder.join(name, below, below[0].GBps).node)
  if len(sockets) > 1:
    between = capacities.need('socket_GBps', 'a processor to the others')
    builder.join_sockets(sockets, between)


def _pcie_GBps(device: _Element, capacities: Capacities) -> Fraction:
  """Returns the capacity of the link above a device."""
  match = _SPEED.match(device.get('link_speed', ''))
  speed = Fraction(match[1]) if match else Fraction(0)
  width = _integer(device, 'link_width') if device.get('link_width') else 0
  if not width or speed not in _ENCODING:
    return capacities.need('pcie_GBps', f'the PCIe link of {_bus(device)}')
  return speed * width * _ENCODING[speed] / 8


def _bus(device: _Element) -> str:
  found = device.get('busid')
  if not found:
    raise ValueError(f'pci.busid: expected text, got {found!r}.')
  return found.lower()


def _integer(element: _Element, key: str) -> int:
  value = element.get(key, '')
  try:
    return int(value, 0)
  except ValueError as error:
    raise ValueError(
      f'{element.tag}.{key}: expected an integer, got {value!r}.'
    ) from error
