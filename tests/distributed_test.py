"""Tests for the distributed runtime, with real processes on this machine."""

import functools
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import jax
import numpy as np
from absl.testing import absltest, parameterized

import data.stream
import train
from cluster import roles
from cluster.console import Console
from cluster.distributed import DistributedCluster
from cluster.files import RunFiles
from cluster.heart import Unmendable
from cluster.journal import Journal, Plan
from cluster.lead import Lead
from cluster.servers import Servers
from cluster.shard import Shard, host
from cluster.timing import TimingLayout, TimingServer
from cluster.transport import Security, connect
from sync import asp
from tests import processes, small

_TIMEOUT_S = 1.0  # Of what is in this process.


def _virtual(**fields):
  """Returns a run in one process that has ended."""
  run, _ = small.trained(
    **{'cluster__speed__slowdown': (1.0,), 'log_every': 4} | fields
  )
  return run


def _flat(tree):
  return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


class SameTest(processes.TestCase):
  """What is learned is what the virtual runtime learns."""

  def test_one_worker_and_one_server(self):
    fields = {'optimizer__sgd__momentum': 0.9}
    with processes.launched(workers=1, **fields) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    self.check(launch)
    self._check_same(launch, cluster__workers=1, **fields)

  def test_bsp_with_two_workers_and_two_dedicated_servers(self):
    fields = {'optimizer__sgd__momentum': 0.9}
    with processes.launched(
      workers=2, servers=2, dedicated=True, **fields
    ) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    self.check(launch)
    self._check_same(launch, cluster__workers=2, **fields)

  def _check_same(self, launch, **fields):
    run = _virtual(**fields)
    expected = small.rows(run, 'metrics.jsonl')
    got = launch.rows('metrics.jsonl')
    self.assertLen(got, len(expected))
    for one, other in zip(got, expected, strict=True):
      for field in (
        'kind',
        'examples',
        'updates',
        'accuracy',
        'staleness_mean',
      ):
        self.assertEqual(one[field], other[field])
      if other['loss'] is not None:
        self.assertAlmostEqual(one['loss'], other['loss'], delta=1e-6)
    _, servers = processes.newest(launch.folder)
    params = np.concatenate([state['params'] for state in servers])
    learned = _flat(run.cluster.lead.server.params)
    # XLA rounds other shapes otherwise.
    np.testing.assert_allclose(params, learned, atol=1e-6)


class SecurityTest(processes.TestCase):
  @unittest.skipUnless(shutil.which('openssl'), 'openssl makes certificates')
  def test_who_has_another_token_or_config_is_refused_and_others_work(self):
    folder = pathlib.Path(tempfile.mkdtemp())
    fields = _secured(folder)
    flag = f'--lead=127.0.0.1:{roles.free_ports(1)[0]}'
    run = folder / 'run'

    def worker(**changed):
      return processes.alone(run, '--role=worker:0', flag, **fields | changed)

    (folder / 'other').write_text('another secret')
    with processes.alone(run, '--role=server:0', flag, **fields) as lead:
      with (
        worker(cluster__token_file=str(folder / 'other')) as stranger,
        worker(seed=1) as other,
      ):
        self.assertEqual(stranger.wait(), 1, stranger.text)
        self.assertEqual(other.wait(), 1, other.text)
      self.assertRegex(stranger.text, 'Refused: .* token is not that of')
      self.assertRegex(other.text, 'Refused: config: expected the same')
      self.assertLen(lead.times(r'127\.0\.0\.1:\d+: refused, as its token'), 1)
      self.assertNotEmpty(lead.times('got another from 127.0.0.1:'))
      with worker() as accepted:
        self.assertEqual(lead.wait(), 0, lead.text)
        self.assertEqual(accepted.wait(), 0, accepted.text)
    self.check(lead)
    self.assertEqual(lead.summary['ended'], 'finished')
    self.assertEqual(lead.summary['lives'], [1])


