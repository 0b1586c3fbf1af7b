"""Tests for predictions of clusters of others, on steps that are made here."""

import os
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest, parameterized

from papers.measures import clusters_of_others, steps_of_others
from papers.measures.steps_of_others import Setting

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
      found = steps_of_others.read(_file(folder, *lines))[setting]
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
      found = steps_of_others.read(_file(folder, *lines))[setting]
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
        steps_of_others.read(path)

  def test_short_lines_are_rejected(self):
    with tempfile.TemporaryDirectory() as folder:
      path = _file(folder, 'diloco,1,1g,0,0')
      with self.assertRaisesRegex(
        ValueError, "warmup: expected 0 or 1, got ''"
      ):
        steps_of_others.read(path)

  def test_files_without_a_column_or_rows_are_rejected(self):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder, 'x.csv')
      path.write_text(_HEADER.replace('sync_ms', 'sync'))
      with self.assertRaisesRegex(ValueError, r"got .*\['sync_ms'\]"):
        steps_of_others.read(path)
      with self.assertRaisesRegex(
        ValueError, "expected a row .* got 'no rows'"
      ):
        steps_of_others.read(_file(folder))

  def test_a_missing_file_is_rejected_with_its_path(self):
    with self.assertRaisesRegex(ValueError, '--data: .*/nowhere/x.csv'):
      steps_of_others.read(pathlib.Path('/nowhere/x.csv'))

  def test_steps_that_the_calibration_lacks_are_named(self):
    with tempfile.TemporaryDirectory() as folder:
      steps = steps_of_others.read(
        _file(folder, *_steps('diloco', 4, 'unshaped'))
      )
      with self.assertRaisesRegex(ValueError, "of 'localsgd', H = 1, 1g, got"):
        clusters_of_others.calibrate(steps)


class PredictionTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = cls.enterClassContext(tempfile.TemporaryDirectory())
    path = pathlib.Path(folder, clusters_of_others.FILE)
    path.parent.mkdir()
    _whole_file(folder).rename(path)
    with mock.patch.dict(os.environ, SYNCOPATE_DATA=folder):
      records = clusters_of_others.measure(seed=0, scale='quick')
    *cls.rows, cls.fitted = records

  def _row(self, **values):
    (row,) = (
      row for row in self.rows if all(row[k] == v for k, v in values.items())
    )
    return row

  def test_the_calibration_finds_the_numbers_of_the_file(self):
    self.assertAlmostEqual(self.fitted['step_s'], _STEP_S)
    self.assertAlmostEqual(self.fitted['outer_s'], _OUTER_S)
    # Chunks fill the ring, which the closed formula leaves out.
    self.assertAlmostEqual(self.fitted['shaped_share'], _SHARE, delta=0.005)
    ratio = self.fitted['unshaped_Bps'] / _UNSHAPED_BPS
    self.assertAlmostEqual(ratio, 1, delta=0.005)
    self.assertEqual(self.fitted['ddp_route'], 'double_tree')

  def test_predictions_are_those_of_the_ring_at_every_rate(self):
    for bandwidth in ('unshaped', '5g'):
      row = self._row(algorithm='localsgd', local_steps=32, bandwidth=bandwidth)
      sync_s = _SENT / _rate(bandwidth)
      self.assertAlmostEqual(
        row['iteration_s'] / (32 * _STEP_S + sync_s), 1, delta=0.005
      )
      self.assertAlmostEqual(
        row['outer_s'] / (_STEP_S + sync_s), 1, delta=0.005
      )

  def test_first_outer_steps_have_the_set_up(self):
    for algorithm, setup_s in _SETUP_S.items():
      row = self._row(algorithm=algorithm, local_steps=8, bandwidth='50m')
      added_s = row['first_outer_s'] - row['outer_s']
      self.assertAlmostEqual(added_s, setup_s, delta=1e-3)

  def test_a_double_tree_needs_a_third_more_than_a_ring(self):
    ring, tree = (
      self._row(algorithm='ddp', bandwidth='1g', route=route)['outer_s']
      for route in ('ring', 'double_tree')
    )
    self.assertAlmostEqual(tree / ring, 4 / 3, delta=0.02)


if __name__ == '__main__':
  absltest.main()
