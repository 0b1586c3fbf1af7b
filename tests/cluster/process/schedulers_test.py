"""Tests for tools/slurm.sbatch and tools/jobset.yaml.

Stand-ins take the places of SLURM's programs and of main.py.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import yaml
from absl.testing import absltest, parameterized

from cluster.membership.terms import Place, Terms
from cluster.network import memory
from cluster.process import roles
from configs import relations, sections
from tests.docs import pages
from tests.support import launches

_ROOT = pathlib.Path(__file__).parents[3]
_LAUNCH = 'slurm job 77 step 0 restart 0'
# Stand-ins for SLURM's programs.  Each task of the step has its session.
_FAKE_SRUN = """
import os, pathlib, signal, subprocess, sys, time
argv = sys.argv[1:]
options = [word for word in argv if word.startswith('--')]
while argv[0].startswith('--'):
  argv.pop(0)
(count,) = [int(word[9:]) for word in options if word.startswith('--ntasks=')]
if os.environ.get('REFUSED'):
  sys.exit('srun: error: Unable to create step')
if 'NOTED' in os.environ:
  path = pathlib.Path(os.environ['codes'], '7')
  path.write_text(os.environ['NOTED'])
own = dict(os.environ, SLURM_STEP_NUM_TASKS=str(count), SLURM_STEP_ID='0')
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
  # As proctrack/cgroup does, or as proctrack/pgid.
  (os.kill if os.environ['PROCTRACK'] == 'cgroup' else os.killpg)(
      int(pid), signal.SIGTERM)
"""
_FAKE_SCONTROL = """
import os, sys
if 'show' in sys.argv:
  print('JobId=77 JobState=' + os.environ.get('STATE', 'RUNNING') + ' Reason=')
else:
  with open('scontrol', 'a') as file:
    print(*sys.argv[1:], file=file)
"""
# The launcher, with the stand-in for main.py, and without its patience.
_FAKE_LAUNCH = f"""
import importlib.util, pathlib
from absl import app
from launch import launcher
path = '{_ROOT}/tools/launch.py'
spec = importlib.util.spec_from_file_location('launch', path)
launch = importlib.util.module_from_spec(spec)
spec.loader.exec_module(launch)
launcher._BACKOFF_S, launch._MAIN = 0.01, pathlib.Path('main.py').resolve()
app.run(launch.main, flags_parser=launch._parse)
"""
# Stands in for main.py; ends as the variable ENDS says of its rank, or of its
# rank and incarnation.
_FAKE_MAIN = """
import json, os, pathlib, signal, sys, time
from cluster.distributed import roles
flags = dict(word[2:].split('=', 1) for word in sys.argv[1:])
servers = int(flags['config.route.server.servers'])
dedicated = servers * ('config.route.server.dedicated' in flags)
role = roles.find(os.environ, dedicated=dedicated,
                  workers=int(flags['config.cluster.workers']))
rank = os.environ['SLURM_PROCID']
own = [os.environ.get(name) for name in ('JAX_PLATFORMS', 'GLIBC_TUNABLES')]
def saved(*_):
  time.sleep(0.4 if rank == os.environ.get('SAVES') else 0)
  pathlib.Path(f'saved-{rank}').touch()
  sys.exit(143)
signal.signal(signal.SIGTERM, saved)
pathlib.Path(f'task-{rank}').write_text(json.dumps(
  [list(vars(role).values()), flags, own]))
end = json.loads(os.environ.get('ENDS', '{}')).get(rank, 0)
if isinstance(end, list):
  end = end[int(os.environ['SYNCOPATE_RESTARTS'])]
