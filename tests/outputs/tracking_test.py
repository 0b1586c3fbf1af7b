"""Tests for what a run sends to MLflow.

A client in the place of MLflow's records what it gets.  With SYNCOPATE_MLFLOW,
the path of an interpreter that has MLflow and JAX, runs and a sweep are also
sent to a server on this machine, and read from it.
"""

import json
import math
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import urllib.request
from unittest import mock

from absl.testing import absltest, parameterized

import train
from configs import sections, vgg16_bsp
from outputs import tracking
from tests.support import commands, requires, sweeping

_LIMIT_S = 120.0
_START_MS = 5000000


class _Away(Exception):
  """Stands for the exception of MLflow."""


class _Server:
  """A stand-in for an MLflow server and its client, which records all calls."""

  def __init__(self):
    self.is_away = False
    self.refused = 0
    self.runs: list[dict] = []

  def client(self, tracking_uri):
    del tracking_uri
    return self

  def _run(self, run_id):
    if self.is_away:
      self.refused += 1
      raise _Away('no connection\nmore lines')
    return self.runs[int(run_id)] if run_id is not None else None

  def get_experiment_by_name(self, name):
    self._run(None)
    return types.SimpleNamespace(experiment_id=name)

  def create_run(self, experiment_id, tags, run_name):
    self._run(None)
    run = {'name': run_name, 'experiment': experiment_id, 'tags': tags}
    run |= {'params': {}, 'points': set(), 'files': []}
    self.runs.append(run | {'status': ['RUNNING']})
    return self.get_run(str(len(self.runs) - 1))

  def get_run(self, run_id):
    self._run(run_id)
    info = types.SimpleNamespace(run_id=run_id, start_time=_START_MS)
    return types.SimpleNamespace(info=info)

  def log_batch(self, run_id, metrics=(), params=()):
    run = self._run(run_id)
    if len(metrics) > 1000 or len(params) > 100:
      raise ValueError('MLflow refuses so many.')
    run['points'] |= set(metrics)
    run['params'] |= dict(params)

  def update_run(self, run_id, status):
    self._run(run_id)['status'].append(status)

  set_terminated = update_run

  def log_artifact(self, run_id, path):
    self._run(run_id)['files'].append(
      json.loads(pathlib.Path(path).read_text())
    )


def _modules(server):
  """Returns modules in the place of MLflow's."""
  tuples = {
    'Metric': lambda name, value, time_ms, step: (name, value, time_ms, step),
    'Param': lambda name, value: (name, value),
  }
  exceptions = types.SimpleNamespace(MlflowException=_Away)
  entities = types.SimpleNamespace(**tuples)
  return {
    'mlflow': types.SimpleNamespace(
      MlflowClient=server.client, exceptions=exceptions, entities=entities
    ),
    'mlflow.exceptions': exceptions,
    'mlflow.entities': entities,
  }


def _manifest(**config):
  outputs = {'mlflow': 'http://tracking:5000'}
  return {'config': {'seed': 3, 'outputs': outputs, **config}}


class TrackerTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp()) / 'mine'
    self.folder.mkdir()
    self.server = _Server()
    # Not mock.patch.dict, which also removes what is imported meanwhile.
    for name, module in _modules(self.server).items():
      self.addCleanup(sys.modules.pop, name)
      sys.modules[name] = module

  def _tracker(self, uri='http://tracking:5000', **fields):
    return tracking.Tracker(self.folder, uri, _manifest(), **fields)

  def _log(self, tracker, *rows):
    for examples, loss in rows:
      row = {'kind': 'log', 'time': examples / 10, 'examples': examples}
      tracker.log(row | {'loss': loss, 'accuracy': None})

  def _points(self, run):
    return sorted(point[3] for point in run['points'])

  def _await_points(self, *expected):
    deadline = time.monotonic() + _LIMIT_S
    while not self.server.runs or self._points(self.server.runs[0]) != [
      *expected
    ]:
      self.assertLess(time.monotonic(), deadline)
      time.sleep(0.01)

  def test_a_run_has_parameters_points_summary_and_status(self):
    tracker = self._tracker()
    self._log(tracker, (10, 2.0), (20, 1.0), (30, math.nan))
    (self.folder / 'summary.json').write_text('{"ended": "finished"}')

    self.assertTrue(tracker.close('FINISHED'))

    (run,) = self.server.runs
    self.assertEqual(run['name'], 'mine')
    self.assertEqual(
      run['params'], {'seed': '3', 'outputs.mlflow': 'http://tracking:5000'}
    )
    expected = {
      ('loss', 2.0, _START_MS + 1000, 10),
      ('loss', 1.0, _START_MS + 2000, 20),
    }
    self.assertEqual(run['points'], expected)
    self.assertEqual(run['files'], [{'ended': 'finished'}])
    self.assertEqual(run['status'], ['RUNNING', 'FINISHED'])

  def test_rows_beyond_the_limit_of_a_request_are_sent_in_several(self):
    tracker = self._tracker()
    self._log(tracker, *((k, 1.0) for k in range(2500)))
    self.assertTrue(tracker.close('FINISHED'))
    (run,) = self.server.runs
    self.assertEqual(self._points(run), [*range(2500)])

  def test_the_same_run_continues_after_a_restart(self):
    first = self._tracker()
    self._log(first, (10, 2.0), (20, 1.0))
    first.close('KILLED')
    second = self._tracker()
    self._log(second, (20, 0.9), (30, 0.5))
    second.close('FINISHED')

    (run,) = self.server.runs
    self.assertEqual(self._points(run), [10, 20, 20, 30])
    self.assertEqual(
      run['status'], ['RUNNING', 'KILLED', 'RUNNING', 'FINISHED']
    )

  def test_another_server_gets_a_run_of_its_own(self):
    first = self._tracker()
    self._log(first, (10, 2.0))
    first.close('KILLED')
    second = self._tracker('http://other:5000')
    self._log(second, (20, 1.0))
    second.close('FINISHED')

    self.assertEqual(
      [self._points(run) for run in self.server.runs], [[10], [20]]
    )

  def test_a_process_that_lost_the_folder_sends_nothing_more(self):
    owns = [True]
    tracker = self._tracker(may_write=lambda: owns[0])
    self._log(tracker, (10, 2.0))
    self._await_points(10)
    owns[0] = False
    self._log(tracker, (20, 1.0))
    self.assertFalse(tracker.close('FINISHED'))
    successor = self._tracker()
    self._log(successor, (30, 0.5))
    successor.close('FINISHED')

    (run,) = self.server.runs
    self.assertEqual(self._points(run), [10, 30])
    self.assertEqual(run['status'], ['RUNNING', 'RUNNING', 'FINISHED'])

  def test_an_outage_costs_its_rows_and_one_warning(self):
    with self.assertLogs(level='WARNING') as logs:
      tracker = self._tracker()
      self._log(tracker, (10, 2.0))
      self._await_points(10)
      self.server.is_away = True
      for examples in (20, 30):
        before = self.server.refused
        self._log(tracker, (examples, 1.0))
        while self.server.refused == before:
          time.sleep(0.01)
      self.server.is_away = False
      self._log(tracker, (40, 0.5))
      self.assertTrue(tracker.close('FINISHED'))

    (run,) = self.server.runs
    self.assertEqual(self._points(run), [10, 40])
    (line,) = logs.output
    self.assertIn('no connection', line)
    self.assertNotIn('more lines', line)

  def test_without_a_server_a_run_is_not_tracked_and_ends_at_once(self):
    self.server.is_away = True
    with self.assertLogs(level='WARNING') as logs:
      tracker = self._tracker()
      self._log(tracker, (10, 2.0))
      self.assertFalse(tracker.close('FINISHED'))
    self.assertIn('no connection', logs.output[0])
    self.server.is_away = False
    self._tracker().close('FINISHED')  # The next start makes its run.
    (run,) = self.server.runs
    self.assertEqual(run['status'], ['RUNNING', 'FINISHED'])

  def test_the_end_of_a_run_waits_for_a_limited_time(self):
    answer = threading.Event()
    self.addCleanup(answer.set)
    with (
      mock.patch.object(
        self.server, 'log_batch', lambda *_, **__: answer.wait()
      ),
      self.assertLogs(level='WARNING') as logs,
    ):
      tracker = self._tracker()
      self._log(tracker, (10, 2.0))
      start = time.monotonic()
      self.assertFalse(tracker.close('FINISHED', limit_s=0.1))
      self.assertLess(time.monotonic() - start, 5.0)
      answer.set()
      tracker.close('FINISHED')  # Its thread uses the stand-in to the end.
    self.assertIn(str(self.folder), logs.output[0])

  @parameterized.parameters(
    ('finished', 'finished', 'FINISHED'),
    ('interrupted', 'stopped', 'KILLED'),
    ('FloatingPointError: loss', 'not_finite', 'FAILED'),
  )
  def test_the_end_of_a_run_is_its_status(self, ended, reason, expected):
    summary = {'ended': ended, 'reason': reason}
    self.assertEqual(tracking.status_of(summary), expected)

  def test_runs_of_a_sweep_are_nested_in_its_run(self):
    out = self.folder.parent
    (out / 'sweep.json').touch()
    for _ in range(2):  # The second is the same sweep, resumed.
      tracked = tracking.Tracker(out, 'http://tracking:5000', {})
      tracked.await_start()
      self.assertTrue((out / tracking.FILE).exists())
      tracked.close('FINISHED')
    self._tracker().close('FINISHED')

    parent, run = self.server.runs
    self.assertEqual(run['tags']['mlflow.parentRunId'], '0')
    self.assertNotIn('mlflow.parentRunId', parent['tags'])
    self.assertEqual(parent['status'], ['RUNNING', 'FINISHED'] * 2)

  def test_a_run_is_sent_while_it_trains(self):
    config = vgg16_bsp.get_config()
    config.model.name, config.model.none.num_train = 'none', 3200
    config.epochs, config.outputs.mlflow = 1.0, 'http://tracking:5000'
    folder = self.folder.parent / 'run'
    password = {'MLFLOW_TRACKING_PASSWORD': 'hidden in the environment'}
    with (
      mock.patch.object(tracking, 'check'),
      mock.patch.dict('os.environ', password),
      self.assertLogs(level='DEBUG') as logs,
    ):
      summary = train.build(config, workdir=str(folder))()
    self.assertNotIn('hidden in', ' '.join(logs.output))
    for path in folder.rglob('*'):
      if path.is_file():
        self.assertNotIn(b'hidden in', path.read_bytes(), path)

    (run,) = self.server.runs
    self.assertEqual(run['status'], ['RUNNING', 'FINISHED'])
    self.assertEqual(run['params']['sync.name'], 'bsp')
    self.assertEqual(run['files'][0]['ended'], summary['ended'])
    rows = map(json.loads, (folder / 'metrics.jsonl').read_text().splitlines())
    steps = {row['examples'] for row in rows}
    self.assertEqual({point[3] for point in run['points']}, steps)


