"""Tests for claims.clusters, on files of steps that are made here."""

import contextlib
import io
import json
import pathlib
import tempfile

from absl.testing import absltest, parameterized

import reproduce
from claims.clusters import measured, prediction
from claims.clusters.measured import Setting

_HEADER = (
  'algorithm,H,bandwidth,repeat,step,warmup,outer_step,wall_ms,compute_ms,'
  'sync_ms,optimizer_ms,loader_ms,loss'
)
_BYTES = 4 * 30_846_720
_SENT = 1.5 * _BYTES  # Bytes that each host of a ring of four sends.
_STEP_S, _OUTER_S = 0.02, 0.005
_SHARE, _UNSHAPED_BPS = 0.9, 1e9
_SETUP_S = {'diloco': 0.3, 'localsgd': 0.6}
_NOMINAL_BPS = {'1g': 125e6, '5g': 625e6}


def _rate(bandwidth):
  if bandwidth == 'unshaped':
    return _UNSHAPED_BPS
  return _SHARE * _NOMINAL_BPS[bandwidth]


def _line(setting, step, wall_s, sync_s, *, outer=1, warmup=0, repeat=0):
  compute_ms = 1e3 * (wall_s - sync_s)
  return (
    f'{",".join(map(str, setting))},{repeat},{step},{warmup},{outer},'
    f'{1e3 * wall_s},{compute_ms},{1e3 * sync_s},0,0,1'
  )


def _steps(algorithm, local_steps, bandwidth, iterations=3):
  """Returns lines of a run, by the closed formula of a ring."""
  setting = algorithm, local_steps, bandwidth
  for step in range(local_steps * iterations):
    if (step + 1) % local_steps:
      yield _line(setting, step, _STEP_S, 0, outer=0)
      continue
    sync_s = _SENT / _rate(bandwidth) + _OUTER_S * (algorithm == 'diloco')
    if step + 1 == local_steps:
      sync_s += _SETUP_S[algorithm]
    yield _line(setting, step, _STEP_S + sync_s, sync_s)


def _ddp_steps(bandwidth, times):
  """Returns lines of DDP whose allreduce takes `times` as long as a ring."""
  for step in range(3):
    sync_s = times * _SENT / _rate(bandwidth)
    yield _line(('ddp', 1, bandwidth), step, _STEP_S + sync_s, sync_s)


def _file(folder, *lines):
  path = pathlib.Path(folder, 'steps.csv')
  path.write_text('\n'.join((_HEADER, *lines, '')))
  return path


def _whole_file(folder):
  return _file(
    folder,
    *_steps('localsgd', 1, '1g'),
    *_steps('diloco', 1, '1g'),
    *_steps('diloco', 1, 'unshaped'),
    *_steps('diloco', 4, 'unshaped'),
    *_steps('diloco', 4, '5g'),
    *_ddp_steps('1g', 4 / 3),
    *_ddp_steps('unshaped', 1),
  )


class MediansTest(absltest.TestCase):
  def test_warm_up_and_first_outer_steps_are_kept_apart(self):
    setting = Setting('diloco', 2, '1g')
    rows = (  # Step, seconds, allreduce, outer, warm-up.
      (0, 9.0, 0.0, 0, 1),
      (1, 7.0, 6.0, 1, 1),
      (2, 1.0, 0.0, 0, 0),
      (3, 4.0, 3.0, 1, 0),
      (4, 2.0, 0.0, 0, 0),
      (5, 5.0, 4.0, 1, 0),
    )
    lines = [
      _line(setting, step, wall_s, sync_s, outer=outer, warmup=warmup)
      for step, wall_s, sync_s, outer, warmup in rows
    ]
    with tempfile.TemporaryDirectory() as folder:
      found = measured.read(_file(folder, *lines))[setting]
    self.assertEqual((found.local_s, found.outer_s), (1.5, 4.5))
    self.assertEqual((found.outer_count, found.sync_s), (2, 3.5))
    self.assertEqual((found.first_s, found.first_count), (7.0, 1))

  def test_first_steps_that_compile_have_no_time(self):
    setting = Setting('localsgd', 1, '1g')
    lines = [
      _line(setting, step, 9.0 - step, 5.0 - step, repeat=repeat)
      for repeat in (0, 1)
      for step in (0, 1)
    ]
    with tempfile.TemporaryDirectory() as folder:
      found = measured.read(_file(folder, *lines))[setting]
    self.assertEqual((found.first_s, found.first_count), (None, 0))
    self.assertEqual((found.first_sync_s, found.sync_s), (5.0, 4.0))


class RefusalTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ('algorithm', 0, 'sgd', r'2: algorithm: expected one of .* got .sgd'),
    ('steps', 1, '0', 'H: expected at least 1, got 0'),
    ('count', 4, '1.5', "step: expected a whole number, got '1.5'"),
    ('flag', 6, '2', "outer_step: expected 0 or 1, got '2'"),
    ('rate', 2, 'fast', "bandwidth: expected 'unshaped', .* got 'fast'"),
    ('no_rate', 2, '0g', "bandwidth: .* got '0g'"),
    ('nan', 7, 'nan', "wall_ms: expected milliseconds.*got 'nan'"),
    ('infinite', 9, 'inf', "sync_ms: expected milliseconds.*got 'inf'"),
    ('negative', 8, '-1', "compute_ms: expected milliseconds.*got '-1'"),
    ('text', 10, 'x', "optimizer_ms: expected milliseconds.*got 'x'"),
  )
  def test_bad_values_are_rejected_with_line_and_column(
    self, column, value, message
  ):
    cells = _line(('diloco', 1, '1g'), 0, 1.0, 0.5).split(',')
    cells[column] = value
    with tempfile.TemporaryDirectory() as folder:
      path = _file(folder, ','.join(cells))
      with self.assertRaisesRegex(ValueError, message):
        measured.read(path)

  def test_short_lines_are_rejected(self):
    with tempfile.TemporaryDirectory() as folder:
      path = _file(folder, 'diloco,1,1g,0,0')
      with self.assertRaisesRegex(
        ValueError, "warmup: expected 0 or 1, got ''"
      ):
        measured.read(path)

  def test_files_without_a_column_or_rows_are_rejected(self):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder, 'x.csv')
      path.write_text(_HEADER.replace('sync_ms', 'sync'))
      with self.assertRaisesRegex(ValueError, r"got .*\['sync_ms'\]"):
        measured.read(path)
      with self.assertRaisesRegex(
        ValueError, "expected a row .* got 'no rows'"
      ):
        measured.read(_file(folder))

  def test_a_missing_file_is_rejected_with_its_path(self):
    with self.assertRaisesRegex(ValueError, '--data: .*/nowhere/x.csv'):
      measured.read(pathlib.Path('/nowhere/x.csv'))

  def test_steps_that_the_calibration_lacks_are_named(self):
    with tempfile.TemporaryDirectory() as folder:
      steps = measured.read(_file(folder, *_steps('diloco', 4, 'unshaped')))
      with self.assertRaisesRegex(ValueError, "of 'localsgd', H = 1, 1g, got"):
        prediction.calibrate(steps)

  @parameterized.named_parameters(
    ('no_path', ['clusters'], 'expected the path'),
    ('other_entry', ['elastic_cost', '--data=x'], "as 'clusters' alone"),
  )
  def test_the_command_refuses(self, words, message):
    with contextlib.redirect_stderr(io.StringIO()) as errors:
      self.assertEqual(reproduce.main(words), 1)
    self.assertRegex(errors.getvalue(), f'Refused: --data: .*{message}')


class CommandTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = cls.enterClassContext(tempfile.TemporaryDirectory())
    words = ['clusters', f'--data={_whole_file(folder)}', f'--out={folder}']
    with contextlib.redirect_stdout(io.StringIO()):
      cls.code = reproduce.main(words)
    cls.folder = pathlib.Path(folder)
    cls.content = json.loads((cls.folder / 'clusters.json').read_text())

  def _row(self, **values):
    rows = [
      row
      for row in self.content['rows']
      if all(row[field] == value for field, value in values.items())
    ]
    (row,) = rows
    return row

  def test_the_calibration_finds_the_numbers_of_the_file(self):
    fitted = self.content['calibration']
    self.assertEqual(self.code, 0)
    self.assertAlmostEqual(fitted['step_s'], _STEP_S)
    self.assertAlmostEqual(fitted['outer_s'], _OUTER_S)
    # Chunks fill the ring, which the closed formula leaves out.
    self.assertAlmostEqual(fitted['shaped_share'], _SHARE, delta=0.005)
    ratio = fitted['unshaped_Bps'] / _UNSHAPED_BPS
    self.assertAlmostEqual(ratio, 1, delta=0.005)
    self.assertEqual(
      {each['algorithm']: each['seconds'] for each in fitted['setup_s']},
      _SETUP_S,
    )

  def test_fitted_rows_have_no_error_and_others_that_of_the_ring(self):
    fitted = self._row(algorithm='localsgd', use='fitted')
    self.assertAlmostEqual(fitted['outer_miss'], 0, delta=1e-5)
    for bandwidth in ('unshaped', '5g'):
      for is_first in (False, True):
        row = self._row(local_steps=4, bandwidth=bandwidth, is_first=is_first)
        self.assertEqual(row['use'], 'predicted')
        self.assertAlmostEqual(row['outer_miss'], 0, delta=0.003)
        self.assertAlmostEqual(row['iteration_miss'], 0, delta=0.003)

  def test_ddp_has_the_nearer_route_and_the_error_of_both(self):
    self.assertEqual(self.content['calibration']['ddp_route'], 'double_tree')
    ring = self._row(algorithm='ddp', bandwidth='1g', route='ring')
    tree = self._row(algorithm='ddp', bandwidth='1g', route='double_tree')
    self.assertLess(ring['outer_miss'], -0.2)
    self.assertLess(abs(tree['outer_miss']), 0.02)
    self.assertEqual((ring['use'], tree['use']), ('predicted', 'fitted'))

  def test_forecasts_are_those_of_the_ring(self):
    rows = [
      row
      for row in self.content['forecast']
      if (row['algorithm'], row['bandwidth']) == ('localsgd', '50m')
    ]
    self.assertEqual([row['local_steps'] for row in rows], [1, 8, 32, 128])
    for row in rows:
      sync_s = _SENT / (_SHARE * 6.25e6)
      iteration_s = row['local_steps'] * _STEP_S + sync_s
      self.assertAlmostEqual(row['iteration_s'] / iteration_s, 1, delta=0.005)
      added_s = row['first_outer_s'] - row['outer_s']
      self.assertAlmostEqual(added_s, _SETUP_S['localsgd'], delta=1e-3)

  def test_the_page_has_source_licence_and_every_row(self):
    page = (self.folder / 'CLUSTERS.md').read_text()
    self.assertIn('Apache-2.0', page)
    self.assertIn('https://github.com/Adnan082/diloco-measured', page)
    errors = page.partition('## Errors')[2].partition('## Predictions')[0]
    lines = [line for line in errors.splitlines() if '| ring |' in line]
    lines += [line for line in errors.splitlines() if '| double tree |' in line]
    self.assertLen(lines, len(self.content['rows']))


if __name__ == '__main__':
  absltest.main()
