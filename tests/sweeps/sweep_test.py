"""Tests of sweep.py as a process, and of the folder and results of a sweep."""

import contextlib
import csv
import json
import os
import pathlib
import random
import signal
import subprocess
import tempfile
import time
from unittest import mock

import jax
import pytest
from absl.testing import absltest
from pyarrow import parquet

import train
from configs import cells
from outputs import checkpoints
from sweeps import child as child_process
from sweeps import folder, outcomes, plan, results, submit
from tests.support import gpus, locks, requires, small, sweeping, terminals

# The last runs fail: no worker is left.
_GRID = (
  'cluster.script & sync.name = & bsp, & elastic, '
  '((0.5, "leave", 0), (0.6, "leave", 1)) & bsp; seed = 0, 1'
)


def _same_bits(self, run: pathlib.Path) -> None:
  """Compares a run with what train.build makes of its config."""
  words = json.loads((run / 'manifest.json').read_text())['command'][1:-1]
  alone = pathlib.Path(tempfile.mkdtemp()) / 'run'
  train.build(plan.parse_config(words), workdir=str(alone))()
  for name in ('events.jsonl', 'trace.json'):
    self.assertEqual((run / name).read_bytes(), (alone / name).read_bytes())
  before, after = (
    json.loads((path / 'summary.json').read_text()) for path in (run, alone)
  )
  for summary in (before, after):
    del summary['wall_s']
  self.assertEqual(before, after)


