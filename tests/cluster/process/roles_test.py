"""Tests for cluster/process/roles.py: ranks, addresses, refusals."""

import pathlib
import re
import socket

from absl.testing import absltest, parameterized

from cluster.network import sockets
from cluster.process import roles
from cluster.process.roles import Role

_SLURM = {
  'SLURM_JOB_ID': '4099',
  'SLURM_STEP_ID': '0',
  'SLURM_PROCID': '0',
  'SLURM_STEP_NUM_TASKS': '4',
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
_TORCHRUN = {
  'RANK': '0',
  'WORLD_SIZE': '4',
  'LOCAL_RANK': '0',
  'LOCAL_WORLD_SIZE': '4',
  'MASTER_ADDR': 'host0',
  'MASTER_PORT': '29500',
}
_PMI = {
  'PMI_RANK': '0',
  'PMI_SIZE': '4',
  'SYNCOPATE_COORDINATOR': 'host0:61500',
}
_PMIX = {'PMIX_RANK': '0', 'PMIX_NAMESPACE': 'prterun-host-78@1'}
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
      (_TORCHRUN, 'RANK'),
      (_PMI, 'PMI_RANK'),
      (_PMIX, 'PMIX_RANK'),
    ],
    workers=[1, 3, 4],
  )
  def test_ranks_are_workers_and_then_servers(self, environ, workers):
    environ, variable = environ
    dedicated = 4 - workers
    found = [
      _find(
        environ | {variable: str(rank)},
        workers=workers,
        dedicated=dedicated,
      )
      for rank in range(4)
    ]

    expected = [('worker', r) for r in range(workers)]
    expected += [('server', k) for k in range(dedicated)]
    self.assertEqual([(r.kind, r.index) for r in found], expected)
    self.assertLen({(r.coordinator, r.launch) for r in found}, 1)
    self.assertTrue(found[0].coordinator or found[0].launch)

  def test_flags_come_first(self):
    environ = _SLURM | _OMPI | _INDEXED | {'SLURM_PROCID': '3'}
    given = {'role': 'server:1', 'coordinator': 'me.example:65535'}
    found = _find(environ, dedicated=2, **given)
    self.assertEqual(found, Role('server', 1, 'me.example:65535'))
    found = _find({}, role='worker:3', coordinator='[::1]:80')
    self.assertEqual(found, Role('worker', 3, '[::1]:80'))

  @parameterized.parameters(
    # mpirun uses srun to reach other hosts, torchrun is within tasks of either.
    (_SLURM | _OMPI | {'OMPI_COMM_WORLD_RANK': '2'},),
    (_SLURM | _OMPI | _TORCHRUN | {'RANK': '2'},),
    (_INDEXED | _TORCHRUN | {'RANK': '2'},),
    # mpiexec of MPICH, of which srun starts a proxy on each host.
    (_SLURM | _PMI | {'PMI_RANK': '2', 'SLURM_STEP_NUM_TASKS': '2'},),
    (_SLURM | _PMIX | {'PMIX_RANK': '2', 'SLURM_STEP_NUM_TASKS': '2'},),
    # Open MPI 5 says it twice.
    (_PMIX | _OMPI | {'PMIX_RANK': '2', 'OMPI_COMM_WORLD_RANK': '2'},),
    # One of these alone says nothing.
    (_SLURM | {'SLURM_PROCID': '2', 'RANK': '1', 'PMI_RANK': '1'},),
  )
  def test_the_innermost_launcher_tells_the_rank(self, environ):
    self.assertEqual(_find(environ).index, 2)

  @parameterized.parameters(
    {'PMI_RANK': '3', 'PMI_SIZE': '4'},
    {'PMIX_RANK': '3', 'PMIX_NAMESPACE': 'slurm.pmix.4099.0'},
  )
  def test_variables_of_pmi_under_srun_count_as_slurm(self, **environ):
    found = _find(_SLURM | {'SLURM_PROCID': '3'} | environ)
    self.assertEqual((found.kind, found.index), ('worker', 3))
    self.assertEqual(found.launch, _find(_SLURM).launch)
    with self.assertRaisesRegex(ValueError, 'NUM_TASKS: expected 5 tasks'):
      _find(_SLURM | {'SLURM_PROCID': '3'} | environ, workers=5)

  def test_ranks_of_islands_are_those_of_their_processes(self):
    found = [
      _find(
        _SLURM | {'SLURM_PROCID': str(rank), 'SLURM_STEP_NUM_TASKS': '5'},
        workers=2,
        dedicated=1,
        hosts=2,
      ).name
      for rank in range(5)
    ]
    expected = ['worker 0', 'worker 0.1', 'worker 1', 'worker 1.1', 'server 0']
    self.assertEqual(found, expected)
    named = [
      _find({}, role=name.replace(' ', ':'), coordinator='a:1', hosts=2).name
      for name in ('worker 3', 'worker 3.1')
    ]
    self.assertEqual(named, ['worker 3', 'worker 3.1'])

  def test_a_single_worker_needs_nothing(self):
    found = [_find({}, workers=1) for _ in range(5)]
    for role in found:
      self.assertEqual((role.kind, role.index), ('worker', 0))
      self.assertEqual(_host(role.coordinator), '127.0.0.1')
      with socket.create_server(('127.0.0.1', _port(role.coordinator))):
        pass

  def test_a_run_of_one_process_uses_the_address_where_it_listens(self):
    found = _find({}, workers=1, here='10.0.0.7')
    self.assertEqual(_host(found.coordinator), '10.0.0.7')

  def test_fixed_ports_of_a_run_are_a_range_without_gaps(self):
    names = [f'worker {r}' for r in range(3)] + ['server 0', 'server 1']
    ports = [
      roles.listening_port(65531, name, workers=3, dedicated=2)
      for name in names
    ]
    self.assertEqual(ports, [*range(65531, 2**16)])
    found = {
      roles.listening_port(0, name, workers=3, dedicated=2) for name in names
    }
    self.assertEqual(found, {0})
    for first in (-1, 65532):
      with self.assertRaisesRegex(ValueError, f'at most 65531, .* got {first}'):
        roles.listening_port(first, 'worker 0', workers=3, dedicated=2)

  def test_islands_have_ports_after_those_of_all_processes(self):
    shape = {'workers': 2, 'dedicated': 1}
    first = 2**16 - 7
    own = [
      roles.listening_port(first, name, hosts=2, **shape)
      for name in ('worker 0', 'worker 1', 'server 0')
    ]
    others = [roles.island_ports(first, k, **shape) for k in range(2)]
    self.assertEqual([*own, *others[0], *others[1]], [*range(first, 2**16)])
    with self.assertRaisesRegex(ValueError, f'at most {first}, .* 7 ports'):
      roles.listening_port(first + 1, 'worker 0', hosts=2, **shape)

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
    (
      _SLURM,
      {'SLURM_JOB_ID': '4100'},
      {'SLURM_STEP_ID': '1'},
      {'SLURM_RESTART_COUNT': '1'},
    ),
    (_OMPI, {'PMIX_NAMESPACE': 'prterun-host-79@1'}),
    (
      {k: v for k, v in _OMPI.items() if k != 'PMIX_NAMESPACE'}
      | {'OMPI_MCA_ess_base_jobid': '1'},
      {'OMPI_MCA_ess_base_jobid': '2'},
    ),
    (_PMIX, {'PMIX_NAMESPACE': 'prterun-host-79@1'}),
    # mpiexec of MPICH in an allocation of SLURM.
    (
      {'PMI_RANK': '0', 'PMI_SIZE': '4', 'SLURM_JOB_ID': '1'},
      {'SLURM_JOB_ID': '2'},
      {'SLURM_RESTART_COUNT': '1'},
    ),
  )
  def test_each_start_has_a_name_of_its_own(self, environ, *others):
    found = [_find(environ | other) for other in ({}, *others)]
    self.assertEqual({role.coordinator for role in found}, {''})
    self.assertLen({role.launch for role in found} - {''}, 1 + len(others))

  @parameterized.parameters(1, 2)
  def test_torchrun_meets_beside_its_own_store(self, dedicated):
    role = _find(_TORCHRUN)
    self.assertEqual(role.coordinator, 'host0:29501')
    # On one host; on several, server 0 may be elsewhere.
    role = _find(_TORCHRUN, workers=4 - dedicated, dedicated=dedicated)
    self.assertEqual(role.coordinator, 'host0:29501')

  def test_torchrun_may_meet_at_an_ipv6_address(self):
    role = _find(_TORCHRUN | {'MASTER_ADDR': '::1'})
    self.assertEqual(role.coordinator, '[::1]:29501')
    self.assertEqual(sockets.split(role.coordinator), ('::1', 29501))

  def test_variables_give_addresses(self):
    environ = _OMPI | {
      'OMPI_COMM_WORLD_LOCAL_SIZE': '2',
      'SYNCOPATE_COORDINATOR': 'b:2',
    }
    for placed in ({'workers': 3, 'dedicated': 1}, {'workers': 4}):
      found = _find(environ, **placed)
      self.assertEqual(found, Role('worker', 0, 'b:2'))
      self.assertEqual(
        _find(environ, coordinator='c:3', **placed).coordinator, 'c:3'
      )


