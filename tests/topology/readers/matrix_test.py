"""Matrices of bandwidths: CSV of many kinds, .npy, wrong cells."""

import io
from fractions import Fraction

import numpy as np
from absl.testing import absltest, parameterized

from topology.readers import matrix
from topology.readers.capacities import Capacities

_GBps = {('w0', 'w1'): '1.5', ('w1', 'w0'): '2', ('w1', 'w2'): '0.1'}
_GBps |= {('w2', 'w1'): '1', ('w2', 'w0'): '3'}


def _links(cluster):
  return {link[:2]: link.GBps for link in cluster.links}


def _read(text, **given):
  return matrix.read(text, Capacities(given))


class MatrixTest(parameterized.TestCase):
  @parameterized.parameters(
    '0,1.5,0\n2,0,0.1\n3,1,0\n',
    '0;1.5;0\r\n2;0;0.1\r\n3;1;0\r\n',
    ' 0 1.5 0\n 2 0 0.1\n 3 1 0',
    '\t1.5\t0\n2\t\t0.1\n3\t1\t\n',
    '# GB/s\n\nx,1.5,0 # first\n2,x,0.1\n\n3,1,x\n',
    'w0,w1,w2\n-,1.5,0\n2,-,0.1\n3,1,-\n',
    ',w0,w1,w2\nw0,nan,1.5,0\nw1,2,nan,0.1\nw2,3,1,nan\n',
    'GB/s,w0,w1,w2\nw0,99,1.5,0\nw1,2,99,0.1\nw2,3,1,99\n',
    'w0,0,1.5,0\nw1,2,0,0.1\nw2,3,1,0\n',
  )
  def test_csv_of_any_kind_has_the_same_links(self, text):
    self.assertTrue(matrix.matches(text))
    self.assertEqual(
      _links(_read(text)), {ends: Fraction(c) for ends, c in _GBps.items()}
    )

  @parameterized.parameters(np.float64, np.float32, np.int32)
  def test_arrays_of_numpy_are_read(self, dtype):
    array = np.array([[0, 1, 2], [3, 0, 4], [5, 6, 0]], dtype)
    file = io.BytesIO()
    np.save(file, array)
    self.assertTrue(matrix.is_npy(file.getvalue()))
    cluster = matrix.read_npy(file.getvalue(), Capacities({}))
    self.assertEqual(_links(cluster)['w1', 'w2'], 4)
    self.assertLen(cluster.links, 6)

  def test_another_unit_scales_exactly(self):
    cluster = _read('0,10\n25,0', unit_GBps='0.125')
    self.assertEqual(_links(cluster)['w1', 'w0'], Fraction(25, 8))

  @parameterized.parameters(
    ('0,1\n1', 'line 2: expected 2 cells, one for each row, got 1'),
    ('0,1,2\n1,0,2', 'line 1: expected 2 cells'),
    ('0,1\nx1,0', "line 2, w1 to w0: .*got 'x1'"),
    ('0,-1\n1,0', "line 1, w0 to w1: .*got '-1'"),
    ('0,inf\n1,0', "line 1, w0 to w1: .*got 'inf'"),
    ('0,1\n\n# x\nnan,0', "line 4, w1 to w0: .*got 'nan'"),
    (',a,b\nb,0,1\na,1,0', r"rows in the order \['a', 'b'\]"),
    ('0,1\n0,0', 'unreachable'),
  )
  def test_wrong_cells_are_named(self, text, message):
    with self.assertRaisesRegex(ValueError, message):
      _read(text)

  @parameterized.parameters(
    (np.zeros((2, 3)), r'expected an array \[n, n\], got shape \(2, 3\)'),
    (np.array([['a', 'b'], ['c', 'd']]), 'expected an array of numbers'),
    (np.array([[0, -1], [1, 0]]), 'row 0, w0 to w1: expected a finite'),
    (np.array([[0, np.nan], [1, 0]]), 'row 0, w0 to w1: expected a finite'),
  )
  def test_wrong_arrays_are_refused(self, array, message):
    file = io.BytesIO()
    np.save(file, array)
    with self.assertRaisesRegex(ValueError, message):
      matrix.read_npy(file.getvalue(), Capacities({}))

  def test_cut_and_pickled_arrays_are_refused(self):
    file = io.BytesIO()
    np.save(file, np.eye(2))
    for data in (file.getvalue()[:-3], file.getvalue()[:9]):
      with self.assertRaisesRegex(
        ValueError, 'expected an array of numpy.save'
      ):
        matrix.read_npy(data, Capacities({}))
    file = io.BytesIO()
    np.save(file, np.array([[{}]], object), allow_pickle=True)
    with self.assertRaisesRegex(ValueError, 'expected an array of numpy.save'):
      matrix.read_npy(file.getvalue(), Capacities({}))


if __name__ == '__main__':
  absltest.main()
