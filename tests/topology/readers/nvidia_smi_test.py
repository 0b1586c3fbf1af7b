"""Matrices of `nvidia-smi topo -m`: hosts with and without NVLinks."""

from absl.testing import absltest, parameterized

from topology.clusters import machines, parts
from topology.readers import nvidia_smi
from topology.readers.capacities import Capacities

_LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
"""
# Of eight GPUs: two on each PCIe switch, two switches on each socket.
_PCIE = {1: 'PIX', 2: 'NODE', 4: 'SYS'}


def _matrix(count, word, *, tail='0-47\t0\t\tN/A', cards=(), escapes=False):
  """Returns a matrix of GPUs; `word` gives that of a pair of numbers."""
  names = [f'GPU{i}' for i in range(count)]
  head = '\t'.join(['', *names, *cards, 'CPU Affinity', 'NUMA Affinity'])
  head = f'{head}\tGPU NUMA ID'
  if escapes:
    head = '\t'.join(f'\x1b[4m{each}\x1b[0m' for each in head.split('\t'))
  lines = [head]
  for i, name in enumerate(names):
    row = [
      ' X ' if i == j else word(min(i, j), max(i, j)) for j in range(count)
    ]
    lines.append('\t'.join([name, *row, *('SYS' for _ in cards), tail]))
  for card in cards:
    others = ['SYS'] * count + [' X ' if c == card else 'PIX' for c in cards]
    lines.append('\t'.join([card, *others]))
  return '\n'.join(lines) + '\n' + _LEGEND


def _read(text, **given):
  capacities = Capacities(given)
  cluster = nvidia_smi.read(text, capacities)
  capacities.check_used()
  return cluster


def _pcie_word(i, j):
  return next(
    w for size, w in _PCIE.items() if i // (2 * size) == j // (2 * size)
  )


def _same_links(first, second, names):
  """Returns whether clusters have the same links between renamed nodes."""
  renamed = {(names[a], names[b], c) for a, b, c in first.links}
  return renamed == set(second.links)


class NvidiaSmiTest(parameterized.TestCase):
  @parameterized.parameters(
    {},
    {'escapes': True},
    {'cards': ('NIC0', 'NIC1')},
    {'cards': ('mlx5_0', 'mlx5_1'), 'tail': '48-63,176-191'},
  )
  def test_links_to_an_nvswitch_are_counted_once(self, **fields):
    text = _matrix(8, lambda i, j: 'NV12', **fields)
    self.assertTrue(nvidia_smi.matches(text))
    for lines in (text, text.replace('\n', '\r\n')):
      cluster = _read(lines, nvlink_GBps=25)
      names = {f'GPU{i}': f'w{i}' for i in range(8)} | {'nvswitch': 's0'}
      self.assertTrue(_same_links(cluster, machines.dgx_a100(1), names))

  def test_direct_nvlinks_join_pairs(self):
    singles = ('01', '02', '13', '26', '37', '45', '46', '57')
    doubles = ('03', '04', '12', '15', '23', '47', '56', '67')
    pairs = {tuple(pair): 1 for pair in singles}
    pairs |= {tuple(pair): 2 for pair in doubles}

    def word(i, j):
      count = pairs.get((str(i), str(j)))
      return f'NV{count}' if count else 'SYS'

    cluster = _read(_matrix(8, word), nvlink_GBps=25)
    names = {f'GPU{i}': f'w{i}' for i in range(8)}
    self.assertTrue(_same_links(cluster, machines.dgx_1('v100'), names))

  def test_pcie_is_a_tree_of_switches_and_sockets(self):
    cluster = _read(_matrix(8, _pcie_word), pcie_GBps=12, socket_GBps=10)
    inner = sorted(
      link[:2] for link in cluster.links if 'GPU' not in link.src + link.dst
    )
    self.assertLen(cluster.switches, 6)
    names = {f'GPU{i}': f'w{i}' for i in range(8)}
    names |= {f'pix{i}': f's{i}' for i in range(4)}
    names |= {'node0': 's4', 'node1': 's5'}
    self.assertTrue(_same_links(cluster, machines.pcie(), names), inner)

  def test_a_host_of_one_socket_needs_no_capacity_between_sockets(self):
    cluster = _read(_matrix(4, lambda i, j: 'PHB'), pcie_GBps='31.5')
    self.assertEqual(cluster.switches, ('phb0',))
    with self.assertRaisesRegex(ValueError, 'socket_GBps: expected no value'):
      _read(_matrix(4, lambda i, j: 'PHB'), pcie_GBps=16, socket_GBps=10)

  def test_bridges_of_nvlinks_between_some_gpus_add_to_pcie(self):
    def word(i, j):
      return 'NV4' if j == i + 1 and i % 2 == 0 else 'SYS'

    text = _matrix(4, word)
    cluster = _read(text, nvlink_GBps=14, pcie_GBps=25, socket_GBps=20)
    expected = parts.make_links([('GPU0', 'GPU1'), ('GPU2', 'GPU3')], 56)
    self.assertContainsSubset(expected, cluster.links)

  def test_a_former_word_and_a_single_gpu_are_read(self):
    cluster = _read(_matrix(2, lambda i, j: 'SOC'), pcie_GBps=16, socket_GBps=9)
    self.assertEqual({float(link.GBps) for link in cluster.links}, {9.0})
    alone = _read(_matrix(1, lambda i, j: ''))
    self.assertEqual(alone.workers, ('GPU0',))

  @parameterized.parameters(
    ('NV12', {}, 'nvlink_GBps: .* one NVLink, which the file does not have'),
    ('PIX', {}, 'pcie_GBps: .*give --pcie_GBps'),
    ('SYS', {'pcie_GBps': 12}, 'socket_GBps: expected the GB/s'),
    ('NV12', {'nvlink_GBps': 25, 'pcie_GBps': 12}, 'pcie_GBps: expected no'),
    ('NV12', {'nvlink_GBps': 0}, 'nvlink_GBps: expected a number above 0'),
  )
  def test_missing_and_idle_capacities_are_named(self, word, given, message):
    with self.assertRaisesRegex(ValueError, message):
      _read(_matrix(4, lambda i, j: word), **given)

  @parameterized.parameters(
    ('GPU1\tNV12', 'GPU1\tNVX', "line 3, GPU1 to GPU0: .* got 'NVX'"),
    ('GPU1\tNV12', 'GPU1\tNV11', 'GPU0, GPU1: expected one word both ways'),
    ('GPU1\tNV12', 'GPU7\tNV12', 'line 1: expected a row for GPU1'),
    ('GPU2\tNV12', 'GPU1\tNV12', 'line 4: expected GPU1 once'),
    ('\tGPU2', '\tGPU1', 'line 1: expected each device once'),
  )
  def test_damaged_matrices_are_refused_by_line(self, old, new, message):
    text = _matrix(3, lambda i, j: 'NV12')
    with self.assertRaisesRegex(ValueError, message):
      _read(text.replace(old, new, 1), nvlink_GBps=25)

  def test_a_cut_row_is_refused(self):
    text = _matrix(3, lambda i, j: 'NV12').split('GPU1\tNV12')[0] + 'GPU1\tNV12'
    with self.assertRaisesRegex(ValueError, 'line 3: expected a word for each'):
      _read(text, nvlink_GBps=25)


if __name__ == '__main__':
  absltest.main()
