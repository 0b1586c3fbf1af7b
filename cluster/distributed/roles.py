"""Who is this process?  What flags and environment say of its place in a run.

A run has W workers and D dedicated servers (none if workers hold the shards).

  rank            is         and
  r < W           worker r   worker 0 leads if no server is dedicated
  W + k < W + D   server k   server 0 leads

The first of these that is there tells the rank, and how many were started:

  --role=worker:R or --role=server:K
  OMPI_COMM_WORLD_RANK    OMPI_COMM_WORLD_SIZE                    Open MPI
  SLURM_PROCID            SLURM_STEP_NUM_TASKS or SLURM_NTASKS    SLURM
  JOB_COMPLETION_INDEX    -                                       Kubernetes
  nothing: worker 0, if the run has no other process

Open MPI comes before SLURM because mpirun uses srun to reach other hosts.
All meet at one address, HOST:PORT, where the lead listens: that of --lead, else
of SYNCOPATE_LEAD, else what SLURM says of its hosts, or this host if Open MPI
has all processes on one, or the run is one process.
"""

import bisect
import contextlib
import errno
import itertools
import math
import random
import re
import socket
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from configs.checks import require

_ROLE = re.compile(r'(worker|server):(\d{1,9})')
_ADDRESS = re.compile(r'(?:[^\s:\[\]]+|\[[0-9a-fA-F:.]+\]):(\d{1,5})')
# What SLURM calls a list of hosts: gpu[003-010,12],login1.
_RANGES = r'\[\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*\]'
_HOST = rf'(?:[^\s,\[\]]|{_RANGES})+'
_HOSTS = re.compile(rf'{_HOST}(?:,{_HOST})*')
_MOST = 2**16  # Hosts of a list, as in SLURM.
# And the numbers of their tasks: 2(x3),1.
_COUNTS = re.compile(r'\d{1,6}(?:\(x\d{1,6}\))?(?:,\d{1,6}(?:\(x\d{1,6}\))?)*')
_COUNT = re.compile(r'(\d+)(?:\(x(\d+)\))?')
# Names of a job, by Open MPI 5 and by those before.
_OMPI_JOBS = ('PMIX_NAMESPACE', 'OMPI_MCA_ess_base_jobid')
_SOURCES = {
  'OMPI_COMM_WORLD_RANK': ('OMPI_COMM_WORLD_SIZE',),
  'SLURM_PROCID': ('SLURM_STEP_NUM_TASKS', 'SLURM_NTASKS'),
  'JOB_COMPLETION_INDEX': (),
}
# Linux gives 32768 to 60999 to outgoing connections: ports above are for jobs,
# by their number, and ports below are free for others.
_PORT = 61440
_JOBS = 4096
_GIVEN = '--lead or SYNCOPATE_LEAD'
_RENAMED = 'SYNCOPATE_COORDINATOR'
_FREE = range(20000, 32000)


class Role(NamedTuple):
  """What a process is in a run.

  Attributes:
    kind: 'worker' or 'server'.
    index: From 0, among the workers or among the dedicated servers.
    lead: HOST:PORT where the lead listens.
  """

  kind: str
  index: int
  lead: str


def find(
  environ: Mapping[str, str],
  *,
  workers: int,
  dedicated: int,
  role: str = '',
  lead: str = '',
  here: str = '127.0.0.1',
) -> Role:
  """Returns the role of this process.

  Args:
    environ: The environment.
    workers: Of the run, at least 1.
    dedicated: Servers with processes of their own, or 0.
    role: Flag of this name, '' if it is not given.
    lead: Flag of this name, HOST:PORT or ''.
    here: Address of this host, where the lead of a run on one host listens.

  Raises:
    ValueError: If anything is missing or malformed, or if the run does not have
      as many processes as were started.
  """
  now = 'nothing: it is called SYNCOPATE_LEAD now, and is where the lead is'
  before = environ.get(_RENAMED, '')
  require(not before, _RENAMED, now, before)
  source = '' if role else next((s for s in _SOURCES if s in environ), '')
  if role:
    kind, index = _parse(role, workers, dedicated)
  else:
    rank = _rank(environ, source, workers, dedicated)
    kind = 'worker' if rank < workers else 'server'
    index = rank if rank < workers else rank - workers
  lead = _given(environ, lead)
  if not lead and workers + dedicated == 1:
    lead = f'{here}:{free_ports(1)[0]}'
  elif not lead:
    lead = _derived(environ, source, workers if dedicated else 0, here)
  return Role(kind, index, lead)


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
    one = 'worker:R or server:K where neither srun, mpirun nor a Kubernetes '
    one += f'Indexed Job tells the rank, because {counted}'
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
  address = flag or environ.get('SYNCOPATE_LEAD', '')
  match = _ADDRESS.fullmatch(address)
  valid = not address or (match is not None and 0 < int(match[1]) < 2**16)
  require(valid, '--lead' if flag else 'SYNCOPATE_LEAD', 'HOST:PORT', address)
  return address


