"""The role of a process in a run, from flags and the environment.

A run has W workers and D dedicated servers (none if workers hold the shards).

  rank            role       coordinator
  r < W           worker r   worker 0, if no server is dedicated
  W + k < W + D   server k   server 0

If a worker is an island of P processes, ranks r P to r P + P - 1 are those of
worker r.  The first is its leader, and process m > 0 has the role worker r.m.

The first of these sources that is present gives the rank of this process, and
the number of processes that were started:

  --role=worker:R, --role=worker:R.M or --role=server:K
  RANK                    WORLD_SIZE                              torchrun
  OMPI_COMM_WORLD_RANK    OMPI_COMM_WORLD_SIZE                    Open MPI
  PMIX_RANK               -                                       PMIx
  PMI_RANK                PMI_SIZE                                MPICH
  SLURM_PROCID            SLURM_STEP_NUM_TASKS or SLURM_NTASKS    SLURM
  JOB_COMPLETION_INDEX    -                                       Kubernetes
  nothing: worker 0, if the run has no other process

Launchers that start processes inside tasks of others come first: torchrun runs
in tasks of srun and mpirun, and mpirun reaches other hosts through srun.  The
PMI and PMIx of srun itself count as SLURM, whose variables say more.

All processes connect to the address of the coordinator, HOST:PORT.  It is that
of --coordinator, else of SYNCOPATE_COORDINATOR, else with torchrun MASTER_ADDR
and the port after MASTER_PORT, where torchrun's own store listens.  Without any
of these the coordinator writes its address into the run's folder
(`cluster.membership.rendezvous_files`), with the name of this launch, which
distinguishes it from an earlier one: SYNCOPATE_LAUNCH, which `tools.launch`
sets on Ray, or the name that SLURM or MPI has given to it.
"""

import contextlib
import dataclasses
import errno
import random
import re
from collections.abc import Mapping
from typing import Any

from cluster.network import sockets
from configs.checks import require
from system import net

_ROLE = re.compile(r'(worker|server):(\d{1,9})(?:\.(\d{1,9}))?')
_ADDRESS = re.compile(r'(?:[^\s:\[\]]+|\[[0-9a-fA-F:.]+\]):(\d{1,5})')
# Variables of the rank, each with those of the number of processes.  Where
# there is none, the number cannot be checked.
_SOURCES = {
  'RANK': ('WORLD_SIZE',),
  'OMPI_COMM_WORLD_RANK': ('OMPI_COMM_WORLD_SIZE',),
  'PMIX_RANK': (),
  'PMI_RANK': ('PMI_SIZE',),
  'SLURM_PROCID': ('SLURM_STEP_NUM_TASKS', 'SLURM_NTASKS'),
  'JOB_COMPLETION_INDEX': (),
}
# Generic names, which count only beside the number of processes.
_PAIRED = ('RANK', 'PMI_RANK')
# Variables with the name of a launch, of Open MPI 5 and of earlier versions.
_MPI_LAUNCHES = {
  'OMPI_COMM_WORLD_RANK': ('PMIX_NAMESPACE', 'OMPI_MCA_ess_base_jobid'),
  'PMIX_RANK': ('PMIX_NAMESPACE',),
}
_SLURM_PMIX = 'slurm.pmix.'  # Prefix of the namespaces of srun's own PMIx.
_ADDRESS_SOURCES = '--coordinator or SYNCOPATE_COORDINATOR'
_PORTS = range(20000, 32000)


@dataclasses.dataclass(frozen=True)
class Role:
  """The role of a process in a run.

  Attributes:
    kind: 'worker' or 'server'.
    index: Rank from 0, among the workers or among the dedicated servers.
    coordinator: HOST:PORT of the coordinator; '' if it is to be read from the
      run's folder.
    launch: Name that `tools.launch`, SLURM or MPI has given to this launch, if
      the address is to be read from the run's folder; else ''.
    member: Rank of the process in its island; 0 for a leader, or without one.
  """

  kind: str
  index: int
  coordinator: str
  launch: str = ''
  member: int = 0

  @property
  def name(self) -> str:
    """Such as 'worker 3', 'server 0', or 'worker 3.1' for a follower."""
    return f'{self.kind} {self.index}' + (
      f'.{self.member}' if self.member else ''
    )


