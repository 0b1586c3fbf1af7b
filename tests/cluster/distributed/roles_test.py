"""Tests for cluster/distributed/roles.py: ranks, addresses, refusals."""

import pathlib
import re
import socket

from absl.testing import absltest, parameterized

from cluster.distributed import roles
from cluster.distributed.roles import Role

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
  'SYNCOPATE_LEAD': 'run-workers-0-0.run:8476',
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
    slurm = {'SLURM_STEP_TASKS_PER_NODE': '1(x9)'}
    found = [
      _find(
        environ | slurm | {variable: str(rank)},
        workers=workers,
        dedicated=dedicated,
      )
      for rank in range(4)
    ]

    expected = [('worker', r) for r in range(workers)]
    expected += [('server', k) for k in range(dedicated)]
    self.assertEqual([(r.kind, r.index) for r in found], expected)
    self.assertLen({r.lead for r in found}, 1)

  def test_flags_come_first(self):
    environ = _SLURM | _OMPI | _INDEXED | {'SLURM_PROCID': '3'}
    given = {'role': 'server:1', 'lead': 'me.example:65535'}
    found = _find(environ, dedicated=2, **given)
    self.assertEqual(found, Role('server', 1, 'me.example:65535'))
    found = _find({}, role='worker:3', lead='[::1]:80')
    self.assertEqual(found, Role('worker', 3, '[::1]:80'))

  def test_mpirun_comes_before_the_srun_that_it_uses(self):
    environ = _SLURM | _OMPI | {'OMPI_COMM_WORLD_RANK': '2'}
    self.assertEqual(_find(environ).index, 2)

  def test_a_single_worker_needs_nothing(self):
    found = [_find({}, workers=1) for _ in range(5)]
    for role in found:
      self.assertEqual(role[:2], ('worker', 0))
      self.assertEqual(_host(role.lead), '127.0.0.1')
      with socket.create_server(('127.0.0.1', _port(role.lead))):
        pass

  def test_a_run_on_one_host_meets_where_its_lead_listens(self):
    for environ, workers in (({}, 1), (_OMPI, 4)):
      found = _find(environ, workers=workers, here='10.0.0.7')
      self.assertEqual(_host(found.lead), '10.0.0.7')

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
    hosts = [_host(_find(environ, workers=count).lead)]
    for workers in range(1, count):
      found = _find(environ, workers=workers, dedicated=count - workers)
      hosts.append(_host(found.lead))

    self.assertLen(set(hosts), count)
    self.assertContainsSubsequence(hosts, some.split())
    self.assertEqual((hosts[0], hosts[-1]), (some.split()[0], some.split()[-1]))

  def test_hosts_with_several_tasks(self):
    environ = _SLURM | {'SLURM_STEP_NODELIST': 'single'}
    self.assertEqual(_host(_find(environ).lead), 'single')
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
    self.assertEqual(_host(_find(cyclic, workers=8).lead), 'a')
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
      ports.append(_port(found.lead))
    self.assertLen(set(ports), 300)
    self.assertBetween(min(ports), 61000, 65535)
    self.assertLess(max(ports), 2**16)

  def test_open_mpi_on_one_host(self):
    found = _find(_OMPI, workers=3, dedicated=1)
    self.assertEqual(_host(found.lead), '127.0.0.1')
    others = [
      _find(_OMPI | {'PMIX_NAMESPACE': str(65536 * n)}) for n in range(50)
    ]
    self.assertGreater(len({r.lead for r in others}), 40)

  def test_variables_give_addresses(self):
    environ = _OMPI | {
      'OMPI_COMM_WORLD_LOCAL_SIZE': '2',
      'SYNCOPATE_LEAD': 'b:2',
    }
    for placed in ({'workers': 3, 'dedicated': 1}, {'workers': 4}):
      found = _find(environ, **placed)
      self.assertEqual(found, Role('worker', 0, 'b:2'))
      self.assertEqual(_find(environ, lead='c:3', **placed).lead, 'c:3')


class RefusalTest(parameterized.TestCase):
  @parameterized.parameters(
    ({}, {}, '--role: expected worker:R .* config.cluster.workers is 4'),
    ({'PMI_SIZE': '2'}, {'workers': 1}, "PMI_SIZE: expected '1' .* got '2'"),
    ({}, {'workers': 1, 'dedicated': 1}, '--role: .*servers, dedicated, is 1'),
    ({}, {'role': 'worker:4', 'lead': 'a:1'}, r'--role: .* R < 4 '),
    ({}, {'role': 'server:0', 'lead': 'a:1'}, '--role: .* got .server'),
    ({}, {'role': 'worker', 'lead': 'a:1'}, "--role: .* got 'worker'"),
    ({}, {'role': 'worker:-1', 'lead': 'a:1'}, '--role: expected'),
    *(
      (
        {},
        {'role': 'worker:1', 'dedicated': dedicated},
        '--lead or SYNC.*: .* HOST',
      )
      for dedicated in (0, 1)
    ),
    (
      {'SYNCOPATE_COORDINATOR': 'a:1'},
      {'role': 'worker:1', 'lead': 'b:2'},
      'SYNCOPATE_COORDINATOR: expected nothing: it is called SYNCOPATE_LEAD',
    ),
    *(
      ({}, {'role': 'worker:0', 'lead': text}, '--lead: expected')
      for text in ('host', 'host:', ':80', 'host:0', 'host:65536', 'a b:1')
    ),
    (
      _INDEXED | {'SYNCOPATE_LEAD': 'host'},
      {},
      "SYNCOPATE_LEAD: expected HOST:PORT, got 'host'",
    ),
    ({'JOB_COMPLETION_INDEX': '1'}, {}, 'SYNCOPATE_LEAD: expected HOST'),
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
      'SLURM_DISTRIBUTION: .* --lead or',
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
      'SYNCOPATE_LEAD: .*LOCAL_SIZE is 2 of 4 and',
    ),
    (_OMPI | {'PMIX_NAMESPACE': ''}, {}, 'no PMIX_NAMESPACE or OMPI_MCA'),
  )
  def test_refuses(self, environ, arguments, message):
    with self.assertRaisesRegex(ValueError, message):
      _find(environ, **arguments)


if __name__ == '__main__':
  absltest.main()
