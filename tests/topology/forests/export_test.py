"""Tests for topology/export.py and usage.py."""

import copy
import hashlib
import json
import re
from fractions import Fraction

from absl.testing import absltest, parameterized

import topology
from topology.clusters import cluster as clusters
from topology.clusters import shapes
from topology.clusters.builders import build_cluster
from topology.forests import export, trees, usage

COLLECTIVES = ('allreduce', 'allgather', 'reduce_scatter')
SPECS = (
  'full_mesh(4, "100/3")',
  'star([10, 20, 30], [5, 6, 7])',
  'tree([2, 3], [[30, 20], 25])',
  'random_mesh(5, 1)',
  'random_switched(5, 3, 4)',
  'ring(1, 1)',
)


def _written(spec, collective):
  cluster = build_cluster(spec)
  packed = topology.pack(cluster, collective=collective)
  data = json.loads(json.dumps(export.to_json(cluster, packed)))
  return cluster, packed, data


class JsonTest(parameterized.TestCase):
  @parameterized.product(spec=SPECS, collective=COLLECTIVES)
  def test_written_forests_are_read_back(self, spec, collective):
    cluster, packed, data = _written(spec, collective)

    read = export.from_json(data)

    self.assertEqual(read, (cluster, packed))
    self.assertEqual(export.to_json(*read), data)

  def test_the_schema_is_the_documented_one(self):
    _, _, data = _written('star([1, 2], [3, "7/2"])', 'allgather')

    nodes = [{'id': w, 'worker': True} for w in ('w0', 'w1')]
    nodes.append({'id': 's0', 'worker': False})
    links = [
      {'src': 'w0', 'dst': 's0', 'GBps': '1'},
      {'src': 'w1', 'dst': 's0', 'GBps': '2'},
      {'src': 's0', 'dst': 'w0', 'GBps': '3'},
      {'src': 's0', 'dst': 'w1', 'GBps': '7/2'},
    ]
    text = (
      '{"links":['
      '{"GBps":"1","dst":"s0","src":"w0"},{"GBps":"2","dst":"s0","src":"w1"},'
      '{"GBps":"3","dst":"w0","src":"s0"},{"GBps":"7/2","dst":"w1","src":"s0"}'
      '],"nodes":[{"id":"w0","worker":true},{"id":"w1","worker":true},'
      '{"id":"s0","worker":false}]}'
    )
    trees = [
      {
        'root': root,
        'weight_Bps': '1000000000',
        'share': '1/2',
        'up': [],
        'down': [[root, 's0', other]],
      }
      for root, other in (('w0', 'w1'), ('w1', 'w0'))
    ]
    certificate = data.pop('certificate')
    self.assertEqual(
      data,
      {
        'format': 'syncopate.forest',
        'version': 1,
        'topology': hashlib.sha256(text.encode()).hexdigest(),
        'cluster': {'nodes': nodes, 'links': links},
        'collective': 'allgather',
        'rate_Bps': '2000000000',
        'bound_Bps': '2000000000',
        'gap': '0',
        'trees': trees,
      },
    )
    self.assertEqual(certificate['kind'], 'cut')
    self.assertEqual(certificate['links'], [['w0', 's0']])

  def test_prices_prove_an_allreduce(self):
    _, packed, data = _written('full_mesh(3, 25)', 'allreduce')
    certificate = data['certificate']
    self.assertEqual(certificate['kind'], 'prices')
    links = [
      (row['src'], row['dst'], Fraction(row['price']))
      for row in certificate['links']
    ]
    self.assertEqual(tuple(links), packed.certificate.links)

  def test_fingerprints_are_of_the_graph_not_of_its_writing(self):
    def made(*links, order=('a', 'b')):
      nodes = [{'id': node, 'worker': True} for node in order]
      rows = [{'src': a, 'dst': b, 'GBps': c} for a, b, c in links]
      return clusters.from_json({'nodes': nodes, 'links': rows})

    first = export.fingerprint(made(('a', 'b', '12.5'), ('b', 'a', 25)))
    same = made(('b', 'a', 20), ('a', 'b', 12.5), ('b', 'a', '5.0'))
    self.assertEqual(export.fingerprint(same), first)
    for other in (
      made(('a', 'b', 12.5), ('b', 'a', 26)),
      made(('a', 'b', 12.5), ('b', 'a', 25), order=('b', 'a')),
    ):
      self.assertNotEqual(export.fingerprint(other), first)


