"""Tests for the output of examples/ and of the commands on forests."""

import contextlib
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from absl.testing import absltest, parameterized

from examples import own_forest, own_model, own_scheme, timing_only
from tests.docs import pages
from tests.support import small


class CommandTest(parameterized.TestCase):
  @parameterized.parameters(
    ('own_scheme', '--k'),
    ('own_model', '--scheme'),
    ('own_forest', '--cluster'),
    ('timing_only', '--stay'),
  )
  def test_help_has_the_purpose_an_example_and_all_flags(self, name, flag):
    done = small.python('-m', f'examples.{name}', '--help')
    self.assertIn(f'python -m examples.{name}', done.stdout)
    self.assertIn(flag, done.stdout)

  def test_the_flags_of_an_example_reach_its_run(self):
    folder = tempfile.mkdtemp()
    done = small.python('-m', 'examples.own_forest', f'--out={folder}/a.json')
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertTrue(os.path.exists(f'{folder}/a.json'))


class ExampleTest(absltest.TestCase):
  """Tests for the output that each program's docstring describes."""

  def _run(self, function, *arguments, **settings):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
      function(*arguments, **settings)
    return printed.getvalue()

  def test_own_scheme_compares_three_schemes(self):
    rows = self._run(own_scheme.compare, epochs=0.4, k=3).splitlines()[-4:]
    self.assertEqual(
      [row.split()[0] for row in rows], ['scheme', 'bsp', 'asp', '3-async']
    )
    updates = [int(row.split()[3]) for row in rows[1:]]
    self.assertEqual(updates[1] // 3, updates[2])

  def test_own_real_trains_its_task_on_real_processes(self):
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    done = small.python(
      *('-m', 'tools.launch', '--workers=2', f'--workdir={folder}'),
      *('--module=examples.own_real', '--', '--config=configs/default.py'),
      *('--config.epochs=0.5', '--config.optimizer.learning_rate=0.05'),
    )
    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
    summary = json.loads((folder / 'summary.json').read_text())
    self.assertEqual(summary['ended'], 'finished')
    manifest = json.loads((folder / 'manifest.json').read_text())
    self.assertIsNotNone(manifest['own']['task'])

  def test_own_parts_run_in_every_command(self):
    out = pathlib.Path(tempfile.mkdtemp())
    folder = pathlib.Path(sys.executable).parent
    done = subprocess.run(
      ['sh', 'examples/own.sh', str(out), '2', '1'],
      cwd=pages.ROOT,
      env={**os.environ, 'PATH': f'{folder}:{os.environ["PATH"]}'},
      capture_output=True,
      text=True,
      check=False,
    )
    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
    for name in ('run', 'real'):
      summary = json.loads((out / name / 'summary.json').read_text())
      self.assertEqual(summary['ended'], 'finished')
      self.assertIn('0.2', summary['to_mse'])
      manifest = json.loads((out / name / 'manifest.json').read_text())
      measures = {'mse': 'falls', 'mae': 'falls'}
      self.assertEqual(manifest['measures'], measures)
      self.assertIn('config.sync.name', manifest['files'])
      self.assertLen(manifest['starts'], 2 if name == 'run' else 1)
    lines = (out / 'sweep' / 'results.csv').read_text().splitlines()
    self.assertLen(lines, 5)
    self.assertIn('final_mse', lines[0])
    header, _, *rows = (
      (out / 'compare' / 'table.md').read_text().splitlines()[2:]
    )
    self.assertRegex(header, r'^\| +\| mse +\| mae +\| to mse 0.2 \(s\) +\| in')
    self.assertIn('examples.own_scheme', rows[1])
    tuned = json.loads((out / 'tuned.json').read_text())
    self.assertIn('examples.own_scheme', json.dumps(tuned))

  def test_own_model_learns(self):
    printed = self._run(own_model.learn, epochs=3.0, scheme='asp')
    accuracy = float(re.search(r'^accuracy ([\d.]+)%', printed, re.M)[1])
    self.assertGreater(accuracy, 50)
    self.assertIn("['last']['kernel']: (16, 4)", printed)

  def test_timing_only_has_a_row_for_each_scheme(self):
    printed = self._run(
      timing_only.compare,
      timing_only.SCHEMES,
      batching='fixed',
      workers=8,
      iterations=10,
      slow=4.0,
      stay=1.0,
    )
    rows = [row.split() for row in printed.splitlines()[-6:]]
    self.assertEqual([row[0] for row in rows], timing_only.SCHEMES)
    rates = {row[0]: float(row[1]) for row in rows}
    self.assertGreater(rates['asp'], 2 * rates['bsp'])

  def test_own_forest_reaches_its_bound_and_is_read_back(self):
    out = f'{tempfile.mkdtemp()}/forest.json'
    printed = self._run(own_forest.show, own_forest.CLUSTER, out)
    self.assertRegex(printed, r'gap +0\.00%')
    self.assertTrue(os.path.exists(out))
    again = self._run(
      own_forest.show, json.loads(pathlib.Path(out).read_text())['cluster']
    )
    self.assertEqual(again, printed)

  def test_the_commands_on_forests_print_what_the_page_shows(self):
    folder = tempfile.mkdtemp()
    words = ('dgx_a100(2)', '--baselines', f'--out={folder}/forest.json')
    done = small.python('-m', 'tools.pack', *words)
    done.check_returncode()
    shown = (pages.ROOT / 'docs/questions/where.md').read_text()
    (table,) = re.findall(r'```text\n(rate.*?)```', shown, re.DOTALL)
    for row in table.splitlines():
      if row and not row.startswith('packed in'):
        self.assertIn(row, done.stdout)


if __name__ == '__main__':
  absltest.main()
