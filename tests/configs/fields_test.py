"""Tests of declared fields: ranges, and refusals by configs and by parts."""

import contextlib
import importlib
import io
import math

import numpy as np
from absl import flags
from absl.testing import absltest, parameterized

from cluster.speed import speed
from configs import (
  config_file,
  declared,
  default,
  reference,
  sections,
  user_parts,
)
from configs.fields.field import Field, Section
from learning import optimizer, outer, schedule, staleness
from sweeps import plan

# Modules whose functions are the parts of a section.
_MODULES = {
  'optimizer': optimizer,
  'outer': outer,
  'staleness': staleness,
  'schedule': schedule,
  'cluster.speed': speed,
}
_PACKAGES = {
  'sync': 'sync',
  'batching': 'batching',
  'batching.lb_bsp.predictor': 'predict',
  'wire': 'wire',
  'route': 'route',
  'model': 'models',
  'data': 'data',
}
# What parts need besides their fields.
_ARGUMENTS = {
  'sync': {'num_workers': 4},
  'batching': {'num_workers': 4, 'worker_batch': 16},
  'cluster.speed': {'num_workers': 4, 'seed': 0},
  'schedule': {'total_epochs': 2.0},
}


def _numbers(field, kind):
  """Returns numbers just outside the range of a field, and just inside."""

  def after(bound, direction):
    if kind is int:
      return bound + direction
    return math.nextafter(bound, direction * math.inf)

  outside, inside = [math.nan], []
  if field.at_least is not None:
    outside.append(after(field.at_least, -1))
    inside.append(field.at_least)
  if field.above is not None:
    outside.append(field.above)
    inside.append(after(field.above, 1))
  if field.at_most is not None:
    outside.append(after(field.at_most, 1))
    inside.append(field.at_most)
  if field.below is not None:
    outside.append(field.below)
    inside.append(after(field.below, -1))
  (inside if field.infinite else outside).append(math.inf)
  if kind is int or field.whole:
    outside.append(inside[0] + 0.5)
  return outside, inside


def _values(field):
  """Returns values that a field refuses, and others that it takes."""
  kind = type(field.default)
  if field.choices:
    return ['neither', 99], list(field.choices)
  if kind is bool:
    return [0, 'True'], [True, False]
  if kind is str:
    return [3, None], ['', 'text']
  if kind is tuple:
    if field.items is None:
      return [3], [()]
    outside, inside = _numbers(field, field.items)
    ends = [(x,) for x in outside]
    return [3, ('1',), *ends], [(), *((x,) for x in inside)]
  outside, inside = _numbers(field, kind)
  return ['many', (), *outside], [*inside, *field.words]


def _config(path, value):
  """Returns the defaults with one value, even of another type."""
  config = default.get_config()
  *above, name = path.split('.')
  section = config
  for part in above:
    section = section[part]
  with section.ignore_type():
    section[name] = value
  return config


