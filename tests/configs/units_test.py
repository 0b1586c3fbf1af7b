"""Tests for configs/units.py."""

from absl.testing import absltest, parameterized

from configs import units


class SizeTest(parameterized.TestCase):
  @parameterized.parameters(
    ('4096', 4096),
    ('7B', 7),
    ('100MB', 10**8),
    ('1.5 GiB', 3 * 2**29),
    ('2kB', 2000),
  )
  def test_sizes_have_units(self, text, expected):
    self.assertEqual(units.parse_bytes(text), expected)

  @parameterized.parameters(
    '', '0', 'MB', '-1MB', '1mb', '1e3', '0.1B', 'infGB'
  )
  def test_an_invalid_size_is_refused(self, text):
    with self.assertRaisesRegex(ValueError, f"size: expected .* got '{text}'"):
      units.parse_bytes(text)


if __name__ == '__main__':
  absltest.main()
