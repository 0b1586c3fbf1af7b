"""SLURM's topology.conf: trees of switches, lists of hosts, wrong files."""

from absl.testing import absltest, parameterized

import topology
from topology.clusters import shapes
from topology.readers import slurm
from topology.readers.capacities import Capacities

_TREE = r"""
# Two leaves and a root.
SwitchName=leaf0 Nodes=n[0-3] LinkSpeed=100 # With a comment
switchname=leaf1 \
  nodes=n[4-6],login
SwitchName=root Switches=leaf[0-1]
SwitchName=idle Comment="no hosts here"
"""


def _read(text, hosts='', **given):
  capacities = Capacities(given)
  cluster = slurm.read(text, capacities, hosts)
  capacities.check_used()
  return cluster


class SlurmTest(parameterized.TestCase):
  @parameterized.parameters(_TREE, _TREE.replace('\n', '\r\n'))
  def test_hosts_hang_below_their_switches(self, text):
    self.assertTrue(slurm.matches(text))
    cluster = _read(text, node_GBps=10, switch_GBps=20)
    self.assertCountEqual(
      cluster.workers, [*(f'n{i}' for i in range(7)), 'login']
    )
    self.assertCountEqual(cluster.switches, ['leaf0', 'leaf1', 'root'])
    expected = topology.pack(shapes.tree([2, 4], [20, 10]))
    self.assertEqual(topology.pack(cluster).rate_Bps, expected.rate_Bps)

  def test_chosen_hosts_keep_the_switches_on_their_ways(self):
    cluster = _read(_TREE, hosts='n[0-1]', node_GBps=10, switch_GBps=20)
    self.assertEqual(cluster.workers, ('n0', 'n1'))
    with self.assertRaisesRegex(ValueError, "hosts: .*got 'n9'"):
      _read(_TREE, hosts='n9', node_GBps=10, switch_GBps=20)

  def test_a_single_switch_needs_no_capacity_between_switches(self):
    text = 'SwitchName=s Nodes=a,b'
    self.assertLen(_read(text, node_GBps='12.5').links, 4)
    with self.assertRaisesRegex(ValueError, 'switch_GBps: expected no value'):
      _read(text, node_GBps=1, switch_GBps=1)
    with self.assertRaisesRegex(ValueError, 'node_GBps: .*give --node_GBps'):
      _read(text)

  @parameterized.parameters(
    ('a', ['a']),
    ('n[8-11]', ['n8', 'n9', 'n10', 'n11']),
    ('n[008-011]', ['n008', 'n009', 'n010', 'n011']),
    ('n[1,3-4]x,b', ['n1x', 'n3x', 'n4x', 'b']),
    ('r[0-1]n[0-1]', ['r0n0', 'r0n1', 'r1n0', 'r1n1']),
  )
  def test_lists_of_hosts_are_expanded(self, text, names):
    self.assertEqual(slurm.expand(text), names)

  @parameterized.parameters('', 'n[3-1]', 'n[a]', 'n[1', 'a,,b', 'n[1-9999999]')
  def test_wrong_lists_are_refused(self, text):
    with self.assertRaisesRegex(ValueError, 'hosts: expected'):
      slurm.expand(text)

  @parameterized.parameters(
    ('SwitchName=a Nodes=x\nSwitchName=a Nodes=y', "line 2: .*'a' once"),
    (
      'SwitchName=a Nodes=x\nSwitchName=b Nodes=x',
      "line 2: expected 'x' below",
    ),
    ('\nSwitchName=a Switches=b', "line 2, Switches: .*got 'b'"),
    ('SwitchName=a Node=x', "line 1: .*got 'node'"),
    ('SwitchName=a Nodes=n[1', 'line 1: hosts: expected'),
    (
      'Nodes=x Switches=y\nSwitchName=y',
      'line 1: expected SwitchName, got none',
    ),
    ('SwitchName=a nonsense', "line 1: expected KEY=VALUE, got 'nonsense'"),
    ('BlockName=b Nodes=n[0-3]', 'line 1: .*blocks have no switches'),
    ('SwitchName=a', 'Nodes: expected one host or more'),
    ('SwitchName=a Nodes=x\nSwitchName=b Nodes=y', 'unreachable'),
  )
  def test_wrong_files_are_refused_by_line(self, text, message):
    with self.assertRaisesRegex(ValueError, message):
      _read(text, node_GBps=1)


if __name__ == '__main__':
  absltest.main()