class SweepTest(absltest.TestCase):
  def test_a_killed_and_stopped_sweep_trains_each_run_once(self):
    out = pathlib.Path(tempfile.mkdtemp()) / 'out'
    words = sweeping.command(out, _GRID, '--jobs=1')
    sweep = sweeping.start(words)
    sweeping.wait_for(lambda: sweeping.finished_runs(out))
    # A run that ends only if somebody ends it.
    sweeping.wait_for(
      lambda: self._stops(sweeping.processes_of(out), sweep.pid)
    )
    sweeping.kill(sweep)
    killed = sweeping.finished_runs(out)
    self.assertEmpty(sweeping.processes_of(out))

    sweep = sweeping.start(words)
    sweeping.wait_for(lambda: len(sweeping.finished_runs(out)) > len(killed))
    time.sleep(0.1)
    sweep.send_signal(signal.SIGTERM)
    said, _ = sweep.communicate()
    self.assertEqual(sweep.returncode, 128 + signal.SIGTERM, said)
    self.assertIn('SIGTERM: the runs end', said)
    self.assertIn('the same command continues', said)
    self.assertEmpty(sweeping.processes_of(out))
    stopped = sweeping.finished_runs(out)
    self.assertLess(len(stopped), 4)

    done = subprocess.run(
      words, cwd=sweeping.ROOT, capture_output=True, text=True, check=False
    )
    ended = sweeping.finished_runs(out)
    self.assertLen(ended, 4, done)
    self.assertEqual(stopped | killed, {n: ended[n] for n in stopped | killed})
    for name in killed | stopped:
      self.assertEqual(sweeping.starts(out)[name], 1)
    self._check_failure(done, out)
    self._check_results(out)
    _same_bits(self, out / max(ended))

  def test_a_sweep_whose_terminal_closes_stops_its_runs_with_checkpoints(self):
    out = pathlib.Path(tempfile.mkdtemp()) / 'out'
    words = sweeping.command(out, 'seed=0,1', '--jobs=2', '--config.epochs=900')
    with terminals.start(words, cwd=sweeping.ROOT) as terminal:
      sweeping.wait_for(
        lambda: terminal.read() is not None and len(self._trains(out)) == 2
      )
      terminal.close()
      time.sleep(0.01)  # The kernel has sent SIGHUP; a shell repeats it.
      terminal.process.send_signal(signal.SIGHUP)
      self.assertEqual(terminal.process.wait(60), 128 + signal.SIGHUP)
    self.assertEmpty(sweeping.processes_of(out))
    for run in (path.parent for path in out.glob('*/log.txt')):
      self.assertEqual(outcomes.read_summary(run)['ended'], 'interrupted')
      self.assertNotEmpty(checkpoints.steps(run / 'checkpoints'))

  def _trains(self, out):
    """Returns the runs that have begun to train."""
    return [*out.glob('*/metrics.jsonl')]

  def _stops(self, processes, but):
    """Stops processes but one; returns whether there were any."""
    stopped = 0
    for child in set(processes) - {but}:
      with contextlib.suppress(ProcessLookupError):  # Its run may be over.
        os.kill(child, signal.SIGSTOP)
        stopped += 1
    return stopped

  def _check_failure(self, done, out):
    self.assertEqual(done.returncode, 1)
    self.assertIn('runs are over already', done.stdout)
    *_, shown = done.stdout.partition('[6/6]')
    self.assertEqual(shown.count(': failed\n  exit code 1\n'), 2, done.stdout)
    self.assertRegex(shown, r'RuntimeError: .*')
    self.assertRegex(shown, rf'{out}/\S+/log.txt')

  def _check_results(self, out):
    with (out / 'results.csv').open() as file:
      rows = {row['run']: row for row in csv.DictReader(file)}
    table = parquet.read_table(out / 'results.parquet').to_pylist()
    self.assertLen(rows, 6)
    self.assertCountEqual([row['run'] for row in table], rows)
    for row in table:
      own = json.loads((out / row['run'] / 'manifest.json').read_text())
      config = own['config']
      text = rows[row['run']]
      self.assertEqual(row['seed'], config['seed'])
      self.assertEqual(text['sync.name'], config['sync']['name'])
      self.assertEqual(row['host'], own['host'])
      self.assertEqual(row['versions.jax'], own['versions']['jax'])
      self.assertEqual(row['git_revision'], own['git_revision'])
      self.assertNotIn('cluster.workers', row)  # All have as many.
      if row['cluster.script'] == '()':
        self.assertEqual((row['status'], row['error']), ('finished', None))
        summary = json.loads((out / row['run'] / 'summary.json').read_text())
        for phase, seconds in summary['worker_seconds'].items():
          self.assertEqual(row[f'worker_seconds.{phase}'], seconds)
        self.assertEqual(float(text['virtual_s']), summary['virtual_s'])
        self.assertEqual(row['updates'], summary['updates'])
      else:
        self.assertEqual(row['status'], 'failed')
        self.assertIn('RuntimeError', row['error'])

  @pytest.mark.soak
  @pytest.mark.timeout(600)
  def test_no_run_is_lost_or_repeated_after_20_kills(self):
    out = pathlib.Path(tempfile.mkdtemp()) / 'out'
    seeds = ','.join(map(str, range(12)))
    grid = f'sync.name=bsp,asp,elastic; seed={seeds}'
    words = sweeping.command(
      out,
      grid,
      '--jobs=3',
      '--config.model.none.num_train=32000',
      '--config.checkpoint.every_examples=4000',
    )
    draw = random.Random(0)
    known: dict[str, int] = {}
    for _ in range(20):
      sweep = sweeping.start(words)
      time.sleep(draw.uniform(0.3, 5.0))
      sweeping.kill(sweep)
      # Those that it has started are not waited for.
      new = sweeping.finished_runs(out)
      self.assertEqual(known, {name: new.get(name) for name in known})
      known = new
    done = subprocess.run(
      words, cwd=sweeping.ROOT, capture_output=True, text=True, check=False
    )
    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
    ended = sweeping.finished_runs(out)
    self.assertLen(ended, 36)
    self.assertEqual(known, {name: ended[name] for name in known})
    for path in out.glob('*/log.txt'):
      text = path.read_text()
      for never in ('another run', 'has finished before', 'Error'):
        self.assertNotIn(never, text, path)
    resumed = [p for p, n in sweeping.starts(out).items() if n > 1]
    self.assertNotEmpty(resumed)
    for name in (*resumed[:3], min(ended)):
      _same_bits(self, out / name)


