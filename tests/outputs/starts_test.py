"""Tests of the starts of a run in its manifest."""

import json
import pathlib
import shutil
import tempfile

from absl.testing import absltest, parameterized

import train
from outputs import manifests
from outputs.files import RunFiles
from tests.support import small, stopping


class ResumeTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    run = self._build()
    with self.assertRaises(stopping.Killed):
      stopping.stop(run, saved_at=[20], killed_at=40)
    run.files.release()

  def _build(self, **changed):
    config = stopping.eventful('asp', **changed)
    return train.build(config, workdir=str(self.folder))

  @property
  def _manifest(self):
    return json.loads((self.folder / 'manifest.json').read_text())

  def _change(self, change):
    manifest = self._manifest
    change(manifest)
    (self.folder / 'manifest.json').write_text(json.dumps(manifest))

  def test_each_start_has_an_entry(self):
    (first,) = self._manifest['starts']
    self._build()()

    before, after = self._manifest['starts']
    self.assertEqual(before, first)
    self.assertEqual(before['examples'], 0)
    self.assertGreater(after.pop('examples'), 0)
    self.assertEqual(after.pop('changed'), {})
    self.assertEqual(after, manifests.start_of(self._manifest))
    # It has finished: nothing starts any more.
    self._build()()
    self.assertLen(self._manifest['starts'], 2)

  def test_other_log_rows_and_boards_change_no_result_of_a_resumed_run(self):
    run = self._build(log_every=2, outputs__board=False)
    run()
    expected, _ = stopping.straight('asp')
    got = stopping.results(run)
    for name in ('summary', 'events', 'trace'):
      self.assertEqual(got[name], expected[name])
    self.assertEmpty([*self.folder.glob('events.out.tfevents.*')])

    def evaluations(rows):
      return [row for row in rows if row['kind'] == 'evaluation']

    self.assertEqual(
      *(evaluations(each['metrics']) for each in (got, expected))
    )
    logs = [row for row in got['metrics'] if row['kind'] == 'log']
    self.assertGreater(len(logs), 2 * got['summary']['iterations'] / 7)

  def test_a_start_that_has_to_begin_again_is_logged(self):
    with self.assertNoLogs('absl', 'WARNING'):
      self._build().files.release()  # It has a checkpoint.
    shutil.rmtree(self.folder / 'checkpoints')
    with self.assertLogs('absl', 'WARNING') as logs:
      run = self._build()
    self.assertRegex(logs.output[0], f'{self.folder} .*starts again')
    run()
    with self.assertNoLogs('absl', 'WARNING'):
      self._build()  # It has finished.

  def test_examples_leased_further_ahead_are_another_run(self):
    with self.assertRaisesRegex(ValueError, 'config.data.ahead: expected 2'):
      self._build(data__ahead=1)

  def test_another_kind_of_device_is_logged_and_recorded(self):
    def on_gpu(manifest):
      for part in (manifest, manifest['starts'][0]):
        part['devices'] = ['NVIDIA H100'] * 2

    self._change(on_gpu)
    with self.assertLogs('absl', 'WARNING') as logs:
      run = self._build()
    expected = 'resumes on cpu; it began on 2 x NVIDIA H100: its digits may'
    self.assertIn(expected, ' '.join(logs.output))
    run()
    manifest = self._manifest
    found = [start['devices'] for start in manifest['starts']]
    self.assertEqual(found, [['NVIDIA H100'] * 2, ['cpu']])
    self.assertEqual(manifest['devices'], ['NVIDIA H100'] * 2)

  def test_another_kind_of_device_in_between_is_logged(self):
    def between(manifest):
      start = dict(manifest['starts'][0], devices=['NVIDIA A100'])
      manifest['starts'].append(start)

    self._change(between)
    with self.assertLogs('absl', 'WARNING') as logs:
      self._build()
    self.assertIn('resumes on cpu; it was on NVIDIA A100', logs.output[0])

  def test_a_field_that_the_run_does_not_have_is_named(self):
    def without(manifest):
      del manifest['config']['eval_every']

    self._change(without)
    with self.assertRaisesRegex(ValueError, 'config.eval_every: younger than'):
      self._build()


class WorkersTest(absltest.TestCase):
  def test_devices_are_recorded_and_changes_are_logged(self):
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    found = manifests.manifest(
      small.config().to_dict(), {}, measures={}, prefetched_iterations=2
    )
    for start, kind in enumerate(('NVIDIA A100', 'NVIDIA H100')):
      files = RunFiles(str(folder))
      files.claim(found)
      files.begin(num_workers=2, examples=start * 64)
      if start == 0:
        with self.assertNoLogs('absl', 'WARNING'):
          files.record_workers({0: ['cpu'], 1: [kind]})
      else:
        with self.assertLogs('absl', 'WARNING') as logs:
          files.record_workers({0: ['cpu'], 1: [kind]})
        self.assertLen(logs.output, 1)
        expected = 'Worker 1 computes on NVIDIA H100, and did so on NVIDIA A100'
        self.assertIn(expected, logs.output[0])
      files.close({'ended': 'stopped'})
    starts = json.loads((folder / 'manifest.json').read_text())['starts']
    self.assertEqual(
      [(start['examples'], start['workers']) for start in starts],
      [
        (0, {'0': ['cpu'], '1': ['NVIDIA A100']}),
        (64, {'0': ['cpu'], '1': ['NVIDIA H100']}),
      ],
    )


if __name__ == '__main__':
  absltest.main()