class ResumeTest(processes.TestCase):
  def test_a_stopped_run_goes_on_with_other_workers_and_servers(self):
    fields = {
      'sync__name': 'elastic',
      'epochs': 30.0,
      'wire__dense__dtype': 'bfloat16',
      'optimizer__sgd__momentum': 0.9,
      'cluster__speed__injected': True,
      'cluster__speed__fixed_s': 0.01,
      'cluster__speed__per_example_s': 0.0,
    }
    with processes.launched(workers=3, servers=2, **fields) as launch:
      launch.reach(3 * 192)
      launch.process.send_signal(signal.SIGTERM)
      self.assertEqual(launch.wait(), 143, launch.text)
    self.check(launch)
    before = launch.summary
    self.assertEqual(before['ended'], 'interrupted')
    self.assertLess(before['examples'], 30 * 192)

    with processes.launched(
      workers=2, servers=3, dedicated=True, folder=launch.folder, **fields
    ) as launch:
      self.assertEqual(launch.wait(), 0, launch.text)
    self.check(launch)
    for field in ('cluster.workers', 'server.servers', 'server.dedicated'):
      self.assertRegex(launch.text, f'goes on with another config.*{field}')
    starts = [r for r in launch.rows('events.jsonl') if r['told'] == 'start']
    self.assertEqual([len(r['said']['release']) for r in starts], [3, 2])
    after = launch.summary
    self.assertGreaterEqual(after['examples'], 30 * 192)
    self.assertGreater(after['iterations'], before['iterations'])
    self.assertGreater(after['final_accuracy'], 0.8)
    # What was in the middle then was given up, and is listed.
    reasons = [lost['reason'] for lost in after['lost']]
    self.assertContainsSubset(reasons, ['The run was started again.'])

  def test_what_is_learned_must_stay_the_same(self):
    folder = f'{tempfile.mkdtemp()}/run'
    fields = {'cluster.speed.slowdown': (1.0,)}
    train.build(small.config(**fields), workdir=folder).files.release()
    # Numbers of workers matter where time is virtual.
    for changed in ({'cluster.workers': 4}, {'optimizer.learning_rate': 0.5}):
      (field,) = changed
      with self.assertRaisesRegex(ValueError, f'another config.*{field}'):
        train.build(small.config(**fields | changed), workdir=folder)


class MembersTest(absltest.TestCase):
  """What the lead does when streams end at any moment; processes of ours."""

  def test_who_comes_back_before_its_end_was_noticed_goes_on(self):
    lead = self._lead()
    old = lead.member(0)
    lead.begin()
    old.pull()
    new = lead.member(0)
    lead.until(lambda: lead.ledger.lost)
    lead.step_for(0.3)
    new.pull()
    new.push()
    lead.until(lambda: lead.ledger.iterations == 1)
    self.assertEqual(old.control.receive().header['end'], 'left')
    self.assertEqual(lead.cluster.summary()['lives'], [2])
    self.assertLen(lead.ledger.lost, 1)

  def test_a_push_that_some_servers_have_is_given_up_at_all(self):
    lead = self._lead(num_servers=2)
    worker = lead.member(0)
    lead.begin()
    worker.pull()
    worker.push(servers=[0])
    worker.close()
    lead.until(lambda: lead.ledger.lost)
    self.assertEqual(lead.ledger.iterations, 0)
    again = lead.member(0)
    lead.step_for(0.3)
    again.pull()
    again.push()
    lead.until(lambda: lead.ledger.iterations == 1)
    lead.until(lambda: not any(shard._payloads for shard in lead.shards))

  def test_a_server_that_fails_ends_the_run(self):
    lead = self._lead()
    lead.member(0)
    lead.begin()
    with self.assertLogs('absl', 'ERROR'):
      lead.shards[0].order(99, [])
      with self.assertRaisesRegex(Unmendable, 'Server 0: .* orders 1, got 99'):
        lead.step_for(2.0)

  def test_who_waits_for_a_server_that_is_silent_is_told(self):
    lead = self._lead(num_servers=2, silent=True)
    lead.member(0)
    lead.begin()
    with ThreadPoolExecutor(1) as pool:
      read = pool.submit(lead.servers.snapshot())
      with self.assertRaisesRegex(Unmendable, 'Server 1 was silent'):
        read.result(timeout=5.0)
    with self.assertRaisesRegex(Unmendable, 'Server 1'):
      lead.servers.snapshot()
    with self.assertRaisesRegex(Unmendable, 'Server 1'):
      lead.step_for(2.0)

  def test_the_end_does_not_wait_for_who_hangs(self):
    lead = self._lead()
    lead.member(0)
    lead.begin()
    start = time.monotonic()
    lead.cluster.close()
    # The worker, the listener, and what this gives its handlers.
    self.assertLess(time.monotonic() - start, 2 * _TIMEOUT_S + 3.0)

  def _lead(self, **fields):
    lead = _Lead(**fields)
    self.addCleanup(lead.close)
    return lead