class CheckTest(absltest.TestCase):
  def test_a_missing_mlflow_is_named_with_the_command_that_installs_it(self):
    tracking.check('')
    with (
      mock.patch.object(tracking.importlib.util, 'find_spec', lambda _: None),
      self.assertRaisesRegex(
        ValueError, r'config.outputs.mlflow: .*-r requirements-mlflow.txt'
      ),
    ):
      tracking.check('http://tracking:5000')


class PasswordTest(parameterized.TestCase):
  @parameterized.parameters(
    'http://user:hidden@tracking:5000',
    'http://:hidden@tracking',
    'http://user:hid#d/e?n@hidden@tracking:5000/path',
    'http://user:hidden://x@tracking',
    'postgresql+psycopg2://user:hidden@[::1]:5432/runs',
    'user:hidden@tracking',
    'postgresql://tracking/runs?user=user&password=hidden',
  )
  def test_a_password_is_refused_before_anything_is_written(self, uri):
    folder = pathlib.Path(tempfile.mkdtemp()) / 'run'
    config = vgg16_bsp.get_config()
    config.outputs.mlflow = uri
    with self.assertRaisesRegex(
      ValueError, '^config.outputs.mlflow: .*MLFLOW_TRACKING_PASSWORD'
    ) as caught:
      train.build(config, workdir=str(folder))
    self.assertNotIn('hid', str(caught.exception))
    self.assertFalse(folder.exists())

  def test_a_sweep_with_a_password_is_refused_before_anything_is_written(self):
    folder = pathlib.Path(tempfile.mkdtemp()) / 'sweep'
    uri = '--config.outputs.mlflow=http://user:hidden@tracking'
    with sweeping.start(sweeping.command(folder, 'seed=0,1', uri)) as sweep:
      printed, _ = sweep.communicate(timeout=_LIMIT_S)
    self.assertNotEqual(sweep.returncode, 0)
    self.assertIn('MLFLOW_TRACKING_PASSWORD', printed)
    self.assertNotIn('hidden', printed)
    self.assertFalse(folder.exists())

  def test_the_recorded_command_has_no_password(self):
    folder = pathlib.Path(tempfile.mkdtemp()) / 'run'
    config = vgg16_bsp.get_config()
    config.model.name, config.model.none.num_train = 'none', 3200
    config.epochs = 1.0
    words = ['mine.py', '--to=http://user:s3cr3t@tracking', '--lr=1:2']
    with mock.patch.object(sys, 'argv', words):
      train.build(config, workdir=str(folder))()
    for path in folder.rglob('*'):
      if path.is_file():
        self.assertNotIn(b's3cr3t', path.read_bytes(), path)
    manifest = json.loads((folder / 'manifest.json').read_text())
    self.assertEqual(
      manifest['command'], [words[0], '--to=http://user:...@tracking', words[2]]
    )

  @parameterized.parameters(
    ('main.py', '--config.outputs.mlflow=http://user:hidden@tracking'),
    ('main.py', '--config.outputs.mflow=http://user:hidden@tracking'),
    ('main.py', 'outputs.mlflow=http://user:hidden@tracking'),
    ('sweep.py', '--grid=outputs.mlflow=http://a,http://user:hidden@tracking'),
    ('sweep.py', '--grid=outputs.mlflow=http://a,user:hidden@tracking'),
  )
  def test_no_command_repeats_a_password(self, script, word):
    folder = pathlib.Path(tempfile.mkdtemp())
    out = {'main.py': '--workdir', 'sweep.py': '--out'}[script]
    words = ['--config=configs/vgg16_bsp.py', f'{out}={folder}/out', word]
    done = subprocess.run(
      [sys.executable, script, *words],
      cwd=sweeping.ROOT,
      capture_output=True,
      text=True,
      timeout=_LIMIT_S,
      check=False,
    )
    self.assertNotEqual(done.returncode, 0)
    self.assertIn('MLFLOW_TRACKING_PASSWORD', done.stdout + done.stderr)
    self.assertNotIn('hidden', done.stdout + done.stderr)
    self.assertEmpty([*folder.iterdir()])

  def test_a_config_file_with_a_password_is_refused_by_a_sweep(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    file = folder / 'mine.py'
    file.write_text(
      'from configs import vgg16_bsp\n'
      'GRID = "seed=0,1"\n'
      'def get_config():\n'
      '  config = vgg16_bsp.get_config()\n'
      '  config.outputs.mlflow = "http://user:hidden@tracking"\n'
      '  return config\n'
    )
    words = [f'--config={file}', f'--out={folder}/out']
    done = subprocess.run(
      [sys.executable, 'sweep.py', *words],
      cwd=sweeping.ROOT,
      capture_output=True,
      text=True,
      timeout=_LIMIT_S,
      check=False,
    )
    self.assertNotEqual(done.returncode, 0)
    self.assertIn('MLFLOW_TRACKING_PASSWORD', done.stdout + done.stderr)
    self.assertNotIn('hidden', done.stdout + done.stderr)
    self.assertFalse((folder / 'out').exists())

  @parameterized.parameters(
    'http://tracking:5000',
    'http://user@tracking:5000',
    'http://[::1]:5000/x',
    'databricks://profile',
    'sqlite:///runs.db',
    '/folder/runs',
    '',
  )
  def test_other_uris_are_accepted(self, uri):
    config = vgg16_bsp.get_config()
    config.outputs.mlflow = uri
    sections.check_fields(config)


class ServerTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.python = requires.mlflow()
    folder = tempfile.mkdtemp()
    with socket.create_server(('127.0.0.1', 0)) as sock:
      port = sock.getsockname()[1]
    cls.uri = f'http://127.0.0.1:{port}'
    words = [
      *(cls.python, '-m', 'mlflow', 'server'),
      *(f'--port={port}', '--workers=1'),
      f'--backend-store-uri=sqlite:///{folder}/runs.db',
      f'--artifacts-destination={folder}/artifacts',
    ]
    cls.enterClassContext(commands.start(words, folder=pathlib.Path(folder)))
    deadline = time.monotonic() + _LIMIT_S
    while True:
      try:
        urllib.request.urlopen(f'{cls.uri}/health', timeout=5).close()
        return
      except OSError:
        if time.monotonic() > deadline:
          raise
        time.sleep(0.2)

  def _call(self, path, **body):
    request = urllib.request.Request(
      f'{self.uri}/api/2.0/mlflow/{path}',
      data=json.dumps(body).encode() if body else None,
      headers={'Content-Type': 'application/json'},
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
      return json.load(reply)

  def test_a_sweep_and_its_runs_are_on_the_server(self):
    out = pathlib.Path(tempfile.mkdtemp()) / 'out'
    words = sweeping.command(
      out, 'seed=0,1', f'--config.outputs.mlflow={self.uri}'
    )
    done = subprocess.run(
      [self.python, *words[1:]],
      cwd=sweeping.ROOT,
      capture_output=True,
      text=True,
      timeout=_LIMIT_S,
      check=False,
    )
    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
    known = json.loads((out / 'mlflow.json').read_text())
    found = self._call('runs/search', experiment_ids=[known['experiment_id']])[
      'runs'
    ]
    parents = {}
    for run in found:
      self.assertEqual(run['info']['status'], 'FINISHED')
      tags = {tag['key']: tag['value'] for tag in run['data']['tags']}
      parents[run['info']['run_id']] = tags.get('mlflow.parentRunId')
    self.assertLen(found, 3)
    self.assertIsNone(parents.pop(known['run_id']))
    self.assertEqual(set(parents.values()), {known['run_id']})
    for run_id in parents:
      files = self._call(f'artifacts/list?run_id={run_id}')['files']
      self.assertEqual([file['path'] for file in files], ['summary.json'])


if __name__ == '__main__':
  absltest.main()
