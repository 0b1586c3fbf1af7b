"""Tests for runs that lose servers or the coordinator, of real processes."""

import os
import pathlib
import signal
import tempfile
import time

import pytest
from absl.testing import absltest, parameterized

from tests.support import accounts, processes

_TIMEOUT_S = 2.0
_FIELDS = {
  'cluster__timeout_s': _TIMEOUT_S,
  'cluster__start_s': 60.0,
  'cluster__speed__injected': True,
  'cluster__speed__name': 'constant',
  'cluster__speed__fixed_s': 0.02,
  'cluster__speed__per_example_s': 0.0,
  'checkpoint__every_examples': 500,
  'route__server__mirror_s': 0.5,
  'epochs': 10.0**4,
  'log_every': 16,
}
# Workers drop the states that mirrors need, as if asked for them too late.
_FORGET = """
import importlib.abc, importlib.util, sys

class Finder(importlib.abc.MetaPathFinder):
  def find_spec(self, name, path, target=None):
    if name != 'cluster.membership.worker_states':
      return None
    sys.meta_path.remove(self)
    spec = importlib.util.find_spec(name)
    execute = spec.loader.exec_module
    def patch(module):
      execute(module)
      history = module.ResidualHistory
      begin = history.begin
      def forget(self):
        begin(self)
        self._states = {}
      history.begin, history.retain = forget, lambda self, request: None
    spec.loader.exec_module = patch
    return spec

sys.meta_path.insert(0, Finder())
"""


