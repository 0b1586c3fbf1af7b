"""Tests of the versions that processes of a run must share."""

import json
import pathlib
import tempfile

import msgspec
from absl.testing import absltest, parameterized

from cluster.membership.versions import (
  describe_difference,
  find_versions,
  source_digest,
)
from cluster.network.messages import Versions
from tests.support import processes

_OURS = Versions('0123', 'abcdef', '0.10.2', '0.10.1', '4567')
_OTHER_CODE = """
if '--role=worker:1' in sys.argv:
  from cluster.membership import versions
  versions.source_digest = lambda: 'othercode'
"""


class VersionsTest(parameterized.TestCase):
  def test_equal_versions_do_not_differ(self):
    self.assertEqual(describe_difference(_OURS, _OURS), '')

  def test_equal_code_of_another_checkout_is_the_same(self):
    other = msgspec.structs.replace(_OURS, revision='')
    self.assertEqual(describe_difference(_OURS, other), '')

  @parameterized.parameters(
    ({'sources': '89'}, r'code 89 \(.*abcdef\) instead of 0123 \(.*abcdef\)'),
    ({'jax': '0.11.0'}, r'JAX 0\.11\.0 instead of 0\.10\.2'),
    ({'jaxlib': '0.11.0'}, r'jaxlib 0\.11\.0 instead of 0\.10\.1'),
    ({'data': '89'}, 'data 89 instead of 4567'),
    ({'data': ''}, 'data of an unknown version instead of 4567'),
  )
  def test_a_difference_names_both_values(self, changed, sentence):
    other = msgspec.structs.replace(_OURS, **changed)
    self.assertRegex(describe_difference(_OURS, other), sentence)

  def test_an_edit_of_the_code_changes_its_digest(self):
    root = pathlib.Path(tempfile.mkdtemp())
    (root / 'train.py').write_text('train')
    (root / 'wire').mkdir()
    source = root / 'wire/dense.py'
    digests = set()
    for text in ('one', 'two', 'one'):
      source.write_text(text)
      digests.add(source_digest.__wrapped__(root))
    self.assertLen(digests, 2)
    (root / 'tests').mkdir()
    (root / 'tests/any.py').write_text('any')
    self.assertIn(source_digest.__wrapped__(root), digests)

  def test_a_process_has_the_versions_of_its_manifest(self):
    manifest = {
      'versions': {'jax': '1', 'jaxlib': '2'},
      'git_revision': 40 * 'a',
    }
    expected = Versions(source_digest(), 12 * 'a', '1', '2', 'data')
    self.assertEqual(find_versions(manifest, 'data'), expected)


class RunTest(processes.TestCase, parameterized.TestCase):
  @parameterized.parameters('ring', 'server')
  def test_a_worker_with_other_code_is_refused_for_good(self, route):
    with processes.launch(
      workers=2,
      servers=0 if route == 'ring' else 1,
      code=_OTHER_CODE,
      model=False,
      route__name=route,
      epochs=1.0,
    ) as launch:
      self.assertEqual(launch.wait(), 1, launch.text)
      rows = launch.rows('launch.jsonl')
    self.assertRegex(
      launch.text,
      rf'Refused: .*code othercode \(revision .*\) instead of '
      rf'{source_digest()} ',
    )
    codes = {r['role']: r['code'] for r in rows if r['event'] == 'exit'}
    self.assertEqual(codes['worker:1'], 1)
    path = launch.folder / 'exits/worker-1.json'
    self.assertEqual(json.loads(path.read_text())['reason'], 'refused')


if __name__ == '__main__':
  absltest.main()
