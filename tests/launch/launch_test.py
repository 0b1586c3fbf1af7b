"""Tests for launch.launcher: output, ends of runs, hosts of labs.

Small programs stand in the place of main.py.
"""

import contextlib
import os
import pathlib
import pty
import re
import signal
import sys
import time

from absl.testing import absltest, parameterized

from cluster.network import memory, sockets
from cluster.process import roles
from tests.support import launches, processes, requires


def _find_range(count):
  """Returns the first of so many free ports in a row."""
  for first in roles.free_ports(100):
    if not any(sockets.refusal('', first + k) for k in range(count)):
      return first
  raise AssertionError('There is no such range.')


def _find_listening(pid):
  """Returns the ports on which a process listens."""
  links = set()
  for each in pathlib.Path(f'/proc/{pid}/fd').iterdir():
    with contextlib.suppress(FileNotFoundError):
      links.add(os.readlink(each))
  rows = pathlib.Path(f'/proc/{pid}/net/tcp').read_text().splitlines()[1:]
  words = [row.split() for row in rows]
  return [
    int(each[1].split(':')[1], 16)
    for each in words
    if each[3] == '0A' and f'socket:[{each[9]}]' in links
  ]


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


class PortTest(parameterized.TestCase):
  @parameterized.parameters(
    {'workers': 3, 'servers': 3, 'route__name': 'server'},
    {
      'workers': 2,
      'servers': 1,
      'dedicated': True,
      'route__name': 'server',
      'route__server__mirror_s': 10.0,  # Else workers have no port.
    },
    {'workers': 3, 'servers': 0, 'route__name': 'ring'},
  )
  def test_processes_of_one_host_listen_on_fixed_ports(self, **options):
    count = options['workers'] + options.get('dedicated', False)
    first = _find_range(count)
    with processes.launch(
      model=False,
      epochs=1000.0,
      flags=(f'--config.cluster.port={first}',),
      **options,
    ) as launch:
      launch.reach(10 * processes.BATCH)
      expected = {*range(first, first + count)}
      ids = [launch.pid(f'worker:{r}') for r in range(options['workers'])]
      if options.get('dedicated'):
        ids.append(launch.pid('server:0'))
      found = [port for pid in ids for port in _find_listening(pid)]
      launch.signal(signal.SIGTERM)
      self.assertEqual(launch.wait(), 143, launch.text)
    self.assertEqual({*found}, expected, launch.text)
    self.assertLen(found, count)


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
    code, lines, _ = launches.run(body, workers=2, dedicated=True)

    self.assertEqual(code, 0)
    names = ('server 0', 'worker 0', 'worker 1')
    self.assertLen(lines, 3 * 3001 + 1)
    for name in names:
      role = name.replace(' ', ':')
      expected = [f'{role} {n} {"x" * (n % 90)}' for n in range(3000)]
      self.assertEqual(launches.lines_of(lines, name), [*expected, 'no end'])

  @parameterized.parameters(
    ({}, memory.ENVIRONMENT['GLIBC_TUNABLES']),
    ({'GLIBC_TUNABLES': 'glibc.malloc.check=0'}, 'glibc.malloc.check=0'),
  )
  def test_processes_keep_memory_by_default(self, own, expected):
    body = "print(os.environ['GLIBC_TUNABLES'])"
    _, lines, _ = launches.run(body, workers=1, environ=own)

    self.assertEqual(launches.lines_of(lines, 'worker 0'), [expected])

  def test_progress_is_lines_where_there_is_no_terminal(self):
    body = r"""
if role == 'worker:0':
  for part in '\r 10%', '\r\x1b[2K 20%', '\r\x1b[2K 30%\n', 'next\r', '\n\n':
    os.write(1, part.encode())
    time.sleep(0.02)
"""
    _, lines, _ = launches.run(body, workers=1)

    self.assertEqual(
      launches.lines_of(lines, 'worker 0'), [' 10%', ' 20%', ' 30%', 'next', '']
    )

  def test_progress_stays_below_the_lines_on_a_terminal(self):
    body = r"""
if role == 'worker:1':
  until('drawn')
  for n in range(50):
    print(f'line {n}')
  touch('written')
  rest()
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
    with launches.launch(body, workers=2, stdout=theirs, environ=environ) as (
      process,
      _,
    ):
      os.close(theirs)
      data = b''
      with contextlib.suppress(OSError):
        while more := os.read(ours, 2**16):
          data += more
      os.close(ours)
      process.wait(launches.LIMIT_S)

    shown = [line for line in _screen(data.decode()) if line]
    lines = [f'[worker 1] line {n}' for n in range(50)]
    last = ['[worker 0] 100% of it', '[worker 0] the end']
    self.assertEqual(shown[1:], ['[worker 0] 1 49', *lines, *last])
    drawn = '\x1b[36m[worker 0]\x1b[0m 99% of it'
    below = f'\x1b[32m[worker 1]\x1b[0m line 49\r\n{drawn}'
    self.assertIn(below, data.decode())


class EndTest(parameterized.TestCase):
  def test_all_end_when_one_fails_for_good(self):
    body = """
