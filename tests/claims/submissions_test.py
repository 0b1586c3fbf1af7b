"""Tests for claims.submissions: schema, packing and verdicts."""

import contextlib
import copy
import io
import json
import pathlib
import tempfile

from absl.testing import absltest, parameterized

import reproduce
from claims import catalog, judging, submissions

_SUBMITTED = catalog.ROOT / 'results/submitted'
_FORM = {
  'claim': 'a is faster than b',
  'source': 'ours',
  'mark': 'ours',
  'rule_written': 'before the runs',
  'cluster': 'two hosts',
  'other_programs': 'none',
  'differences': 'none',
  'left_out': 'none',
  'rule': {
    'field': 'iteration_s',
    'confirmed': [None, 0.8],
    'shape': [None, 1.0],
  },
}


def _result(name, time_s):
  """Returns a packed result of two workers with 10 iterations in all."""
  return {
    'format': 'syncopate.result',
    'version': 1,
    'manifest': {
      'config': {'cluster': {'workers': 2}},
      'command': ['main.py'],
      'git_revision': '0123456789abcdef',
      'numerics': 'dropped',
    },
    'summary': {'ended': 'finished', 'time_s': time_s, 'iterations': 10},
    'hardware': {'host': 'h1', 'cores': 2, 'devices': ['cpu:0']},
    'files': {'summary.json': {'bytes': 1, 'sha256': name}},
  }


def _side(side, times_s):
  return [_result(f'{side}{n}', time_s) for n, time_s in enumerate(times_s)]


def _submission(ours_s, others_s, form=_FORM):
  return submissions.pack(form, _side('a', ours_s), _side('b', others_s))


class VerdictTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ('confirmed', 0.5, judging.CONFIRMED),
    ('shape', 0.9, judging.SHAPE),
    ('refuted', 1.25, judging.REFUTED),
  )
  def test_the_median_ratio_of_six_pairs_is_judged(self, ratio, verdict):
    others_s = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]
    ours_s = [ratio * other_s for other_s in others_s]
    row = submissions.judge(_submission(ours_s, others_s))
    self.assertEqual(row.verdict, verdict)
    self.assertAlmostEqual(row.median, ratio)
    self.assertEqual(row.seeds, 6)

  def test_pairs_that_disagree_show_no_difference(self):
    row = submissions.judge(_submission([0.5, 1.4, 0.6], [1.0, 1.0, 1.0]))
    self.assertEqual(row.verdict, judging.UNDECIDED)

  def test_an_iteration_has_the_time_of_all_workers_iterations(self):
    page = submissions.render(_submission([1.5] * 3, [2.0, 3.0, 4.0]))
    # 1.5 s for 10 iterations of two workers: 5 of each.
    self.assertIn('| ours[0] | 0.3 | h1 | 2 | cpu:0 |  | 0123456789 |', page)
    self.assertIn('- cluster: two hosts', page)


class SchemaTest(parameterized.TestCase):
  @parameterized.named_parameters(
    (
      'version',
      ('version',),
      2,
      "version 1, got .'syncopate.submission', 2",
    ),
    ('text', ('cluster',), ' ', "cluster: expected a text.* got ' '"),
    ('mark', ('mark',), 'sure', "mark: expected one of .* got 'sure'"),
    ('unknown', ('note',), 'x', r"got \['note'\]"),
    ('rule', ('rule',), {'field': 'x'}, 'rule: expected the fields'),
    ('reversed', ('rule', 'shape'), [2, 1], 'rule: shape: .* low to high'),
    ('not_finite', ('rule', 'shape'), [1, float('nan')], 'rule: shape'),
    ('sides', ('runs',), {'ours': []}, 'runs: expected the sides'),
    (
      'few',
      ('runs',),
      {'ours': [], 'others': []},
      '3 to 16 of each side, got 0',
    ),
    ('list', ('runs', 'ours'), {}, 'runs: ours: expected a list'),
    ('run', ('runs', 'ours', 1), 3, r'ours\[1\]: manifest: expected an object'),
    (
      'ended',
      ('runs', 'others', 2, 'summary', 'ended'),
      'interrupted',
      r"others\[2\]: ended: expected 'finished', got 'interrupted'",
    ),
    (
      'revision',
      ('runs', 'ours', 0, 'manifest', 'git_revision'),
      None,
      r'ours\[0\]: git_revision: expected a commit',
    ),
    (
      'workers',
      ('runs', 'ours', 0, 'manifest', 'config'),
      {},
      r'ours\[0\]: iteration_s: expected time_s, workers',
    ),
    ('field', ('rule', 'field'), 'speed', r'ours\[0\]: speed: .* got None'),
  )
  def test_wrong_parts_are_rejected_by_name(self, path, value, message):
    wrong = copy.deepcopy(_submission([1, 2, 3], [2, 3, 4]))
    *parents, last = path
    part = wrong
    for name in parents:
      part = part[name]
    part[last] = value
    with self.assertRaisesRegex(ValueError, message):
      submissions.check(wrong)

  def test_a_run_counts_once(self):
    ours, others = _side('a', [1, 2, 3]), _side('b', [2, 3, 4])
    message = r'others\[0\]: expected a run of its own, got .*ours\[0\]'
    with self.assertRaisesRegex(ValueError, message):
      submissions.pack(_FORM, ours, [ours[0], *others[1:]])

  def test_sides_have_as_many_runs(self):
    with self.assertRaisesRegex(ValueError, 'as many on each side'):
      _submission([1, 2, 3], [2, 3, 4, 5])

  def test_other_files_are_no_results(self):
    wrong = _side('a', [1, 2, 3])
    wrong[1]['format'] = 'x'
    with self.assertRaisesRegex(ValueError, r"ours\[1\]: format: .* got 'x'"):
      submissions.pack(_FORM, wrong, _side('b', [2, 3, 4]))


class CommandTest(absltest.TestCase):
  def test_packed_files_are_checked_by_the_command(self):
    with tempfile.TemporaryDirectory() as name:
      folder = pathlib.Path(name)
      (folder / 'form.json').write_text(json.dumps(_FORM))
      words = [str(folder / 'form.json'), f'--out={folder / "x.json"}']
      for side, times_s in (('ours', [1, 2, 3]), ('others', [2, 4, 6])):
        paths = [folder / f'{side}{number}.json' for number in range(3)]
        for path, result in zip(paths, _side(side, times_s), strict=True):
          path.write_text(json.dumps(result))
        words.append(f'--{side}={",".join(map(str, paths))}')
      with contextlib.redirect_stdout(io.StringIO()) as out:
        self.assertEqual(submissions.main(words), 0)
        code = reproduce.main([f'--check={folder / "x.json"}'])
      self.assertEqual(code, 0)
      self.assertIn('0.5 (0.5 to 0.5), n = 3', out.getvalue())
      content = (folder / 'x.json').read_text()
      self.assertNotIn('dropped', content)

  def test_a_missing_or_wrong_file_is_refused(self):
    with tempfile.TemporaryDirectory() as name:
      path = pathlib.Path(name, 'x.json')
      for content, message in (
        (None, 'expected a JSON object, got none'),
        ('{}', 'x.json: submission: expected format'),
      ):
        if content is not None:
          path.write_text(content)
        with contextlib.redirect_stderr(io.StringIO()) as errors:
          self.assertEqual(reproduce.main([f'--check={path}']), 1)
        self.assertIn(message, errors.getvalue())

  def test_accepted_submissions_pass(self):
    for path in sorted(_SUBMITTED.glob('*.json')):
      submissions.check(submissions.read(path))


if __name__ == '__main__':
  absltest.main()
