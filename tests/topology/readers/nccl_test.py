"""NCCL's XML files: NVSwitches, direct NVLinks, PCIe, unknown capacities."""

from absl.testing import absltest, parameterized

import topology
from topology.clusters import machines
from topology.readers import nccl
from topology.readers.capacities import Capacities


def _gpu(
  number, inner='', *, sm=80, speed='16.0 GT/s PCIe', width=16, rank=None
):
  rank = number if rank is None else rank
  return f"""
  <pci busid="0000:{number:02X}:00.0" class="0x030200" vendor="0x10de"
    link_speed="{speed}" link_width="{width}">
    <gpu dev="{number}" sm="{sm}" rank="{rank}" gdr="1">{inner}</gpu>
  </pci>"""


def _bridge(bus, inner, speed='16.0 GT/s PCIe', width=16):
  return f"""
  <pci busid="0000:{bus}:00.0" class="0x060400" link_speed="{speed}"
    link_width="{width}">{inner}</pci>"""


def _cpu(inner, number=0):
  return (
    f"""<cpu host_hash="0x1" numaid="{number}" arch="x86_64">{inner}</cpu>"""
  )


def _system(*cpus):
  return f'<system version="1">{"".join(cpus)}</system>'


_CARD = """
  <pci busid="0000:f0:00.0" class="0x020700" link_speed="16 GT/s">
    <nic><net name="mlx5_0" dev="0" speed="200000" port="1"/></nic>
  </pci>"""


def _to_switches(*counts):
  return ''.join(
    f'<nvlink target="0000:c{i}:00.0" count="{count}" tclass="0x068000"/>'
    for i, count in enumerate(counts)
  )


def _to_gpus(counts):
  return ''.join(
    f'<nvlink target="0000:{gpu:02x}:00.0" count="{count}" tclass="0x030200"/>'
    for gpu, count in counts.items()
  )


def _read(text, **given):
  capacities = Capacities(given)
  cluster = nccl.read(text, capacities)
  capacities.check_used()
  return cluster


class NcclTest(parameterized.TestCase):
  @parameterized.parameters(
    (80, (2, 2, 2, 2, 2, 2), machines.dgx_a100(1)),
    (90, (5, 4, 4, 5), machines.dgx_h100(1)),
    (90, (18,), machines.dgx_h100(1)),
  )
  def test_chips_of_an_nvswitch_are_one_switch(self, sm, chips, expected):
    gpus = [_gpu(i, _to_switches(*chips), sm=sm) for i in range(8)]
    text = _system(_cpu(_CARD + ''.join(gpus[:4])), _cpu(''.join(gpus[4:]), 1))
    self.assertTrue(nccl.matches(text))
    cluster = _read(text)
    self.assertEqual(cluster.workers, tuple(f'GPU{i}' for i in range(8)))
    self.assertEqual(
      topology.pack(cluster).rate_Bps, topology.pack(expected).rate_Bps
    )

  def test_direct_nvlinks_join_their_gpus(self):
    text = _system(
      _cpu(
        _gpu(0, _to_gpus({1: 1, 2: 2}), sm=70)
        + _gpu(1, _to_gpus({0: 1, 2: 1}), sm=70)
        + _gpu(2, _to_gpus({0: 2, 1: 1, 9: 3}), sm=70)  # 9 is hidden.
      )
    )
    links = {link[:2]: float(link.GBps) for link in _read(text).links}
    self.assertEqual(
      links,
      {
        ('GPU0', 'GPU1'): 25,
        ('GPU1', 'GPU0'): 25,
        ('GPU0', 'GPU2'): 50,
        ('GPU2', 'GPU0'): 50,
        ('GPU1', 'GPU2'): 25,
        ('GPU2', 'GPU1'): 25,
      },
    )

  def test_pcie_has_the_capacity_of_its_speed_and_width(self):
    switches = [
      _bridge(
        'a0', _gpu(0, speed='8 GT/s', width=16) + _gpu(1, width=8) + _CARD
      ),
      _bridge('b0', _bridge('b1', _gpu(2, speed='5 GT/s')), width=8),
    ]
    cluster = _read(_system(_cpu(''.join(switches))))
    links = {link[:2]: float(link.GBps) for link in cluster.links}
    self.assertAlmostEqual(links['GPU0', 'pcie0'], 8 * 16 / 8 * 128 / 130)
    self.assertAlmostEqual(links['GPU1', 'pcie0'], 16 * 8 / 8 * 128 / 130)
    self.assertAlmostEqual(links['pcie0', 'cpu0'], 16 * 16 / 8 * 128 / 130)
    self.assertEqual(links['GPU2', 'cpu0'], 8.0)  # The slowest on the way.

  def test_processors_need_a_capacity_between_them(self):
    text = _system(_cpu(_gpu(0)), _cpu(_CARD, 1), _cpu(_gpu(1), 2))
    with self.assertRaisesRegex(
      ValueError, 'socket_GBps: .*a processor to the'
    ):
      _read(text)
    cluster = _read(text, socket_GBps=20)
    self.assertEqual({float(link.GBps) for link in cluster.links}, {20.0})

  def test_unknown_speeds_are_asked_for_and_given_ones_replace_all(self):
    gpus = _gpu(0) + _gpu(1, speed='Unknown speed')
    for text in (gpus, _gpu(0) + _gpu(1, width=0)):
      with self.assertRaisesRegex(ValueError, 'pcie_GBps: .*0000:01:00.0'):
        _read(_system(_cpu(text)))
      cluster = _read(_system(_cpu(text)), pcie_GBps=24)
      self.assertEqual({float(link.GBps) for link in cluster.links}, {24.0})
    switched = [_gpu(i, _to_switches(4), sm=999) for i in range(2)]
    with self.assertRaisesRegex(
      ValueError, 'nvlink_GBps: .*one NVLink of GPU0'
    ):
      _read(_system(_cpu(''.join(switched))))

  def test_gpus_of_several_hosts_are_named_by_rank(self):
    text = _system(
      _cpu(_gpu(0, _to_switches(18), rank=0)),
      _cpu(_gpu(0, _to_switches(18), rank=1).replace('0000:00', '0009:00'), 1),
    )
    self.assertEqual(_read(text).workers, ('GPU0', 'GPU1'))

  @parameterized.parameters(
    ('<system>', 'line 1: no element found'),
    ('<topology/>', "system: expected this root element, got 'topology'"),
    (_system(_cpu(_CARD)), 'gpu: expected one element or more'),
    (_system(_cpu(_gpu(0, '<xgmi/>'))), 'xgmi: expected NVLinks'),
    (
      _system(
        _cpu(_gpu(0, '<nvlink target="a" count="x" tclass="0x068000"/>'))
      ),
      "nvlink.count: expected an integer, got 'x'",
    ),
    (
      _system(
        _cpu(_gpu(0, '<nvlink target="a" count="1" tclass="0x068001"/>'))
      ),
      'GPU0, nvlink.tclass: expected a GPU or an NVSwitch',
    ),
    (
      _system(_cpu('<pci><gpu dev="0" sm="80" rank="0"/></pci>')),
      'pci.busid: expected text',
    ),
  )
  def test_other_files_are_refused_by_element(self, text, message):
    with self.assertRaisesRegex(ValueError, message):
      _read(text)

  def test_a_lost_gpu_is_joined_by_pcie(self):
    gpus = [_gpu(i, _to_switches(18) if i else '') for i in range(3)]
    cluster = _read(_system(_cpu(''.join(gpus))))
    self.assertIn('nvswitch', cluster.switches)
    self.assertIn('cpu0', cluster.switches)


if __name__ == '__main__':
  absltest.main()
