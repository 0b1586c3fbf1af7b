"""Tests for the distributed runtime, with real processes on this machine."""

import os
import pathlib
import signal
import tempfile
import time
from unittest import mock

import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized

import train
from cluster.process import roles
from tests.support import certificates, processes, small
from tests.support.recomputing import recompute


def _virtual(**fields):
  """Returns a run in one process that has ended."""
  run, _ = small.execute(
    **{'cluster__speed__slowdown': (1.0,), 'log_every': 4} | fields
  )
  return run


def _flat(tree):
  return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


class SameTest(processes.TestCase):
  """Real runs learn the same parameters as virtual runs."""

  @pytest.mark.soak
  def test_one_worker_and_one_server(self):
    fields = {'optimizer__sgd__momentum': 0.9}
    with processes.launch(workers=1, **fields) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    self.check(launch)
    self._check_same(launch, cluster__workers=1, **fields)

  def test_bsp_with_two_workers_and_two_servers(self):
    self._check_two(dedicated=False)

  @pytest.mark.soak
  def test_bsp_with_two_workers_and_two_dedicated_servers(self):
    self._check_two(dedicated=True)

  def _check_two(self, *, dedicated):
    fields = {'optimizer__sgd__momentum': 0.9}
    with processes.launch(
      workers=2, servers=2, dedicated=dedicated, **fields
    ) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    self.check(launch)
    self._check_same(launch, cluster__workers=2, **fields)

  def _check_same(self, launch, **fields):
    run = _virtual(**fields)
    # An evaluation's row comes when it has ended.
    expected = sorted(small.rows(run, 'metrics.jsonl'), key=_kind)
    got = sorted(launch.rows('metrics.jsonl'), key=_kind)
    self.assertLen(got, len(expected))
    evaluations = [row for row in got if row['kind'] == 'evaluation']
    self.assertIsNotNone(evaluations[-1]['accuracy'])
    for one, other in zip(got, expected, strict=True):
      for field in (
        'kind',
        'examples',
        'updates',
        'accuracy',
        'staleness_mean',
      ):
        if (field, one[field]) != ('accuracy', None):  # It was left out.
          self.assertEqual(one[field], other[field])
      if other['loss'] is not None:
        self.assertAlmostEqual(one['loss'], other['loss'], delta=1e-6)
    _, servers = processes.newest(launch.folder)
    params = np.concatenate([state['params'] for state in servers])
    learned = _flat(run.runtime.coordinator.store.learner.params)
    self.assertEqual(recompute.difference(launch.folder), 0.0)
    # XLA rounds other shapes otherwise.
    np.testing.assert_allclose(params, learned, atol=1e-6)


