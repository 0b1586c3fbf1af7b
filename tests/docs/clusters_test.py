"""Tests that the commands of docs/clusters.md train.

Commands for single hosts and for the launcher run in a lab of two hosts, those
for SLURM in a SLURM of two hosts (`tests.support.slurm`), which .ci/run starts
as a step of its own.  The tests replace paths and add flags that shorten the
run, and change nothing else.  tests/cluster/process/schedulers_test.py parses
the commands for Kubernetes.
"""

import collections
import contextlib
import csv
import json
import math
import os
import pathlib
import re
import stat
import subprocess
import sys
import tempfile
import time

import pytest
from absl.testing import absltest, parameterized

from launch import lab
from tests.docs import pages
from tests.support import certificates, commands, gpus, labs, requires, slurm

_PAGE = pages.ROOT / 'docs/clusters.md'
_LIMIT_S = 200.0  # Longer than any run, also on a busy machine.
_QUICK = (
  '--config.model.name=mlp --config.epochs=1 --config.cluster.timeout_s=10 '
  '--config.cluster.start_s=100'
)
_SHARED = '/shared/run'
_ENVIRON = {
  'JAX_PLATFORMS': 'cpu',
  'PATH': f'{pathlib.Path(sys.executable).parent}:{os.environ["PATH"]}',
  # Has submitit if it is installed for the tests alone.
  'PYTHONPATH': os.environ.get('PYTHONPATH', ''),
}


def _block(*words: str, page: pathlib.Path = _PAGE) -> str:
  """Returns the only block of a page that has all words.

  Those for containers do not count, as they need an image.
  """
  found = [
    block.text
    for block in pages.blocks(page)
    if all(word in block.text for word in words)
    and '--container-image' not in block.text
  ]
  if len(found) != 1:
    raise AssertionError(f'{words} are in {len(found)} blocks of {page}.')
  return found[0]


def _quick(command: str, more: str = '') -> str:
  return f'{command.rstrip()} {_QUICK} {more}'


def _link_repository() -> pathlib.Path:
  """Returns a folder with links to the repository, a .venv and runs/."""
  folder = pathlib.Path(tempfile.mkdtemp())
  for path in pages.ROOT.iterdir():
    if path.name not in ('runs', '.git', '.venv'):
      (folder / path.name).symlink_to(path)
  (folder / 'runs').mkdir()
  (folder / '.venv/bin').mkdir(parents=True)
  python = folder / '.venv/bin/python'
  python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
  python.chmod(0o755)
  return folder


def _with_gpus(host: gpus.Host) -> dict[str, str]:
  """Returns the variables of processes that find fake GPUs on each node.

  The numbers of their GPUs are those of SLURM.
  """
  variables = {
    name: f'{host.environ[name].split(":")[0]}:{_ENVIRON[name]}'
    for name in ('PATH', 'PYTHONPATH')
  }
  return host.environ | variables


class _Case(parameterized.TestCase):
  def check(self, run, workers, output='', *, token='token', starts=1):
    """Checks that a run has finished with all its workers."""
    path = run / 'summary.json'
    self.assertTrue(path.exists(), f'{os.listdir(run.parent)}: {output}')
    summary = json.loads(path.read_text())
    self.assertEqual(summary['ended'], 'finished', output)
    self.assertLen(summary['admissions'], workers)
    # Only iterations that were under way at a new start may be lost.
    reasons = {each['reason'] for each in summary['lost']}
    again = {'The run was started again.'} if starts > 1 else set()
    self.assertLessEqual(reasons, again, output)
    if token:
      mode = (run / token).stat().st_mode
      self.assertEqual(stat.S_IMODE(mode), 0o600)
    else:
      self.assertFalse((run / 'token').exists())


