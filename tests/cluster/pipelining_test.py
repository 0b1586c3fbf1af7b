"""Tests for cluster.pipelining."""

from absl.testing import absltest, parameterized

from cluster.pipelining import pieces_per_share


class PiecesPerShareTest(parameterized.TestCase):
  @parameterized.parameters(
    (1, 10**7, 64),  # So many at most,
    (1, 20 * 2**14 + 1, 20),  # of so many bytes at least.
    (3, 10**7, 21),
    (3, 20 * 2**14, 6),
    (3, 1, 1),
    (100, 10**7, 1),
  )
  def test_pieces_are_neither_many_nor_small(self, servers, size, count):
    self.assertEqual(pieces_per_share(servers, size), count)


if __name__ == '__main__':
  absltest.main()
