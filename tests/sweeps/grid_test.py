"""Tests for sweeps.grid."""

import itertools

import hypothesis
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from sweeps import grid

# Values as flags take them, with what separates where it does not.
_VALUES = st.recursive(
  st.text('abz019.+-/_ ', min_size=1)
  | st.sampled_from(['"a,b;c"', "'(&'", '"[, it\'s"']),
  lambda inner: st.builds(
    lambda parts, ends: f'{ends[0]}{",".join(parts)}{ends[1]}',
    st.lists(inner, max_size=3),
    st.sampled_from(['()', '[]', '{}']),
  ),
  max_leaves=6,
)
_AXES = st.lists(st.lists(_VALUES, min_size=1, max_size=3), max_size=3)


def _plain(value: str) -> str:
  """A value without quotes around all of it."""
  value = value.strip()
  return value[1:-1] if value[:1] in ('"', "'") else value


class PointsTest(parameterized.TestCase):
  def test_every_combination_comes_once_and_the_last_changes_fastest(self):
    text = 'sync.name=bsp,ssp,elastic; cluster.workers=4,16; seed=0,1,2'
    fields = ('sync.name', 'cluster.workers', 'seed')
    values = ('bsp', 'ssp', 'elastic'), ('4', '16'), ('0', '1', '2')
    every = itertools.product(*values)
    expected = [dict(zip(fields, each, strict=True)) for each in every]
    self.assertEqual(grid.points(text), expected)

  @hypothesis.settings(max_examples=100, deadline=None)
  @hypothesis.given(_AXES)
  def test_separators_in_brackets_and_quotes_belong_to_values(self, axes):
    hypothesis.assume(axes)
    hypothesis.assume(all(v.strip() for axis in axes for v in axis))
    text = ';'.join(f'field{n}={",".join(a)}' for n, a in enumerate(axes))
    expected = [
      {f'field{n}': _plain(value) for n, value in enumerate(each)}
      for each in itertools.product(*axes)
    ]
    self.assertEqual(grid.points(text), expected)

  def test_joined_fields_change_together_and_may_be_left_out(self):
    text = 'a.name & a.x.y = one &, two & (1, 2), three & ; config.seed = 0'
    self.assertEqual(
      grid.points(text),
      [
        {'a.name': 'one', 'seed': '0'},
        {'a.name': 'two', 'a.x.y': '(1, 2)', 'seed': '0'},
        {'a.name': 'three', 'seed': '0'},
      ],
    )

  def test_quotes_make_text_of_nothing_and_of_separators(self):
    (point,) = grid.points('data.dir="a;b,c"; x=("a", "b")')
    self.assertEqual(point, {'data.dir': 'a;b,c', 'x': '("a", "b")'})

  @parameterized.named_parameters(
    ('empty', '', 'FIELD=VALUE,VALUE; ...'),
    ('only_separators', ' ; ;', 'FIELD=VALUE,VALUE; ...'),
    ('no_values', 'seed', "FIELD=VALUE,VALUE, got 'seed'"),
    ('no_value', 'seed=', 'grid: seed=: expected a value at least'),
    ('empty_value', 'seed=0,,1', 'expected a value of seed'),
    ('no_field', '=1', "a field such as sync.name, got ''"),
    ('odd_field', 'sync name=1', "such as sync.name, got 'sync name'"),
    ('twice', 'seed=1; seed=2', 'expected seed once'),
    ('twice_as_flag', 'seed=1; config.seed=2', 'expected seed once'),
    ('too_few', 'a & b = 1 & 2, 3', "expected 2 values for a & b, got '3'"),
    ('too_many', 'a=1 & 2', 'expected 1 values for a'),
    ('open', 'a=(1,', r'expected \) at the end'),
    ('quote', "a='1", "expected ' at the end"),
    ('closed', 'a=1)', r'expected no \) before it opens'),
    ('crossed', 'a=([)]', r'expected no \) before it opens'),
  )
  def test_an_invalid_grid_is_refused(self, text, message):
    with self.assertRaisesRegex(ValueError, message):
      grid.points(text)


if __name__ == '__main__':
  absltest.main()