def find(
  environ: Mapping[str, str],
  *,
  workers: int,
  dedicated: int,
  role: str = '',
  coordinator: str = '',
  here: str = '127.0.0.1',
  port: int = 0,
  hosts: int = 1,
) -> Role:
  """Returns the role of this process.

  Args:
    environ: Environment variables.
    workers: Number of workers, at least 1.
    dedicated: Number of servers with processes of their own.
    role: Value of the flag --role, '' without it.
    coordinator: Value of the flag --coordinator, HOST:PORT or ''.
    here: Address of this host, on which the coordinator of a run with a single
      process listens.
    port: Port on which that coordinator listens; 0 for a free one.
    hosts: Number of processes of each worker.

  Raises:
    ValueError: If a value is missing or malformed, or if another number of
      processes was started than the run has.
  """
  source = '' if role else _source(environ)
  member = 0
  if role:
    kind, index, member = _parse(role, workers, dedicated, hosts)
  else:
    rank = _rank(environ, source, workers, dedicated, hosts)
    kind, index = 'server', rank - workers * hosts
    if rank < workers * hosts:
      kind = 'worker'
      index, member = divmod(rank, hosts)
  coordinator = _address(environ, coordinator)
  if not coordinator and workers * hosts + dedicated == 1:
    coordinator = sockets.join(here, port or free_ports(1)[0])
  elif not coordinator and source == 'RANK':
    coordinator = _torchrun_address(environ, dedicated)
  launch = ''
  if not coordinator:
    launch = environ.get('SYNCOPATE_LAUNCH') or _launch(environ, source)
  found = bool(coordinator or launch)
  require(found, _ADDRESS_SOURCES, _expected_address(source), '')
  return Role(kind, index, coordinator, launch, member)


def listening_port(
  first: int, role: str, *, workers: int, dedicated: int, hosts: int = 1
) -> int:
  """Returns the port of a process: the first one + its rank; 0 for any.

  Ranks of dedicated servers follow those of workers, so that all processes of a
  run differ, even on one host.  Followers of islands listen on none.

  Args:
    first: config.cluster.port; 0 for any port.
    role: Such as 'worker 3' or 'server 0'.
    workers: Number of workers.
    dedicated: Number of servers with processes of their own.
    hosts: Number of processes of each worker; islands have two more ports each
      (`island_ports`), after those of all processes.

  Raises:
    ValueError: If a port of the run exceeds the last one, 65535.
  """
  if not first:
    return 0
  count = workers + dedicated
  expected = f'at most {2**16 - count}, as {count} processes have a port each'
  if hosts > 1:
    count += 2 * workers
    expected = f'at most {2**16 - count}, as the run has {count} ports'
  require(0 < first <= 2**16 - count, 'config.cluster.port', expected, first)
  kind, _, index = role.partition(' ')
  return first + int(index) + (workers if kind == 'server' else 0)


def island_ports(
  first: int, index: int, *, workers: int, dedicated: int
) -> tuple[int, int]:
  """Returns two ports of an island's leader: for followers, and for XLA.

  Args:
    first: config.cluster.port; 0 for free ports.
    index: Rank of the island among the workers.
    workers: Number of workers.
    dedicated: Number of servers with processes of their own.
  """
  if not first:
    control, service = free_ports(2)
    return control, service
  control = first + workers + dedicated + 2 * index
  return control, control + 1


def leading(dedicated: int) -> str:
  """Returns the coordinator's process: 'worker 0' or 'server 0'."""
  return 'server 0' if dedicated else 'worker 0'


def free_ports(count: int) -> list[int]:
  """Returns different ports that are free on this machine at this moment.

  They are outside the range from which Linux assigns ports to outgoing
  connections, which could otherwise take one of them meanwhile.
  """
  ports: list[int] = []
  is_dual = net.has_dualstack_ipv6()
  options: dict[str, Any] = {'dualstack_ipv6': is_dual}
  options['family'] = net.AF_INET6 if is_dual else net.AF_INET
  with contextlib.ExitStack() as stack:
    for port in random.sample(_PORTS, len(_PORTS)):
      if len(ports) == count:
        return ports
      with contextlib.suppress(OSError):
        stack.enter_context(net.create_server(('', port), **options))
        ports.append(port)
  message = f'Expected {count} free ports in {_PORTS}, got {len(ports)}.'
  raise OSError(errno.EADDRINUSE, message)


def is_address(text: str) -> bool:
  """Returns whether a text is HOST:PORT."""
  match = _ADDRESS.fullmatch(text)
  return match is not None and 0 < int(match[1]) < 2**16


def _source(environ: Mapping[str, str]) -> str:
  """Returns the variable that gives the rank; '' if none does."""
  found = [name for name in _SOURCES if name in environ]
  for name in _PAIRED:
    if name in found and not environ.get(_SOURCES[name][0]):
      found.remove(name)
  if environ.get('PMIX_NAMESPACE', '').startswith(_SLURM_PMIX):
    found = [name for name in found if name != 'PMIX_RANK']
  if {'PMI_RANK', 'SLURM_PROCID'} <= set(found):
    tasks = environ.get(_first(environ, *_SOURCES['SLURM_PROCID']))
    of_slurm = environ['SLURM_PROCID'], tasks
    if (environ['PMI_RANK'], environ['PMI_SIZE']) == of_slurm:
      found.remove('PMI_RANK')
  return found[0] if found else ''