class RefusalTest(parameterized.TestCase):
  @parameterized.parameters(
    ({}, {}, '--role: expected worker:R .* config.cluster.workers is 4'),
    ({'PMI_SIZE': '2'}, {'workers': 1}, "PMI_SIZE: expected '1' .* got '2'"),
    ({}, {'workers': 1, 'dedicated': 1}, '--role: .*servers, dedicated, is 1'),
    ({}, {'role': 'worker:4', 'coordinator': 'a:1'}, r'--role: .* R < 4 '),
    ({}, {'role': 'server:0', 'coordinator': 'a:1'}, '--role: .* got .server'),
    ({}, {'role': 'worker', 'coordinator': 'a:1'}, "--role: .* got 'worker'"),
    ({}, {'role': 'worker:-1', 'coordinator': 'a:1'}, '--role: expected'),
    *(
      (
        {},
        {'role': 'worker:1', 'dedicated': dedicated},
        '--coordinator or SYNC.*: .* HOST',
      )
      for dedicated in (0, 1)
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
    (
      _SLURM | {'SLURM_STEP_NUM_TASKS': '9'},
      {'hosts': 2},
      'hosts_per_worker: expected a divisor of 9, the tasks of workers .* 2',
    ),
    (_SLURM, {'hosts': 2}, 'expected 8 tasks, .*hosts_per_worker is 2, got 4'),
    (
      {},
      {'role': 'worker:1.2', 'coordinator': 'a:1', 'hosts': 2},
      '--role: .* or worker:R.M, M < 2 .*hosts_per_worker.*1.2',
    ),
    ({}, {'role': 'worker:1.1', 'coordinator': 'a:1'}, '--role: .*1.1'),
    (_SLURM | {'SLURM_PROCID': 'x'}, {}, 'SLURM_PROCID: expected a number'),
    (_SLURM | {'SLURM_PROCID': '²'}, {}, 'SLURM_PROCID: expected a number'),
    (_SLURM | {'SLURM_JOB_ID': ''}, {}, 'SLURM_JOB_ID: expected a number'),
    (_TORCHRUN | {'WORLD_SIZE': '3'}, {}, 'WORLD_SIZE: expected 4 tasks, .* 3'),
    (_TORCHRUN | {'RANK': '4'}, {}, '^RANK: expected less than 4, .* got 4'),
    (_TORCHRUN | {'RANK': '-1'}, {}, '^RANK: expected a number'),
    *(
      (_TORCHRUN | {'MASTER_PORT': text}, {}, 'MASTER_PORT: expected a ')
      for text in ('', '0', 'x', '65534', '65535')
    ),
    (_TORCHRUN | {'MASTER_ADDR': 'a b'}, {}, 'MASTER_ADDR: expected a host'),
    (
      _TORCHRUN | {'MASTER_ADDR': ''},
      {},
      'COORDINATOR: .* there is no MASTER_ADDR',
    ),
    (
      _TORCHRUN | {'LOCAL_WORLD_SIZE': '2'},
      {'workers': 3, 'dedicated': 1},
      'SYNCOPATE_COORDINATOR: .* server 0 is the coord.* host of worker 0',
    ),
    (_PMI | {'PMI_SIZE': '3'}, {}, 'PMI_SIZE: expected 4 tasks, .* got 3'),
    (
      _PMI | {'SYNCOPATE_COORDINATOR': ''},
      {},
      'SYNCOPATE_COORDINATOR: expected HOST:PORT',
    ),
    (_PMIX | {'PMIX_RANK': '4'}, {}, 'PMIX_RANK: expected less than 4'),
    (
      _PMIX | {'PMIX_NAMESPACE': ''},
      {},
      'SYNCOPATE_COORDINATOR: .* there is no PMIX_NAMESPACE,',
    ),
    (_OMPI | {'PMIX_NAMESPACE': ''}, {}, 'no PMIX_NAMESPACE or OMPI_MCA'),
  )
  def test_refuses(self, environ, arguments, message):
    with self.assertRaisesRegex(ValueError, message):
      _find(environ, **arguments)


if __name__ == '__main__':
  absltest.main()
