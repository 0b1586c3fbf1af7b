"""The place of a process in a run, from flags and the environment.

A run has W workers and D dedicated servers (none if workers hold the shards).

  rank            is         and
  r < W           worker r   worker 0 is the coordinator if no server is dedicated
  W + k < W + D   server k   server 0 is the coordinator

The first of these that is there tells the rank, and how many were started:

  --role=worker:R or --role=server:K
  RANK                    WORLD_SIZE                              torchrun
  OMPI_COMM_WORLD_RANK    OMPI_COMM_WORLD_SIZE                    Open MPI
  PMIX_RANK               -                                       PMIx
  PMI_RANK                PMI_SIZE                                MPICH
  SLURM_PROCID            SLURM_STEP_NUM_TASKS or SLURM_NTASKS    SLURM
  JOB_COMPLETION_INDEX    -                                       Kubernetes
  nothing: worker 0, if the run has no other process

Launchers that start processes inside tasks of others come first: torchrun runs
in tasks of srun and mpirun, and mpirun reaches other hosts through srun.  The
PMI and PMIx of srun itself count as SLURM, which tells more.

All meet at one address, HOST:PORT, where the coordinator listens: that of --coordinator, else
of SYNCOPATE_COORDINATOR, else with torchrun that of MASTER_ADDR and the port after
MASTER_PORT, at which torchrun's own store listens.  Without any of these the
coordinator writes its address into the run's folder (`rendezvous`), with the name that
SLURM or MPI has given to this start of all processes, which tells it from an
earlier one.
"""

import contextlib
import errno
import random
import re
import socket
from collections.abc import Mapping
from typing import NamedTuple

from configs.checks import require

_ROLE = re.compile(r'(worker|server):(\d{1,9})')
_ADDRESS = re.compile(r'(?:[^\s:\[\]]+|\[[0-9a-fA-F:.]+\]):(\d{1,5})')
# Ranks, and numbers of processes: those without one cannot be checked.
_SOURCES = {
  'RANK': ('WORLD_SIZE',),
  'OMPI_COMM_WORLD_RANK': ('OMPI_COMM_WORLD_SIZE',),
  'PMIX_RANK': (),
  'PMI_RANK': ('PMI_SIZE',),
  'SLURM_PROCID': ('SLURM_STEP_NUM_TASKS', 'SLURM_NTASKS'),
  'JOB_COMPLETION_INDEX': (),
}
# Generic names, which count only if the number of processes is there, too.
_PAIRED = ('RANK', 'PMI_RANK')
# Names of a start by Open MPI 5, and by those before.
_MPI_STARTS = {
  'OMPI_COMM_WORLD_RANK': ('PMIX_NAMESPACE', 'OMPI_MCA_ess_base_jobid'),
  'PMIX_RANK': ('PMIX_NAMESPACE',),
}
_SLURM_PMIX = 'slurm.pmix.'  # Begins the namespaces of srun's own PMIx.
_GIVEN = '--coordinator or SYNCOPATE_COORDINATOR'
_RENAMED = 'SYNCOPATE_LEAD'
_FREE = range(20000, 32000)


class Role(NamedTuple):
  """The place of a process in a run.

  Attributes:
    kind: 'worker' or 'server'.
    index: From 0, among the workers or among the dedicated servers.
    coordinator: HOST:PORT where the coordinator listens; '' if its file in the run's folder
      tells.
    launch: Then the name that SLURM or MPI has given to this start of all
      processes, else ''.
  """

  kind: str
  index: int
  coordinator: str
  launch: str = ''


def find(
  environ: Mapping[str, str],
  *,
  workers: int,
  dedicated: int,
  role: str = '',
  coordinator: str = '',
  here: str = '127.0.0.1',
) -> Role:
  """Returns the role of this process.

  Args:
    environ: The environment.
    workers: Of the run, at least 1.
    dedicated: Servers with processes of their own, or 0.
    role: Flag of this name, '' if it is not given.
    coordinator: Flag of this name, HOST:PORT or ''.
    here: Address of this host, where the coordinator of a run of one process listens.

  Raises:
    ValueError: If anything is missing or malformed, or if the run does not have
      as many processes as were started.
  """
  now = 'nothing: it is called SYNCOPATE_COORDINATOR now'
  before = environ.get(_RENAMED, '')
  require(not before, _RENAMED, now, before)
  source = '' if role else _source(environ)
  if role:
    kind, index = _parse(role, workers, dedicated)
  else:
    rank = _rank(environ, source, workers, dedicated)
    kind = 'worker' if rank < workers else 'server'
    index = rank if rank < workers else rank - workers
  coordinator = _given(environ, coordinator)
  if not coordinator and workers + dedicated == 1:
    coordinator = f'{here}:{free_ports(1)[0]}'
  elif not coordinator and source == 'RANK':
    coordinator = _of_torchrun(environ, dedicated)
  launch = '' if coordinator else _launch(environ, source)
  require(bool(coordinator or launch), _GIVEN, _needed(source), '')
  return Role(kind, index, coordinator, launch)


def leading(dedicated: int) -> str:
  """Returns the process that is_coordinator: 'worker 0' or 'server 0'."""
  return 'server 0' if dedicated else 'worker 0'


def free_ports(count: int) -> list[int]:
  """Returns different ports that nobody has on this machine at this moment.

  None of them is one that Linux may give to an outgoing connection meanwhile.
  """
  ports: list[int] = []
  with contextlib.ExitStack() as stack:
    for port in random.sample(_FREE, len(_FREE)):
      if len(ports) == count:
        return ports
      with contextlib.suppress(OSError):
        stack.enter_context(socket.create_server(('', port)))
        ports.append(port)
  got = f'Expected {count} free ports in {_FREE}, got {len(ports)}.'
  raise OSError(errno.EADDRINUSE, got)


