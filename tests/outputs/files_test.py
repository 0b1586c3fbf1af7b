"""Tests for outputs.files: what tells a run from others."""

import hashlib
import json
import pathlib
import tempfile
from pydoc_data.topics import topics
from unittest import mock

from absl.testing import absltest, parameterized

import outputs.files
import train
from outputs import manifests
from outputs.files import RunFiles
from tests.support import small


def _fingerprint(**changed):
  own = {'scheme': None, 'task': None, 'dataset': None}
  return manifests.fingerprint(
    manifests.manifest(small.config(**changed).to_dict(), own)
  )


class FingerprintTest(parameterized.TestCase):
  @parameterized.parameters(
    {'cluster__interface': 'eth0'},
    {'cluster__devices_per_worker': 4},
    {'cluster__token_file': '/run/token'},
    {'cluster__certificate_file': 'a.pem', 'cluster__key_file': 'b.pem'},
    {'checkpoint__keep': 7},
  )
  def test_what_is_local_to_a_host_is_no_part_of_it(self, **changed):
    self.assertEqual(_fingerprint(**changed), _fingerprint())

  @parameterized.parameters(
    {'seed': 1},
    {'optimizer__learning_rate': 0.5},
    {'route__server__pipelined': True},
    {'cluster__timeout_s': 3.0},
  )
  def test_all_else_is(self, **changed):
    self.assertNotEqual(_fingerprint(**changed), _fingerprint())


class TextTest(absltest.TestCase):
  def _own(self, **changed):
    config = small.config(**changed).to_dict()
    return manifests.manifest(config, {})['own']

  def test_a_text_that_comes_with_python_is_told_by_its_hash(self):
    joined = '\n'.join(topics.values()).encode()
    changed = {'data__name': 'text', 'model__name': 'transformer'}
    own = self._own(**changed)
    self.assertEqual(own, {'text': hashlib.sha256(joined).hexdigest()})
    self.assertEqual(self._own(data__text__file='a.txt', **changed), {})
    self.assertEqual(self._own(data__name='text', model__name='none'), {})


class BoardTest(absltest.TestCase):
  def test_every_accuracy_is_shown(self):
    files = RunFiles(f'{tempfile.mkdtemp()}/run')
    files.board = True
    files._board = mock.Mock()
    row = {'accuracy': 0.5, 'top5_accuracy': 0.9, 'examples': 7, 'time': 1.0}
    files._plot(row | {'loss': None, 'kind': 'eval'})
    self.assertEqual(
      files._board.add_scalar.call_args_list,
      [mock.call('accuracy', 0.5, 7), mock.call('top5_accuracy', 0.9, 7)],
    )


class EndTest(absltest.TestCase):
  def test_a_run_with_a_summary_has_its_other_files_whole(self):
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    files = RunFiles(str(folder))
    files.claim(manifests.manifest(small.config().to_dict(), {}))
    files.begin(num_workers=2)
    files.event({'told': 'push', 'time': 1.5})
    files.span(1, 'compute', 0.0, 1.5, 32)

    def killed(path, content):
      del content
      self.assertEqual(path.name, 'summary.json')
      trace = json.loads((folder / 'trace.json').read_text())
      self.assertEqual([row['tid'] for row in trace], [0, 1, 1])
      event = json.loads((folder / 'events.jsonl').read_text())
      self.assertEqual(event['time'], 1.5)
      raise KeyboardInterrupt

    with (
      mock.patch.object(outputs.files, '_write', killed),
      self.assertRaises(KeyboardInterrupt),
    ):
      files.close({'ended': 'finished'})
    self.assertIsNone(files.finished())


class VersionTest(absltest.TestCase):
  def test_a_folder_of_an_earlier_version_is_refused(self):
    folder = tempfile.mkdtemp()
    old = {'config': {}, 'own': {}}
    pathlib.Path(folder, 'manifest.json').write_text(json.dumps(old))
    with self.assertRaisesRegex(ValueError, 'another version of Syncopate'):
      train.build(small.config(), workdir=folder)


if __name__ == '__main__':
  absltest.main()
