"""Tests for bench.gpu: its rows, its limits, and a dry run of some of them."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from unittest import mock

import pytest
from absl.testing import absltest, parameterized

import train
from analysis import benchmarks
from analysis.benchmarks import Aim
from bench.gpu import __main__ as gpu
from bench.gpu import machine, measuring, rows, running
from bench.gpu.rows import Job, Row
from configs import default
from launch.processes import Command

_ROOT = pathlib.Path(__file__).parents[2]
_FAKE = _ROOT / 'tests/support/fake_gpu'
_MACHINE = {'platform': 'gpu', 'driver': '', 'devices': ['H100']}
# Rows that must be measured, with their aims, by job.
_REQUIRED = {
  **{
    name: {'determinism': Aim(most=1.3), 'bare loop': Aim(least=0.98)}
    for name in (
      *('vgg16', 'vgg16_full', 'alexnet', 'resnet50', 'transformer', 'topk'),
    )
  },
  'ring': {
    'copy to host': Aim(least=0.5),
    'pinned memory': Aim(least=1.0),
    'copy to device': Aim(least=3.0),
    'exposed communication': Aim(most=1.0),
    'overlap': Aim(1, 1),
  },
}
_REPORT = """
import json, sys
def report(row, value):
  path = sys.argv[-1].removeprefix('--values=')
  with open(path, 'a') as file:
    file.write(json.dumps({'row': row, 'value': value, 'detail': ''}) + '\\n')
"""
# Programs of jobs, by name.
_PROGRAMS = {
  'good': "report('one', 0.5); report('two', 2.0)",
  'failing': "report('two', 1.0); sys.exit('no such kernel')",
  'hanging': """
