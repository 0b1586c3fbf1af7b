"""Tests for tools/launch.py --rank: a launcher of one process of a run.

Small programs stand in the place of main.py.
"""

import signal
import time

from absl.testing import absltest, parameterized

from tests.support import launches

_SAVES = """
def save(*_):
  signal.signal(signal.SIGTERM, lambda *_: os._exit(9))
  time.sleep(0.3)
  touch('saved')
  sys.exit(143)
signal.signal(signal.SIGTERM, save)
touch('ready')
rest()
"""
_NOW, _ALWAYS = {'_SAME_S': 0.0}, {'_SAME_S': 60.0}


def _launch(role, body, *, words=(), **fields):
  """Starts a launcher of one of 3 workers; worker 0 leads."""
  given = ['--rank', '--workers=3', '--workdir=FOLDER', *words, '--', '--a=b']
  if role:
    given = [f'--role={role}', '--coordinator=host0:1234', *given]
  return launches.launch(body, words=given, **fields)


def _run(role, body, **fields):
  """Runs a launch; returns exit code, lines, rows and messages."""
  with _launch(role, body, **fields) as (process, folder):
    out, errors = process.communicate(timeout=launches.LIMIT_S)
    if errors:
      raise AssertionError(errors)
    (path,) = folder.glob('launch*.jsonl')
    rows = launches.rows(folder, path.name)
    return process.returncode, out.splitlines(), rows


class FindTest(parameterized.TestCase):
  @parameterized.parameters(
    (
      {'SLURM_PROCID': '2', 'SLURM_NTASKS': '3', 'SLURM_JOB_ID': '7'}
      | {'SLURM_JOB_NODELIST': 'n[1-3]'},
      (),
      'worker 2',
    ),
    ({'JOB_COMPLETION_INDEX': '0'}, (), 'worker 0'),
    (
      {'OMPI_COMM_WORLD_RANK': '4', 'OMPI_COMM_WORLD_SIZE': '5'},
      ('--dedicated', '--servers=2'),
      'server 1',
    ),
  )
  def test_the_environment_names_the_process(self, own, words, name):
    body = """
print(*sys.argv[1:])
print(*map(os.environ.get, ('JAX_PLATFORMS', 'CUDA_VISIBLE_DEVICES')))
"""
    own = {'SYNCOPATE_COORDINATOR': 'h:1', 'JAX_PLATFORMS': ''} | own
    code, lines, rows = _run('', body, words=words, environ=own)

    self.assertEqual(code, 0)
    flags, variables = launches.lines_of(lines, name)
    # It finds its role and the address as the launcher has.
    self.assertNotIn('--role', flags)
    self.assertNotIn('--coordinator', flags)
    self.assertStartsWith(
      flags,
      '--a=b --config.cluster.runtime=distributed --config.cluster.workers=3',
    )
    dedicated = ' --config.route.server.dedicated=True' in flags
    self.assertEqual(dedicated, bool(words))
    server = name.startswith('server')
    self.assertEqual(variables, 'cpu ' if server else ' None')
    self.assertEqual(launches.starts(rows), {name.replace(' ', ':'): 1})
    leads = name == 'worker 0'
    self.assertEqual(bool(launches.lines_of(lines, 'launch')), leads)

  @parameterized.parameters(
    (
      ('--role=worker:0',),
      '--role and --coordinator: expected nothing without',
    ),
    (('--rank',), '--workdir: expected with --rank the folder'),
    (('--rank', '--workdir=FOLDER'), '--role: expected worker:R or server:K'),
    (('--rank', '--workdir=FOLDER', '--role=worker:4'), 'expected worker:R, R'),
  )
  def test_refuses(self, words, message):
    with launches.launch('', words=words) as (process, _):
      _, errors = process.communicate(timeout=launches.LIMIT_S)
    self.assertEqual(process.returncode, 1)
    self.assertStartsWith(errors, 'Refused: ')
    self.assertIn(message, errors)


