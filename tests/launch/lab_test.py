"""Tests for tools.lab and launch.lab; real labs need root."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from unittest import mock

import pytest
from absl.testing import absltest, parameterized

from launch import hosts, lab
from tests.support import labs, launches, requires

_ROOT = pathlib.Path(__file__).parents[2]
_LIMIT_S = 60.0  # Only a hang takes longer.
_LAB = (sys.executable, '-m', 'tools.lab')
# Prints the bit/s of the payload that one host gets from another, without the
# first 256 KiB.
_RECEIVE = """
import socket, sys, time
with socket.create_server(('', 5000)) as server:
  print('ready', flush=True)
  with server.accept()[0] as link:
    link.recv(2**18, socket.MSG_WAITALL)
    start, got = time.monotonic(), 0
    while data := link.recv(2**16):
      got += len(data)
    print(8 * got / (time.monotonic() - start))
"""
_SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 5000)) as link:
  link.sendall(bytes(int(sys.argv[2])))
"""
_MEASURE = f"""
import json, subprocess, sys
from launch import lab
def start(host, code, *args):
  argv = lab.command(host, [sys.executable, '-c', code, *args])
  return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
rates = []
for sender, receiver, size in json.loads(sys.argv[1]):
  with start(receiver, {_RECEIVE!r}) as server:
    server.stdout.readline()
    with start(sender, {_SEND!r}, receiver, str(size)):
      rates.append(float(server.stdout.readline()))
print(json.dumps(rates))
"""
# Prints the bit/s of payload of each transfer while all run, 1 s of 1.5 s.
_COUNT = """
import socket, time
with socket.create_server(('', 5000)) as server:
  print('ready', flush=True)
  with server.accept()[0] as link:
    began, got = None, 0
    while data := link.recv(2**16):
      now = time.monotonic()
      began = began or now
      got += len(data) * (0.5 < now - began < 1.5)
    print(8 * got)
"""
_FILL = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 5000)) as link:
  until = time.monotonic() + 1.6
  while time.monotonic() < until:
    link.send(bytes(2**14))
"""
_AT_ONCE = f"""
import json, subprocess, sys
from launch import lab
def start(host, code, *args):
  argv = lab.command(host, [sys.executable, '-c', code, *args])
  return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
pairs = json.loads(sys.argv[1])
servers = [start(receiver, {_COUNT!r}) for _, receiver in pairs]
for server in servers:
  server.stdout.readline()
senders = [start(sender, {_FILL!r}, receiver) for sender, receiver in pairs]
print(json.dumps([float(server.stdout.readline()) for server in servers]))
for process in servers + senders:
  process.communicate()
"""
# Prints the congestion control of a connection's two ends.
_CONNECT = """
import socket
with socket.create_connection(('host0', 5000)) as link:
  print(link.getsockopt(6, socket.TCP_CONGESTION, 16).rstrip(bytes(1)).decode())
"""
_CONGESTION = f"""
import socket, subprocess, sys
from launch import lab
with socket.create_server(('', 5000)) as server:
  argv = lab.command('host1', [sys.executable, '-c', {_CONNECT!r}])
  with subprocess.Popen(argv), server.accept()[0] as link:
    name = link.getsockopt(6, socket.TCP_CONGESTION, 16)
  print(name.rstrip(bytes(1)).decode())
"""
# Prints the seconds until two other hosts answer.
_ANSWER = """
import socket
with socket.create_server(('', 5000)) as server:
  print('ready', flush=True)
  with server.accept()[0] as link:
    link.send(link.recv(1))
"""
_ROUND_TRIPS = f"""
import json, socket, subprocess, sys, time
from launch import lab
times = []
for host in ('host1', 'host2'):
  argv = lab.command(host, [sys.executable, '-c', {_ANSWER!r}])
  with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
    server.stdout.readline()
    with socket.create_connection((host, 5000)) as link:
      start = time.monotonic()
      link.send(b'-')
      link.recv(1)
      times.append(time.monotonic() - start)
print(json.dumps(times))
"""
_UNEQUAL = {
  'hosts': {'host0': {'up': '40mbit', 'down': '20mbit'}},
  'pairs': [{'from': 'host1', 'to': 'host2', 'rate': '10mbit'}],
}


def _start(*words):
  pipe = subprocess.PIPE
  argv = [*_LAB, *words]
  return subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True, cwd=_ROOT)


def _run(*words):
  """Returns exit code, output and errors of a lab."""
  with _start(*words) as process:
    out, errors = process.communicate(timeout=_LIMIT_S)
  return process.returncode, out, errors


def _network():
  """Returns the machine's interfaces, addresses and routes."""
  calls = 'ip -j addr', 'ip -j route', 'ip -j -6 route'
  return [subprocess.check_output(line.split()) for line in calls]


def _left(name):
  """Returns the files and namespaces of a lab."""
  folders = pathlib.Path('/run'), pathlib.Path('/run/netns')
  return [path for each in folders for path in each.glob(f'*{name}*')]