class MirrorsTest(processes.TestCase, parameterized.TestCase):
  def _launch(self, **fields):
    given = {'workers': 3, 'servers': 3} | _FIELDS | fields
    if given.get('model', True):
      given |= {'optimizer__sgd__momentum': 0.9}
    return processes.launch(**given)

  def _count_starts(self, launch):
    """Returns the number of processes that each role has had."""
    rows = launch.rows('launch.jsonl')
    starts = [row['role'] for row in rows if row['event'] == 'start']
    return {role: starts.count(role) for role in sorted({*starts})}

  def _stop(self, launch, after_s=1.0):
    """Stops the run by a signal, after some more examples."""
    time.sleep(after_s)
    launch.signal(signal.SIGTERM)
    self.assertEqual(launch.wait(), 143, launch.text)
    self.assertEqual(launch.summary['ended'], 'interrupted', launch.text)

  def _check_history(self, launch, *, with_model=True):
    self._check_nothing_left(launch)
    checks = list(accounts.accounts(launch.folder))
    if with_model:
      checks += accounts.check_parameters(launch.folder)
    for check in checks:
      self.assertTrue(check.holds, f'{check}\n{launch.text}')

  def _kill(self, launch, role, *, term=1):
    """Kills a process; returns the time until the others continue."""
    launch.reach(300)
    launch.until(f'in term {term}')
    time.sleep(1.0)
    before = len(launch.times('The run continues from mirror'))
    os.kill(launch.pid(role), signal.SIGKILL)
    died = time.time()
    return launch.until('The run continues from mirror', before + 1) - died

  def test_the_others_continue_when_a_server_dies(self):
    self._check_death('worker:1', 'asp', {'wire__name': 'topk'})

  @parameterized.parameters(
    ('worker:2', 'bsp', {}),
    ('worker:2', 'bsp', {'route__server__pipelined': True}),
  )
  @pytest.mark.soak
  def test_a_server_dies_under_bsp(self, role, sync, fields):
    self._check_death(role, sync, fields)

  @pytest.mark.soak
  def test_a_state_that_a_worker_lacks_is_listed_as_lost(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / 'sitecustomize.py').write_text(_FORGET)
    path = f'{folder}:{os.getcwd()}'
    fields = {'sync__name': 'asp', 'wire__name': 'topk'}
    with self._launch(environ={'PYTHONPATH': path}, **fields) as launch:
      launch.reach(1000)
      self._kill(launch, 'worker:2')
      self._stop(launch)
    rows = launch.rows('events.jsonl')
    lost = {row['worker'] for row in rows if row.get('event') == 'forgot'}
    self.assertEqual(lost, {0, 1, 2})
    self._check_history(launch)

  def _check_death(self, role, sync, fields):
    with self._launch(sync__name=sync, **fields) as launch:
      self.assertLess(self._kill(launch, role), 3 * _TIMEOUT_S, launch.text)
      launch.until('return to their own processes')
      launch.until('The run continues from mirror', 2)
      self._stop(launch)
    starts = {'worker:0': 1, 'worker:1': 1, 'worker:2': 1, role: 2}
    self.assertEqual(self._count_starts(launch), starts, launch.text)
    lost, moved = launch.summary['rollbacks'][:2]
    self.assertGreaterEqual(lost['updates'], 0)
    self.assertEqual(moved['updates'], 0)
    self.assertGreater(launch.summary['mirror_bytes'], 0)
    self._check_history(launch)

  def test_another_worker_coordinates_when_the_coordinator_dies(self):
    with self._launch(workers=4, servers=4) as launch:
      self.assertLess(self._kill(launch, 'worker:0'), 3 * _TIMEOUT_S)
      launch.until('in term 2')
      launch.until('return to their own processes')
      launch.until('The run continues from mirror', 2)
      self._stop(launch)
    starts = {f'worker:{k}': 1 for k in range(4)} | {'worker:0': 2}
    self.assertEqual(self._count_starts(launch), starts, launch.text)
    lost = launch.summary['rollbacks'][0]  # The servers that are left count.
    self.assertEqual(lost['examples'], 4 * processes.BATCH * lost['updates'])
    self._check_history(launch)

  @parameterized.parameters(
    ('Servers continue from mirror', 1, 0.0),
    ('return to their own processes', 1, 0.0),
    ('return to their own processes', 1, 0.01),
    ('Servers continue from mirror', 2, 0.1),
  )
  @pytest.mark.soak
  def test_a_signal_ends_a_run_whose_servers_move(self, text, count, after_s):
    with self._launch(workers=4, servers=4) as launch:
      launch.reach(300)
      launch.until('in term 1')
      time.sleep(1.0)
      os.kill(launch.pid('worker:1'), signal.SIGKILL)
      launch.until(text, count)
      self._stop(launch, after_s)
    self._check_history(launch)

  @pytest.mark.soak
  def test_a_coordinator_without_memory_leaves_the_run_to_others(self):
    faults = ((0, 40, 'memory', 'compute'),)
    with self._launch(cluster__faults=faults) as launch:
      launch.until('in term 2')
      launch.until('return to their own processes')
      self._stop(launch)
    starts = {f'worker:{k}': 1 for k in range(3)} | {'worker:0': 2}
    self.assertEqual(self._count_starts(launch), starts, launch.text)
    self._check_history(launch)

  @parameterized.parameters(('server:1', 1), ('server:0', 2))
  @pytest.mark.soak
  def test_workers_host_dedicated_servers_that_die(self, role, term):
    with self._launch(
      servers=2, dedicated=True, sync__name='ssp', model=False
    ) as launch:
      self.assertLess(self._kill(launch, role), 3 * _TIMEOUT_S, launch.text)
      launch.until(f'in term {term}')
      launch.until('return to their own processes')
      launch.until('The run continues from mirror', 2)
      self._stop(launch)
    others = {'server:0': 1, 'server:1': 1} | {role: 2}
    starts = {f'worker:{k}': 1 for k in range(3)} | others
    self.assertEqual(self._count_starts(launch), starts, launch.text)
    self._check_history(launch, with_model=False)

  @pytest.mark.soak
  def test_a_server_moves_when_its_process_gets_a_signal(self):
    with self._launch() as launch:
      launch.reach(300)
      launch.until('in term 1')
      time.sleep(1.0)
      os.kill(launch.pid('worker:2'), signal.SIGTERM)
      launch.until('worker 2 was drained: the others continue')
      launch.until('The run continues from mirror')
      self._stop(launch)
    starts = {f'worker:{k}': 1 for k in range(3)}
    self.assertEqual(self._count_starts(launch), starts, launch.text)
    (moved,) = launch.summary['rollbacks']
    self.assertEqual((moved['updates'], moved['examples']), (0, 0))
    self._check_history(launch)

  def test_a_coordinator_hands_the_run_over_after_a_signal(self):
    with self._launch() as launch:
      launch.reach(300)
      launch.until('in term 1')
      time.sleep(1.0)
      os.kill(launch.pid('worker:0'), signal.SIGTERM)
      launch.until('worker 0 was drained: the others continue')
      launch.until('in term 2')
      launch.until('The run continues from mirror')
      self._stop(launch)
    starts = {f'worker:{k}': 1 for k in range(3)}
    self.assertEqual(self._count_starts(launch), starts, launch.text)
    self._check_history(launch)

  @pytest.mark.soak
  def test_a_coordinator_that_was_stopped_is_ignored_when_it_returns(self):
    with self._launch(workers=4, servers=4, model=False) as launch:
      launch.reach(300)
      launch.until('in term 1')
      time.sleep(1.0)
      coordinator = launch.pid('worker:0')
      os.kill(coordinator, signal.SIGSTOP)
      launch.until('in term 2')
      launch.until('The run continues from mirror')
      os.kill(coordinator, signal.SIGCONT)
      launch.until('worker 0 has lost')
      launch.until('return to their own processes')
      self._stop(launch)
    self._check_history(launch, with_model=False)

  def test_a_server_that_is_left_alone_starts_again_from_a_checkpoint(self):
    with self._launch(
      workers=2, servers=2, dedicated=True, model=False
    ) as launch:
      launch.reach(600)
      time.sleep(1.0)
      for role in ('worker:0', 'worker:1', 'server:0'):
        os.kill(launch.pid(role), signal.SIGKILL)
      launch.until('Resuming from checkpoint')
      launch.reach(launch.rows('metrics.jsonl')[-1]['examples'] + 600)
      self._stop(launch)
    starts = {'server:0': 2, 'server:1': 1, 'worker:0': 2, 'worker:1': 2}
    self.assertEqual(self._count_starts(launch), starts, launch.text)
    self._check_history(launch, with_model=False)

  @pytest.mark.soak
  def test_servers_without_any_worker_that_could_lead_start_again(self):
    with self._launch(
      workers=2, servers=2, dedicated=True, model=False
    ) as launch:
      self._kill(launch, 'server:0')
      launch.until('return to their own processes')
      launch.until('The run continues from mirror', 2)
      time.sleep(1.0)
      for role in ('worker:0', 'worker:1'):
        os.kill(launch.pid(role), signal.SIGKILL)
      before = time.time()
      self.assertLess(launch.until('Resuming from checkpoint') - before, 25.0)
      launch.reach(launch.rows('metrics.jsonl')[-1]['examples'] + 600)
      self._stop(launch)
    self._check_history(launch, with_model=False)

  @pytest.mark.soak
  def test_a_first_coordinator_that_returns_to_nobody_starts_again(self):
    with self._launch(model=False) as launch:
      self._kill(launch, 'worker:0')
      launch.until('The run is coordinated at')
      for role in ('worker:1', 'worker:2'):
        os.kill(launch.pid(role), signal.SIGKILL)
      before = time.time()
      resumed = launch.until('Resuming from checkpoint')
      self.assertLess(resumed - before, 8 * _TIMEOUT_S, launch.text)
      launch.reach(launch.rows('metrics.jsonl')[-1]['examples'] + 600)
      self._stop(launch)
    self._check_history(launch, with_model=False)

  @pytest.mark.soak
  def test_a_run_restarts_when_all_copies_of_a_shard_are_lost(self):
    with self._launch(workers=2, servers=2, epochs=100.0) as launch:
      launch.reach(300)
      time.sleep(1.0)
      for role in ('worker:0', 'worker:1'):
        os.kill(launch.pid(role), signal.SIGKILL)
      self.assertEqual(launch.wait(), 0, launch.text)
    self.assertEqual(launch.summary['ended'], 'finished', launch.text)
    self._check_history(launch)


if __name__ == '__main__':
  absltest.main()