for _ in range(400 if end == 'wait' else 0):
  time.sleep(0.05)  # A signal that comes just before is heeded after it.
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
    python = self.folder / '.venv/bin/python'
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (self.folder / 'main.py').write_text(_FAKE_MAIN)
    (self.folder / 'tools').mkdir()
    (self.folder / 'tools/launch.py').write_text(_FAKE_LAUNCH)

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
    """Returns the exit code and the output."""
    with self._start(**environ) as process:
      _, errors = process.communicate(timeout=30)
    return process.returncode, errors

  def _tasks(self):
    paths = sorted(self.folder.glob('task-*'))
    return [json.loads(path.read_text()) for path in paths]

  def test_another_command_runs_python(self):
    python = f'env TASK_OF=77 {self.folder}/.venv/bin/python'
    code, errors = self._run(SLURM_NTASKS='2', PYTHON=python)
    self.assertEqual(code, 0, errors)
    self.assertLen(self._tasks(), 2)

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
    # Partitions without GPUs, or with fewer nodes, would refuse the job, and so
    # would SLURM if --nodes and --ntasks-per-node give other numbers.
    asked = [
      option
      for option in options
      if 'gpu' in option or option in ('nodes', 'ntasks')
    ]
    self.assertEmpty(asked)
    self.assertIn('%j', options['output'])

  def test_every_task_finds_its_role(self):
    code, errors = self._run()

    self.assertEqual((code, errors), (0, ''))
    for rank, (role, flags, own) in enumerate(self._tasks()):
      self.assertEqual(role, ['worker', rank, '', _LAUNCH, 0])
      self.assertEqual(own, [None, memory.ENVIRONMENT['GLIBC_TUNABLES']])
      self.assertEqual(flags['config'], 'x y.py')
      self.assertEqual(flags['config.cluster.runtime'], 'distributed')
      self.assertEqual(flags['config.cluster.interface'], 'eth0')
      self.assertNotIn('config.cluster.token_file', flags)
      self.assertEqual(flags['workdir'], f'{self.folder}/runs/slurm-77')
    self.assertEqual(rank, 2)
    self.assertEmpty(self._requeued())

  @parameterized.parameters(({}, 2), ({'SLURM_NTASKS_PER_NODE': '2'}, 4))
  def test_without_a_number_of_tasks_nodes_have_theirs(self, environ, tasks):
    own = {'SLURM_NTASKS': '', 'SLURM_JOB_NUM_NODES': '2'}
    code, errors = self._run(**own | environ)
    self.assertEqual((code, errors), (0, ''))
    self.assertLen(self._tasks(), tasks)

  def test_a_start_without_a_task_is_final(self):
    code, errors = self._run(REFUSED='1')
    self.assertEqual(code, 1)
    self.assertIn('Unable to create step', errors)
    self.assertIn('No task has started', errors)
    self.assertEmpty(self._requeued())

  @parameterized.parameters(
    'codes[$(touch ran)]', 'a[$(touch ran)0]', '0x8f', '-1'
  )
  def test_text_in_the_place_of_a_code_is_refused_and_not_run(self, text):
    """Bash's arithmetic runs the commands in an index."""
    code, errors = self._run(NOTED=text)
    self.assertEqual(code, 1, errors)
    self.assertIn('Task 7: expected its exit code', errors)
    self.assertFalse((self.folder / 'ran').exists())

  def test_a_code_with_leading_zeros_is_decimal(self):
    code, errors = self._run(NOTED='009')
    self.assertEqual(code, 9, errors)

  def test_dedicated_servers_are_the_last_tasks(self):
    code, errors = self._run(SERVERS='2', DEDICATED='True', SLURM_NTASKS='5')

    self.assertEqual((code, errors), (0, ''))
    found = [(role, own[0]) for role, _, own in self._tasks()]
    expected = [(['worker', n, '', _LAUNCH, 0], None) for n in range(3)]
    expected += [(['server', n, '', _LAUNCH, 0], 'cpu') for n in range(2)]
    self.assertEqual(found, expected)

  @parameterized.parameters(
    ('False', 0, 'pgid'),
    ('True', 2, 'cgroup'),
    ('False', 0, 'cgroup'),
    ('False', 1, 'cgroup'),  # A successor in an allreduce of hosts.
  )
  def test_sigterm_makes_the_coordinator_save_and_requeues(
    self, dedicated, coordinator, proctrack
  ):
    ends = json.dumps({str(rank): 'wait' for rank in range(3)})
    environ = {'DEDICATED': dedicated, 'PROCTRACK': proctrack}
    environ['SAVES'] = str(coordinator)
    if coordinator == 1:
      run = self.folder / 'runs/slurm-77'
      run.mkdir(parents=True)
      config = {'config': {'route': {'name': 'ring'}}}
      (run / 'manifest.json').write_text(json.dumps(config))
      Terms(run).publish(Place(2, coordinator, '10.0.0.1:1', {}))
    with self._start(ENDS=ends, **environ) as process:
      deadline = time.monotonic() + 20
      while len(self._tasks_there()) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
      process.send_signal(signal.SIGTERM)
      _, errors = process.communicate(timeout=20)

    self.assertEqual((process.returncode, errors), (0, ''))
    self.assertTrue((self.folder / f'saved-{coordinator}').exists())
    self.assertEqual(self._requeued(), ['requeue 77'])

  def _tasks_there(self):
    return [p for p in self.folder.glob('task-*') if p.stat().st_size]

  @parameterized.parameters(
    ({'1': [-9, 75, 0], '0': [-9, 0]}, {}, 0, False),
    ({'1': 75}, {}, 0, True),
    ({'1': -9}, {'SLURM_RESTART_COUNT': '9'}, 0, True),
    ({'1': -9}, {'SLURM_RESTART_COUNT': '10'}, 137, False),
    ({'0': 143}, {'SLURM_RESTART_COUNT': '10'}, 0, True),
    ({'0': 143}, {'STATE': 'CANCELLED'}, 143, False),
    ({'1': 143}, {}, 0, False),  # The run has finished.
    ({'1': 3, '0': 'wait'}, {}, 3, False),
  )
  def test_ends(self, ends, environ, expected, requeued):
    environ = {'SLURM_NTASKS': '2'} | environ
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
    self.assertGreater(job['backoffLimit'], 0)
    words = [w for w in container['command'] if '=' in w]
    flags = dict(word[2:].split('=', 1) for word in words)
    grace_s = pod['terminationGracePeriodSeconds']
    self.assertGreater(grace_s, float(flags['grace_s']))
    workers = int(flags['workers'])
    self.assertEqual(workers, job['completions'])
    environ = {e['name']: e['value'] for e in container['env']}
    self.assertEqual(
      container['command'][1:4], ['-m', 'tools.launch', '--rank']
    )
    mounts = [mount['mountPath'] for mount in container['volumeMounts']]
    self.assertIn(str(pathlib.Path(flags['workdir']).parent), mounts)
    names = [volume['name'] for volume in pod['volumes']]
    self.assertEqual([m['name'] for m in container['volumeMounts']], names)
    parts = jobset['metadata']['name'], replicated['name'], '0', '0'
    first = f'{"-".join(parts)}.{spec["network"]["subdomain"]}'
    for index in range(workers):
      own = environ | {'JOB_COMPLETION_INDEX': str(index)}
      found = roles.find(own, workers=workers, dedicated=0)
      self.assertEqual((found.kind, found.index), ('worker', index))
      self.assertRegex(found.coordinator, rf'^{re.escape(first)}:\d+\Z')
      self.assertEqual(found.launch, '')

  def test_commands_of_pods_are_parsed(self):
    jobset = yaml.safe_load((_ROOT / 'tools/jobset.yaml').read_text())
    (replicated,) = jobset['spec']['replicatedJobs']
    pod = replicated['template']['spec']['template']['spec']
    (container,) = pod['containers']
    _, *words = container['command']
    split = words.index('--')
    self.assertEqual(words[:2], ['-m', 'tools.launch'])
    own, given = words[2:split], words[split + 1 :]
    environ = {e['name']: e['value'] for e in container['env']}
    environ['JOB_COMPLETION_INDEX'] = '3'
    with launches.launch(
      'print(*sys.argv[1:])',
      words=[re.sub('^--workdir=.*', '--workdir=FOLDER', w) for w in own]
      + ['--', *given],
      environ=environ,
    ) as (process, _):
      out, errors = process.communicate(timeout=launches.LIMIT_S)
    self.assertEqual((process.returncode, errors), (0, ''))
    self.assertStartsWith(out, f'[worker 3] {" ".join(given)} ')
    config, others = pages.config(
      [*given, '--config.cluster.runtime=distributed']
    )
    sections.check_fields(config)
    relations.check_relations(config)
    self.assertEmpty(others)
    # The token is where the secret is, under the name that the page gives it.
    mounts = {m['name']: m['mountPath'] for m in container['volumeMounts']}
    token = pathlib.Path(config.cluster.token_file)
    self.assertEqual(str(token.parent), mounts['secret'])
    page = (_ROOT / 'docs/clusters.md').read_text()
    (volume,) = [v for v in pod['volumes'] if 'secret' in v]
    created = rf'secret generic {volume["secret"]["secretName"]} '
    self.assertRegex(page, rf'{created}\\\n\s+--from-literal={token.name}=')


if __name__ == '__main__':
  absltest.main()