def _derived(
  environ: Mapping[str, str], source: str, rank: int, here: str
) -> str:
  """Returns the address of the lead, which has a rank, from the environment."""
  if source == 'SLURM_PROCID':
    number = _number(environ, 'SLURM_JOB_ID')
    return f'{_slurm_host(environ, rank)}:{_PORT + number % _JOBS}'
  needed, job = 'HOST:PORT', ''
  if source == 'OMPI_COMM_WORLD_RANK':
    local = _number(environ, 'OMPI_COMM_WORLD_LOCAL_SIZE')
    tasks = _number(environ, 'OMPI_COMM_WORLD_SIZE')
    if local != tasks:
      needed += (
        f', because OMPI_COMM_WORLD_LOCAL_SIZE is {local} of {tasks} and so '
        'there are several hosts'
      )
    else:
      job = next((environ[v] for v in _OMPI_JOBS if environ.get(v)), '')
      needed += f', because there is no {" or ".join(_OMPI_JOBS)}'
  require(bool(job), _GIVEN, needed, '')
  return f'{here}:{_PORT + zlib.crc32(job.encode()) % _JOBS}'


def _slurm_host(environ: Mapping[str, str], rank: int) -> str:
  """Returns the host on which SLURM has started a rank."""
  variable = _first(environ, 'SLURM_STEP_NODELIST', 'SLURM_JOB_NODELIST')
  hosts = _expand(environ.get(variable, ''), variable)
  order = environ.get('SLURM_DISTRIBUTION', 'block')
  kind = re.split('[:,]', order.lower())[0]
  known = f'block or cyclic, or {_GIVEN} to be set'
  require(kind != 'arbitrary', 'SLURM_DISTRIBUTION', known, order)
  if rank == 0:
    return hosts[0]
  variable = _first(
    environ, 'SLURM_STEP_TASKS_PER_NODE', 'SLURM_TASKS_PER_NODE'
  )
  text = environ.get(variable, '')
  valid = _COUNTS.fullmatch(text) is not None
  require(valid, variable, 'numbers of tasks such as 2(x3),1', text)
  counts = [
    int(count)
    for count, times in _COUNT.findall(text)
    for _ in range(min(int(times or 1), _MOST))
  ]
  above = list(itertools.accumulate(counts))
  fits = len(counts) == len(hosts) and rank < above[-1]
  expected = f'the tasks of {len(hosts)} hosts, {rank} among them'
  require(fits, variable, expected, text)
  plain = kind == 'block' or max(counts) == 1
  several = f'block for hosts of several tasks, or {_GIVEN} to be set'
  require(plain, 'SLURM_DISTRIBUTION', several, order)
  return hosts[bisect.bisect_right(above, rank)]


def _expand(text: str, variable: str) -> list[str]:
  """Returns the hosts of a SLURM list, in its order."""
  valid = _HOSTS.fullmatch(text) is not None
  require(valid, variable, 'hosts such as gpu[003-010,12],login1', text)
  names: list[str] = []
  for host in re.findall(_HOST, text):
    parts = [
      _numbers(part[1:-1]) if part.startswith('[') else [part]
      for part in re.findall(rf'{_RANGES}|[^\[\]]+', host)
    ]
    size = math.prod(len(part) for part in parts)
    some = 0 < size <= _MOST - len(names)
    require(some, variable, f'1 to {_MOST} hosts, lowest first', text)
    names += map(''.join, itertools.product(*parts))
  return names


def _numbers(text: str) -> Sequence[str]:
  """Returns the numbers of ranges, as they are written: 003-005,12."""
  found: list[str] = []
  for piece in text.split(','):
    low, _, high = piece.partition('-')
    end = min(int(high or low), int(low) + _MOST)
    found += [str(n).zfill(len(low)) for n in range(int(low), end + 1)]
  return found


def _number(environ: Mapping[str, str], variable: str) -> int:
  text = environ.get(variable, '')
  valid = text.isascii() and text.isdigit() and len(text) < 19
  require(valid, variable, 'a number, at least 0', text)
  return int(text)


def _first(environ: Mapping[str, str], *variables: str) -> str:
  """Returns the first variable that there is; the last one if there is none."""
  return next((v for v in variables if v in environ), variables[-1])