class FieldTest(parameterized.TestCase):
  @parameterized.parameters(
    (Field(3, '', at_least=0), [0, np.int64(7)], [-1, 2.0, True, '3']),
    (Field(3.0, '', above=0), [1, np.float32(2)], [0, math.inf, math.nan]),
    (Field(3.0, '', at_least=0, infinite=True), [math.inf], [-math.inf]),
    (Field(3.0, '', at_least=0, whole=True), [2.0], [2.5]),
    (Field(3.0, '', at_least=0, words=('auto',)), ['auto', 1.0], ['car']),
    (
      Field(3.0, '', above=0, or_seconds=True),
      [2, 0.5, '10s', '0.5s', '1e3s'],
      ['10', 's', '0s', '-1s', 'infs', 'nans', '5m', '1 min', 'tens', 0.0],
    ),
    (Field(True, ''), [False], [0, 'True']),
    (Field('a', '', choices=('a', 'b')), ['b'], ['c', 1]),
    (Field(8, '', choices=(8, 1)), [1], [True, 4]),
    (Field((1.0,), '', below=2), [(), (1, 0.5), [1]], [1.0, (2.0,), ('a',)]),
    (Field((), '', at_least=1, items=int), [(1, 2)], [(1.5,), (0,)]),
  )
  def test_a_field_takes_values_of_its_type_in_its_range(
    self, field, taken, refused
  ):
    for value in taken:
      field.check('x', value)
    for value in refused:
      with self.subTest(value), self.assertRaises(ValueError):
        field.check('x', value)

  @parameterized.parameters(
    (Field(3, '', at_least=1), 'an integer of at least 1'),
    (Field(3, '', at_least=1, at_most=4), 'an integer from 1 to 4'),
    (Field(0.5, '', above=0, at_most=1), 'a number above 0, at most 1'),
    (
      Field(0.5, '', at_least=0, unit='seconds'),
      'a finite number of at least 0, in seconds',
    ),
    (
      Field(0.5, '', above=0, infinite=True, words=('auto',)),
      "a number above 0, or inf, or 'auto'",
    ),
    (
      Field(0.5, '', above=0, unit='epochs', or_seconds=True),
      "a finite number above 0, in epochs, or seconds on the run's clock as a "
      "text such as '10s'",
    ),
    (Field((), '', at_least=1, items=int), 'a tuple of integers of at least 1'),
    (Field('a', '', choices=('a', 'b')), "one of ['a', 'b']"),
    (Field(False, ''), 'True or False'),
  )
  def test_a_message_has_name_expectation_and_value(self, field, expected):
    with self.assertRaisesRegex(ValueError, '^x: expected ') as found:
      field.check('x', None)
    self.assertEqual(str(found.exception), f'x: expected {expected}, got None.')


class DeclarationTest(absltest.TestCase):
  def test_every_field_and_section_has_a_sentence(self):
    def check(section, path):
      for name, member in section.members.items():
        if name != user_parts.SECTION:
          self.assertRegex(member.doc, r'(?s)^\S.*[.?]$', f'{path}{name}')
        if isinstance(member, Section):
          check(member, f'{path}{name}.')

    check(declared.RUN, '')

  def test_defaults_are_in_range(self):
    sections.check_fields(default.get_config())

  def test_each_name_is_by_default_that_of_a_sub_section(self):
    for path, field in declared.iterate_fields():
      above, _, name = path.rpartition('.')
      if name == 'name':
        self.assertIn(field.default, declared.find_section(above).members)

  def test_sections_of_own_parts_are_those_that_take_them(self):
    for path in user_parts.SUPPLIED:
      section = declared.find_section(path)
      self.assertIn(user_parts.SECTION, section.members)


class ConfigTest(parameterized.TestCase):
  @parameterized.parameters(*declared.RUN.members)
  def test_each_bound_of_each_field_is_checked(self, name):
    for path, field in declared.iterate_fields():
      if path.partition('.')[0] != name:
        continue
      refused, taken = _values(field)
      for value in refused:
        with (
          self.subTest(path, value=value),
          self.assertRaisesRegex(ValueError, f'^config.{path}: expected '),
        ):
          sections.check_fields(_config(path, value))
      for value in taken:
        with self.subTest(path, value=value):
          sections.check_fields(_config(path, value))

  @parameterized.parameters(
    ('model', {'model.name': 'none'}, "model.name is 'none'"),
    ('real', {}, "cluster.runtime is 'virtual'"),
    (
      'virtual',
      {'cluster.runtime': 'distributed'},
      "cluster.runtime is 'distributed'",
    ),
    ('local steps', {}, 'batching.local_steps is 1'),
    ('island', {}, 'cluster.hosts_per_worker is 1'),
  )
  def test_a_field_that_is_not_used_has_its_default(
    self, need, changed, reason
  ):
    paths = declared.that_need(need)
    self.assertNotEmpty(paths)
    for path in paths:
      field = declared.find_field(path)
      _, taken = _values(field)
      for value in taken:
        if value != field.default:
          config = _config(path, value)
          config.update_from_flattened_dict(changed)
          with self.subTest(path), self.assertRaises(ValueError) as found:
            sections.check_used(config, {})
          message = str(found.exception)
          self.assertRegex(message, f'^config.{path}: .* is ignored because ')
          if len(field.needs) == 1:
            self.assertIn(f'because config.{reason}; remove it', message)


