"""Tests for flags that are lists."""

from absl import flags
from absl.testing import absltest, parameterized

from bench import flag_lists


def _parse(*words):
  values = flags.FlagValues()
  choices = ('constant', 'ratio')
  flag_lists.define_choices('parts', choices, 'Parts.', flag_values=values)
  flag_lists.define_integers('lanes', (1, 4), 'Lanes.', flag_values=values)
  values(['command', *words])
  return values.parts, values.lanes


class FlagListsTest(parameterized.TestCase):
  def test_values_are_all_choices_and_the_default_unless_given(self):
    self.assertEqual(_parse(), (['constant', 'ratio'], [1, 4]))
    given = _parse('--parts=ratio', '--lanes=2,3')
    self.assertEqual(given, (['ratio'], [2, 3]))

  @parameterized.parameters(
    ('--parts=ratio,none', 'parts.*constant.ratio'),
    ('--parts=', 'parts.*at least one'),
    ('--lanes=1,x', 'lanes.*x'),
    ('--lanes=0', 'lanes.*positive'),
    ('--lanes=', 'lanes.*at least one'),
  )
  def test_refusals_name_the_flag_and_what_it_expects(self, word, message):
    with self.assertRaisesRegex(flags.IllegalFlagValueError, message):
      _parse(word)


if __name__ == '__main__':
  absltest.main()
