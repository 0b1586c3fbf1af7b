"""Files of clusters and forests that are damaged in any way are refused."""

import copy
import itertools
import json
import pathlib
import random
import tempfile

from absl.testing import absltest, parameterized

import topology
from topology.clusters import cluster as clusters
from topology.clusters import shapes
from topology.forests import export
from topology.forests import files as forests

_STAR = shapes.star([4, 5, 6], [3, 2, 1])
_CLUSTER = clusters.to_json(_STAR)
_DEEP = []
for _ in range(200):
  _DEEP = [_DEEP]
_GARBAGE = (
  *(None, True, 0, -1, 2**70, 1.5, -0.0, float('nan'), float('inf'), '', '-1'),
  *('nan', '0', '1/0', '1e999999999', 'w0', 's0', '\ud800', '9' * 5000, 'é'),
  *([], {}, [[]], [None], [{}], {'id': []}, {'src': {}}, _DEEP, ['w0', 'w1']),
)
# Subjects of messages: a field, or the ends of a link.
_FIELD = (
  r'^(cluster: )?(\w+ to \w+|forest|(format|version|topology|cluster|nodes'
  r'|collective|rate_Bps|bound_Bps|gap|certificate|trees|links|workers'
  r'|extra)[\w.\[\]]*): '
)


class FormatTest(parameterized.TestCase):
  @parameterized.parameters(
    (b'\xef\xbb\xbf0,25\r\n25,0\r\n', {}),
    (b'\tGPU0\tGPU1\nGPU0\t X \tNV1\nGPU1\tNV1\t X \n', {'nvlink_GBps': 25}),
    (b'# a\nSwitchName=s Nodes=n[0-1]', {'node_GBps': '25'}),
    (
      b'<system><cpu>'
      b'<pci busid="0"><gpu dev="0" rank="0" sm="70"/></pci>'
      b'<pci busid="1"><gpu dev="1" rank="1" sm="70"/></pci></cpu></system>',
      {'pcie_GBps': 25},
    ),
  )
  def test_the_content_of_a_file_tells_its_format(self, content, capacities):
    path = pathlib.Path(tempfile.mkdtemp(), 'file')
    path.write_bytes(content)
    cluster = forests.read_cluster(str(path), capacities)
    self.assertEqual(topology.pack(cluster).rate_Bps, 25 * 10**9)
    with self.assertRaisesRegex(ValueError, 'switch_GBps: expected no value'):
      forests.read_cluster(str(path), capacities | {'switch_GBps': 1})

  @parameterized.parameters(b'', b'hello', b'\xff\xfe\x00', b'\x93NUMPY\x01')
  def test_other_content_is_refused_by_the_name_of_the_file(self, content):
    path = pathlib.Path(tempfile.mkdtemp(), 'file')
    path.write_bytes(content)
    with self.assertRaisesRegex(ValueError, f'{path}: expected '):
      forests.read_cluster(str(path))

  def test_hosts_and_capacities_of_a_builder_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'pcie_GBps: expected no value'):
      forests.read_cluster('ring(4, 25)', {'pcie_GBps': 1})
    path = pathlib.Path(tempfile.mkdtemp(), 'file')
    path.write_text('0,1\n1,0')
    with self.assertRaisesRegex(
      ValueError, 'hosts: expected none but for SLURM'
    ):
      forests.read_cluster(str(path), hosts='n0')


class FuzzTest(parameterized.TestCase):
  """A thousand kinds of damage: read as what it is, or refused by name."""

  @parameterized.parameters(*range(6))
  def test_a_damaged_cluster_is_rejected_by_the_name_of_a_field(self, seed):
    self._damage(seed, _CLUSTER, topology.from_json)

  @parameterized.product(
    seed=(0, 1), collective=('allreduce', 'allgather', 'reduce_scatter')
  )
  def test_a_damaged_forest_is_rejected_by_the_name_of_a_field(
    self, seed, collective
  ):
    packed = topology.pack(_STAR, collective=collective)
    whole = export.to_json(_STAR, packed)

    self._damage(seed, whole, export.from_json)

  def _damage(self, seed, whole, read):
    rng, refused = random.Random(seed), 0
    for _ in range(200):
      data = copy.deepcopy(whole)
      for _ in range(rng.choice((1, 1, 1, 3))):
        _change(rng, data)
      try:
        read(data)
      except ValueError as error:
        self.assertRegex(str(error), _FIELD)
        refused += 1
    self.assertGreater(refused, 100)


class FileTest(parameterized.TestCase):
  """The same in files."""

  def test_a_file_cut_short_anywhere_is_rejected_by_its_name(self):
    packed = topology.pack(_STAR)
    path = _folder() / 'short.json'
    for data in (_CLUSTER, export.to_json(_STAR, packed)):
      text = json.dumps(data)
      for end in range(0, len(text), 37):
        path.write_text(text[:end], encoding='utf-8')
        with self.assertRaisesRegex(ValueError, 'short.json: expected JSON'):
          forests.read(path)

  @parameterized.parameters('[' * 100_000, '{"nodes": NaN}', '[1]', 'null')
  def test_a_file_without_an_object_is_rejected_by_name(self, text):
    path = _folder() / 'odd.json'
    path.write_text(text, encoding='utf-8')

    with self.assertRaisesRegex(ValueError, 'odd.json'):
      forests.read(path)

  @parameterized.parameters(b'\xff\xfe', b'\x00\x00', b'')
  def test_a_binary_file_is_rejected_by_name(self, content):
    path = _folder() / 'odd.json'
    path.write_bytes(content)

    with self.assertRaisesRegex(ValueError, 'odd.json: expected JSON'):
      forests.read(path)


def _folder():
  return pathlib.Path(tempfile.mkdtemp())


def _change(rng, data):
  """Replaces, removes, adds or doubles something somewhere."""
  places = list(_places(data))
  if not places:
    return
  inside, key = rng.choice(places)
  kind = rng.randrange(4)
  if kind == 0:
    del inside[key]
  elif kind == 1 and isinstance(inside, list):
    inside.append(copy.deepcopy(inside[key]))
  elif kind == 1:
    inside['extra'] = inside[key]
  else:
    inside[key] = copy.deepcopy(rng.choice(_GARBAGE))


def _places(data):
  """Every container with each of its keys, however deep, to some depth."""
  keys = data if isinstance(data, dict) else range(len(data))
  for key in list(keys):
    yield data, key
    if isinstance(data[key], dict | list) and data[key] is not _DEEP:
      yield from itertools.islice(_places(data[key]), 500)


if __name__ == '__main__':
  absltest.main()