class RefusalTest(parameterized.TestCase):
  @parameterized.parameters(
    (('format',), 'other', r"format: expected 'syncopate.forest', got 'other'"),
    (('version',), 2, r'version: expected 1, got 2'),
    (('version',), True, r'version: expected 1, got True'),
    (('version',), '1', r"version: expected 1, got '1'"),
    (('topology',), '0' * 64, r"topology: expected '\w{64}', that of the clu"),
    (('cluster', 'links', 0, 'GBps'), '11', r'topology: expected'),
    (('cluster', 'links', 0, 'GBps'), 'much', r'cluster: w0 to s0: .*much'),
    (('cluster', 'nodes'), 3, r'cluster: '),
    (('collective',), 'sum', r"forest: Unknown collective 'sum'"),
    (('collective',), 'allreduce', r'forest: Tree 0: '),
    (('rate_Bps',), '9000000001', r'forest: The rate is'),
    (('rate_Bps',), 9e9, r'rate_Bps: expected an exact string .*, got 9000000'),
    (('rate_Bps',), None, r'forest: The rate is'),
    (('bound_Bps',), '9e9', r"bound_Bps: expected an exact string .*'9e9'"),
    (('bound_Bps',), '1/0', r'bound_Bps: '),
    (('bound_Bps',), '1' * 5000, r'bound_Bps: '),
    (('bound_Bps',), '70000000000', r'forest: The bound is'),
    (('gap',), '1/100', r"gap: expected '0', got '1/100'"),
    (('certificate',), None, r'forest: The bound has no proof'),
    (('certificate', 'kind'), 'faith', r"certificate.kind: .*got 'faith'"),
    (('certificate', 'links'), [], r'forest: The bottleneck'),
    (('certificate', 'nodes'), ['w0'], r'forest: The bottleneck'),
    (
      ('certificate', 'parts'),
      [{}],
      r'certificate.parts\[0\].weight: expected',
    ),
    (('certificate', 'parts', 0, 'weight'), '-1', r'forest: '),
    (('trees',), {}, r'trees: expected a list, got {}'),
    (('trees', 1), [], r'trees\[1\]: expected an object, got \[\]'),
    (('trees', 1, 'root'), 7, r'trees\[1\].root: expected a string, got 7'),
    (('trees', 1, 'weight_Bps'), 1, r'trees\[1\].weight_Bps: expected an exac'),
    (('trees', 1, 'share'), '1', r'forest: Tree 1: the share'),
    (('trees', 0, 'down', 0), 'w0', r'trees\[0\].down: expected a list'),
    (('trees', 0, 'down', 0), ['w0', 'w1'], r'forest: Tree 0: .*needs a link'),
    (('trees', 0, 'down'), [], r'forest: Tree 0: Worker w1 receives 0 times'),
  )
  def test_invalid_fields_are_rejected_by_name(self, path, value, message):
    _, _, data = _written('star([10, 20, 30], [5, 6, 7])', 'allgather')
    *inner, last = path
    place = data
    for key in inner:
      place = place[key]
    place[last] = value
    with self.assertRaisesRegex(ValueError, f'^{message}'):
      export.from_json(data)

  def test_every_field_is_needed_and_no_other_known(self):
    _, _, data = _written('full_mesh(3, 25)', 'allreduce')
    rows = ('', data), ('trees[0].', data['trees'][0])
    for prefix, row in rows:
      for key in list(row):
        value = row.pop(key)
        with self.assertRaisesRegex(ValueError, re.escape(f'{prefix}{key}: ')):
          export.from_json(data)
        row[key] = value
      row['extra'] = 1
      with self.assertRaisesRegex(ValueError, re.escape(f'{prefix}extra: ')):
        export.from_json(data)
      del row['extra']
    export.from_json(data)

  def test_a_single_worker_has_nothing_to_prove(self):
    _, _, data = _written('ring(1, 1)', 'allreduce')
    data['certificate'] = {'kind': 'prices', 'links': []}
    with self.assertRaisesRegex(ValueError, '^certificate: expected null'):
      export.from_json(data)

  @parameterized.parameters(None, 3, 'text', [[]])
  def test_data_other_than_an_object_is_rejected(self, data):
    with self.assertRaisesRegex(ValueError, '^format: expected'):
      export.from_json(data)

  def test_a_proof_of_another_kind_is_rejected(self):
    _, _, data = _written('full_mesh(3, 25)', 'allreduce')
    _, _, other = _written('full_mesh(3, 25)', 'allgather')
    for one, two in ((data, other), (other, data)):
      changed = copy.deepcopy(one)
      changed['certificate'] = two['certificate']
      with self.assertRaisesRegex(ValueError, 'forest: The bound has no proof'):
        export.from_json(changed)


class UsageTest(parameterized.TestCase):
  @parameterized.parameters(
    ('allgather', ('s0', 'w0')), ('reduce_scatter', ('w0', 's0'))
  )
  def test_the_bottleneck_is_the_cut(self, collective, link):
    rates = [10, 20, 30], [5, 6, 7]
    if collective == 'reduce_scatter':
      rates = rates[::-1]
    cluster = shapes.star(*rates)
    packed = topology.pack(cluster, collective=collective)
    self.assertEqual(usage.bottleneck(cluster, packed), (link,))
    self.assertEqual(usage.fractions_used(cluster, packed)[link], 1)

  def test_the_bottleneck_of_an_allreduce_is_full(self):
    links = [(3, 4, 1)]
    cluster = shapes.wan([4, 4], 25, links)
    packed = topology.pack(cluster)
    slowest = {('w3', 'w4'), ('w4', 'w3')}
    self.assertEqual(set(usage.bottleneck(cluster, packed)), slowest)

  def test_depth_is_the_longest_chain(self):
    up = [('a', 'b'), ('b', 's', 'c'), ('d', 'c')]
    down = [('c', 'd'), ('c', 'a'), ('a', 'b')]
    one = Fraction(1)
    tree = trees.Tree('c', one, one, up, down)
    self.assertEqual(tree.depth, 2)
    chain = [('d', 'a'), *up[:2]]
    self.assertEqual(trees.Tree('c', one, one, chain, down).depth, 3)
    self.assertEqual(trees.Tree('c', one, one, [], []).depth, 0)


if __name__ == '__main__':
  absltest.main()