import subprocess, time
report('one', 1.0)
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)'])
print(child.pid, flush=True)
time.sleep(99)
""",
}


def _job(name, **fields):
  default_rows = (Row('one', '', Aim(0, 1)), Row('two', '', Aim(0, 1)))
  return Job(name, **({'share_s': 60.0, 'rows': default_rows} | fields))


def _bench(jobs, description=_MACHINE, *, is_dry=False, before=lambda _: None):
  """Returns exit code, folder and output of jobs that run `_PROGRAMS`."""
  out = pathlib.Path(tempfile.mkdtemp())

  def command(name, module, *words):
    del module
    before(name)
    code = _REPORT + _PROGRAMS[name]
    return Command(name, [sys.executable, '-c', code, *words])

  printed = io.StringIO()
  with (
    mock.patch.object(running.processes, 'module_command', command),
    contextlib.redirect_stdout(printed),
  ):
    code = gpu.bench(jobs, out, description, is_dry=is_dry)
  return code, out, printed.getvalue()


def _rows(out):
  lines = (out / 'rows.jsonl').read_text().splitlines()
  return {(row['job'], row['row']): row for row in map(json.loads, lines)}


def _verdicts(out):
  return {key: row['verdict'] for key, row in _rows(out).items()}


class RowsTest(parameterized.TestCase):
  def test_every_requested_row_has_its_aim(self):
    aims = {
      job.name: {row.name: row.aim for row in job.rows} for job in rows.JOBS
    }
    self.assertEqual(aims.keys(), _REQUIRED.keys())
    for job, required in _REQUIRED.items():
      self.assertEqual(aims[job], aims[job] | required, job)
    for job in rows.JOBS:
      for row in job.rows:
        self.assertNotEqual(row.aim.ends, [None, None], f'{job.name} {row}')

  def test_every_job_is_measured_within_five_minutes(self):
    self.assertEqual({*measuring.MEASURES}, {job.name for job in rows.JOBS})
    self.assertLessEqual(sum(job.share_s for job in rows.JOBS), 300.0)

  @parameterized.parameters(*measuring.MODELS)
  def test_configs_of_steps_can_be_run(self, name):
    for is_dry in (False, True):
      config = default.get_config()
      fields = measuring.model(name, is_dry=is_dry)
      config.update_from_flattened_dict({'cluster.workers': 1, **fields})
      config.cluster.speed.slowdown = (1.0,)
      train.check(config)  # Raises for a config that cannot run.

  @parameterized.parameters(
    (0.98, Aim(least=0.98), 'held'),
    (0.97, Aim(least=0.98), 'missed'),
    (1.3, Aim(most=1.3), 'held'),
    (1.31, Aim(most=1.3), 'missed'),
    (0.0, Aim(0, 0), 'held'),
    (1e-9, Aim(0, 0), 'missed'),
    (float('nan'), Aim(most=1.0), 'missed'),
    (None, Aim(most=1.0), 'not measured'),
  )
  def test_a_verdict_follows_from_value_and_aim(self, value, aim, expected):
    self.assertEqual(benchmarks.verdict(value, aim), expected)
    self.assertEqual(Aim.of(json.loads(json.dumps(aim.ends))), aim)


class LimitsTest(parameterized.TestCase):
  def test_a_failed_job_misses_its_aims_and_others_continue(self):
    code, out, printed = _bench([_job('failing'), _job('good')])

    self.assertEqual(code, 1)
    self.assertEqual(
      _verdicts(out),
      {
        ('failing', 'two'): 'held',
        ('failing', 'one'): 'missed',
        ('good', 'one'): 'held',
        ('good', 'two'): 'missed',
      },
    )
    self.assertIn('no such kernel', _rows(out)['failing', 'one']['detail'])
    self.assertIn('| good | one | 0 to 1 | 0.5 | held |', printed)
    summary = json.loads((out / 'summary.json').read_text())
    self.assertEqual(
      summary['verdicts'], {'held': 2, 'missed': 2, 'not measured': 0}
    )

  def test_a_slow_job_is_killed_with_its_descendants(self):
    start = time.monotonic()
    # Long enough for the report before the hang.
    _, out, _ = _bench([_job('hanging', share_s=4.0), _job('good')])

    self.assertLess(time.monotonic() - start, 60.0)
    measured_rows = _rows(out)
    self.assertEqual(measured_rows['hanging', 'one']['verdict'], 'held')
    self.assertEqual(measured_rows['hanging', 'two']['verdict'], 'missed')
    self.assertIn(
      'not within its 4 s', measured_rows['hanging', 'two']['detail']
    )
    self.assertEqual(measured_rows['good', 'one']['verdict'], 'held')
    pid = int((out / 'logs/hanging.log').read_text())
    path = pathlib.Path(f'/proc/{pid}/cmdline')
    while path.exists() and path.read_bytes():
      self.assertLess(time.monotonic() - start, 60.0)
      time.sleep(0.05)

  def test_after_five_minutes_no_job_starts(self):
    with mock.patch.object(gpu, 'MINUTES', 0.0):
      code, out, _ = _bench([_job('good')])

    self.assertEqual(code, 0)
    row = _rows(out)['good', 'one']
    self.assertEqual(row['verdict'], 'not measured')
    self.assertIn('minutes are over', row['detail'])

  def test_an_interrupted_benchmark_has_its_measured_rows(self):
    out = []

    def interrupt(name):
      if name == 'hanging':
        raise KeyboardInterrupt

    with (
      mock.patch.object(tempfile, 'mkdtemp', _recording_mkdtemp(out)),
      self.assertRaises(KeyboardInterrupt),
    ):
      _bench([_job('good'), _job('hanging')], before=interrupt)

    self.assertEqual(
      _verdicts(out[0]), {('good', 'one'): 'held', ('good', 'two'): 'missed'}
    )
    self.assertFalse((out[0] / 'summary.json').exists())

  @parameterized.parameters('gpu', 'fake', 'cpu')
  def test_a_run_without_a_gpu_is_marked_as_a_dry_run(self, platform):
    description = {**_MACHINE, 'platform': platform}
    _, out, printed = _bench([_job('good')], description)

    self.assertEqual('DRY RUN' in printed, platform != 'gpu')
    manifest = json.loads((out / 'manifest.json').read_text())
    self.assertEqual(manifest['dry_run'], platform != 'gpu')

  def test_a_dry_run_gives_no_verdict_on_rows_that_depend_on_sizes(self):
    timed = Row('one', '', Aim(0, 1), sized=True)
    job = _job('good', rows=(timed, Row('two', '', Aim(0, 1))))
    code, out, _ = _bench([job], is_dry=True)

    self.assertEqual(code, 1)
    self.assertEqual(
      _verdicts(out),
      {('good', 'one'): 'not measured', ('good', 'two'): 'missed'},
    )
    self.assertEqual(_rows(out)['good', 'one']['value'], 0.5)

  def test_the_reason_without_jax_support_names_the_gpu(self):
    description = {'platform': 'cpu', 'driver': 'NVIDIA H100, 80 GB, 560.1'}
    self.assertRegex(
      machine.without_gpu(description), "lists NVIDIA H100.*'cpu': install req"
    )


def _recording_mkdtemp(folders):
  """Returns mkdtemp that also appends new folders to a list."""
  create = tempfile.mkdtemp

  def mkdtemp(*args, **kwargs):
    folders.append(pathlib.Path(create(*args, **kwargs)))
    return str(folders[-1])

  return mkdtemp


class DryRunTest(absltest.TestCase):
  @pytest.mark.soak
  def test_a_dry_run_measures_what_any_accelerator_has(self):
    jobs = ('topk', 'ring')
    out = pathlib.Path(tempfile.mkdtemp()) / 'gpu'
    done = subprocess.run(
      [
        *(sys.executable, '-m', 'bench.gpu', f'--out={out}'),
        f'--jobs={",".join(jobs)}',
      ],
      cwd=_ROOT,
      env=os.environ
      | {
        'JAX_PLATFORMS': '',
        'PYTHONPATH': os.pathsep.join([str(_FAKE), str(_ROOT)]),
        'SYNCOPATE_FAKE_GPU': '1',
      },
      capture_output=True,
      text=True,
      timeout=280,
      check=False,
    )
    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
    self.assertIn("No GPU: JAX runs on 'fake'", done.stdout)
    self.assertEqual(done.stdout.count('DRY RUN'), 2)
    measured_rows = _rows(out)
    expected = {
      (job.name, row.name)
      for job in rows.JOBS
      for row in job.rows
      if job.name in jobs
    }
    self.assertEqual(measured_rows.keys(), expected)
    for (_, name), row in measured_rows.items():
      if name == 'overlap':
        self.assertEqual(row['verdict'], 'held', row)
      elif row['value'] is not None:  # Few devices have pinned memory.
        self.assertGreater(row['value'], 0.0, row)
        self.assertEqual(row['verdict'], 'not measured')
        self.assertIn('dry run', row['detail'])
    manifest = json.loads((out / 'manifest.json').read_text())
    self.assertTrue(manifest['dry_run'])


if __name__ == '__main__':
  absltest.main()