class RestartTest(parameterized.TestCase):
  @parameterized.parameters(
    # How it ends time after time; the code of the launcher, and its starts.
    ('worker:1', ['die()', 'exit(75)', 'exit(143)', 'exit(0)'], 0, 4),
    ('worker:1', ['exit(75)', 'exit(143)', 'exit(75)'], 75, 3),
    ('worker:1', ['exit(3)'], 3, 1),
    ('worker:1', 5 * ['die()'], 137, 5),
    # One that holds a shard, and the coordinator.
    ('worker:2', 3 * ['die()'], 137, 3),
    ('worker:0', ['die()', 'exit(75)', 'exit(0)'], 0, 3),
    ('worker:0', ['exit(143)'], 143, 1),
  )
  def test_ends(self, role, ends, expected, starts):
    body = f'exit = sys.exit\neval({ends}[restarts])'
    servers = 3 if role == 'worker:2' else 1
    words = ['--restarts=2', f'--servers={servers}']
    code, lines, rows = _run(role, body, words=words)

    self.assertEqual(code, expected, lines)
    self.assertEqual(launches.starts(rows), {role: starts})


class SignalTest(parameterized.TestCase):
  @parameterized.parameters(signal.SIGTERM, signal.SIGINT)
  def test_the_coordinator_saves_a_checkpoint(self, number):
    fields = {'constants': _ALWAYS}
    with _launch('worker:0', _SAVES, **fields) as (process, folder):
      launches.wait_for(folder / 'ready')
      process.send_signal(number)
      process.send_signal(number)  # As some schedulers do.
      process.communicate(timeout=launches.LIMIT_S)

      self.assertEqual(process.returncode, 128 + number)
      self.assertTrue((folder / 'saved').exists())

  def test_another_process_waits_for_the_coordinator(self):
    body = """
signal.signal(signal.SIGTERM, lambda *_: touch('terminated'))
touch('ready')
until('stopped')
sys.exit(143)
"""
    with _launch('worker:1', body) as (process, folder):
      launches.wait_for(folder / 'ready')
      process.terminate()
      launches.read_to(process, 'the run ends')
      time.sleep(0.2)
      self.assertIsNone(process.poll())
      (folder / 'stopped').touch()
      start = time.monotonic()
      process.communicate(timeout=launches.LIMIT_S)

      self.assertEqual(process.returncode, 143)
      self.assertLess(time.monotonic() - start, 20)  # Not --grace_s.
      rows = launches.rows(folder, 'launch-worker-1.jsonl')
      self.assertEqual(launches.codes(rows, 'worker:1'), [143])

  @parameterized.parameters(
    (['--grace_s=0.3'], False, {}), (['--grace_s=60'], True, _NOW)
  )
  def test_the_wait_is_bounded(self, words, twice, constants):
    fields = {'words': words, 'constants': constants}
    with _launch('worker:1', 'ignore_sigterm()', **fields) as (
      process,
      folder,
    ):
      launches.wait_for(folder / 'ignores-worker:1')
      process.terminate()
      if twice:
        launches.read_to(process, 'the run ends')
        process.terminate()
      process.communicate(timeout=launches.LIMIT_S)

      self.assertEqual(process.returncode, 143)
      rows = launches.rows(folder, 'launch-worker-1.jsonl')
      self.assertEqual(launches.codes(rows, 'worker:1'), [-9])

  def test_nothing_is_started_after_a_signal(self):
    fields = {'constants': {'_BACKOFF_S': 30.0}}
    with _launch('worker:1', 'die()', **fields) as (process, folder):
      launches.read_to(process, 'starting it again')
      process.terminate()
      process.communicate(timeout=launches.LIMIT_S)

      self.assertEqual(process.returncode, 143)
      rows = launches.rows(folder, 'launch-worker-1.jsonl')
      self.assertEqual(launches.starts(rows), {'worker:1': 1})


if __name__ == '__main__':
  absltest.main()
