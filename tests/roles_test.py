"""Tests for cluster/roles.py, and for the job files that lead to it."""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

import yaml
from absl.testing import absltest, parameterized

from cluster import roles
from cluster.roles import Role

_ROOT = pathlib.Path(__file__).parents[1]
_SLURM = {
  'SLURM_JOB_ID': '4099',
  'SLURM_PROCID': '0',
  'SLURM_STEP_NUM_TASKS': '4',
  'SLURM_STEP_NODELIST': 'gpu[003-010,12]',
}
_OMPI = {
  'OMPI_COMM_WORLD_RANK': '0',
  'OMPI_COMM_WORLD_SIZE': '4',
  'OMPI_COMM_WORLD_LOCAL_SIZE': '4',
  'PMIX_NAMESPACE': 'prterun-host-77@1',
}
_INDEXED = {
  'JOB_COMPLETION_INDEX': '0',
  'SYNCOPATE_COORDINATOR': 'run-workers-0-0.run:8476',
}
_PORT = re.compile(r'(.*):(\d+)')


def _find(environ, *, workers=4, dedicated=0, **flags):
  return roles.find(environ, workers=workers, dedicated=dedicated, **flags)


def _host(address):
  return _PORT.fullmatch(address)[1]


def _port(address):
  return int(_PORT.fullmatch(address)[2])


class RankTest(parameterized.TestCase):
  @parameterized.product(
    environ=[
      (_SLURM, 'SLURM_PROCID'),
      (_OMPI, 'OMPI_COMM_WORLD_RANK'),
      (_INDEXED, 'JOB_COMPLETION_INDEX'),
    ],
    workers=[1, 3, 4],
  )
  def test_ranks_are_workers_and_then_servers(self, environ, workers):
    environ, variable = environ
    dedicated = 4 - workers
    lead = {'lead': 'there:9'} if dedicated else {}
    found = [
      _find(
        environ | {variable: str(rank)},
        workers=workers,
        dedicated=dedicated,
        **lead,
      )
      for rank in range(4)
    ]

    expected = [('worker', r) for r in range(workers)]
    expected += [('server', k) for k in range(dedicated)]
    self.assertEqual([(r.kind, r.index) for r in found], expected)
    self.assertEqual({r.lead for r in found}, {'there:9' if lead else ''})
    if workers > 1:
      self.assertLen({r.coordinator for r in found[:workers]}, 1)

  def test_flags_come_first(self):
    environ = _SLURM | _OMPI | _INDEXED | {'SLURM_PROCID': '3'}
    given = {'coordinator': '[::1]:80', 'lead': 'me.example:65535'}
    found = _find(environ, dedicated=2, role='server:1', **given)
    self.assertEqual(found, Role('server', 1, '[::1]:80', 'me.example:65535'))
    found = _find({}, role='worker:3', coordinator='host:1')
    self.assertEqual(found, Role('worker', 3, 'host:1', ''))

  def test_mpirun_comes_before_the_srun_that_it_uses(self):
    environ = _SLURM | _OMPI | {'OMPI_COMM_WORLD_RANK': '2'}
    self.assertEqual(_find(environ).index, 2)

  def test_a_single_worker_needs_nothing(self):
    found = [_find({}, workers=1) for _ in range(5)]
    for role in found:
      self.assertEqual(role[:2], ('worker', 0))
      self.assertEqual(_host(role.coordinator), '127.0.0.1')
      with socket.create_server(('127.0.0.1', _port(role.coordinator))):
        pass

  def test_free_ports_differ_and_are_never_taken(self):
    with socket.create_server(('', 0)) as server:
      ports = roles.free_ports(500)
      self.assertNotIn(server.getsockname()[1], ports)
    self.assertLen(set(ports), 500)
    low, _ = map(
      int,
      pathlib.Path('/proc/sys/net/ipv4/ip_local_port_range')
      .read_text()
      .split(),
    )
    self.assertLess(max(ports), max(low, 32768))


