"""Tests for tools/launch.py, with small programs in the place of main.py."""

import collections
import contextlib
import itertools
import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

from absl.testing import absltest, parameterized

from cluster import files
from tests import lab_test
from tools.plan import Plan

_ROOT = pathlib.Path(__file__).parents[1]
# Launches a program as the launcher's own main does, or through that.
_DRIVER = """
import json, pathlib, sys
from absl import app
from tools import launch
from tools.plan import Plan
fields, program, constants, words = json.loads(sys.argv[1])
for name, value in constants.items():
  setattr(launch, name, value)
if words:
  launch._MAIN = program
  app.run(launch.main, ['launch', *words], flags_parser=launch._parse)
fields['workdir'] = pathlib.Path(fields['workdir'])
sys.exit(launch.launch(Plan(**fields), [sys.executable, '-S', program]))
"""
# What every program begins with.
_PROGRAM = """
import os, pathlib, signal, subprocess, sys, time
flags = dict(word[2:].split('=', 1) for word in sys.argv[1:])
role, folder = flags['role'], pathlib.Path(flags['workdir'])
restarts = int(os.environ['SYNCOPATE_RESTARTS'])
def touch(name):
  (folder / name).touch()
def until(name):
  for _ in range(2000):
    if (folder / name).exists():
      return
    time.sleep(0.01)
  sys.exit(f'no {name}')
def die(number=signal.SIGKILL):
  os.kill(os.getpid(), number)
  time.sleep(20)
def deaf():
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
  touch(f'deaf-{role}')
  time.sleep(20)
"""
_FAST = {'_BACKOFF_S': 0.02, '_FINISH_S': 0.2, '_KILL_S': 0.2}


def _folder():
  return pathlib.Path(tempfile.mkdtemp())


@contextlib.contextmanager
def _launched(body, *, constants=(), words=(), cwd=_ROOT, before=(), **fields):
  """Starts a launcher; yields its process and the folder of the run.

  Args:
    body: What each process does.
    constants: Of the module.
    words: Command line, to go through the launcher's flags.
    cwd: Working directory.
    before: Command that runs the launcher.
    **fields: Of the plan; 'environ' and 'stdout' are of the process.
  """
  folder = _folder()
  (folder / 'program.py').write_text(_PROGRAM + body)
  own = ('SYNCOPATE_', 'CUDA_')
  environ = {k: v for k, v in os.environ.items() if not k.startswith(own)}
  environ |= {'PYTHONPATH': str(_ROOT), 'JAX_PLATFORMS': 'cpu'}
  environ |= fields.pop('environ', {})
  stdout = fields.pop('stdout', subprocess.PIPE)
  fields = {'servers': 1, 'dedicated': False} | fields
  fields['workdir'] = str(folder / 'run')
  given = [fields, str(folder / 'program.py'), _FAST | dict(constants), words]
  argv = [*before, sys.executable, '-W', 'error', '-c', _DRIVER]
  process = subprocess.Popen(
    [*argv, json.dumps(given)],
    cwd=cwd,
    env=environ,
    stdout=stdout,
    stderr=subprocess.PIPE,
    text=True,
  )
  try:
    yield process, folder / 'run'
  finally:
    process.kill()
    process.communicate()


def _run(body, **fields):
  """Returns exit code, lines and rows of launch.jsonl of a whole launch."""
  with _launched(body, **fields) as (process, folder):
    out, errors = process.communicate(timeout=30)
    if errors:
      raise AssertionError(errors)
    return process.returncode, out.splitlines(), _rows(folder)