class NumberTest(parameterized.TestCase):
  @parameterized.parameters(('2', 2.0), ('0.5', 0.5), ('10s', '10s'))
  def test_a_flag_has_a_number_or_seconds(self, text, expected):
    config = plan.parse_config(
      ['--config=configs/default.py', f'--config.eval_every={text}']
    )
    sections.check_fields(config)
    got = sections.convert_numbers(config).eval_every
    self.assertEqual((type(got), got), (type(expected), expected))


class ReferenceTest(parameterized.TestCase):
  def test_help_and_page_have_each_field_with_default_range_and_sentence(self):
    text = ' '.join(reference.as_text('').split())
    page = reference.as_markdown().replace('\\', '')
    for path, field in declared.iterate_fields():
      doc = ' '.join(field.doc.split())
      self.assertIn(f' --config.{path}={field.default!r} {doc} ', text)
      name = path.rpartition('.')[2]
      self.assertIn(f'| `{name}` | `{field.default!r}` | ', page)
      self.assertIn(f' | {field.doc} |', page)
      if name != 'name':
        self.assertIn(f'{doc} Expected: {field.expected}.', text)

  @parameterized.parameters(
    ('sync.ssp.bound', '  --config.sync.ssp.bound=3\n', 'config.sync.ssp\n'),
    ('config.sync.ssp', 'config.sync.ssp\nStale ', 'sync.asp'),
    ('sync', 'config.sync\nWhen may a worker continue?\n', 'config.batching'),
    ('', 'config\nA run. ', 'sync.own'),
  )
  def test_a_flag_prints_a_part_of_the_reference(self, path, start, other):
    values = flags.FlagValues()
    config_file.define_flag(None, '', flag_values=values, argv=['main.py'])
    output = io.StringIO()
    with contextlib.redirect_stdout(output), self.assertRaises(SystemExit) as e:
      values(['main.py', f'--help_fields={path}'])
    self.assertEqual(e.exception.code, 0)
    self.assertStartsWith(output.getvalue(), start)
    self.assertNotIn(other, output.getvalue())

  def test_an_unknown_section_is_refused(self):
    for path in ('sync.bps', 'sync.ssp.bound.x', 'own'):
      with self.assertRaisesRegex(ValueError, f"a path .* got '{path}'"):
        reference.as_text(path)


class PartTest(parameterized.TestCase):
  """Parts refuse what configs refuse, as they are used without a config."""

  @parameterized.parameters(*_PACKAGES, *_MODULES)
  def test_each_bound_of_each_argument_is_checked(self, section):
    checked = 0
    for name, member in declared.find_section(section).members.items():
      if isinstance(member, Field) or name in (user_parts.SECTION, 'none'):
        continue
      if section in _PACKAGES:
        make = importlib.import_module(f'{_PACKAGES[section]}.{name}').make
      else:
        make = getattr(_MODULES[section], name)
      fields = {
        key: field.default
        for key, field in member.members.items()
        if isinstance(field, Field)
      }
      for key, field in member.members.items():
        is_checked = isinstance(field, Field) and not field.file
        is_text = is_checked and type(field.default) is str
        if not is_checked or (is_text and not field.choices):
          continue
        for value in _values(field)[0]:
          if (section, name, value) == ('sync', 'ssp', math.inf):
            continue  # Without a bound it is ASP.
          arguments = _ARGUMENTS.get(section, {}) | fields | {key: value}
          with (
            self.subTest(f'{section}.{name}.{key}', value=value),
            self.assertRaisesRegex(ValueError, f'^{key}: expected '),
          ):
            make(**arguments)
          checked += 1
    self.assertGreater(checked, 0)


if __name__ == '__main__':
  absltest.main()