class HandTest(_Case):
  def setUp(self):
    super().setUp()
    requires.lab()
    stack = self.enterContext(contextlib.ExitStack())
    self.folder = _link_repository()
    self.lab = stack.enter_context(labs.start(2))

  def _start(self, host, command):
    words = lab.command(host, ['bash', '-c', command], self.lab)
    return commands.start(words, env=_ENVIRON, folder=self.folder)

  def _run(self, by_host):
    """Runs a command on each host, by the host's name; returns their output."""
    with contextlib.ExitStack() as stack:
      running = [
        stack.enter_context(self._start(host, command))
        for host, command in by_host.items()
      ]
      codes = [each.wait(_LIMIT_S) for each in running]
    whole = '\n'.join(each.text for each in running)
    self.assertEqual(codes, [0, 0], whole)
    return whole

  def test_by_hand(self):
    block = _block('# On host0', '# On host1')
    _, *parts = re.split(r'^# On (host\d)\n', block, flags=re.MULTILINE)
    commands = dict(zip(parts[::2], map(_quick, parts[1::2]), strict=True))
    self.assertEqual(list(commands), ['host0', 'host1'])
    run = self.folder / 'run'
    output = self._run(
      {h: c.replace(_SHARED, str(run)) for h, c in commands.items()}
    )
    self.check(run, 2, output)

  def test_by_hand_with_a_launcher_for_each(self):
    block = _block(
      'tools.launch --rank --role=worker:1 --coordinator=host0:61500'
    )
    run = self.folder / 'run'
    command = _quick(block.replace(_SHARED, str(run)))
    self.assertIn('--role=worker:1', command)
    first = command.replace('--role=worker:1', '--role=worker:0')
    self.check(run, 2, self._run({'host1': command, 'host0': first}))

  def test_variables_of_torchrun_start_a_run(self):
    """torchrun's store listens at MASTER_PORT, on the host of rank 0."""
    block = _block('# On host0', '# On host1').split('# On host1')[0]
    block = block.replace('--coordinator=host0:61500 --role=worker:0', '')
    block = block.rstrip().removesuffix('\\').replace('# On host0', '')
    run = self.folder / 'run'
    command = _quick(block.replace(_SHARED, str(run)))
    # Runs in the background of rank 0's shell, which ends it.
    store = f'{sys.executable} -m http.server 29500 > /dev/null 2>&1 &'
    commands = {}
    for rank, host in enumerate(('host0', 'host1')):
      own = f'export RANK={rank} WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1'
      own += ' MASTER_ADDR=host0 MASTER_PORT=29500'
      beside = f'{store}\ntrap "kill $!" EXIT' if rank == 0 else ''
      commands[host] = f'{own}\n{beside}\n{command}'
    output = self._run(commands)
    self.check(run, 2, output)
    self.assertIn('10.213.0.1:29501', output)
    self.assertFalse((run / 'rendezvous.json').exists())

  def test_a_coordinator_at_another_address_is_refused_at_once(self):
    block = _block('# On host0', '# On host1')
    command = block.split('# On host1')[0].replace('host0:61500', 'host1:61500')
    start = time.monotonic()
    with self._start('host0', _quick(command)) as process:
      self.assertEqual(process.wait(_LIMIT_S), 1, process.text)
    self.assertRegex(
      process.text,
      'Refused: --coordinator, .*: expected 10.213.0.1, at which this process, '
      "the coordinator, listens .*; host1 is 10.213.0.2, got 'host1:61500'",
    )
    self.assertLess(time.monotonic() - start, 60.0)


class LauncherTest(_Case):
  def test_on_one_machine(self):
    folder = _link_repository()
    command = _quick(_block('--workers=4 -- --config=configs/vgg16_elastic.py'))
    done = subprocess.run(
      ['bash', '-c', command],
      cwd=folder,
      env=os.environ | _ENVIRON,
      stdin=subprocess.DEVNULL,
      capture_output=True,
      text=True,
      timeout=_LIMIT_S,
    )
    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
    (run,) = (folder / 'runs').iterdir()
    self.check(run, 4, done.stdout)