class InterruptedWriteTest(absltest.TestCase):
  def test_truncated_files_are_named_and_the_sweep_resumes(self):
    out = pathlib.Path(tempfile.mkdtemp()) / 'out'
    words = sweeping.command(out, 'seed=0,1', '--jobs=2')
    subprocess.run(words, cwd=sweeping.ROOT, check=True, capture_output=True)
    ended = sweeping.finished_runs(out)
    cut, whole = sorted(ended)
    summary = out / cut / 'summary.json'
    summary.write_text(summary.read_text()[:99])
    (out / 'sweep.json').write_text('')

    done = subprocess.run(
      words, cwd=sweeping.ROOT, capture_output=True, text=True, check=False
    )
    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
    for path in (summary, out / 'sweep.json'):
      self.assertIn(f'{path} is left of an interrupted write', done.stderr)
    self.assertIn('1 of 2 runs are over already', done.stdout)
    again = sweeping.finished_runs(out)
    self.assertEqual(again[whole], ended[whole])
    self.assertGreater(again[cut], ended[cut])
    names = json.loads((out / 'sweep.json').read_text())['runs'].values()
    self.assertCountEqual(names, [cut, whole])

  def test_a_sweep_that_lacks_runs_of_the_folder_is_still_refused(self):
    out = pathlib.Path(tempfile.mkdtemp())
    runs = [
      plan.PlannedRun(f'seed{n}-{n}', (), plan.ResolvedConfig({}, str(n), {}))
      for n in range(2)
    ]
    folder.SweepFolder(str(out)).claim(runs)
    for run in runs:
      (out / run.name).mkdir()
      (out / run.name / 'log.txt').touch()
    (out / 'sweep.json').write_text('{"format": 1,')
    self.assertEqual(folder.SweepFolder(str(out)).check(runs), runs)
    with self.assertRaisesRegex(ValueError, r"without \['seed1-1'\]"):
      folder.SweepFolder(str(out)).check(runs[:1])


class LockTest(absltest.TestCase):
  def test_a_run_whose_folder_is_locked_fails_with_the_process(self):
    out = pathlib.Path(tempfile.mkdtemp())
    code = f"""
import pathlib, sys
from outputs import files
from sweeps import child
files.LIVE_S = 0.5
words = sys.argv[1:]
child._main([*words, '--workdir={out}/a'], pathlib.Path('{out}/a'))
"""
    flags = sweeping.command(out, '')[4:]
    with locks.hold(out / 'a') as pid:
      done = small.python('-c', code, *flags)
    self.assertEqual(done.returncode, 75)
    state = folder.SweepFolder(str(out)).outcome_of_process('a', 75, 0)
    self.assertEqual(state.status, 'failed')
    self.assertIn('exit code 75', state.error)
    self.assertRegex(state.error, f'another run writes to .*process {pid} on')


class GpusTest(absltest.TestCase):
  def test_runs_on_one_gpu_share_its_memory_and_their_programs(self):
    host = gpus.Host(gpus.list_output(2))
    out = pathlib.Path(tempfile.mkdtemp()) / 'out'
    fields = {
      'model.name': 'mlp',
      'model.mlp.hidden': '(4,)',
      'data.name': 'synthetic',
      'data.synthetic.num_train': '64',
      'data.synthetic.num_test': '8',
      'cluster.workers': '1',
      'cluster.speed.slowdown': '(1.0,)',
      'epochs': '1.0',
    }
    flags = [f'--config.{field}={value}' for field, value in fields.items()]
    words = sweeping.command(out, 'seed=0,1')[:4]
    done = subprocess.run(
      [*words, '--config=configs/vgg16_bsp.py', *flags, '--jobs=2'],
      cwd=sweeping.ROOT,
      env=host.variables(CUDA_VISIBLE_DEVICES='1,-1,0'),
      capture_output=True,
      text=True,
      timeout=100,
    )
    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
    self.assertIn('on 1 GPU, 2 on each with 38% of its memory', done.stdout)
    self.assertLen(sweeping.finished_runs(out), 2)
    runs = [seen for seen in host.startups() if seen['XLA_CLIENT_MEM_FRACTION']]
    self.assertLen(runs, 2)
    for seen in runs:
      self.assertEqual(seen['CUDA_VISIBLE_DEVICES'], '1')
      self.assertEqual(seen['XLA_CLIENT_MEM_FRACTION'], '0.3750')
    # A program is there once, whichever run has compiled it.
    (cache,) = (out / 'compiled').iterdir()
    self.assertNotEmpty([*cache.glob('jit_*')])
    self.assertEndsWith(cache.name, f'-{runs[0]["cores"]}')

  def test_jobs_of_this_host_share_gpus_and_those_of_slurm_have_theirs(self):
    with gpus.Host(gpus.list_output(1)).here():
      local = submit._commands(2, 'local', uses_model=True)
      slurm = submit._commands(2, 'slurm', uses_model=True)
      os.environ.pop('JAX_PLATFORMS')
      timing = submit._commands(2, 'local', uses_model=False)
    for command in local:
      self.assertIn('CUDA_VISIBLE_DEVICES=0', command)
      self.assertIn('XLA_CLIENT_MEM_FRACTION=0.3750', command)
    for command in [*slurm, *timing]:
      self.assertNotIn('CUDA_VISIBLE_DEVICES', ' '.join(command))
    for command in timing:
      self.assertIn('JAX_PLATFORMS=cpu', command)

  def test_programs_are_shared_on_hosts_with_gpus_alone(self):
    out = pathlib.Path(tempfile.mkdtemp())
    for listed, given, expected in (
      (gpus.list_output(1), None, [str(out / 'compiled')]),
      # The user's own stays, and CPUs have none.
      (gpus.list_output(1), '/own', []),
      ('', None, []),
    ):
      values = {'jax_compilation_cache_dir': given}
      with (
        gpus.Host(listed).here(),
        mock.patch.object(type(jax.config), 'values', values),
        mock.patch.object(jax.config, 'update') as update,
      ):
        child_process._share_programs(out)
      folders = [call.args[1] for call in update.call_args_list[:1]]
      self.assertEqual([os.path.dirname(path) for path in folders], expected)