class _Lead:
  """A lead and its servers in this process; members are streams of ours."""

  def __init__(self, *, num_servers=1, silent=False):
    self.shards = []
    self._members = []
    self._address = queue.Queue()
    self._layout = TimingLayout(64, num_servers=num_servers)
    self.servers = Servers(layout=self._layout, schedule=None)
    plan = Plan(10**6, 10**6, 10**6, 10**6, ())
    journal = Journal(
      plan=plan,
      server=self.servers,
      evaluate=None,
      files=mock.create_autospec(RunFiles, instance=True),
      console=Console(target=10**6),
    )
    self.ledger = journal.ledger
    lead = Lead(
      scheme=asp.make(num_workers=1),
      server=self.servers,
      stream=data.stream.Stream(num_examples=10**6, seed=0, ahead=0),
      journal=journal,
      num_workers=1,
      worker_batch=8,
    )
    self.cluster = DistributedCluster(
      lead=lead,
      shard=functools.partial(self._shard, 0),
      num_servers=num_servers,
      host='127.0.0.1',
      port=0,
      announce=self._address.put,
      fingerprint='ours',
      security=Security(),
      timeout_s=_TIMEOUT_S,
      local=None,
      greeting=dict,
    )
    self._pool = ThreadPoolExecutor(3)
    self._warm = self._pool.submit(self.cluster.warm_up)
    self.address = self._address.get(timeout=10.0)
    if num_servers == 2:
      self._other = self._pool.submit(self._silent if silent else self._host)

  def _shard(self, index, report, greeting):
    del greeting
    shard = Shard(
      index,
      server=TimingServer(),
      layout=self._layout,
      checkpoints=None,
      report=report,
    )
    self.shards.append(shard)
    return shard

  def _host(self):
    host(
      1,
      functools.partial(self._shard, 1),
      lead=lambda: self.address,
      address='127.0.0.1',
      fingerprint='ours',
      security=Security(),
      timeout_s=_TIMEOUT_S,
    )

  def _silent(self):
    hello = {'server': 1, 'fingerprint': 'ours'}
    stream = connect(self.address, hello, Security(), 10.0)
    self._members.append(stream)
    stream.receive()
    # Somewhere that answers.
    stream.send({'address': self.address})

  def member(self, index):
    member = _Worker(self.address, index)
    self._members.append(member)
    return member

  def begin(self):
    self._warm.result(timeout=10.0)
    self.cluster.start()

  def step_for(self, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
      self.cluster.step()

  def until(self, happened):
    end = time.monotonic() + 10.0
    while not happened():
      if time.monotonic() > end:
        raise AssertionError('It has not happened.')
      self.cluster.step()

  def close(self):
    for member in self._members:
      member.close()
    self.cluster.close()
    self._pool.shutdown()


class _Worker:
  """The streams of a worker, without a worker behind them."""

  def __init__(self, address, index):
    hello = {'worker': index, 'fingerprint': 'ours'}
    self.control = connect(address, hello, Security(), 10.0)
    welcome = self.control.receive().header
    key = {'worker': index, 'life': welcome['life']}
    self._streams = [
      connect(each, key, Security(), 10.0) for each in welcome['servers']
    ]
    self._sizes = [s.receive().header['size_bytes'] for s in self._streams]
    self.control.send({'ready': True})

  def pull(self):
    for stream, size in zip(self._streams, self._sizes, strict=True):
      message = stream.receive()
      message.read(np.empty(size, np.uint8))
      self._iteration = message.header['iteration']

  def push(self, servers=(0, 1)):
    report = {'iteration': self._iteration, 'loss': None, 'finite': True}
    report |= {'pulled_at': 0.0, 'computed_at': 0.0, 'compute_s': 0.0}
    report |= {'computed': 8, 'compilations': 0}
    for index in servers[: len(self._streams)]:
      body = np.zeros(self._sizes[index], np.uint8)
      self._streams[index].send(report, [body], body.size)

  def close(self):
    for stream in (self.control, *self._streams):
      stream.cancel()
      stream.close()


def _secured(folder):
  """Returns the fields of a config with a token and a certificate."""
  key, certificate, token = (
    folder / n for n in ('key', 'certificate', 'token')
  )
  subprocess.run(
    'openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=syncopate '
    f'-addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}',
    shell=True,
    check=True,
    capture_output=True,
  )
  token.write_text('secret\n')
  return {
    'cluster__workers': 1,
    'route__server__dedicated': True,
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
  def test_what_cannot_be_is_refused(self, name, changed, message):
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