class AddressTest(parameterized.TestCase):
  @parameterized.parameters(
    ('gpu[003-010,12]', 'gpu003 gpu004 gpu009 gpu010 gpu12', 9),
    ('a1,b2', 'a1 b2', 2),
    ('rack1-node[01-04]x', 'rack1-node01x rack1-node04x', 4),
    ('n[9-11],login1', 'n9 n10 n11 login1', 4),
    ('r[1-2]n[1-3]', 'r1n1 r1n2 r1n3 r2n1 r2n2 r2n3', 6),
    ('cn[0998-1001]', 'cn0998 cn0999 cn1000 cn1001', 4),
  )
  def test_lists_of_hosts_are_expanded(self, text, some, count):
    """Servers run on every host in turn, one task on each."""
    environ = _SLURM | {
      'SLURM_STEP_NODELIST': text,
      'SLURM_STEP_NUM_TASKS': str(count),
      'SLURM_STEP_TASKS_PER_NODE': f'1(x{count})',
    }
    hosts = [_host(_find(environ, workers=count).coordinator)]
    for workers in range(1, count):
      found = _find(environ, workers=workers, dedicated=count - workers)
      hosts.append(_host(found.lead))

    self.assertLen(set(hosts), count)
    self.assertContainsSubsequence(hosts, some.split())
    self.assertEqual((hosts[0], hosts[-1]), (some.split()[0], some.split()[-1]))

  def test_hosts_with_several_tasks(self):
    environ = _SLURM | {'SLURM_STEP_NODELIST': 'single'}
    self.assertEqual(_host(_find(environ).coordinator), 'single')
    environ = _SLURM | {
      'SLURM_STEP_NODELIST': 'a,b,c,d',
      'SLURM_STEP_TASKS_PER_NODE': '2(x2),3,1',
      'SLURM_STEP_NUM_TASKS': '8',
    }
    leads = [
      _host(_find(environ, workers=w, dedicated=8 - w).lead)
      for w in range(1, 8)
    ]
    self.assertEqual(''.join(leads), 'abbcccd')
    cyclic = environ | {'SLURM_DISTRIBUTION': 'cyclic'}
    self.assertEqual(_host(_find(cyclic, workers=8).coordinator), 'a')
    message = 'SLURM_DISTRIBUTION: expected block .* --lead .* got .cyclic'
    with self.assertRaisesRegex(ValueError, message):
      _find(cyclic, workers=6, dedicated=2)
    found = _find(cyclic, workers=6, dedicated=2, lead='d:1')
    self.assertEqual(found.lead, 'd:1')

  def test_variables_of_the_job_replace_those_of_the_step(self):
    environ = {
      'SLURM_JOB_ID': '7',
      'SLURM_PROCID': '1',
      'SLURM_NTASKS': '2',
      'SLURM_JOB_NODELIST': 'n[1-2]',
      'SLURM_TASKS_PER_NODE': '1(x2)',
    }
    found = _find(environ, workers=1, dedicated=1)
    self.assertEqual((found[:2], _host(found.lead)), (('server', 0), 'n2'))

  def test_concurrent_jobs_have_ports_of_their_own(self):
    environ = _SLURM | {'SLURM_STEP_TASKS_PER_NODE': '4(x9)'}
    ports = []
    for job in range(5_000_000, 5_000_300):
      found = _find(
        environ | {'SLURM_JOB_ID': str(job)}, workers=3, dedicated=1
      )
      ports += [_port(found.coordinator), _port(found.lead)]
    self.assertLen(set(ports), 600)
    self.assertBetween(min(ports), 61000, 65535)
    self.assertLess(max(ports), 2**16)

  def test_open_mpi_on_one_host(self):
    found = _find(_OMPI, workers=3, dedicated=1)
    self.assertEqual(_host(found.coordinator), '127.0.0.1')
    self.assertEqual(_host(found.lead), '127.0.0.1')
    self.assertNotEqual(_port(found.coordinator), _port(found.lead))
    others = [
      _find(_OMPI | {'PMIX_NAMESPACE': str(65536 * n)}) for n in range(50)
    ]
    self.assertGreater(len({r.coordinator for r in others}), 40)

  def test_variables_give_addresses(self):
    environ = _OMPI | {
      'OMPI_COMM_WORLD_LOCAL_SIZE': '2',
      'SYNCOPATE_COORDINATOR': 'a:1',
      'SYNCOPATE_LEAD': 'b:2',
    }
    found = _find(environ, workers=3, dedicated=1)
    self.assertEqual(found, Role('worker', 0, 'a:1', 'b:2'))
    found = _find(environ, workers=3, dedicated=1, coordinator='c:3')
    self.assertEqual(found.coordinator, 'c:3')