class ResultsTest(absltest.TestCase):
  def test_texts_are_no_formulas_and_are_read_unchanged(self):
    out = pathlib.Path(tempfile.mkdtemp())
    texts = ('=1+1', '+x', '-x', '@x', '\tx', '\rx', "'=x", "'s", '-0.5', 'x')
    runs = [
      plan.PlannedRun(
        f'run{n}',
        (),
        plan.ResolvedConfig(
          {'data.dir': text, 'scale': -0.5 * n, 'n': n}, str(n), {}
        ),
      )
      for n, text in enumerate(texts)
    ]
    own = results.ResultsTable(runs, folder.SweepFolder(str(out)))
    error = outcomes.Outcome('failed', '=HYPERLINK("http://x")\n-1 line')
    own.update(runs[0], error)
    own.write()

    with (out / 'results.csv').open(newline='') as file:
      rows = list(csv.DictReader(file))
    for row in rows:
      for cell in row.values():
        formula = cell[:1] in '=+-@\t\r' and cell[:1]
        self.assertFalse(formula and not _is_number(cell), cell)
    self.assertEqual(rows[1]['scale'], '-0.5')
    self.assertEqual(rows[8]['data.dir'], '-0.5')
    self.assertEqual(rows[0]['error'], f"'{error.error}")
    table = parquet.read_table(out / 'results.parquet').to_pylist()
    self.assertEqual([row['data.dir'] for row in table], list(texts))
    restored = [cells.unescape(row['data.dir']) for row in rows]
    self.assertEqual(restored, list(texts))

  def test_random_texts_are_read_unchanged(self):
    draw = random.Random(0)
    for _ in range(3000):
      letters = draw.choices('=+-@\t\r\'"1.e x', k=draw.randrange(6))
      text = ''.join(letters)
      self.assertEqual(cells.unescape(cells.escape(text)), text)


def _is_number(text):
  try:
    float(text)
  except ValueError:
    return False
  return True