def is_address(text: str) -> bool:
  """Returns whether a text is HOST:PORT."""
  match = _ADDRESS.fullmatch(text)
  return match is not None and 0 < int(match[1]) < 2**16


def _source(environ: Mapping[str, str]) -> str:
  """Returns the variable that tells the rank; '' if none does."""
  found = [name for name in _SOURCES if name in environ]
  for name in _PAIRED:
    if name in found and not environ.get(_SOURCES[name][0]):
      found.remove(name)
  if environ.get('PMIX_NAMESPACE', '').startswith(_SLURM_PMIX):
    found = [name for name in found if name != 'PMIX_RANK']
  if {'PMI_RANK', 'SLURM_PROCID'} <= set(found):
    tasks = environ.get(_first(environ, *_SOURCES['SLURM_PROCID']))
    slurms = environ['SLURM_PROCID'], tasks
    if (environ['PMI_RANK'], environ['PMI_SIZE']) == slurms:
      found.remove('PMI_RANK')
  return found[0] if found else ''


def _parse(role: str, workers: int, dedicated: int) -> tuple[str, int]:
  """Returns kind and index from the flag."""
  match = _ROLE.fullmatch(role)
  total = {'worker': workers, 'server': dedicated}
  known = match is not None and int(match[2]) < total[match[1]]
  expected = f'worker:R, R < {workers} (config.cluster.workers)'
  if dedicated:
    expected += f', or server:K, K < {dedicated} (config.route.server.servers)'
  require(known, '--role', expected, role)
  return match[1], int(match[2])


def _rank(
  environ: Mapping[str, str], source: str, workers: int, dedicated: int
) -> int:
  """Returns the rank that the environment gives."""
  total = workers + dedicated
  counted = f'config.cluster.workers is {workers}'
  if dedicated:
    counted += f' and config.route.server.servers, dedicated, is {dedicated}'
  if not source:
    one = 'worker:R or server:K where neither srun, mpirun, torchrun nor a '
    one += f'Kubernetes Indexed Job tells the rank, because {counted}'
    require(total == 1, '--role', one, '')
    # Of mpiruns whose processes would all take themselves for worker 0.
    started = environ.get('PMI_SIZE', '1')
    alone = f"'1' process, because {counted} and there is no --role"
    require(started in ('', '0', '1'), 'PMI_SIZE', alone, started)
    return 0
  if variables := _SOURCES[source]:
    variable = _first(environ, *variables)
    tasks = _number(environ, variable)
    expected = f'{total} tasks, because {counted}'
    require(tasks == total, variable, expected, tasks)
  rank = _number(environ, source)
  require(rank < total, source, f'less than {total}, because {counted}', rank)
  return rank


def _given(environ: Mapping[str, str], flag: str) -> str:
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


def _of_torchrun(environ: Mapping[str, str], dedicated: int) -> str:
  """Returns the address after that of torchrun's store; '' if it has none."""
  host = environ.get('MASTER_ADDR', '')
  if not host:
    return ''
  port = _number(environ, 'MASTER_PORT')
  valid = 0 < port < 2**16 - 2
  require(valid, 'MASTER_PORT', f'a port below {2**16 - 2}', port)
  address = f'{host}:{port + 1}'
  require(is_address(address), 'MASTER_ADDR', 'a host', host)
  if dedicated:  # MASTER_ADDR is the host of rank 0, a worker.
    size = environ['WORLD_SIZE']
    one = environ.get('LOCAL_WORLD_SIZE') == size
    needed = f'HOST:PORT, because server 0 is the coordinator, with {size} processes on '
    needed += 'several hosts, and MASTER_ADDR is the host of worker 0'
    require(one, _GIVEN, needed, '')
  return address


def _launch(environ: Mapping[str, str], source: str) -> str:
  """Returns the name of this start of all processes; '' if there is none."""
  if not source or source == 'JOB_COMPLETION_INDEX':
    return ''
  for variable in _MPI_STARTS.get(source, ()):
    if environ.get(variable):
      return f'mpi {environ[variable]}'
  if source != 'SLURM_PROCID' and 'SLURM_JOB_ID' not in environ:
    return ''
  # Whose processes are not srun's tasks may see steps of different numbers.
  step = environ.get('SLURM_STEP_ID', '') if source == 'SLURM_PROCID' else ''
  job = _number(environ, 'SLURM_JOB_ID')
  restarts = environ.get('SLURM_RESTART_COUNT', '') or '0'
  return f'slurm job {job} step {step or "none"} restart {restarts}'


def _needed(source: str) -> str:
  """Returns what a missing address would have to be, and why it is needed."""
  needed = 'HOST:PORT'
  if source == 'RANK':
    return f'{needed}, because there is no MASTER_ADDR'
  if source in _MPI_STARTS:
    names = ' or '.join(_MPI_STARTS[source])
    return f'{needed}, because there is no {names}'
  return needed


def _number(environ: Mapping[str, str], variable: str) -> int:
  text = environ.get(variable, '')
  valid = text.isascii() and text.isdigit() and len(text) < 19
  require(valid, variable, 'a number, at least 0', text)
  return int(text)


def _first(environ: Mapping[str, str], *variables: str) -> str:
  """Returns the first variable that there is; the last one if there is none."""
  return next((v for v in variables if v in environ), variables[-1])