class RefusalTest(parameterized.TestCase):
  @parameterized.parameters(
    ({}, {}, '--role: expected worker:R .* config.cluster.workers is 4'),
    ({'PMI_SIZE': '2'}, {'workers': 1}, "PMI_SIZE: expected '1' .* got '2'"),
    ({}, {'workers': 1, 'dedicated': 1}, '--role: .*servers, dedicated, is 1'),
    ({}, {'role': 'worker:4', 'coordinator': 'a:1'}, r'--role: .* R < 4 '),
    ({}, {'role': 'server:0', 'coordinator': 'a:1'}, '--role: .* got .server'),
    ({}, {'role': 'worker', 'coordinator': 'a:1'}, "--role: .* got 'worker'"),
    ({}, {'role': 'worker:-1', 'coordinator': 'a:1'}, '--role: expected'),
    ({}, {'role': 'worker:1'}, '--coordinator or SYNCOPATE_COORD.* HOST:PORT'),
    (
      {},
      {'role': 'worker:1', 'coordinator': 'a:1', 'dedicated': 1},
      '--lead or SYNCOPATE_LEAD: expected HOST:PORT',
    ),
    (
      {},
      {'role': 'worker:1', 'coordinator': 'a:1', 'lead': 'b:2'},
      'SYNCOPATE_LEAD: expected none, because no server .* got .b:2',
    ),
    *(
      ({}, {'role': 'worker:0', 'coordinator': text}, '--coordinator: expected')
      for text in ('host', 'host:', ':80', 'host:0', 'host:65536', 'a b:1')
    ),
    (
      _INDEXED | {'SYNCOPATE_COORDINATOR': 'host'},
      {},
      "SYNCOPATE_COORDINATOR: expected HOST:PORT, got 'host'",
    ),
    ({'JOB_COMPLETION_INDEX': '1'}, {}, 'SYNCOPATE_COORDINATOR: expected HOST'),
    (
      _INDEXED | {'JOB_COMPLETION_INDEX': '4'},
      {},
      'INDEX: .* than 4, .* got 4',
    ),
    (_INDEXED | {'JOB_COMPLETION_INDEX': ''}, {}, 'INDEX: expected a number'),
    (_SLURM | {'SLURM_STEP_NUM_TASKS': '5'}, {}, 'NUM_TASKS: .* 4 tasks.* 5'),
    (
      _SLURM,
      {'dedicated': 2},
      'SLURM_STEP_NUM_TASKS: expected 6 tasks, because config.cluster.workers '
      'is 4 and config.route.server.servers, dedicated, is 2, got 4',
    ),
    (_OMPI | {'OMPI_COMM_WORLD_SIZE': '1'}, {}, 'WORLD_SIZE: .* 4 tasks'),
    (_SLURM | {'SLURM_PROCID': 'x'}, {}, 'SLURM_PROCID: expected a number'),
    (_SLURM | {'SLURM_PROCID': '²'}, {}, 'SLURM_PROCID: expected a number'),
    (_SLURM | {'SLURM_JOB_ID': ''}, {}, 'SLURM_JOB_ID: expected a number'),
    *(
      (_SLURM | {'SLURM_STEP_NODELIST': text}, {}, 'NODELIST: expected')
      for text in ('', 'a,', 'n[1-', 'n[3-1]', 'n[]', 'n[1]]', 'a b', 'n[a]')
    ),
    (_SLURM | {'SLURM_STEP_NODELIST': 'n[0-99999999]'}, {}, '1 to 65536 hosts'),
    (
      _SLURM | {'SLURM_DISTRIBUTION': 'arbitrary'},
      {},
      'SLURM_DISTRIBUTION: .* --coordinator or',
    ),
    (
      _SLURM,
      {'workers': 3, 'dedicated': 1},
      'SLURM_STEP_TASKS_PER_NODE|SLURM_TASKS_PER_NODE',
    ),
    (
      _SLURM | {'SLURM_TASKS_PER_NODE': '4'},
      {'workers': 3, 'dedicated': 1},
      'SLURM_TASKS_PER_NODE: expected the tasks of 9 hosts',
    ),
    (
      _OMPI | {'OMPI_COMM_WORLD_LOCAL_SIZE': '2'},
      {},
      'SYNCOPATE_COORDINATOR: .*LOCAL_SIZE is 2 of 4 and',
    ),
    (_OMPI | {'PMIX_NAMESPACE': ''}, {}, 'no PMIX_NAMESPACE or OMPI_MCA'),
  )
  def test_refuses(self, environ, arguments, message):
    with self.assertRaisesRegex(ValueError, message):
      _find(environ, **arguments)


