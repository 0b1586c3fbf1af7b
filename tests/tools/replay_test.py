"""Tests for tools.replay: recorded runs give the recorded decisions."""

import contextlib
import io
import json

from absl.testing import absltest, parameterized

from analysis import runs
from tests.support import small
from tools import replay

_TWO = {'cluster__workers': 2, 'cluster__speed__slowdown': (1.0, 3.1)}


def _replay(*folders):
  """Returns the exit code, 0 or 1 or a refusal, and the output."""
  with contextlib.redirect_stdout(io.StringIO()) as out:
    try:
      replay.main(['replay', *map(str, folders)])
    except SystemExit as done:
      return done.code, out.getvalue()
  raise AssertionError('Expected an exit.')


def _run(scheme, **changed):
  run = small.build(
    small.config(
      sync__name=scheme,
      cluster__speed__name='lognormal',
      cluster__script=((0.2, 'leave', 1), (0.9, 'join', 1)),
      **changed,
    )
  )
  run()
  return run.files.workdir


class ReplayTest(parameterized.TestCase):
  def test_every_scheme_gives_the_recorded_decisions(self):
    schemes = ('bsp', 'asp', 'ssp', 'dssp', 'elastic', 'r2sp')
    folders = [_run(scheme) for scheme in schemes]

    done = small.python('-m', 'tools.replay', *map(str, folders))

    self.assertEqual(done.returncode, 0, done.stderr)
    lines = done.stdout.splitlines()
    for folder, line in zip(folders, lines, strict=True):
      count = sum(1 for _ in runs.read_events(folder))
      self.assertEqual(line, f'{folder}: {count} events, the same decisions.')

  def test_a_different_decision_is_shown(self):
    folder = _run('elastic')
    path = folder / 'events.jsonl'
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[20]['time'] += 0.5
    rows[30]['decision']['commit'] = [999]
    path.write_text(''.join(json.dumps(row) + '\n' for row in rows))

    code, out = _replay(folder)

    self.assertEqual(code, 1)
    self.assertRegex(out, r': event \d+ was .*, is ')

  def test_each_start_has_a_scheme_for_its_number_of_workers(self):
    folder, fewer = _run('elastic'), _run('elastic', **_TWO)
    with (folder / 'events.jsonl').open('a') as events:
      events.write((fewer / 'events.jsonl').read_text())

    code, out = _replay(folder)

    self.assertEqual(code, 0, out)

  @parameterized.parameters(
    (lambda folder: folder / 'none', 'no folder'),
    (lambda folder: _broken(folder), 'events.jsonl, line 2: expected a JSON'),
  )
  def test_a_missing_or_broken_run_is_refused(self, change, message):
    code, _ = _replay(change(_run('asp')))
    self.assertStartsWith(code, 'Refused: ')
    self.assertIn(message, code)


def _broken(folder):
  path = folder / 'events.jsonl'
  lines = path.read_text().splitlines()
  path.write_text('\n'.join([lines[0], '{', *lines[2:]]) + '\n')
  return folder


if __name__ == '__main__':
  absltest.main()
