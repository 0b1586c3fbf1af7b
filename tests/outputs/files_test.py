"""Tests of run folders: fingerprints, damaged manifests, locks, formats."""

import json
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest, parameterized

import outputs.files
import train
from outputs import atomic, manifests
from outputs.files import RunFiles
from outputs.rows import Rows
from tests.outputs import board_test
from tests.support import locks, small, stopping


def _fingerprint(**changed):
  own = {'scheme': None, 'task': None, 'dataset': None}
  return manifests.fingerprint(
    manifests.manifest(
      small.config(**changed).to_dict(),
      own,
      measures={},
      prefetched_iterations=2,
    )
  )


class FingerprintTest(parameterized.TestCase):
  @parameterized.parameters(
    {'cluster__interface': 'eth0'},
    {'cluster__devices_per_worker': 4},
    {'cluster__token_file': '/run/token'},
    {'cluster__certificate_file': 'a.pem', 'cluster__key_file': 'b.pem'},
    {'checkpoint__keep': 7},
    {'log_every': 7},
    {'outputs__board': True},
  )
  def test_fields_of_one_host_or_of_displays_do_not_change_it(self, **changed):
    self.assertEqual(_fingerprint(**changed), _fingerprint())

  @parameterized.parameters(
    {'seed': 1},
    {'optimizer__learning_rate': 0.5},
    {'route__server__pipelined': True},
    {'cluster__timeout_s': 3.0},
    {'data__ahead': 1},
  )
  def test_other_fields_change_it(self, **changed):
    self.assertNotEqual(_fingerprint(**changed), _fingerprint())


class BoardTest(absltest.TestCase):
  def test_curves_have_every_accuracy_and_are_drawn_anew_after_a_return(self):
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    files = RunFiles(str(folder))
    files.claim(
      manifests.manifest(
        small.config().to_dict(), {}, measures={}, prefetched_iterations=2
      )
    )
    (folder / 'events.out.tfevents.1.of-an-earlier-start').touch()
    files.begin(num_workers=2)
    row = {'accuracy': 0.5, 'top5_accuracy': 0.75, 'examples': 7, 'time': 1.0}
    files.rows.metric(row | {'loss': None, 'kind': 'evaluation'})
    sizes = files.rows.state()
    files.rows.metric(row | {'kind': 'log', 'examples': 9})
    files.rows.rewind(sizes)
    files.rows.metric({'loss': 0.25, 'kind': 'log', 'examples': 8, 'time': 2.0})
    files.close({'ended': 'finished'})
    self.assertEqual(
      board_test.read_points(folder),
      [('accuracy', 7, 0.5), ('top5_accuracy', 7, 0.75), ('loss', 8, 0.25)],
    )


class EndTest(absltest.TestCase):
  def test_a_run_with_a_summary_has_its_other_files_whole(self):
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    files = RunFiles(str(folder))
    files.claim(
      manifests.manifest(
        small.config().to_dict(), {}, measures={}, prefetched_iterations=2
      )
    )
    files.begin(num_workers=2)
    files.rows.event({'event': 'push', 'time': 1.5})
    files.rows.span(1, 'compute', 0.0, 1.5, 32)

    def killed(path, content):
      del content
      self.assertEqual(path.name, 'summary.json')
      trace = json.loads((folder / 'trace.json').read_text())
      self.assertEqual([row['tid'] for row in trace], [0, 1, 1])
      event = json.loads((folder / 'events.jsonl').read_text())
      self.assertEqual(event['time'], 1.5)
      raise KeyboardInterrupt

    with (
      mock.patch.object(atomic, 'write_object', killed),
      self.assertRaises(KeyboardInterrupt),
    ):
      files.close({'ended': 'finished'})
    self.assertIsNone(files.read_summary())


class EvaluationsTest(absltest.TestCase):
  """Evaluations of a run that resumes, and goes back to an earlier state."""

  def setUp(self):
    super().setUp()
    self.folder = tempfile.mkdtemp()

  def _begin(self, sizes=None):
    rows = Rows(pathlib.Path(self.folder), may_write=lambda: True)
    rows.timeline = False
    rows.open(sizes or {}, num_workers=1, manifest={})
    self.addCleanup(rows.close)
    return rows

  def _write(self, rows, *times):
    for time in times:
      rows.metric({'kind': 'log', 'time': time})
      rows.metric({'kind': 'evaluation', 'time': time})

  def _times(self, rows):
    return [row['time'] for row in rows.evaluations()]

  def test_those_of_earlier_starts_count_and_lost_ones_do_not(self):
    rows = self._begin()
    self._write(rows, 1.0)
    sizes = rows.state()
    self._write(rows, 2.0, 3.0)
    self.assertEqual(self._times(rows), [1.0, 2.0, 3.0])
    again = self._begin(sizes)
    self._write(again, 4.0)
    self.assertEqual(self._times(again), [1.0, 4.0])
    self._write(again, 5.0)
    again.rewind(sizes)
    self._write(again, 6.0)
    self.assertEqual(self._times(again), [1.0, 6.0])


