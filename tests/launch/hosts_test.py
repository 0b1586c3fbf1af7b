"""Tests for launch.hosts."""

import itertools
import json

import networkx
from absl.testing import absltest, parameterized

from launch import hosts

_UNEQUAL = {
  'hosts': {'host0': {'up': '40mbit', 'down': '20mbit'}},
  'pairs': [{'from': 'host1', 'to': 'host2', 'rate': '10mbit'}],
}
_NESTED = {
  'groups': [
    {'hosts': ['host0', 'host1'], 'up': '10mbit', 'down': '20mbit'},
    {'hosts': ['host5']},
    {'hosts': ['host1', 'host0', 'host2'], 'up': '30mbit'},
  ]
}


def _devices(links):
  """Returns a graph of the devices that frames pass, from a lab's commands.

  Nodes are hosts and bridges, edges have the rates of the devices that send.
  """
  peer, master, rate = {}, {}, {}
  for line in hosts.commands('syn-000000', links):
    words = line.split()
    where = words[words.index('-n') + 1] if '-n' in words else ''
    if 'veth' in words:
      name = words[words.index('add') + 1]
      inside = words[-2] == 'netns'
      far = (words[-1], 'eth0') if inside else (where, words[-1])
      peer[where, name], peer[far] = far, (where, name)
    if 'master' in words:
      master[where, words[words.index('set') + 1]] = words[-2]
    if 'class' in words and words[words.index('parent') + 1] == '1:':
      most = words[words.index('ceil') + 1]
      device = words[words.index('dev') + 1]
      rate[where, device] = int(most.removesuffix('bit'))
  graph = networkx.DiGraph()
  node = lambda end: master.get(end, end[0].removeprefix('syn-000000-'))  # noqa: E731
  for near, far in peer.items():
    graph.add_edge(node(near), node(far), rate=rate[near] // 10**6)
  return graph


class RatesTest(parameterized.TestCase):
  @parameterized.parameters(
    ('8kbit', 8_000), ('200mbit', 200_000_000), ('1.5gbit', 1_500_000_000)
  )
  def test_rates_are_bits_per_second(self, text, rate):
    self.assertEqual(hosts.parse_rate(text, 'link'), rate)

  @parameterized.parameters(
    '', '200', '200MB', '-1mbit', '0mbit', '7kbit', '101gbit', 5, None
  )
  def test_other_rates_are_refused(self, text):
    with self.assertRaisesRegex(ValueError, f"link: .* a rate .* got '?{text}"):
      hosts.parse_rate(text, 'link')


class LinksTest(parameterized.TestCase):
  def test_links_are_equal_but_for_those_of_the_file(self):
    links = hosts.parse_links(3, '1gbit', json.dumps(_UNEQUAL))

    rest = {'host1': 10**9, 'host2': 10**9}
    self.assertEqual(links.up, {'host0': 40_000_000} | rest)
    self.assertEqual(links.down, {'host0': 20_000_000} | rest)
    self.assertEqual(links.pairs, {('host1', 'host2'): 10_000_000})

  @parameterized.parameters(
    ('{', 'links: expected JSON'),
    ('[]', 'links: expected an object'),
    ('{"host": {}}', r"links: .* fields \['hosts', 'pairs', 'groups'\]"),
    ('{"hosts": {"host2": {}}}', "hosts: expected one of .* got 'host2'"),
    ('{"hosts": {"host1": {"in": "1gbit"}}}', r'links.hosts.host1: .*\bup'),
    ('{"hosts": {"host1": {"up": "1"}}}', 'links.hosts.host1.up: .* a rate'),
    ('{"pairs": {}}', 'links.pairs: expected a list'),
    ('{"pairs": [{"from": "host0"}]}', r'links.pairs\[0\]: .* all of'),
    ('{"groups": {}}', 'links.groups: expected a list'),
    ('{"groups": [[]]}', r'links.groups\[0\]: expected an object with all'),
    ('{"groups": [{"up": "1gbit"}]}', r"\['hosts'\] and some .* \['up', 'do"),
    ('{"groups": [{"hosts": ["host0"], "loss": 1}]}', r'links.groups\[0\]: '),
    ('{"groups": [{"hosts": "host0"}]}', r'groups\[0\].hosts: .* a list'),
    ('{"groups": [{"hosts": []}]}', r'groups\[0\].hosts: expected hosts'),
    (
      '{"groups": [{"hosts": ["host0", "host1"]}]}',
      r'links.groups\[0\].hosts: .* not all hosts of the lab',
    ),
    (
      '{"groups": [{"hosts": ["host0", "host0"]}]}',
      r'links.groups\[0\].hosts: expected hosts, each once',
    ),
    (
      '{"groups": [{"hosts": ["host7"]}]}',
      r"links.groups\[0\].hosts: expected one of .* got 'host7'",
    ),
    (
      '{"groups": [{"hosts": ["host1"], "down": 5}]}',
      r'links.groups\[0\].down: expected a rate .* got 5',
    ),
    (
      '{"groups": [{"hosts": ["host1"], "delay_ms": -1}]}',
      r'links.groups\[0\].delay_ms: expected a number from 0 to 2000, got -1',
    ),
    (
      '{"pairs": [{"from": "host0", "to": ["x"], "rate": "1gbit"}]}',
      r"links.pairs\[0\]: expected one of .* got \['x'\]",
    ),
    (
      '{"pairs": [{"from": "host1", "to": "host1", "rate": "1gbit"}]}',
      r'links.pairs\[0\]: expected two different hosts',
    ),
  )
  def test_other_files_are_refused(self, text, message):
    with self.assertRaisesRegex(ValueError, message):
      hosts.parse_links(2, '1gbit', text)

  def test_a_pair_has_one_rate(self):
    text = json.dumps({'pairs': 2 * _UNEQUAL['pairs']})
    with self.assertRaisesRegex(ValueError, r'pairs\[1\]: .* each pair once'):
      hosts.parse_links(3, '1gbit', text)

  @parameterized.parameters(-1, 0, 1, 251)
  def test_other_numbers_of_hosts_are_refused(self, number):
    with self.assertRaisesRegex(ValueError, f'from 2 to 250, got {number}'):
      hosts.parse_links(number, '1gbit')

  @parameterized.parameters('', 'two words', 'Cubic', 16 * 'x')
  def test_other_names_of_congestion_control_are_refused(self, name):
    with self.assertRaisesRegex(ValueError, 'congestion: expected a name'):
      hosts.parse_links(2, '1gbit', congestion=name)

  def test_leaves_of_a_link_are_not_granted_more_than_the_link_has(self):
    pairs = [
      {'from': 'host0', 'to': f'host{number}', 'rate': f'{number}00mbit'}
      for number in (1, 2, 3)
    ]
    links = hosts.parse_links(4, '250mbit', json.dumps({'pairs': pairs}))
    lines = [
      line.split()
      for line in hosts.commands('syn-000000', links)
      if 'syn-000000-host0' in line and 'parent 1:1 ' in line
    ]

    self.assertLen(lines, 4)
    granted = [line[line.index('rate') + 1] for line in lines]
    most = [line[line.index('ceil') + 1] for line in lines]
    total = sum(int(rate.removesuffix('bit')) for rate in granted)
    self.assertLessEqual(total, 250_000_000)
    self.assertEqual(
      most, ['250000000bit', '100000000bit', '200000000bit', '250000000bit']
    )


class GroupsTest(parameterized.TestCase):
  def test_frames_pass_the_links_of_the_groups_that_they_leave_and_enter(self):
    links = hosts.parse_links(6, '100mbit', json.dumps(_NESTED))
    graph = _devices(links)
    groups = [
      ({'host0', 'host1'}, 10, 20),
      ({'host5'}, 100, 100),
      ({'host0', 'host1', 'host2'}, 30, 100),
    ]

    for src, dst in itertools.permutations(links.up, 2):
      (path,) = networkx.all_simple_paths(graph, src, dst)
      rates = [graph.edges[ends]['rate'] for ends in itertools.pairwise(path)]
      want = [100, 100]  # Rates of the hosts.
      for names, up, down in groups:
        want += [up] * (src in names and dst not in names)
        want += [down] * (dst in names and src not in names)
      self.assertEqual(sorted(rates), sorted(want), (src, dst))

  @parameterized.parameters(
    (['host0', 'host1'],), (['host1', 'host0'],), (['host1', 'host2'],)
  )
  def test_groups_that_overlap_are_refused(self, names):
    groups = [{'hosts': ['host0', 'host1']}, {'hosts': names}]
    message = r'groups\[1\].hosts: .* within others or have no host in common'
    with self.assertRaisesRegex(ValueError, message):
      hosts.parse_links(4, '1gbit', json.dumps({'groups': groups}))

  def test_commands_without_groups_are_those_of_one_bridge(self):
    graph = _devices(hosts.parse_links(3, '1gbit'))

    self.assertEqual(set(graph), {'host0', 'host1', 'host2', 'bridge'})


if __name__ == '__main__':
  absltest.main()
