"""Tests for tools.record: its file, and its processes."""

import collections
import csv
import io
import pathlib
import tempfile
import types
from unittest import mock

import psutil
from absl.testing import absltest

from cluster.speed import speed
from tests.support import small
from tools import record


class RecordTest(absltest.TestCase):
  def test_rows_are_steps_of_each_worker_in_turn(self):
    file = io.StringIO()
    now_s = [100.0]

    def step():
      now_s[0] += 0.02

    clock = types.SimpleNamespace(monotonic=lambda: now_s[0])
    with mock.patch.object(record, 'time', clock):
      record.record(file, step, [0.19, 0.09])

    rows = list(csv.DictReader(io.StringIO(file.getvalue())))
    order = [(int(row['worker']), int(row['iteration'])) for row in rows]
    self.assertEqual(order, sorted(order))
    self.assertEqual(collections.Counter(w for w, _ in order), {0: 10, 1: 5})
    times = [float(row['time']) for row in rows]
    self.assertEqual(times, sorted(times))
    for row in rows:
      self.assertAlmostEqual(float(row['compute_s']), 0.02)
      self.assertBetween(float(row['cpu']), 0, 1)
      self.assertBetween(float(row['memory']), 0, 1)

  def test_a_recording_is_a_trace_and_leaves_no_process(self):
    path = pathlib.Path(tempfile.mkdtemp(), 'trace.csv')
    before = set(psutil.pids())
    done = small.python(
      *('-m', 'tools.record', f'--out={path}', '--minutes=0.02'),
      *('--workers=2', '--batch=4', '--config.model.name=mlp'),
    )
    self.assertEqual(done.returncode, 0, done.stderr)

    # A zombie has no command line.
    left = [
      process.info['cmdline']
      for process in psutil.process_iter(['cmdline'])
      if process.pid not in before
      and '# A load of tools.record' in str(process.info['cmdline'])
    ]
    self.assertEmpty(left)
    model = speed.trace(
      num_workers=2,
      seed=0,
      path=str(path),
      worker_column='worker',
      order_column='iteration',
      value_column='compute_s',
      driving_columns='cpu,memory',
    )
    self.assertBetween(model.factor(1, 3), 0.01, 100)

  def test_existing_files_are_not_overwritten(self):
    with tempfile.NamedTemporaryFile() as file:
      done = small.python('-m', 'tools.record', f'--out={file.name}')
    self.assertEqual(done.returncode, 1)
    self.assertIn('File exists', done.stderr)


if __name__ == '__main__':
  absltest.main()
