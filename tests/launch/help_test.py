"""Tests for --help of the commands of launch/."""

from absl.testing import absltest, parameterized

from tests.support import small


class HelpTest(parameterized.TestCase):
  @parameterized.parameters(
    ('launch', {'workers': '4', 'grace_s': '30.0', 'workdir': None}),
    ('lab', {'link': '1gbit', 'hosts': '2', 'links': None}),
    ('probe', {'seconds': '0.5', 'out': None, 'config': None}),
  )
  def test_help_has_an_example_and_also_shared_flags_with_their_defaults(
    self, name, defaults
  ):
    text = small.python('-m', f'tools.{name}', '--help').stdout

    self.assertRegex(text, f'python -m tools.{name} .*--')
    for flag, default in defaults.items():
      shown = rf"\(default: '{default}'\)" if default else ''
      self.assertRegex(text, rf'\n  --{flag}: [^-]*{shown}')


if __name__ == '__main__':
  absltest.main()