class FolderTest(absltest.TestCase):
  def _runs(self, *names):
    return [
      plan.PlannedRun(
        name, ('--config=x.py',), plan.ResolvedConfig({}, name, {})
      )
      for name in names
    ]

  def test_runs_may_be_added_but_not_omitted(self):
    out = tempfile.mkdtemp()
    first = folder.SweepFolder(out)
    first.claim(self._runs('a', 'b'))
    more = self._runs('b', 'c', 'a')
    renamed = [more[0]._replace(name='other'), *more[1:]]
    self.assertEqual(folder.SweepFolder(out).check(renamed), more)
    with self.assertRaisesRegex(ValueError, r"all 2 runs .* without \['b'\]"):
      folder.SweepFolder(out).check(self._runs('a', 'c'))

  def test_runs_may_be_omitted_where_the_plan_names_them(self):
    out = tempfile.mkdtemp()
    folder.SweepFolder(out).claim(self._runs('a', 'b'))
    second = folder.SweepFolder(out, may_omit_runs=True)
    self.assertEqual(second.claim(self._runs('b', 'c')), self._runs('b', 'c'))
    self.assertEqual(second.read_run_names(), ['a', 'b', 'c'])
    (other,) = self._runs('a')
    changed = other._replace(resolved=plan.ResolvedConfig({}, 'd', {}))
    with self.assertRaisesRegex(ValueError, 'run of this config in .*/a'):
      second.check([changed])

  def test_two_sweeps_at_a_time_are_refused(self):
    out = tempfile.mkdtemp()
    held = folder.SweepFolder(out)
    held.claim(self._runs('a'))
    with self.assertRaisesRegex(ValueError, 'another process sweeps in'):
      folder.SweepFolder(out).claim(self._runs('a'))

  def test_a_folder_with_other_files_is_refused(self):
    out = pathlib.Path(tempfile.mkdtemp())
    (out / 'thesis.tex').touch()
    with self.assertRaisesRegex(ValueError, r"a new folder.*\['thesis.tex'\]"):
      folder.SweepFolder(str(out)).check(self._runs('a'))
    with self.assertRaisesRegex(ValueError, "--out: .* got ''"):
      folder.SweepFolder('')

  def test_the_error_of_a_run_is_the_end_of_its_own_log(self):
    out = pathlib.Path(tempfile.mkdtemp())
    own, (run,) = folder.SweepFolder(str(out)), self._runs('a')
    (out / 'a').mkdir()
    log = out / 'a/log.txt'
    log.write_text('Of before\n')
    began = own.log_size(run.name)
    with log.open('a') as file:
      file.writelines(f'line {n}\n\n' for n in range(9))
    killed = own.outcome_of_process(run.name, -9, began)
    lines = [f'line {n}' for n in range(4, 9)]
    self.assertEqual(killed.status, 'failed')
    self.assertEqual(killed.error.splitlines(), ['killed by signal 9', *lines])
    log.write_text('Of before\n')
    self.assertEqual(
      own.outcome_of_process(run.name, 1, began).error, 'exit code 1'
    )

  def test_outcomes_that_would_repeat_are_final(self):
    out = pathlib.Path(tempfile.mkdtemp())
    own, (run,) = folder.SweepFolder(str(out)), self._runs('a')
    (out / 'a').mkdir()
    self.assertEqual(own.outcome(run.name), outcomes.Outcome('unfinished'))
    for ended, status, over in (
      ('finished', 'finished', True),
      ('interrupted', 'unfinished', False),
      ('FloatingPointError: The loss', 'diverged', True),
      ('OSError: No space', 'failed', False),
    ):
      (out / 'a/summary.json').write_text(json.dumps({'ended': ended}))
      state = own.outcome(run.name)
      self.assertEqual((state.status, state.is_final), (status, over))


class SubmitTest(absltest.TestCase):
  def test_a_missing_submitit_is_named(self):
    with (
      mock.patch.dict('sys.modules', submitit=None),
      self.assertRaisesRegex(ValueError, 'pip install submitit'),
    ):
      submit.require_submitit()

  def test_parameters_are_read(self):
    found = submit.parse_parameters(['timeout_min=60', 'slurm_partition=gpu'])
    self.assertEqual(found, {'timeout_min': 60, 'slurm_partition': 'gpu'})
    with self.assertRaisesRegex(ValueError, 'NAME=VALUE'):
      submit.parse_parameters(['gpu'])

  def test_jobs_of_submitit_train_the_runs_that_are_left(self):
    requires.module('submitit')
    out = pathlib.Path(tempfile.mkdtemp()) / 'out'
    words = sweeping.command(out, 'seed=0,1', '--submit=local')
    done = subprocess.run(
      words, cwd=sweeping.ROOT, capture_output=True, text=True, check=False
    )
    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
    self.assertLen(sweeping.finished_runs(out), 2)
    self.assertTrue((out / 'results.csv').exists())


if __name__ == '__main__':
  absltest.main()