class InterruptedWriteTest(parameterized.TestCase):
  """Files that a write has left empty or cut short, before it was durable."""

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp(), 'run')

  def _stopped(self, **changed):
    """Leaves a run that was killed behind its first checkpoint."""
    run = self._build(**changed)
    with self.assertRaises(stopping.Killed):
      stopping.stop(run, saved_at=[20], killed_at=40)
    run.files.release()
    return run

  def _build(self, **changed):
    config = stopping.eventful('asp', **changed)
    return train.build(config, workdir=str(self.folder))

  @parameterized.parameters(0, 1, 30)
  def test_without_a_readable_summary_a_run_resumes_from_its_checkpoint(
    self, size
  ):
    expected, _ = stopping.straight('asp')
    self._stopped()
    whole = json.dumps({'ended': 'finished', 'time_to': {}, 'more': 1.0})
    (self.folder / 'summary.json').write_text(whole[:size])
    run = self._build()
    self.assertIsNotNone(run.sizes)
    run()
    self.assertEqual(stopping.results(run)['summary'], expected['summary'])
    self.assertEqual(stopping.results(run)['events'], expected['events'])

  @parameterized.parameters(0, 100)
  def test_a_damaged_manifest_is_rewritten_if_the_lock_knows_it(self, size):
    expected, _ = stopping.straight('asp')
    self._stopped()
    path = self.folder / 'manifest.json'
    before = path.read_text()
    path.write_text(before[:size])
    # The frequency of checkpoints does not identify a run.
    run = self._build(checkpoint__keep=3)
    self.assertIsNotNone(run.sizes)
    run()
    self.assertEqual(stopping.results(run)['events'], expected['events'])
    self.assertEqual(
      json.loads(path.read_text())['config']['sync'],
      json.loads(before)['config']['sync'],
    )

  def test_a_damaged_manifest_of_another_config_is_refused(self):
    self._stopped()
    path = self.folder / 'manifest.json'
    path.write_text('')
    for _ in range(2):  # A refusal leaves the lock as it is.
      with self.assertRaisesRegex(ValueError, 'manifest.json cannot be read'):
        self._build(seed=7)
    self.assertEqual(path.read_text(), '')
    self.assertIsNotNone(self._build().sizes)

  def test_a_damaged_manifest_of_an_unknown_config_is_refused(self):
    self._stopped()
    (self.folder / '.lock').write_text('')  # As earlier versions left it.
    (self.folder / 'manifest.json').write_text('')
    rows = (self.folder / 'metrics.jsonl').read_text()
    with self.assertRaisesRegex(ValueError, 'unknown, with metrics.jsonl'):
      self._build()
    self.assertEqual((self.folder / 'metrics.jsonl').read_text(), rows)

  def test_a_folder_of_empty_files_starts_a_run(self):
    self.folder.mkdir()
    for name in ('manifest.json', 'metrics.jsonl', 'events.jsonl', '.lock'):
      (self.folder / name).touch()
    summary = self._build()()
    self.assertEqual(summary['ended'], 'finished')
    self.assertNotEmpty((self.folder / 'manifest.json').read_text())


class BusyTest(absltest.TestCase):
  def test_a_virtual_run_waits_a_short_time_for_a_live_process(self):
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    with (
      locks.hold(folder) as pid,
      mock.patch.object(outputs.files, 'LIVE_S', 0.5),
      self.assertLogs('absl', 'WARNING') as logs,
      self.assertRaisesRegex(ValueError, f'another run writes.*process {pid}'),
    ):
      train.build(small.config(), workdir=str(folder))
    self.assertIn(f'Waiting for process {pid} on', logs.output[0])


class VersionTest(absltest.TestCase):
  def test_a_folder_of_an_earlier_version_is_refused(self):
    folder = tempfile.mkdtemp()
    path = pathlib.Path(folder, 'manifest.json')
    for old, commit in (
      ({'config': {}, 'own': {}}, '0045af2'),
      ({'format': 2}, '0045af2'),
      ({'format': 3}, '8a71d1c'),
      ({'format': 4}, 'c1fb79a'),
      ({'format': 5}, '1813ba71'),
    ):
      path.write_text(json.dumps(old))
      with self.assertRaisesRegex(
        ValueError,
        f'of format 6, got format .*: the last commit .* is {commit}',
      ):
        train.build(small.config(), workdir=folder)
    path.write_text(json.dumps({'format': 7}))
    with self.assertRaisesRegex(ValueError, 'written by a later version'):
      train.build(small.config(), workdir=folder)


if __name__ == '__main__':
  absltest.main()