# Stand-ins for SLURM's programs.  Each task of the step has its session.
_FAKE_SRUN = """
import os, pathlib, signal, subprocess, sys, time
argv = sys.argv[1:]
options = [word for word in argv if word.startswith('--')]
while argv[0].startswith('--'):
  argv.pop(0)
count = int(os.environ['SLURM_NTASKS'])
own = dict(os.environ, SLURM_STEP_NUM_TASKS=str(count),
           SLURM_STEP_NODELIST=f'n[1-{count}]',
           SLURM_STEP_TASKS_PER_NODE=f'1(x{count})')
assert '--kill-on-bad-exit=1' in options, options
tasks = [
  subprocess.Popen(argv, env=own | {'SLURM_PROCID': str(rank)},
                   start_new_session=True)
  for rank in range(count)
]
pathlib.Path('pids').write_text(' '.join(str(task.pid) for task in tasks))
while any(task.poll() is None for task in tasks):
  if any(task.poll() for task in tasks):
    time.sleep(0.2)
    for task in tasks:
      if task.poll() is None:
        os.killpg(task.pid, signal.SIGKILL)
  time.sleep(0.01)
codes = [task.returncode for task in tasks]
sys.exit(max(code if code >= 0 else 128 - code for code in codes))
"""
_FAKE_SCANCEL = """
import os, pathlib, signal, sys
assert sys.argv[1:] == ['--signal=TERM', '77.0'], sys.argv
for pid in pathlib.Path('pids').read_text().split():
  os.killpg(int(pid), signal.SIGTERM)
"""
_FAKE_SCONTROL = """
import os, sys
if 'show' in sys.argv:
  print('JobId=77 JobState=' + os.environ.get('STATE', 'RUNNING') + ' Reason=')
else:
  with open('scontrol', 'a') as file:
    print(*sys.argv[1:], file=file)
"""
# Stands in for main.py; ends as the variable ENDS says of its rank.
_FAKE_MAIN = """
import json, os, pathlib, signal, sys, time
from cluster import roles
flags = dict(word[2:].split('=', 1) for word in sys.argv[1:])
servers = int(flags['config.route.server.servers'])
dedicated = servers * (flags['config.route.server.dedicated'] == 'True')
role = roles.find(os.environ, dedicated=dedicated,
                  workers=int(flags['config.cluster.workers']))
rank = os.environ['SLURM_PROCID']
own = os.environ.get('JAX_PLATFORMS')
def saved(*_):
  time.sleep(0.4 if (role.kind, role.index) == (LEAD, 0) else 0)
  pathlib.Path(f'saved-{rank}').touch()
  sys.exit(143)
LEAD = 'server' if dedicated else 'worker'
signal.signal(signal.SIGTERM, saved)
pathlib.Path(f'task-{rank}').write_text(json.dumps([role, flags, own]))
end = json.loads(os.environ.get('ENDS', '{}')).get(rank, 0)
if end == 'wait':
  time.sleep(20)
if end < 0:
  os.kill(os.getpid(), -end)
sys.exit(end)
"""


class SlurmTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(tempfile.mkdtemp())
    commands = self.folder / 'bin'
    commands.mkdir()
    for name, code in (
      ('srun', _FAKE_SRUN),
      ('scancel', _FAKE_SCANCEL),
      ('scontrol', _FAKE_SCONTROL),
    ):
      path = commands / name
      path.write_text(f'#!{sys.executable} -S\n{code}')
      path.chmod(0o755)
    (self.folder / '.venv/bin').mkdir(parents=True)
    (self.folder / '.venv/bin/python').symlink_to(sys.executable)
    (self.folder / 'main.py').write_text(_FAKE_MAIN)

  def _start(self, **environ):
    own = {
      'PATH': f'{self.folder / "bin"}:{os.environ["PATH"]}',
      'PYTHONPATH': str(_ROOT),
      'SLURM_SUBMIT_DIR': str(self.folder),
      'SLURM_JOB_ID': '77',
      'SLURM_NTASKS': '3',
    }
    left = {k: v for k, v in os.environ.items() if k != 'JAX_PLATFORMS'}
    return subprocess.Popen(
      ['bash', str(_ROOT / 'tools/slurm.sbatch'), '--config=x y.py'],
      env=left | own | environ,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )

  def _run(self, **environ):
    """Returns the exit code and what it has said."""
    with self._start(**environ) as process:
      _, errors = process.communicate(timeout=30)
    return process.returncode, errors

  def _tasks(self):
    paths = sorted(self.folder.glob('task-*'))
    return [json.loads(path.read_text()) for path in paths]

  def _requeued(self):
    path = self.folder / 'scontrol'
    return path.read_text().splitlines() if path.exists() else []

  def test_directives(self):
    path = _ROOT / 'tools/slurm.sbatch'
    subprocess.run(['bash', '-n', str(path)], check=True)
    lines = path.read_text().splitlines()
    given = [n for n, line in enumerate(lines) if line.startswith('#SBATCH ')]
    first = next(n for n, line in enumerate(lines) if line[:1] not in ('', '#'))
    # SLURM does not read those behind the first command.
    self.assertLess(max(given), first)
    options = dict(
      (lines[n].removeprefix('#SBATCH --') + '=').split('=')[:2] for n in given
    )
    self.assertContainsSubset(
      {'requeue': '', 'open-mode': 'append', 'signal': 'B:TERM@120'}, options
    )
    self.assertEqual(options['ntasks'], '4')
    self.assertIn('%j', options['output'])

  def test_every_task_finds_its_role(self):
    code, errors = self._run()

    self.assertEqual((code, errors), (0, ''))
    address = f'n1:{61440 + 77}'
    for rank, (role, flags, platforms) in enumerate(self._tasks()):
      self.assertEqual(role, ['worker', rank, address, ''])
      self.assertIsNone(platforms)
      self.assertEqual(flags['config'], 'x y.py')
      self.assertEqual(flags['config.cluster.runtime'], 'distributed')
      self.assertEqual(flags['config.cluster.interface'], 'eth0')
      self.assertEqual(flags['workdir'], f'{self.folder}/runs/slurm-77')
    self.assertEqual(rank, 2)
    self.assertEmpty(self._requeued())

  def test_dedicated_servers_are_the_last_tasks(self):
    code, errors = self._run(SERVERS='2', DEDICATED='True', SLURM_NTASKS='5')

    self.assertEqual((code, errors), (0, ''))
    found = [(role[:2], role[3], own) for role, _, own in self._tasks()]
    lead = f'n4:{63488 + 77}'
    expected = [(['worker', n], lead, None) for n in range(3)]
    expected += [(['server', n], lead, 'cpu') for n in range(2)]
    self.assertEqual(found, expected)

  @parameterized.parameters(('False', 0), ('True', 2))
  def test_sigterm_lets_the_lead_save_and_requeues(self, dedicated, lead):
    ends = json.dumps({str(rank): 'wait' for rank in range(3)})
    with self._start(ENDS=ends, DEDICATED=dedicated) as process:
      deadline = time.monotonic() + 20
      while len(self._tasks_there()) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
      process.send_signal(signal.SIGTERM)
      _, errors = process.communicate(timeout=20)

    self.assertEqual((process.returncode, errors), (0, ''))
    self.assertTrue((self.folder / f'saved-{lead}').exists())
    self.assertEqual(self._requeued(), ['requeue 77'])

  def _tasks_there(self):
    return [p for p in self.folder.glob('task-*') if p.stat().st_size]

  @parameterized.parameters(
    ({'1': 75}, {}, 0, True),
    ({'1': -9}, {'SLURM_RESTART_COUNT': '9'}, 0, True),
    ({'1': -9}, {'SLURM_RESTART_COUNT': '10'}, 137, False),
    ({'0': 143}, {'SLURM_RESTART_COUNT': '10'}, 0, True),
    ({'0': 143}, {'STATE': 'CANCELLED'}, 143, False),
    ({'1': 3, '0': 'wait', '2': 'wait'}, {}, 3, False),
  )
  def test_ends(self, ends, environ, expected, requeued):
    code, errors = self._run(ENDS=json.dumps(ends), **environ)

    self.assertEqual(code, expected, errors)
    self.assertEqual(self._requeued(), ['requeue 77'] * requeued)