def _parse(
  role: str, workers: int, dedicated: int, hosts: int
) -> tuple[str, int, int]:
  """Returns kind, rank and rank in the island from the value of --role."""
  match = _ROLE.fullmatch(role)
  total = {'worker': workers, 'server': dedicated}
  kind, rank, member = match.groups() if match else ('', '', '')
  valid = match is not None and int(rank) < total[kind]
  valid &= not member or (kind == 'worker' and int(member) < hosts)
  expected = f'worker:R, R < {workers} (config.cluster.workers)'
  if hosts > 1:
    expected += (
      f', or worker:R.M, M < {hosts} (config.cluster.hosts_per_worker)'
    )
  if dedicated:
    expected += f', or server:K, K < {dedicated} (config.route.server.servers)'
  require(valid, '--role', expected, role)
  return kind, int(rank), int(member or 0)


def _rank(
  environ: Mapping[str, str],
  source: str,
  workers: int,
  dedicated: int,
  hosts: int,
) -> int:
  """Returns the rank that the environment gives."""
  total = workers * hosts + dedicated
  counted = f'config.cluster.workers is {workers}'
  if hosts > 1:
    counted += f', config.cluster.hosts_per_worker is {hosts}'
  if dedicated:
    counted += f' and config.route.server.servers, dedicated, is {dedicated}'
  if not source:
    expected = (
      'worker:R or server:K where neither srun, mpirun, torchrun nor a '
    )
    expected += f'Kubernetes Indexed Job tells the rank, because {counted}'
    require(total == 1, '--role', expected, '')
    # Some mpiruns give no rank: each process would take itself for worker 0.
    started = environ.get('PMI_SIZE', '1')
    expected = f"'1' process, because {counted} and there is no --role"
    require(started in ('', '0', '1'), 'PMI_SIZE', expected, started)
    return 0
  if variables := _SOURCES[source]:
    variable = _first(environ, *variables)
    tasks = _number(environ, variable)
    if hosts > 1:
      expected = (
        f'a divisor of {tasks - dedicated}, the tasks of workers ({variable})'
      )
      divides = (tasks - dedicated) % hosts == 0
      require(divides, 'config.cluster.hosts_per_worker', expected, hosts)
    expected = f'{total} tasks, because {counted}'
    require(tasks == total, variable, expected, tasks)
  rank = _number(environ, source)
  require(rank < total, source, f'less than {total}, because {counted}', rank)
  return rank


def _address(environ: Mapping[str, str], flag: str) -> str:
  """Returns the address from its flag or its variable; '' without either."""
  address = flag or environ.get('SYNCOPATE_COORDINATOR', '')
  valid = not address or is_address(address)
  require(
    valid,
    '--coordinator' if flag else 'SYNCOPATE_COORDINATOR',
    'HOST:PORT',
    address,
  )
  return address


def _torchrun_address(environ: Mapping[str, str], dedicated: int) -> str:
  """Returns the address after that of torchrun's store; '' if it has none."""
  host = environ.get('MASTER_ADDR', '')
  if not host:
    return ''
  port = _number(environ, 'MASTER_PORT')
  valid = 0 < port < 2**16 - 2
  require(valid, 'MASTER_PORT', f'a port below {2**16 - 2}', port)
  address = sockets.join(host, port + 1)
  require(is_address(address), 'MASTER_ADDR', 'a host', host)
  if dedicated:  # MASTER_ADDR is the host of rank 0, a worker.
    size = environ['WORLD_SIZE']
    is_one_host = environ.get('LOCAL_WORLD_SIZE') == size
    expected = (
      f'HOST:PORT, because server 0 is the coordinator, with {size} processes '
      'on several hosts, and MASTER_ADDR is the host of worker 0'
    )
    require(is_one_host, _ADDRESS_SOURCES, expected, '')
  return address


def _launch(environ: Mapping[str, str], source: str) -> str:
  """Returns the name of this launch of all processes; '' if it has none."""
  if not source or source == 'JOB_COMPLETION_INDEX':
    return ''
  for variable in _MPI_LAUNCHES.get(source, ()):
    if environ.get(variable):
      return f'mpi {environ[variable]}'
  if source != 'SLURM_PROCID' and 'SLURM_JOB_ID' not in environ:
    return ''
  # Processes that are not tasks of srun may see different numbers of steps.
  step = environ.get('SLURM_STEP_ID', '') if source == 'SLURM_PROCID' else ''
  job = _number(environ, 'SLURM_JOB_ID')
  restarts = environ.get('SLURM_RESTART_COUNT', '') or '0'
  return f'slurm job {job} step {step or "none"} restart {restarts}'


def _expected_address(source: str) -> str:
  """Returns the form of a missing address, and why it has to be given."""
  form = 'HOST:PORT'
  if source == 'RANK':
    return f'{form}, because there is no MASTER_ADDR'
  if source in _MPI_LAUNCHES:
    names = ' or '.join(_MPI_LAUNCHES[source])
    return f'{form}, because there is no {names}'
  return form


def _number(environ: Mapping[str, str], variable: str) -> int:
  text = environ.get(variable, '')
  valid = text.isascii() and text.isdigit() and len(text) < 19
  require(valid, variable, 'a number, at least 0', text)
  return int(text)


def _first(environ: Mapping[str, str], *variables: str) -> str:
  """Returns the first variable that is set; the last one if none is."""
  return next((v for v in variables if v in environ), variables[-1])