def _rows(folder):
  text = (folder / 'launch.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines()]


def _of(rows, role, event):
  return [r for r in rows if (r['role'], r['event']) == (role, event)]


def _codes(rows, role):
  return [row['code'] for row in _of(rows, role, 'exit')]


def _starts(rows):
  return collections.Counter(r['role'] for r in rows if r['event'] == 'start')


def _said(lines, name):
  """Returns the lines of one process."""
  prefix = f'[{name}] '
  return [line.removeprefix(prefix) for line in lines if prefix in line]


def _await(test, *names):
  """Waits until a condition holds, or files are there."""
  for _ in range(2000):
    if all(path.exists() for path in names) and test():
      return
    time.sleep(0.01)
  raise AssertionError(f'Waited in vain for {names}.')


def _yes():
  return True


def _alive(pid):
  return lab_test._runs(str(pid))


def _screen(data):
  """Returns the lines that a terminal of any width shows in the end."""
  lines, column = [''], 0
  tokens = re.findall(r'\x1b\[[0-9;?]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+', data)
  for token in tokens:
    if token == '\n':
      lines.append('')
    elif token == '\r':
      column = 0
    elif token == '\x1b[2K':
      lines[-1] = ''
    elif token.startswith('\x1b'):
      assert token.endswith('m'), token
    else:
      kept = lines[-1]
      lines[-1] = kept[:column] + token + kept[column + len(token) :]
      column += len(token)
  return lines


class OutputTest(parameterized.TestCase):
  def test_lines_of_chatty_processes_are_whole_and_named(self):
    body = """
lines = ''.join(f'{role} {n} {"x" * (n % 90)}\\n' for n in range(3000))
data, size = (lines + 'no end').encode(), 37 + len(role)
for n, at in enumerate(range(0, len(data), size)):
  os.write(1 + n % 2, data[at : at + size])
touch(role)
for other in ('server:0', 'worker:0', 'worker:1'):
  until(other)
"""
    code, lines, _ = _run(body, workers=2, dedicated=True)

    self.assertEqual(code, 0)
    names = ('server 0', 'worker 0', 'worker 1')
    self.assertLen(lines, 3 * 3001 + 1)
    for name in names:
      role = name.replace(' ', ':')
      expected = [f'{role} {n} {"x" * (n % 90)}' for n in range(3000)]
      self.assertEqual(_said(lines, name), [*expected, 'no end'])

  def test_progress_is_lines_where_there_is_no_terminal(self):
    body = r"""
if role == 'worker:0':
  for part in '\r 10%', '\r\x1b[2K 20%', '\r\x1b[2K 30%\n', 'next\r', '\n\n':
    os.write(1, part.encode())
    time.sleep(0.02)
"""
    _, lines, _ = _run(body, workers=1)

    self.assertEqual(
      _said(lines, 'worker 0'), [' 10%', ' 20%', ' 30%', 'next', '']
    )

  def test_progress_stays_below_the_lines_on_a_terminal(self):
    body = r"""
if role == 'worker:1':
  until('drawn')
  for n in range(50):
    print(f'line {n}')
  touch('written')
  time.sleep(20)
write = sys.stdout.write
print(*map(os.environ.get, ('TTY_COMPATIBLE', 'COLUMNS')))
for n in range(100):
  write(f'\r\x1b[2K{n}% of it')
touch('drawn')
until('written')
write('\r\x1b[2K100% of it')
time.sleep(0.1)
write('\nthe end\n')
"""
    ours, theirs = pty.openpty()
    environ = {'COLUMNS': '60', 'NO_COLOR': ''}
    with _launched(body, workers=2, stdout=theirs, environ=environ) as (
      process,
      _,
    ):
      os.close(theirs)
      data = b''
      with contextlib.suppress(OSError):
        while more := os.read(ours, 2**16):
          data += more
      os.close(ours)
      process.wait(10)

    shown = [line for line in _screen(data.decode()) if line]
    lines = [f'[worker 1] line {n}' for n in range(50)]
    last = ['[worker 0] 100% of it', '[worker 0] the end']
    self.assertEqual(shown[1:], ['[worker 0] 1 49', *lines, *last])
    drawn = '\x1b[36m[worker 0]\x1b[0m 99% of it'
    below = f'\x1b[32m[worker 1]\x1b[0m line 49\r\n{drawn}'
    self.assertIn(below, data.decode())


class RestartTest(parameterized.TestCase):
  @parameterized.parameters('die()', 'sys.exit(75)', 'die(signal.SIGABRT)')
  def test_a_worker_starts_again_alone(self, end):
    body = f"""
if role == 'worker:1' and restarts < 2:
  {end}
if role == 'worker:1':
  touch('back')
until('back')
print(role, restarts, flags['coordinator'])
"""
    code, lines, rows = _run(body, workers=3)

    self.assertEqual(code, 0)
    roles = {'worker:0': 1, 'worker:1': 3, 'worker:2': 1}
    self.assertEqual(_starts(rows), roles)
    number = {'die()': -9, 'sys.exit(75)': 75}.get(end, -6)
    self.assertEqual(_codes(rows, 'worker:1'), [number, number, 0])
    (_, _, address), (role, restarts, same) = (
      _said(lines, f'worker {n}')[0].split() for n in (0, 1)
    )
    self.assertEqual((role, restarts, same), ('worker:1', '2', address))
    for row in rows:
      self.assertEqual([*row], ['time', 'role', 'pid', 'event', 'code'])

  @parameterized.parameters(
    (False, 1, 'worker:0'), (False, 2, 'worker:1'), (True, 2, 'server:1')
  )
  def test_all_start_again_after_one_that_holds_a_shard(
    self, dedicated, servers, killed
  ):
    body = f"""
touch(f'{{role}}-{{restarts}}')
print(flags['coordinator'] if 'worker' in role else flags['lead'])
if role == '{killed}':
  until(f'worker:2-{{restarts}}')
  die()
time.sleep(20)
"""
    code, lines, rows = _run(
      body, workers=3, servers=servers, dedicated=dedicated, restarts=2
    )

    self.assertEqual(code, 137)
    self.assertEqual(set(_starts(rows).values()), {3})
    for name in ('worker 2', 'server 0') if dedicated else ('worker 2',):
      self.assertLen(set(_said(lines, name)), 3)

  @parameterized.parameters('time.sleep(20)', 'die(signal.SIGABRT)')
  def test_workers_start_again_together_beside_dedicated_servers(self, others):
    body = f"""
print(flags.get('coordinator'), flags['lead'])
touch(f'{{role}}-{{restarts}}')
if role == 'worker:0' and not restarts:
  until('worker:1-0')
  until('worker:2-0')
  touch('lost')
  time.sleep(0.2)
  die()
if role == 'worker:0':
  until('worker:1-1')
  until('worker:2-1')
  touch('back')
if role != 'server:0' and not restarts:
  until('lost')
  {others}
until('back')
"""
    code, lines, rows = _run(body, workers=3, dedicated=True)

    self.assertEqual(code, 0)
    roles = [f'worker:{n}' for n in range(3)]
    starts = _starts(rows)
    self.assertEqual(starts['server:0'], 1)
    for role in roles:
      self.assertGreaterEqual(starts[role], 2)
    seen = [_said(lines, role.replace(':', ' ')) for role in roles]
    old, new = ({words[at].split()[0] for words in seen} for at in (0, -1))
    self.assertLen(old, 1)
    self.assertLen(new, 1)
    self.assertNotEqual(old, new)
    leads = {words.split()[1] for each in seen for words in each}
    self.assertEqual(leads, {_said(lines, 'server 0')[0].split()[1]})

  def test_deaths_at_the_start_are_for_good_after_five(self):
    body = """
print(time.time())
if role == 'worker:1':
  die()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
time.sleep(20)
"""
    code, lines, rows = _run(body, workers=2)

    self.assertEqual(code, 137)
    self.assertEqual(_starts(rows), {'worker:0': 1, 'worker:1': 5})
    times = [float(line) for line in _said(lines, 'worker 1')]
    for n, (before, after) in enumerate(itertools.pairwise(times), start=1):
      self.assertGreaterEqual(after - before, 0.02 * 2**n)
    self.assertEqual(_codes(rows, 'worker:0'), [143])

  def test_longer_lives_do_not_count(self):
    body = """
if role == 'worker:1':
  if restarts < 7:
    time.sleep(0.1)
    die()
  touch('back')
until('back')
"""
    constants = {'_QUICK_S': 0.05}
    code, _, rows = _run(body, workers=2, constants=constants)

    self.assertEqual((code, _starts(rows)['worker:1']), (0, 8))

  def test_what_a_dead_worker_has_started_does_not_outlive_it(self):
    body = """
if role == 'worker:1' and not restarts:
  print(subprocess.Popen(['sleep', '20']).pid)
  die()
if role == 'worker:1':
  touch('back')
until('back')
"""
    with _launched(body, workers=2) as (process, folder):
      while '[worker 1] ' not in (line := process.stdout.readline()):
        pass
      _await(lambda: _starts(_rows(folder))['worker:1'] == 2)
      self.assertFalse(_alive(line.split()[-1]))
      process.communicate(timeout=10)
      self.assertEqual(process.returncode, 0)

  def test_workers_are_not_needed_after_worker_0_has_finished(self):
    body = """
if role == 'worker:1':
  until('over')
  time.sleep(0.2)
  die(signal.SIGABRT)
if role == 'worker:0':
  touch('over')
if role == 'server:0':
  until('over')
  time.sleep(0.6)
"""
    code, _, rows = _run(body, workers=2, dedicated=True)

    self.assertEqual((code, set(_starts(rows).values())), (0, {1}))


class EndTest(parameterized.TestCase):
  def test_all_end_when_one_fails_for_good(self):
    body = """
print(os.getpid())
if role == 'worker:2':
  until('deaf-worker:1')
  until('deaf-worker:0')
  sys.exit(3)
child = subprocess.Popen(['sleep', '20'])
print(child.pid)
deaf()
"""
    code, lines, rows = _run(body, workers=3, grace_s=0.3)

    self.assertEqual(code, 3)
    self.assertEqual(_codes(rows, 'worker:0'), [-9])
    self.assertEqual(_codes(rows, 'worker:1'), [-9])
    numbers = [n for name in (0, 1) for n in _said(lines, f'worker {name}')]
    self.assertLen(numbers, 4)
    for number in numbers:
      self.assertFalse(_alive(number))

  def test_the_others_may_end_by_themselves_after_the_lead(self):
    body = """
if role == 'worker:0':
  until('deaf-worker:3')
  until('ready')
  until('up')
elif role == 'worker:1':
  touch('up')
  time.sleep(0.3)
elif role == 'worker:2':
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  touch('ready')
  time.sleep(20)
else:
  deaf()
"""
    code, _, rows = _run(body, workers=4, constants={'_FINISH_S': 1.0})

    self.assertEqual(code, 0)
    codes = [_codes(rows, f'worker:{n}') for n in range(4)]
    self.assertEqual(codes, [[0], [0], [143], [-9]])

  @parameterized.parameters(
    (signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)
  )
  def test_signals_let_the_lead_save(self, number, expected):
    body = """
def save(*_):
  signal.signal(signal.SIGTERM, lambda *_: os._exit(9))
  time.sleep(0.3)
  touch('saved')
  sys.exit(143)
if role == 'server:0':
  signal.signal(signal.SIGTERM, save)
  touch('ready')
  time.sleep(20)
deaf()
"""
    fields = {'workers': 2, 'dedicated': True}
    with _launched(body, **fields) as (process, folder):
      names = ('ready', 'deaf-worker:0', 'deaf-worker:1')
      _await(_yes, *(folder / name for name in names))
      start = time.monotonic()
      process.send_signal(number)
      process.communicate(timeout=10)

      self.assertLess(time.monotonic() - start, 3)
      self.assertEqual(process.returncode, expected)
      self.assertTrue((folder / 'saved').exists())
      self.assertEqual(_codes(_rows(folder), 'server:0'), [143])

  @parameterized.parameters((0.3, False), (60, True))
  def test_a_lead_that_does_not_end_is_ended(self, grace_s, twice):
    fields = {'workers': 2, 'grace_s': grace_s}
    with _launched('deaf()', **fields) as (process, folder):
      names = ('deaf-worker:0', 'deaf-worker:1')
      _await(_yes, *(folder / name for name in names))
      process.terminate()
      if twice:
        while 'the run ends' not in process.stdout.readline():
          pass
        process.terminate()
      process.communicate(timeout=10)

      self.assertEqual(process.returncode, 143)
      for role in ('worker:0', 'worker:1'):
        self.assertEqual(_codes(_rows(folder), role), [-9])

  def test_a_killed_launcher_leaves_nothing(self):
    body = """
child = subprocess.Popen(['sleep', '60'])
(folder / f'child-{role}').write_text(str(child.pid))
deaf()
"""
    with _launched(body, workers=2, dedicated=True) as (process, folder):
      roles = ('server:0', 'worker:0', 'worker:1')
      _await(_yes, *(folder / f'deaf-{role}' for role in roles))
      pids = [row['pid'] for row in _rows(folder)]
      pids += [(folder / f'child-{role}').read_text() for role in roles]
      self.assertTrue(all(map(_alive, pids)))
      process.kill()

      _await(lambda: not any(map(_alive, pids)))

  def test_a_closed_output_ends_the_run_with_a_checkpoint(self):
    body = """
def save(*_):
  touch('saved')
  sys.exit(143)
signal.signal(signal.SIGTERM, save)
while True:
  print('y' * 1000)
"""
    with _launched(body, workers=1) as (process, folder):
      process.stdout.readline()
      process.stdout.close()
      process.wait(10)
      process.stdout = None

      self.assertEqual(process.returncode, 141)
      self.assertTrue((folder / 'saved').exists())
      self.assertEqual(_codes(_rows(folder), 'worker:0'), [143])


class PlanTest(parameterized.TestCase):
  def test_flags_and_variables_tell_each_process_its_place(self):
    body = """
print(*sys.argv[1:])
print(*map(os.environ.get, ('JAX_PLATFORMS', 'CUDA_VISIBLE_DEVICES')))
"""
    words = ['--workers=2', '--servers=2', '--dedicated', '--', '--a=b']
    folder = _folder()
    tool = folder / 'nvidia-smi'
    tool.write_text(
      '#!/bin/sh\nfor n in 0 1; do echo "GPU $n: H200 (UUID: GPU-$n)"; done\n'
    )
    tool.chmod(0o755)
    environ = {'PATH': f'{folder}:{os.environ["PATH"]}', 'JAX_PLATFORMS': ''}
    fields = {'words': words, 'cwd': folder, 'environ': environ}
    with _launched(body, **fields) as (process, _):
      out, errors = process.communicate(timeout=30)

    self.assertEqual((process.returncode, errors), (0, ''))
    lines = out.splitlines()
    (run,) = (folder / 'runs').iterdir()
    self.assertRegex(run.name, r'^\d{8}-\d{6}-\d{6}-\d+$')
    shared = (
      '--a=b --config.cluster.runtime=distributed --config.cluster.workers=2 '
      f'--config.route.server.servers=2 --workdir=runs/{run.name} '
      '--config.route.server.dedicated=True'
    )
    address = r'127\.0\.0\.1:\d{5}'
    devices = {'server 0': 'cpu ', 'server 1': 'cpu '}
    devices |= {'worker 0': ' 0', 'worker 1': ' 1'}
    found = set()
    for name, expected in devices.items():
      given, variables = _said(lines, name)
      role = f'--role={name.replace(" ", ":")}'
      self.assertStartsWith(given, f'{shared} {role} ')
      rest = given.removeprefix(f'{shared} {role} ')
      own = rf'(--coordinator={address}) ' * name.startswith('worker')
      self.assertRegex(rest, f'^{own}--lead={address}$')
      found |= set(rest.split())
      self.assertEqual(variables, expected)
    self.assertLen(found, 2)

  def test_gpus_are_split_in_groups(self):
    plan = Plan(
      workers=2,
      servers=1,
      dedicated=True,
      workdir=pathlib.Path(),
      devices_per_worker=2,
    )
    given = plan.devices({'CUDA_VISIBLE_DEVICES': '4,5,6,7,0'})
    self.assertEqual(given['worker 0'], {'CUDA_VISIBLE_DEVICES': '4,5'})
    self.assertEqual(given['worker 1'], {'CUDA_VISIBLE_DEVICES': '6,7'})
    server = {'CUDA_VISIBLE_DEVICES': '', 'JAX_PLATFORMS': 'cpu'}
    self.assertEqual(given['server 0'], server)
    for none in ({'CUDA_VISIBLE_DEVICES': ''}, {'JAX_PLATFORMS': 'cpu'}):
      given = plan.devices(none)
      self.assertEqual(given['worker 1'], {'JAX_NUM_CPU_DEVICES': '2'})
    with self.assertRaisesRegex(ValueError, 'per_worker: .* 3 GPUs .* got 2'):
      plan.devices({'CUDA_VISIBLE_DEVICES': '0,1,2'})

  def test_gpus_that_do_not_answer_are_an_error(self):
    plan = Plan(workers=1, servers=1, dedicated=False, workdir=pathlib.Path())
    folder = _folder()
    with mock.patch.dict(os.environ, PATH=str(folder)):
      self.assertEqual(plan.devices({}), {'worker 0': {}})
      tool = folder / 'nvidia-smi'
      tool.write_text('#!/bin/sh\necho no driver >&2; exit 9\n')
      tool.chmod(0o755)
      message = "nvidia-smi -L: expected a list of GPUs .* got 'no driver'"
      with self.assertRaisesRegex(ValueError, message):
        plan.devices({})
      self.assertEqual(plan.devices({'JAX_PLATFORMS': 'cpu'})['worker 0'], {})

  @parameterized.parameters(
    ({'workers': 0}, 'workers: expected at least 1, got 0'),
    ({'servers': 5}, 'servers: expected at most the 4 workers, .* got 5'),
    ({'restarts': -1}, 'restarts: expected at least 0'),
    ({'grace_s': float('nan')}, 'grace_s: expected seconds'),
    ({'arguments': ('--role=worker:1',)}, 'flags: expected none of .* got'),
    ({'arguments': ('-workdir', 'x')}, 'flags: .* got .-workdir'),
    ({'arguments': ('--noconfig.route.server.dedicated',)}, 'flags: expected'),
  )
  def test_refuses(self, fields, message):
    plan = {'workers': 4, 'servers': 1, 'dedicated': False} | fields
    with self.assertRaisesRegex(ValueError, message):
      Plan(workdir=pathlib.Path(), **plan)

  def test_flags_are_refused_by_name(self):
    with _launched('', words=['--workers=0'], workers=1) as (process, _):
      _, errors = process.communicate(timeout=30)
    self.assertEqual(process.returncode, 1)
    self.assertEqual(errors, 'Refused: workers: expected at least 1, got 0.\n')

  def test_a_run_accepts_the_folder(self):
    folder = _folder()
    (folder / 'launch.jsonl').write_text('{}\n')
    run = files.RunFiles(str(folder))
    run.claim({'config': {}, 'own': {}})
    run.release()


class LabTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    if reason := lab_test._why_not():
      raise unittest.SkipTest(reason)

  def test_processes_spread_over_the_hosts_and_die_with_the_launcher(self):
    body = """
import ctypes, socket
number = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(number))  # PR_GET_PDEATHSIG.
(folder / f'host-{role}').write_text(socket.gethostname())
given = 'coordinator', 'lead', 'config.cluster.interface'
print(*map(flags.get, given), number.value)
name, port = flags['lead'].split(':')
if role == 'server:0':
  with socket.create_server((name, int(port))) as server:
    touch('listening')
    for _ in range(3):
      server.accept()
    touch('met')
else:
  until('listening')
  socket.create_connection((name, int(port)))
deaf()
"""
    before = [sys.executable, '-m', 'tools.lab', '--hosts=3', '--']
    fields = {'workers': 3, 'dedicated': True, 'before': before}
    with _launched(body, **fields) as (process, folder):
      places = {
        'server:0': 'host0',
        'worker:0': 'host1',
        'worker:1': 'host2',
        'worker:2': 'host0',
      }
      _await(_yes, folder / 'met', *(folder / f'deaf-{r}' for r in places))
      for role, host in places.items():
        self.assertEqual((folder / f'host-{role}').read_text(), host)
      rows = _rows(folder)
      pids = [row['pid'] for row in rows]
      self.assertLen(set(pids), 4)
      self.assertTrue(all(map(_alive, pids)))
      status = pathlib.Path(f'/proc/{pids[0]}/status').read_text()
      os.kill(int(re.search(r'PPid:\t(\d+)', status)[1]), signal.SIGKILL)
      out, _ = process.communicate(timeout=20)

      self.assertEqual(process.returncode, 137)
      self.assertFalse(any(map(_alive, pids)))
      (said,) = _said(out.splitlines(), 'worker 2')
      self.assertRegex(said, r'^host1:\d{5} host0:\d{5} eth0 9$')


if __name__ == '__main__':
  absltest.main()