class JobSetTest(parameterized.TestCase):
  def test_every_pod_finds_its_role(self):
    text = (_ROOT / 'tools/jobset.yaml').read_text()
    jobset = yaml.safe_load(text)

    spec = jobset['spec']
    (replicated,) = spec['replicatedJobs']
    job = replicated['template']['spec']
    pod = job['template']['spec']
    (container,) = pod['containers']
    self.assertEqual(job['completionMode'], 'Indexed')
    self.assertEqual(job['completions'], job['parallelism'])
    self.assertGreater(spec['failurePolicy']['maxRestarts'], 0)
    self.assertGreaterEqual(pod['terminationGracePeriodSeconds'], 60)
    words = [w for w in container['command'] if w.startswith('--')]
    flags = dict(word[2:].split('=', 1) for word in words)
    workers = int(flags['config.cluster.workers'])
    self.assertEqual(workers, job['completions'])
    environ = {e['name']: e.get('value', 'secret') for e in container['env']}
    mounts = [mount['mountPath'] for mount in container['volumeMounts']]
    self.assertIn(str(pathlib.Path(flags['workdir']).parent), mounts)
    names = [volume['name'] for volume in pod['volumes']]
    self.assertEqual([m['name'] for m in container['volumeMounts']], names)
    parts = jobset['metadata']['name'], replicated['name'], '0', '0'
    first = f'{"-".join(parts)}.{spec["network"]["subdomain"]}'
    for index in range(workers):
      own = environ | {'JOB_COMPLETION_INDEX': str(index)}
      found = roles.find(own, workers=workers, dedicated=0)
      self.assertEqual(found[:2], ('worker', index))
      self.assertEqual(_host(found.coordinator), first)


if __name__ == '__main__':
  absltest.main()
