"""Tests of the reasons that processes leave when they end."""

import json
import os
import pathlib
import signal
import tempfile

from absl.testing import absltest, parameterized

from cluster.process import exits
from cluster.process.exits import (
  Exit,
  ExitRecord,
  Reason,
  Unmendable,
  find_reason,
)
from tests.support import processes


def _read(folder, rank):
  return json.loads((folder / 'exits' / f'{rank}.json').read_text())


class ReasonTest(parameterized.TestCase):
  @parameterized.parameters(
    (None, 'finished'),
    (SystemExit(0), 'finished'),
    (SystemExit(143), 'stopped'),
    (KeyboardInterrupt(), 'stopped'),
    (Exit(1, Reason.REFUSED, 'other config'), 'refused'),
    (Exit(75, Reason.LOST, 'no answer'), 'lost'),
    (Unmendable('a server died'), 'unmendable'),
    (FloatingPointError('worker 1'), 'not_finite'),
    (TimeoutError('late'), 'transient'),
    (KeyError('x'), 'failed'),
    (SystemExit('usage'), 'failed'),
  )
  def test_an_exception_has_a_reason(self, error, reason):
    self.assertEqual(find_reason(error), reason)


class RecordTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp())

  def test_an_error_leaves_its_traceback_and_passes(self):
    with (
      self.assertRaises(KeyError),
      ExitRecord(self.folder, 'worker:1'),
    ):
      raise KeyError('parameter')
    record = _read(self.folder, 'worker-1')
    self.assertEqual((record['rank'], record['code']), ('worker:1', 1))
    self.assertEqual(record['reason'], 'failed')
    self.assertIn('exits_test.py', ''.join(record['traceback']))
    self.assertEqual(record['pid'], os.getpid())

  def test_the_record_of_a_process_outlasts_a_later_signal(self):
    with (
      self.assertRaises(SystemExit),
      ExitRecord(self.folder, 'worker:1'),
    ):
      raise SystemExit(143)
    for pid, reason in ((os.getpid(), 'stopped'), (1, 'killed')):
      record = ExitRecord(self.folder, 'worker:1')
      record.write(Reason.KILLED, -15, 'Terminated', pid=pid)
      self.assertEqual(_read(self.folder, 'worker-1')['reason'], reason)

  def test_an_observer_is_told_code_and_message_once(self):
    ends = []
    with self.assertRaises(Exit), ExitRecord(self.folder, 'worker:1'):
      exits.observe_end(lambda *end: ends.append(end))
      raise Exit(79, Reason.DRAINED, 'It has left.')
    with ExitRecord(self.folder, 'worker:1'):
      pass
    self.assertEqual(ends, [(79, 'It has left.', False)])

  def test_no_folder_is_created(self):
    with ExitRecord(self.folder / 'new', 'worker:1'):
      pass
    self.assertFalse((self.folder / 'new').exists())


class RunTest(processes.TestCase):
  def test_every_process_of_a_finished_run_says_so(self):
    with processes.launch(
      workers=2, servers=0, model=False, route__name='ring', epochs=1.0
    ) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    self.assertEqual(launch.summary['reason'], 'finished')
    for rank in ('worker-0', 'worker-1'):
      record = _read(launch.folder, rank)
      self.assertEqual((record['reason'], record['code']), ('finished', 0))

  def test_killed_and_stopped_processes_leave_reasons(self):
    with processes.launch(
      workers=2,
      servers=1,
      dedicated=True,
      model=False,
      epochs=1e4,
    ) as launch:
      launch.reach(64)
      os.kill(launch.pid('worker:1'), signal.SIGKILL)
      launch.until('worker 1 has died')
      self.assertEqual(_read(launch.folder, 'worker-1')['reason'], 'killed')
      launch.signal(signal.SIGTERM)
      launch.wait()
    self.assertEqual(launch.summary['reason'], 'stopped')
    record = _read(launch.folder, 'server-0')
    self.assertEqual((record['reason'], record['code']), ('stopped', 143))
    self.assertEqual(_read(launch.folder, 'worker-0')['reason'], 'stopped')


if __name__ == '__main__':
  absltest.main()