@pytest.mark.slurm
@pytest.mark.timeout(3 * _LIMIT_S)  # Each wait has a limit of its own.
class SlurmTest(_Case):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    requires.slurm()
    cls.slurm = cls.enterClassContext(slurm.start())

  def setUp(self):
    super().setUp()
    self.folder = _link_repository()

  def _run(self, command, **environ):
    """Runs a command on host0; returns its output once it has ended."""
    done = self.slurm.run(
      ['bash', '-c', command],
      cwd=self.folder,
      environ=_ENVIRON | environ,
      limit_s=_LIMIT_S,
    )
    if done.returncode:
      self.fail(f'{command}:\n{done.stdout}\n{self.slurm.logs()}')
    return done.stdout

  def _submit(self, command, flags='', more='', **environ):
    """Submits the script; returns the number of the job."""
    command = command.replace('sbatch ', f'sbatch {flags} ', 1)
    output = self._run(_quick(command, more), **environ)
    (job,) = re.findall(r'Submitted batch job (\d+)', output)
    return job

  def _until(self, condition, job):
    """Waits for a condition, at most until the job has ended for good.

    Failures show the log of the job.
    """
    deadline = time.monotonic() + _LIMIT_S
    while True:
      ended = re.search('JobState=(COMPLETED|FAILED|TIMEOUT) ', self._show(job))
      if condition():
        return
      if ended or time.monotonic() > deadline:
        shown = f'{self._show(job)}\n{self._log(job)}'
        self.fail(f'{shown}\n{self.slurm.logs()}')
      time.sleep(0.5)

  def _log(self, job):
    path = self.folder / f'syncopate-{job}.log'
    return path.read_text() if path.exists() else ''

  def _wait_for_end(self, job):
    left = re.compile('JobState=(PENDING|CONFIGURING|RUNNING|COMPLETING) ')
    self._until(lambda: not left.search(self._show(job)), job)

  def _finish(self, job, *, workers=4, nodes=2, restarts=0):
    """Waits for a job, checks its run; returns the folder of the run."""
    self._wait_for_end(job)
    log, shown = self._log(job), self._show(job)
    self.assertIn('JobState=COMPLETED', shown, log + self.slurm.logs())
    self.assertIn(f'NumNodes={nodes} ', shown)
    self.assertIn(f'Restarts={restarts} ', shown)
    run = self.folder / 'runs' / f'slurm-{job}'
    self.check(run, workers, log, starts=1 + restarts)
    met = json.loads((run / 'rendezvous.json').read_text())
    launch = f'slurm job {job} step 0 restart {restarts}'
    self.assertEqual(met['launch'], launch)
    return run

  def _hosts(self, run):
    """Returns the number of processes of a run on each host."""
    ends = (run / 'exits').glob('worker-*.json')
    return collections.Counter(json.loads(p.read_text())['host'] for p in ends)

  def _address(self, run):
    return json.loads((run / 'rendezvous.json').read_text())['address']

  def test_sbatch_with_several_tasks_a_node(self):
    command = _block('sbatch --ntasks=4 tools/slurm.sbatch --config=')
    run = self._finish(self._submit(command))
    self.assertStartsWith(self._address(run), '10.213.0.1:')
    self.assertEqual(self._hosts(run), {'host0': 2, 'host1': 2})

  @parameterized.parameters('--export=INTERFACE=eth0', '--export=NONE')
  def test_sbatch_with_a_list_of_variables(self, export):
    command = _block('sbatch --ntasks=4 tools/slurm.sbatch --config=')
    self._finish(self._submit(command, export))

  def test_sbatch_with_nodes_and_tasks_of_each(self):
    command = _block('sbatch --ntasks=4 tools/slurm.sbatch --config=')
    command = command.replace('--ntasks=4', '--nodes=2 --ntasks-per-node=1')
    run = self._finish(self._submit(command), workers=2)
    self.assertEqual(self._hosts(run), {'host0': 1, 'host1': 1})

  def test_a_job_whose_tasks_cannot_start_fails_at_once(self):
    command = _block('sbatch --ntasks=4 tools/slurm.sbatch --config=')
    job = self._submit(command, SLURM_MPI_TYPE='missing')
    self._wait_for_end(job)
    shown = self._show(job)
    self.assertIn('JobState=FAILED', shown)
    self.assertIn('Restarts=0 ', shown)
    self.assertIn('No task has started', self._log(job))

  def test_sbatch_on_gpus_over_a_network_without_host_names(self):
    command = _block('sbatch --ntasks=4 --gpus-per-task=1')
    host = gpus.Host(gpus.list_output(4))
    job = self._submit(
      command, '--partition=gpu', INTERFACE='ib0', **_with_gpus(host)
    )
    run = self._finish(job)
    self.assertStartsWith(self._address(run), f'{slurm.SECOND}.1:')
    # Each task has a GPU of its own, and all of its memory.
    seen = host.startups()
    masks = sorted(each['CUDA_VISIBLE_DEVICES'] for each in seen)
    self.assertEqual(masks, ['0', '0', '1', '1'])
    self.assertEqual(
      [each['XLA_CLIENT_MEM_FRACTION'] for each in seen], 4 * ['']
    )

  def test_tasks_share_a_gpu_of_their_node_on_request(self):
    host = gpus.Host(gpus.list_output(4))
    command = _block('sbatch --ntasks=4 tools/slurm.sbatch --config=')
    command = command.replace('--ntasks=4', '--ntasks=2')
    flags = '--partition=gpu --nodes=1 --gpus-per-node=1'
    job = self._submit(command, flags, WORKERS_PER_GPU='2', **_with_gpus(host))
    self._finish(job, workers=2, nodes=1)
    seen = [
      (each['CUDA_VISIBLE_DEVICES'], each['XLA_CLIENT_MEM_FRACTION'])
      for each in host.startups()
    ]
    self.assertEqual(seen, 2 * [('0', '0.3750')])

  def test_a_job_that_has_lost_a_node_resumes_on_the_others(self):
    command = _block('sbatch --ntasks=4 tools/slurm.sbatch --config=')
    # Slow enough to lose a node in the middle.
    more = (
      '--config.epochs=2 --config.checkpoint.every_s=1 '
      '--config.cluster.speed.injected=True --config.cluster.speed.least_s=0.2 '
      '--config.cluster.speed.slowdown="(1.0,)" '
      '--config.route.server.mirror_s=0'  # Else the others continue.
    )
    job = self._submit(command, '--nodes=1-2 --cpus-per-task=4', more)
    run = self.folder / 'runs' / f'slurm-{job}'
    self._until(lambda: [*run.glob('checkpoints/[1-9]*/coordinator')], job)
    self.addCleanup(self.slurm.wait_for_nodes)
    self.addCleanup(self.slurm.start_nodes, 'host1')
    self.slurm.fail_host('host1')
    self._finish(job, nodes=1, restarts=1)
    self.assertEqual(self._hosts(run), {'host0': 4})
    starts = json.loads((run / 'manifest.json').read_text())['starts']
    self.assertLen(starts, 2)
    self.assertGreater(starts[1]['examples'], 0)

  def _submit_ring(self, flags='', *, epochs, **environ):
    """Submits a run on a ring; returns job and folder once it trains."""
    command = _block('sbatch --no-kill').replace('--no-kill ', '')
    more = (
      '--config.cluster.timeout_s=5 '
      '--config.checkpoint.every_s=1000 --config.cluster.speed.injected=True '
      '--config.cluster.speed.least_s=0.2 '
      f'--config.cluster.speed.slowdown="(1.0,)" --config.epochs={epochs}'
    )
    job = self._submit(command, f'--cpus-per-task=4 {flags}', more, **environ)
    run = self.folder / 'runs' / f'slurm-{job}'
    self._until(lambda: self._pushes(run), job)
    return job, run

  def _pushes(self, run):
    """Returns the number of pushes in the events of a run."""
    path = run / 'events.jsonl'
    return path.read_text().count('"event":"push"') if path.exists() else 0

  def _check_resumed(self, run):
    """Checks that a run went on where a signal had stopped it.

    The only checkpoint before the end is that of the signal.  Each worker had
    one iteration under way.
    """
    starts = json.loads((run / 'manifest.json').read_text())['starts']
    self.assertLen(starts, 2)
    self.assertGreater(starts[1]['examples'], 0)
    lost = json.loads((run / 'summary.json').read_text())['lost']
    workers = [each['worker'] for each in lost]
    self.assertCountEqual(workers, {*workers})

  def test_a_ring_that_is_preempted_resumes_after_the_urgent_job(self):
    job, run = self._submit_ring('--exclusive', epochs=4)
    self._run(
      'srun --partition=urgent --nodes=2 --ntasks-per-node=1 --exclusive '
      f'ls {run}/checkpoints > urgent'
    )
    # The nodes were free once the checkpoint was written.
    self.assertNotEmpty((self.folder / 'urgent').read_text().split())
    self._finish(job, nodes=1, restarts=1)
    self._check_resumed(run)

  def test_a_ring_that_an_administrator_requeues_resumes(self):
    job, run = self._submit_ring(epochs=4)
    self.slurm.show('requeue', job)
    self._finish(job, nodes=1, restarts=1)
    self._check_resumed(run)

  def test_a_ring_whose_time_is_over_resumes(self):
    # SLURM looks at the time every 30 s, and signals up to as much earlier: the
    # signal comes within 30 s after the limit has been set, while the run has
    # 45 s to go, and at least 5 s before the limit.
    job, run = self._submit_ring('--time=10 --signal=B:TERM@60', epochs=20)
    (minutes, seconds) = map(
      int, re.findall(r'RunTime=00:(\d+):(\d+) ', self._show(job))[0]
    )
    limit = math.ceil(minutes + (seconds + 35) / 60)
    self.slurm.show('update', f'jobid={job}', f'timelimit={limit}')
    self._until(lambda: 'Restarts=1 ' in self._show(job), job)
    self.slurm.show('update', f'jobid={job}', 'timelimit=10')
    self._finish(job, nodes=1, restarts=1)
    self._check_resumed(run)

  def test_a_ring_that_has_lost_a_node_continues_on_the_others(self):
    job, run = self._submit_ring('--no-kill --ntasks-per-node=2', epochs=4)
    self.addCleanup(self.slurm.wait_for_nodes)
    self.addCleanup(self.slurm.start_nodes, 'host1')
    self.slurm.fail_host('host1')
    self._until(lambda: 'JobState=COMPLETED' in self._show(job), job)
    self.assertIn('Restarts=0 ', self._show(job))
    summary = json.loads((run / 'summary.json').read_text())
    self.assertEqual(summary['ended'], 'finished')
    lines = (run / 'events.jsonl').read_text().splitlines()
    rows = [*map(json.loads, lines)]
    left = {row['worker'] for row in rows if row['event'] == 'leave'}
    self.assertLen(left, 2)
    self.assertEqual({each['worker'] for each in summary['lost']}, left)
    starts = json.loads((run / 'manifest.json').read_text())['starts']
    self.assertLen(starts, 1)

  def _show(self, job):
    return self.slurm.show('show', 'job', job)

  def test_a_sweep_is_an_array_of_jobs(self):
    requires.module('submitit')
    command = _block('--submit=slurm', page=pages.ROOT / 'docs/sweeps.md')
    # The docs' config has 30 runs of a large model.
    config = 'configs/vgg16_bsp.py --grid=seed=0,1 --config.model.name=mlp'
    command = command.replace('configs/sweeps/bounds.py', config).rstrip()
    command = command.replace('python ', '.venv/bin/python ')
    command += ' --config.epochs=1'
    (out,) = re.findall('--out=([^ ]+)', command)
    output = self._run(command)
    with (self.folder / out / 'results.csv').open() as file:
      rows = [*csv.DictReader(file)]
    self.assertEqual([row['status'] for row in rows], 2 * ['finished'], output)
    jobs = [*(self.folder / out / 'submitit').glob('*_submission.sh')]
    self.assertLen(jobs, 1)
    # Nothing is left to submit.
    self._run(command)
    left = [*(self.folder / out / 'submitit').glob('*_submission.sh')]
    self.assertEqual(left, jobs)

  def test_srun_in_an_allocation_and_alone(self):
    command = _quick(_block('srun --ntasks=4', 'tools.launch --rank'))
    file = self.folder / 'command.sh'
    file.write_text(command)
    output = self._run(f'salloc --nodes=2 --ntasks=4 bash {file}')
    run = self.folder / 'runs/mine'
    self.check(run, 4, output)
    token = (run / 'token').read_text()
    # The same command resumes: all processes find that the run has finished.
    self.assertIn('The run has finished before', self._run(command))
    self.assertEqual((run / 'token').read_text(), token)

  def test_submitit(self):
    requires.module('submitit')
    code = _block('import submitit')
    last = '--config.cluster.interface=eth0"""'
    self.assertIn(last, code)
    quick = f'{last[:-3]} {_QUICK}"""'
    file = self.folder / 'submit.py'
    file.write_text(code.replace(last, quick) + '\nprint(job.results())\n')
    output = self._run(f'.venv/bin/python {file}')
    self.check(self.folder / 'runs/mine', 4, output)

  def test_tls_with_a_network_and_a_given_secret(self):
    command = _quick(_block('--config.cluster.certificate_file'))
    secret = self.folder / 'secret'
    secret.mkdir()
    files = certificates.write(secret, 'DNS:syncopate')
    for path, name in zip(files, ('cert.pem', 'key.pem'), strict=True):
      path.rename(secret / name)
    token = secret / 'token'
    token.write_text('a secret of sixteen or more')
    for path in secret.iterdir():
      path.chmod(0o600)
    run = self.folder / 'run'
    command = command.replace('/secret/', f'{secret}/')
    output = self._run(command.replace(_SHARED, str(run)))
    self.check(run, 4, output, token='')


if __name__ == '__main__':
  absltest.main()
