"""Tests for launch.processes."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

from absl.testing import absltest, parameterized

from launch import processes
from launch.processes import Command, ProcessError
from tests.support import launches

_LIMIT_S = 60.0  # Only a hang takes longer, on a busy machine, too.
_FOREVER = 'while :; do sleep 0.05; done'
_STOPS = 'trap "echo stopped; exit 5" TERM; echo here; ' + _FOREVER
_STAYS = 'trap "" TERM; echo here; ' + _FOREVER
# A process that starts others and then rests.
_STARTER = """
import pathlib, sys, time
from launch import processes
from launch.processes import Command
folder, grace_s, text = pathlib.Path(sys.argv[1]), *sys.argv[2:]
command = Command('child', ['sh', '-c', text])
with processes.start([command], folder, grace_s=float(grace_s)) as group:
  group.wait_for_line('child', 'here', 60.0)
  print(group.pid('child'), flush=True)
  time.sleep(60)
"""


def shell(name, text, **options):
  return Command(name, ['sh', '-c', text], **options)


def await_end(pid):
  deadline = time.monotonic() + _LIMIT_S
  while launches.alive(pid):
    if time.monotonic() > deadline:
      raise AssertionError(f'Process {pid} has not ended.')
    time.sleep(0.01)


class ProcessesTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp(), 'logs')

  def start(self, *commands, **options):
    return self.enterContext(processes.start(commands, self.folder, **options))

  def test_codes_are_those_of_the_processes(self):
    group = self.start(
      shell('one', 'exit 3'), shell('two', 'kill -9 $$'), shell('three', ':')
    )

    codes = group.wait(_LIMIT_S)

    self.assertEqual(codes, {'one': 3, 'two': -9, 'three': 0})
    self.assertEqual(group.names(), [])

  def test_each_process_has_a_log_of_both_its_outputs(self):
    group = self.start(shell('one', 'echo a; echo b >&2'), shell('two', 'pwd'))
    group.finish(_LIMIT_S)

    self.assertEqual(group.log('one'), 'a\nb\n')
    self.assertEqual((self.folder / 'two.log').read_text(), f'{os.getcwd()}\n')

  def test_folder_and_environment_are_those_of_the_command(self):
    os.environ['SYNCOPATE_KEPT'], os.environ['SYNCOPATE_GONE'] = 'a', 'b'
    self.addCleanup(os.environ.pop, 'SYNCOPATE_KEPT')
    self.addCleanup(os.environ.pop, 'SYNCOPATE_GONE')
    folder = pathlib.Path(tempfile.mkdtemp()).resolve()
    env = {'SYNCOPATE_NEW': 'c', 'SYNCOPATE_GONE': None}
    text = 'echo $SYNCOPATE_KEPT.$SYNCOPATE_GONE.$SYNCOPATE_NEW; pwd'
    group = self.start(shell('one', text, env=env, folder=folder))
    group.finish(_LIMIT_S)

    self.assertEqual(group.log('one'), f'a..c\n{folder}\n')

  def test_a_process_joins_later_and_returns_under_its_name(self):
    group = self.start(shell('one', _STOPS))
    group.start(shell('two', 'exit 1'))
    self.assertEqual(group.wait(_LIMIT_S, 'two'), {'two': 1})
    group.start(shell('two', 'echo again'))
    self.assertEqual(group.wait(_LIMIT_S, 'two'), {'two': 0})

    self.assertEqual(group.log('two'), 'again\n')
    self.assertIsNone(group.code('one'))
    with self.assertRaisesRegex(ValueError, "running process, got 'one'"):
      group.start(shell('one', ':'))

  def test_a_missing_command_is_an_error_that_ends_the_others(self):
    group = processes.Group(self.folder)
    with self.assertRaises(FileNotFoundError), group:
      pid = group.start(shell('one', _FOREVER))
      group.start(Command('two', ['no-such-command']))
    self.assertFalse(launches.alive(pid))

  def test_a_timeout_shows_the_ends_of_the_logs_of_those_that_run(self):
    group = self.start(shell('one', 'echo fine'), shell('two', _STOPS))
    group.wait_for_line('two', 'here', _LIMIT_S)
    group.wait(_LIMIT_S, 'one')

    with self.assertRaises(ProcessError) as raised:
      group.wait(0.05)

    message = str(raised.exception)
    self.assertRegex(message, 'two: expected an end within 0.05 s')
    self.assertIn('two.log ends:\nhere', message)
    self.assertNotIn('fine', message)

  def test_the_first_failure_ends_the_wait_and_shows_its_log(self):
    group = self.start(
      shell('one', _FOREVER), shell('two', 'echo broken; exit 7')
    )

    with self.assertRaisesRegex(ProcessError, '(?s)two.*7.*broken'):
      group.finish(_LIMIT_S)

    self.assertIsNone(group.code('one'))

  def test_a_failure_of_others_does_not_end_the_wait_for_one(self):
    group = self.start(shell('one', 'exit 7'), shell('two', 'sleep 0.1'))
    group.wait(_LIMIT_S, 'one')

    group.finish(_LIMIT_S, 'two')

  def test_lines_of_a_log_are_awaited(self):
    group = self.start(
      shell('one', f'echo port 17; sleep 0.1; echo port 18; {_FOREVER}')
    )

    match = group.wait_for_line('one', r'^port (\d+)$', _LIMIT_S, count=2)

    self.assertEqual(match[1], '18')

  def test_an_end_and_a_timeout_before_the_line_are_errors(self):
    group = self.start(shell('one', 'echo other'), shell('two', _FOREVER))

    with self.assertRaisesRegex(ProcessError, '(?s)before it ended.*other'):
      group.wait_for_line('one', 'port', _LIMIT_S)
    with self.assertRaisesRegex(ProcessError, 'within 0.05 s'):
      group.wait_for_line('two', 'port', 0.05)

  def test_processes_answer_lines_in_turn(self):
    text = 'while read line; do echo "got $line"; echo log >&2; done'
    names = ('one', 'two')
    group = self.start(*(shell(name, text, answers=True) for name in names))
    for number in range(2):
      for name in names:
        group.send(name, f'{name} {number}')
      for name in names:
        answer = group.receive(name, _LIMIT_S)
        self.assertEqual(answer, f'got {name} {number}')

    with self.assertRaisesRegex(ProcessError, '(?s)within 0.05 s.*log'):
      group.receive('one', 0.05)

  def test_answers_of_an_ended_process_are_kept(self):
    group = self.start(shell('one', 'echo 1; echo 2', answers=True))
    group.finish(_LIMIT_S)

    self.assertEqual(group.receive('one', _LIMIT_S), '1')
    self.assertEqual(group.receive('one', _LIMIT_S), '2')
    with self.assertRaisesRegex(ProcessError, 'ended without an answer'):
      group.receive('one', _LIMIT_S)
    with self.assertRaisesRegex(ProcessError, "ended before 'more'"):
      group.send('one', 'more')

  def test_a_wait_ends_when_it_is_woken_also_by_a_handler_of_signals(self):
    with processes.Group(self.folder) as group:
      group.start(shell('one', _FOREVER))
      before = signal.signal(signal.SIGUSR1, lambda *_: group.wake())
      self.addCleanup(signal.signal, signal.SIGUSR1, before)
      timer = threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGUSR1])
      timer.start()
      self.assertEqual(group.next_ends(_LIMIT_S), [])
      self.assertIsNone(group.code('one'))
    os.kill(os.getpid(), signal.SIGUSR1)  # Nothing waits any more.

  def test_a_signal_reaches_the_process_alone(self):
    text = f'trap "wait; exit 6" TERM; ({_STAYS}) & {_FOREVER}'
    group = self.start(shell('one', text), shell('two', _FOREVER))
    group.wait_for_line('one', 'here', _LIMIT_S)

    group.signal('one', signal.SIGTERM)
    time.sleep(0.1)
    self.assertIsNone(group.code('one'))  # It waits for its child.
    self.assertIsNone(group.code('two'))
    group.signal('two', signal.SIGINT)

  def test_descendants_end_with_their_process(self):
    for how in ('exit', 'kill', 'context'):
      with self.subTest(how), processes.Group(self.folder / how) as group:
        end = 'exit 0' if how == 'exit' else 'sleep 60'
        group.start(shell('one', f'sleep 60 & echo pid $!; {end}'))
        match = group.wait_for_line('one', r'pid (\d+)', _LIMIT_S)
        if how == 'kill':
          self.assertEqual([end.code for end in group.kill('one')], [-9])
        elif how == 'exit':
          group.finish(_LIMIT_S)
      await_end(match[1])

  def test_the_grace_time_lets_processes_clean_up(self):
    with processes.Group(self.folder, grace_s=_LIMIT_S) as group:
      group.start(shell('one', _STOPS))
      group.wait_for_line('one', 'here', _LIMIT_S)
    with processes.Group(self.folder, grace_s=0.1) as stubborn:
      stubborn.start(shell('two', _STAYS))
      stubborn.wait_for_line('two', 'here', _LIMIT_S)

    self.assertEqual(group.wait(0.0), {'one': 5})
    self.assertEqual(group.log('one'), 'here\nstopped\n')
    self.assertEqual(stubborn.wait(0.0), {'two': -9})

  @parameterized.product(
    number=[signal.SIGTERM, signal.SIGKILL], has_grace=[False, True]
  )
  def test_no_process_outlives_a_killed_starter(self, number, has_grace):
    words = [sys.executable, '-c', _STARTER, str(self.folder)]
    text = _STOPS if has_grace else _STAYS
    starter = subprocess.Popen(
      [*words, str(_LIMIT_S if has_grace else 0.0), text],
      stdout=subprocess.PIPE,
      text=True,
    )
    with starter:
      pid = int(starter.stdout.readline())
      self.assertTrue(launches.alive(pid))
      starter.send_signal(number)

    await_end(pid)
    expected = 'here\nstopped\n' if has_grace else 'here\n'
    self.assertEqual((self.folder / 'child.log').read_text(), expected)


if __name__ == '__main__':
  absltest.main()