print(os.getpid())
if role == 'worker:2':
  until('ignores-worker:1')
  until('ignores-worker:0')
  sys.exit(3)
child = subprocess.Popen(['sleep', '20'])
print(child.pid)
ignore_sigterm()
"""
    code, lines, rows = launches.run(body, workers=3, grace_s=0.3)

    self.assertEqual(code, 3)
    self.assertEqual(launches.codes(rows, 'worker:0'), [-9])
    self.assertEqual(launches.codes(rows, 'worker:1'), [-9])
    numbers = [
      n for name in (0, 1) for n in launches.lines_of(lines, f'worker {name}')
    ]
    self.assertLen(numbers, 4)
    for number in numbers:
      self.assertFalse(launches.alive(number))

  def test_the_others_have_time_to_end_after_the_coordinator(self):
    body = """
if role == 'worker:0':
  until('ignores-worker:3')
  until('ready')
  until('up')
elif role == 'worker:1':
  touch('up')
  until_ended('worker:0')
elif role == 'worker:2':
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  touch('ready')
  rest()
else:
  ignore_sigterm()
"""
    code, _, rows = launches.run(body, workers=4, constants={'_FINISH_S': 2.0})

    self.assertEqual(code, 0)
    codes = [launches.codes(rows, f'worker:{n}') for n in range(4)]
    self.assertEqual(codes, [[0], [0], [143], [-9]])

  def test_the_launcher_ends_if_a_run_is_over_without_its_coordinator(self):
    body = """
manifest = '{"config": {"route": {"name": "ring"}}}'
(folder / 'manifest.json').write_text(manifest)
if role == 'worker:0':
  until_ended('worker:1')
  sys.exit(75)
"""
    code, lines, _ = launches.run(body, workers=2)

    self.assertEqual(code, 0, lines)
    self.assertIn('ending without it', launches.lines_of(lines, 'launch')[-1])

  @parameterized.parameters(
    (signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)
  )
  def test_the_coordinator_saves_a_checkpoint_after_a_signal(
    self, number, expected
  ):
    body = """
def save(*_):
  signal.signal(signal.SIGTERM, lambda *_: os._exit(9))
  time.sleep(0.3)
  touch('saved')
  sys.exit(143)
if role == 'server:0':
  signal.signal(signal.SIGTERM, save)
  touch('ready')
  rest()
ignore_sigterm()
"""
    fields = {'workers': 2, 'dedicated': True}
    with launches.launch(body, **fields) as (process, folder):
      names = ('ready', 'ignores-worker:0', 'ignores-worker:1')
      launches.wait_for(*(folder / name for name in names))
      start = time.monotonic()
      process.send_signal(number)
      process.communicate(timeout=launches.LIMIT_S)

      self.assertLess(time.monotonic() - start, 20)  # Not all of grace_s.
      self.assertEqual(process.returncode, expected)
      self.assertTrue((folder / 'saved').exists())
      self.assertEqual(launches.codes(launches.rows(folder), 'server:0'), [143])

  @parameterized.parameters((0.3, False), (60, True))
  def test_a_coordinator_that_does_not_end_is_killed(self, grace_s, twice):
    fields = {'workers': 2, 'grace_s': grace_s}
    with launches.launch('ignore_sigterm()', **fields) as (process, folder):
      names = ('ignores-worker:0', 'ignores-worker:1')
      launches.wait_for(*(folder / name for name in names))
      process.terminate()
      if twice:
        while 'the run ends' not in process.stdout.readline():
          pass
        process.terminate()
      process.communicate(timeout=launches.LIMIT_S)

      self.assertEqual(process.returncode, 143)
      for role in ('worker:0', 'worker:1'):
        self.assertEqual(launches.codes(launches.rows(folder), role), [-9])

  def test_a_killed_launcher_leaves_nothing(self):
    body = """
child = subprocess.Popen(['sleep', '60'])
(folder / f'child-{role}').write_text(str(child.pid))
ignore_sigterm()
"""
    with launches.launch(body, workers=2, dedicated=True) as (
      process,
      folder,
    ):
      roles = ('server:0', 'worker:0', 'worker:1')
      launches.wait_for(*(folder / f'ignores-{role}' for role in roles))
      pids = [row['pid'] for row in launches.rows(folder)]
      pids += [(folder / f'child-{role}').read_text() for role in roles]
      self.assertTrue(all(map(launches.alive, pids)))
      process.kill()

      launches.wait_for(condition=lambda: not any(map(launches.alive, pids)))

  def test_a_closed_output_ends_the_run_with_a_checkpoint(self):
    body = """