class RefusalTest(parameterized.TestCase):
  @parameterized.parameters(
    (['--hosts=1', '--', 'true'], 'hosts: expected from 2'),
    (['--link=fast', '--', 'true'], "link: expected a rate .* got 'fast'"),
    (['--links=/no/file', '--', 'true'], 'links: expected a JSON file'),
    (['--hosts=2'], 'command: expected one after --'),
    (['--clean', '--', 'true'], 'command: .* none with --clean'),
  )
  def test_invalid_flags_are_refused(self, words, message):
    code, _, errors = _run(*words)

    self.assertEqual(code, 1)
    self.assertRegex(errors, f'^Refused: {message}')

  def test_missing_root_rights_are_reported(self):
    with (
      mock.patch.object(os, 'geteuid', return_value=1000),
      self.assertRaisesRegex(ValueError, 'needs root'),
    ):
      lab.clean()

  def test_missing_programs_are_named(self):
    with (
      mock.patch.object(os, 'geteuid', return_value=0),
      mock.patch.dict(os.environ, PATH='/no/folder'),
      self.assertRaisesRegex(ValueError, 'PATH: expected ip'),
    ):
      lab.clean()


class LabTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    requires.lab()

  def setUp(self):
    super().setUp()
    self.before = _network()

  def assert_removed(self, name):
    self.assertEmpty(_left(name))
    self.assertEqual(_network(), self.before)

  def test_signals_have_their_handlers_again_after_a_lab(self):
    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    before = [signal.getsignal(number) for number in numbers]
    with lab.made(hosts.parse_links(2, '100mbit')):
      pass
    self.assertEqual([signal.getsignal(number) for number in numbers], before)

  def test_hosts_reach_each_other_by_name_at_the_rates_of_the_links(self):
    expected = {
      ('host0', 'host1'): 40.0,  # Up.
      ('host1', 'host0'): 20.0,  # Down.
      ('host1', 'host2'): 10.0,  # Pair.
      ('host2', 'host1'): 100.0,  # All others.
    }
    second = [(*ends, int(1e6 / 8 * rate)) for ends, rate in expected.items()]
    measure = [sys.executable, '-c', _MEASURE, json.dumps(second)]
    with tempfile.NamedTemporaryFile('w', suffix='.json') as file:
      json.dump(_UNEQUAL, file)
      file.flush()
      words = ['--hosts=3', '--link=100mbit', f'--links={file.name}', '--']

      # Who is busy with something else is late: no rate that a link does not
      # have is measured twice, and any that it has in one of two times.
      reached = []
      for _ in range(2):
        code, out, errors = _run(*words, *measure)
        self.assertEqual(code, 0, errors)
        reached.append([rate / 1e6 for rate in json.loads(out)])
        found = [
          any(0.7 < got / rate < 1.1 for got in each)
          for rate, *each in zip(expected.values(), *reached, strict=True)
        ]
        if all(found):
          break
    self.assertTrue(all(found), reached)

  def test_frames_that_leave_a_group_with_a_delay_are_late_each_way(self):
    requires.host(os.path.exists('/dev/net/tun'), 'There is no TUN.')
    group = {'hosts': ['host2', 'host3'], 'delay_ms': 200}
    with tempfile.NamedTemporaryFile('w', suffix='.json') as file:
      json.dump({'groups': [group]}, file)
      file.flush()
      words = ['--hosts=4', f'--links={file.name}', '--']
      measure = [sys.executable, '-c', _ROUND_TRIPS]

      code, out, errors = _run(*words, *measure)

    self.assertEqual(code, 0, errors)
    near_s, far_s = json.loads(out)
    self.assertLess(near_s, 0.2)
    self.assertBetween(far_s, 0.4, 0.7)
    self.assert_removed(labs.name_in(errors))

  @parameterized.parameters(
    # Out of the group, into it, and within it while others leave it.
    ([('host0', 'host3'), ('host1', 'host4')], [10.0, 10.0]),
    ([('host3', 'host0'), ('host4', 'host1')], [15.0, 15.0]),
    ([('host0', 'host1'), ('host2', 'host3')], [50.0, 20.0]),
  )
  @pytest.mark.soak  # Shares of a second differ on a busy machine.
  def test_only_traffic_out_of_a_group_shares_its_link(self, pairs, expected):
    three = ['host0', 'host1', 'host2']
    group = {'hosts': three, 'up': '20mbit', 'down': '30mbit'}
    measure = [sys.executable, '-c', _AT_ONCE, json.dumps(pairs)]
    with tempfile.NamedTemporaryFile('w', suffix='.json') as file:
      json.dump({'groups': [group]}, file)
      file.flush()
      words = ['--hosts=5', '--link=50mbit', f'--links={file.name}', '--']

      code, out, errors = _run(*words, *measure)

    self.assertEqual(code, 0, errors)
    reached = [rate / 1e6 for rate in json.loads(out)]
    self.assertBetween(sum(reached) / sum(expected), 0.75, 1.1, reached)
    for rate, got in zip(expected, reached, strict=True):
      self.assertBetween(got / rate, 0.5, 1.5, reached)

  @parameterized.parameters(([], 'cubic'), (['--congestion=reno'], 'reno'))
  def test_both_ends_of_a_connection_have_the_congestion_control(
    self, words, expected
  ):
    code, out, errors = _run(*words, '--', sys.executable, '-c', _CONGESTION)

    self.assertEqual(code, 0, errors)
    self.assertEqual(out.split(), 2 * [expected])

  @parameterized.parameters(([], '0'), (['--slow_start_after_idle'], '1'))
  def test_connections_start_slowly_after_pauses_with_the_flag(
    self, words, expected
  ):
    setting = 'cat /proc/sys/net/ipv4/tcp_slow_start_after_idle'
    other = f'{sys.executable} -m tools.lab --exec=host1 --'
    script = f'{setting}; {other} {setting}'

    code, out, errors = _run(*words, '--', 'sh', '-c', script)

    self.assertEqual(code, 0, errors)
    self.assertEqual(out.split(), 2 * [expected])

  def test_each_host_has_its_name_and_the_names_of_all(self):
    other = f'{sys.executable} -m tools.lab --exec=host1 --'
    script = f"""
      hostname; echo $SYNCOPATE_HOSTS; tail -n 2 /etc/hosts
      {other} sh -c 'hostname; tail -n 2 /etc/hosts; ls /sys/class/net'
      ip route get 192.0.2.1 2>&1
    """
    code, out, _ = _run('--', 'sh', '-c', script)

    both = ['10.213.0.1 host0', '10.213.0.2 host1']
    lines = out.splitlines()
    self.assertNotEqual(code, 0)
    self.assertEqual(lines[:4], ['host0', 'host0,host1', *both])
    self.assertEqual(lines[4:9], ['host1', *both, 'eth0', 'lo'])
    self.assertIn('unreachable', lines[9])

  @parameterized.parameters(
    ('exit 0', 0), ('exit 7', 7), ('kill -9 $$', 137), ('no-such-program', 127)
  )
  def test_exit_code_is_that_of_the_command(self, script, expected):
    code, _, errors = _run('--', 'sh', '-c', script)

    self.assertEqual(code, expected, errors)
    self.assert_removed(labs.name_in(errors))

  def test_unknown_hosts_and_labs_are_refused(self):
    words = ('-m', 'tools.lab', '--exec=switch', '--', 'true')
    code, _, errors = _run('--', sys.executable, *words)
    self.assertEqual(code, 1)
    expected = r"Refused: host: expected one of \['host0', 'host1'\]"
    self.assertRegex(errors, expected)

    with self.assertRaisesRegex(ValueError, 'SYNCOPATE_LAB: .* got .syn-x'):
      lab.command('host0', ['true'], 'syn-x')

  @parameterized.parameters(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
  def test_signals_end_all_processes_and_remove_the_lab(self, number):
    other = f'{sys.executable} -m tools.lab --exec=host1 --'
    script = f"{other} sh -c 'echo $$; exec sleep 60' & wait"
    with _start('--', 'sh', '-c', script) as process:
      pid = process.stdout.readline().strip()
      process.send_signal(number)
      name = labs.name_in(process.communicate(timeout=_LIMIT_S)[1])

    self.assertEqual(process.returncode, 128 + number)
    self.assertFalse(launches.alive(pid))
    self.assert_removed(name)

  def test_clean_removes_a_killed_lab_but_none_that_runs(self):
    deaf = 'trap "" TERM; echo $$; while :; do sleep 1; done'
    with (
      _start('--', 'sh', '-c', 'echo made; exec sleep 60') as alive,
      _start('--', 'sh', '-c', deaf) as killed,
    ):
      alive.stdout.readline()
      pid = killed.stdout.readline().strip()
      killed.kill()
      name = labs.name_in(killed.stderr.readline())
      self.assertLen(_left(name), 5)

      code, _, errors = _run('--clean')

      self.assertEqual(code, 0, errors)
      self.assertIn(f'{name} is removed', errors)
      self.assertFalse(launches.alive(pid))
      self.assert_removed(name)
      other = labs.name_in(alive.stderr.readline())
      self.assertIn(f'{other} still runs', errors)
      self.assertLen(_left(other), 5)
      self.assertNotIn(name, _run('--clean')[2])
      alive.terminate()

  def test_clean_touches_nothing_that_is_not_of_a_lab(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    listed = '{"namespaces": ["syn-ffffff-host0", "other"]}'
    (folder / 'syncopate-lab-syn-ffffff.json').write_text(listed)

    with (
      mock.patch.object(lab, '_STATES', folder),
      self.assertRaisesRegex(ValueError, 'ffffff.json: .* names of the lab'),
    ):
      lab.clean()


if __name__ == '__main__':
  absltest.main()