class SecurityTest(processes.TestCase):
  def test_a_process_with_another_token_or_config_is_refused(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    fields = _secure(folder)
    flag = f'--coordinator=127.0.0.1:{roles.free_ports(1)[0]}'
    run = folder / 'run'

    def worker(**changed):
      return processes.alone(run, '--role=worker:0', flag, **fields | changed)

    (folder / 'other').write_text('the secret of another')
    with processes.alone(run, '--role=server:0', flag, **fields) as coordinator:
      with (
        worker(cluster__token_file=str(folder / 'other')) as stranger,
        worker(seed=1) as other,
      ):
        self.assertEqual(stranger.wait(), 1, stranger.text)
        self.assertEqual(other.wait(), 1, other.text)
      self.assertRegex(stranger.text, 'Refused: .* token is not that of')
      self.assertRegex(other.text, 'Refused: config: expected the same')
      self.assertLen(
        coordinator.times(r'127\.0\.0\.1:\d+: refused: its token'), 1
      )
      self.assertNotEmpty(coordinator.times('got another from 127.0.0.1:'))
      with worker() as accepted:
        self.assertEqual(coordinator.wait(), 0, coordinator.text)
        self.assertEqual(accepted.wait(), 0, accepted.text)
    self.check(coordinator)
    self.assertEqual(coordinator.summary['ended'], 'finished')
    self.assertEqual(coordinator.summary['admissions'], [1])


class ElasticTest(processes.TestCase):
  def test_a_worker_comes_after_the_start(self):
    folder = pathlib.Path(tempfile.mkdtemp(), 'run')
    address = f'--coordinator=127.0.0.1:{roles.free_ports(1)[0]}'

    def start(role):
      return processes.alone(
        folder,
        f'--role={role}',
        address,
        model=False,
        sync__name='elastic',
        epochs=1000.0,
        route__server__servers=1,
        route__server__dedicated=True,
        cluster__workers=3,
        cluster__min_workers=2,
        cluster__speed__injected=True,
        cluster__speed__fixed_s=0.02,
        cluster__speed__per_example_s=0.0,
        checkpoint__every_examples=10**6,
      )

    with (
      start('server:0') as coordinator,
      start('worker:0') as first,
      start('worker:2') as second,
    ):
      coordinator.until('The run starts with 2 of 3 workers')
      coordinator.reach(10 * processes.BATCH)
      with start('worker:1') as late:
        coordinator.until('Worker 1 has joined')
        while _count_pushes(coordinator, 1) < 10:
          time.sleep(0.05)
        for launch in (coordinator, first, second, late):
          launch.signal(signal.SIGTERM)
        for launch in (coordinator, first, second, late):
          self.assertEqual(launch.wait(), 143, launch.text)
    self.check(coordinator)
    summary, events = coordinator.summary, coordinator.rows('events.jsonl')
    self.assertEqual(summary['admissions'], [1, 1, 1])
    self.assertEmpty(summary['lost'])
    joined = [k for k, event in enumerate(events) if event['event'] == 'join']
    self.assertLen(joined, 1)
    before = {
      event['worker']
      for event in events[: joined[0]]
      if event['event'] == 'push'
    }
    self.assertEqual(before, {0, 2})


def _count_pushes(launch, worker):
  return sum(
    (row['event'], row.get('worker')) == ('push', worker)
    for row in launch.rows('events.jsonl')
  )


class ResumeTest(processes.TestCase):
  def test_a_stopped_run_resumes_with_other_workers_and_servers(self):
    fields = {
      'sync__name': 'elastic',
      'epochs': 10.0,
      'checkpoint__every_examples': 960,
      'wire__dense__dtype': 'bfloat16',
      'optimizer__sgd__momentum': 0.9,
      'cluster__speed__injected': True,
      'cluster__speed__fixed_s': 0.01,
      'cluster__speed__per_example_s': 0.0,
    }
    with processes.launch(workers=2, servers=2, **fields) as launch:
      launch.reach(2 * 192)
      launch.signal(signal.SIGTERM)
      self.assertEqual(launch.wait(), 143, launch.text)
    self.check(launch)
    before = launch.summary
    self.assertEqual(before['ended'], 'interrupted')
    self.assertLess(before['examples'], 10 * 192)

    with processes.launch(
      workers=1, servers=1, dedicated=True, folder=launch.folder, **fields
    ) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    self.check(launch)
    for field in ('cluster.workers', 'server.servers', 'server.dedicated'):
      self.assertRegex(launch.text, f'continues with another config.*{field}')
    starts = [r for r in launch.rows('events.jsonl') if r['event'] == 'start']
    self.assertEqual([len(r['decision']['release']) for r in starts], [2, 1])
    after = launch.summary
    self.assertGreaterEqual(after['examples'], 10 * 192)
    self.assertGreater(after['iterations'], before['iterations'])
    self.assertGreater(after['final_accuracy'], 0.8)
    # Pushes that were under way then are listed as lost.
    reasons = [lost['reason'] for lost in after['lost']]
    self.assertContainsSubset(reasons, ['The run was started again.'])

  def test_a_run_does_not_resume_with_another_model_or_data(self):
    folder = f'{tempfile.mkdtemp()}/run'
    fields = {'cluster.speed.slowdown': (1.0,)}
    train.build(small.config(**fields), workdir=folder).files.release()
    # Numbers of workers matter where time is virtual.
    for changed in ({'cluster.workers': 4}, {'optimizer.learning_rate': 0.5}):
      (field,) = changed
      with self.assertRaisesRegex(ValueError, f'another config.*{field}'):
        train.build(small.config(**fields | changed), workdir=folder)


def _kind(row):
  """Returns a key that orders rows by kind and then by the time due."""
  return row['kind'], row['examples']


def _secure(folder):
  """Returns the fields of a config with a token and a certificate."""
  certificate, key = certificates.write(folder)
  token = folder / 'token'
  token.write_text('a secret of this run\n')
  token.chmod(0o600)
  return {
    'model': False,
    'cluster__workers': 1,
    'route__server__dedicated': True,
    'route__server__servers': 1,
    'cluster__token_file': str(token),
    'cluster__certificate_file': str(certificate),
    'cluster__key_file': str(key),
  }


class RefusalTest(parameterized.TestCase):
  """Before a process meets the others."""

  @parameterized.parameters(
    ('--workdir', {'workdir': None}, 'workdir: expected the folder that all'),
    (
      'too many',
      {'environ': {'OMPI_COMM_WORLD_RANK': '0', 'OMPI_COMM_WORLD_SIZE': '5'}},
      'OMPI_COMM_WORLD_SIZE: expected .* got .?5',
    ),
    (
      'no such role',
      {'process': {'role': 'worker:2', 'coordinator': '127.0.0.1:1'}},
      '--role: expected .* got .*worker:2',
    ),
    (
      'one process',
      {'runtime': 'virtual', 'process': {'role': 'worker:0'}},
      'process: expected nothing in the virtual runtime',
    ),
    ('servers', {'servers': 3}, 'servers: expected at most .* got 3'),
  )
  def test_an_impossible_config_is_refused(self, name, changed, message):
    del name
    config = small.config(
      cluster__runtime=changed.get('runtime', 'distributed'),
      cluster__workers=2,
      cluster__speed__slowdown=(1.0,),
      route__server__servers=changed.get('servers', 1),
    )
    with (
      mock.patch.dict(os.environ, changed.get('environ', {})),
      self.assertRaisesRegex(ValueError, message),
    ):
      train.build(
        config,
        workdir=changed.get('workdir', f'{tempfile.mkdtemp()}/run'),
        process=changed.get('process'),
      )


if __name__ == '__main__':
  absltest.main()