def save(*_):
  touch('saved')
  sys.exit(143)
signal.signal(signal.SIGTERM, save)
while True:
  print('y' * 1000)
"""
    with launches.launch(body, workers=1) as (process, folder):
      process.stdout.readline()
      process.stdout.close()
      process.wait(launches.LIMIT_S)
      process.stdout = None

      self.assertEqual(process.returncode, 141)
      self.assertTrue((folder / 'saved').exists())
      self.assertEqual(launches.codes(launches.rows(folder), 'worker:0'), [143])


class GuardTest(parameterized.TestCase):
  @parameterized.parameters(signal.SIGTERM, signal.SIGKILL)
  def test_a_signal_to_the_guard_does_not_end_the_run(self, number):
    body = """
child = subprocess.Popen(['sleep', '60'])
(folder / f'child-{role}').write_text(str(child.pid))
touch(f'here-{role}')
until(f'go-{role}')
if role == 'worker:1':
  ignore_sigterm()
"""
    with launches.launch(body, workers=2) as (process, folder):
      launches.wait_for(folder / 'here-worker:0', folder / 'here-worker:1')
      known = {row['pid'] for row in launches.rows(folder)}
      (guard,) = self._children(process.pid) - known
      os.kill(guard, number)
      (
        folder / 'go-worker:0'
      ).touch()  # The guard receives the end of the process.
      (folder / 'go-worker:1').touch()
      launches.wait_for(folder / 'ignores-worker:1')
      out, errors = process.communicate(timeout=launches.LIMIT_S)
    self.assertEqual((process.returncode, errors), (0, ''), out)
    self.assertEqual(launches.codes(launches.rows(folder), 'worker:0'), [0])

  def _children(self, pid):
    path = pathlib.Path(f'/proc/{pid}/task/{pid}/children')
    return set(map(int, path.read_text().split()))


class LabTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    requires.lab()

  def test_a_stopped_lab_prints_no_broken_pipes(self):
    before = [sys.executable, '-m', 'tools.lab', '--']
    with launches.launch(
      "touch(f'here-{role}'); rest()", workers=2, before=before
    ) as (process, folder):
      launches.wait_for(folder / 'here-worker:0', folder / 'here-worker:1')
      process.terminate()
      _, errors = process.communicate(timeout=launches.LIMIT_S)

    self.assertEqual(process.returncode, 143)
    self.assertNotIn('Broken pipe', errors)
    self.assertNotIn('Refused', errors)
    self.assertNotIn('Traceback', errors)

  def test_processes_spread_over_the_hosts_and_die_with_the_launcher(self):
    body = """
import ctypes, socket
number = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(number))  # PR_GET_PDEATHSIG.
(folder / f'host-{role}').write_text(socket.gethostname())
given = 'coordinator', 'config.cluster.interface'
print(*map(flags.get, given), number.value)
name, port = flags['coordinator'].split(':')
if role == 'server:0':
  with socket.create_server((name, int(port))) as server:
    touch('listening')
    for _ in range(3):
      server.accept()
    touch('met')
else:
  until('listening')
  socket.create_connection((name, int(port)))
ignore_sigterm()
"""
    before = [sys.executable, '-m', 'tools.lab', '--hosts=3', '--']
    fields = {'workers': 3, 'dedicated': True, 'before': before}
    with launches.launch(body, **fields) as (process, folder):
      places = {
        'server:0': 'host0',
        'worker:0': 'host1',
        'worker:1': 'host2',
        'worker:2': 'host0',
      }
      launches.wait_for(
        folder / 'met', *(folder / f'ignores-{r}' for r in places)
      )
      for role, host in places.items():
        self.assertEqual((folder / f'host-{role}').read_text(), host)
      rows = launches.rows(folder)
      pids = [row['pid'] for row in rows]
      self.assertLen(set(pids), 4)
      self.assertTrue(all(map(launches.alive, pids)))
      status = pathlib.Path(f'/proc/{pids[0]}/status').read_text()
      os.kill(int(re.search(r'PPid:\t(\d+)', status)[1]), signal.SIGKILL)
      out, _ = process.communicate(timeout=launches.LIMIT_S)

      self.assertEqual(process.returncode, 137)
      self.assertFalse(any(map(launches.alive, pids)))
      (said,) = launches.lines_of(out.splitlines(), 'worker 2')
      self.assertRegex(said, r'^host0:\d{5} eth0 9$')


if __name__ == '__main__':
  absltest.main()
