"""Plans of launches: processes, their hosts in a lab, and their GPUs."""

import dataclasses
import itertools
import json
import pathlib
from collections.abc import Mapping, Sequence

from cluster.membership.terms import Terms
from cluster.network import memory
from cluster.process import devices
from configs.checks import require
from outputs import compiled

# Flags that the launcher sets.
_OWN = (
  *('workdir', 'role', 'coordinator'),
  *('config.cluster.runtime', 'config.cluster.workers'),
  *('config.route.server.servers', 'config.route.server.dedicated'),
  *('config.cluster.workers_per_gpu', 'config.cluster.hosts_per_worker'),
)


INTERFACE = '--config.cluster.interface='


def on_interface(argv: Sequence[str], interface: str) -> list[str]:
  """Returns a command with a flag for the network interface, if it has none."""
  is_named = any(word.startswith(INTERFACE) for word in argv)
  return [*argv, *([] if is_named else [f'{INTERFACE}{interface}'])]


def environment(
  environ: Mapping[str, str], cache: pathlib.Path
) -> dict[str, str]:
  """Returns the environment variables of a run's processes.

  Args:
    environ: The environment, which has precedence.
    cache: Folder of compiled programs, for processes that restart.
  """
  programs = compiled.variables(environ, cache)
  return {**programs, **memory.ENVIRONMENT, **environ}


@dataclasses.dataclass(frozen=True)
class Plan:
  """Processes of a run to launch.

  Attributes:
    workers: Processes that train.
    servers: Number of shards, in the first workers or in processes of their
      own; 0 for the number that the run chooses, at most one in each worker.
    dedicated: True if servers are processes of their own.
    workdir: Folder of the run.
    arguments: Further flags of the program.
    restarts: Most restarts of all processes.
    grace_s: Seconds of the coordinator to end after a signal.
    devices_per_worker: GPUs of each worker; CPU devices on hosts without GPUs.
    workers_per_gpu: Workers that share each GPU and its memory.
    hosts_per_worker: Processes of each worker; several are an island, of which
      the first is the leader.
    only: Name of the one process to launch here; '' for all.
    role_flags: Flags --role and --coordinator of that process, if it has any.
  """

  workers: int
  servers: int
  dedicated: bool
  workdir: pathlib.Path
  arguments: tuple[str, ...] = ()
  restarts: int = 3
  grace_s: float = 30.0
  devices_per_worker: int = 1
  workers_per_gpu: int = 1
  hosts_per_worker: int = 1
  only: str = ''
  role_flags: tuple[str, ...] = ()

  def __post_init__(self) -> None:
    for field in (
      *('workers', 'devices_per_worker', 'workers_per_gpu'),
      'hosts_per_worker',
    ):
      value = getattr(self, field)
      require(value > 0, field, 'at least 1', value)
    least = int(self.dedicated)
    expected = f'at least {least}{" if they are dedicated" * least}'
    require(self.servers >= least, 'servers', expected, self.servers)
    expected = f'at most the {self.workers} workers, unless dedicated'
    fits = self.dedicated or self.servers <= self.workers
    require(fits, 'servers', expected, self.servers)
    require(self.restarts >= 0, 'restarts', 'at least 0', self.restarts)
    limited = 0 <= self.grace_s < float('inf')
    require(limited, 'grace_s', 'seconds, at least 0', self.grace_s)
    for argument in self.arguments:
      name = argument.lstrip('-').split('=')[0]
      free = not {name, name.removeprefix('no')} & set(_OWN)
      require(free, 'flags', f'none of {_OWN} after --', argument)

  @property
  def names(self) -> list[str]:
    """The processes that are launched here, dedicated servers first."""
    return [self.only] if self.only else self._all

  @property
  def _all(self) -> list[str]:
    servers = self.servers if self.dedicated else 0
    names = [f'server {k}' for k in range(servers)]
    for worker in range(self.workers):
      names += self.island(f'worker {worker}')
    return names

  def island(self, name: str) -> list[str]:
    """Returns the processes of a process's island, the leader first.

    Args:
      name: Name of a worker's process, of any in its island, or of a server's.
    """
    if name.startswith('server'):
      return [name]
    leader = name.partition('.')[0]
    followers = range(1, self.hosts_per_worker)
    return [leader, *(f'{leader}.{member}' for member in followers)]

  @property
  def coordinator(self) -> str:
    """Name of the process that coordinates the run at its start."""
    return self._all[0]

  @property
  def leader(self) -> str:
    """Name of the process that coordinates the run now.

    Another worker may have taken over from `coordinator`.
    """
    place = Terms(self.workdir).find() if self.has_successors else None
    name = f'worker {place.worker}' if place else self.coordinator
    return name if name in self._all else self.coordinator

  @property
  def has_successors(self) -> bool:
    """True if other workers continue a run whose coordinator dies."""
    route, mirror_s = self._route()
    return mirror_s > 0 if route == 'server' else route != 'native'

  @property
  def has_started(self) -> bool:
    """True if the run has a manifest, which its first coordinator writes."""
    return (self.workdir / 'manifest.json').exists()

  @property
  def newest_checkpoint(self) -> int:
    """Number of the newest complete checkpoint; -1 without one.

    The folder is read without `outputs.checkpoints`, which starts Orbax.
    """
    parts = (self.workdir / 'checkpoints').glob('*/coordinator')
    names = [path.parent.name for path in parts]
    return max((int(name) for name in names if name.isdecimal()), default=-1)

  @property
  def shard_processes(self) -> list[str]:
    """Names of processes whose loss makes a launcher restart all its processes.

    With servers, these are the processes that may have shards of the
    parameters: those of the servers, or all workers if the run chooses how many
    of them are servers.  With mirrors of the servers there are none, nor on
    allreduce routes, where every worker has all parameters; on the route
    `native`, on which XLA sums, they are all processes.  The route is that of
    the run's manifest; before there is one, servers without mirrors are
    assumed.
    """
    route, mirror_s = self._route()
    if route == 'server' and not mirror_s:
      leaders = [name for name in self._all if '.' not in name]
      return leaders[: self.servers or self.workers]
    return self._all if route == 'native' else []

  def _route(self) -> tuple[str, float]:
    """Returns the route and its mirror seconds, by default 'server' and 0."""
    try:
      manifest = json.loads((self.workdir / 'manifest.json').read_text())
      route = manifest['config']['route']
      own = route.get(route['name'], {})
      return str(route['name']), float(own.get('mirror_s', 0.0))
    except (OSError, ValueError, LookupError, TypeError):
      return 'server', 0.0

  @property
  def log(self) -> pathlib.Path:
    """File of starts and ends; with --rank each process has its own."""
    name = f'launch-{self.only.replace(" ", "-")}' if self.only else 'launch'
    return self.workdir / f'{name}.jsonl'

  def flags(self) -> list[str]:
    """Returns the flags of main.py that are the same for all processes."""
    words = [
      '--config.cluster.runtime=distributed',
      f'--config.cluster.workers={self.workers}',
      f'--config.route.server.servers={self.servers}',
      f'--workdir={self.workdir}',
    ]
    if self.dedicated:
      words.append('--config.route.server.dedicated=True')
    if self.hosts_per_worker > 1:
      words.append(f'--config.cluster.hosts_per_worker={self.hosts_per_worker}')
    if self.workers_per_gpu > 1:
      words.append(f'--config.cluster.workers_per_gpu={self.workers_per_gpu}')
    return words

  def places(self, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the host of the lab for each process; '' without a lab.

    Processes take the hosts in turn, and begin again after the last one.

    Args:
      environ: Environment with SYNCOPATE_LAB and SYNCOPATE_HOSTS, if there is a
        lab.

    Raises:
      ValueError: If it names a lab, but no hosts.
    """
    if self.only or not environ.get('SYNCOPATE_LAB'):
      return dict.fromkeys(self.names, '')
    hosts = environ.get('SYNCOPATE_HOSTS', '')
    expected = 'the names of the hosts of SYNCOPATE_LAB'
    require(all(hosts.split(',')), 'SYNCOPATE_HOSTS', expected, hosts)
    around = itertools.cycle(hosts.split(','))
    return dict(zip(self.names, around, strict=False))

  def devices(self, environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Returns the variables that give each process its devices.

    Args:
      environ: Environment, in which CUDA_VISIBLE_DEVICES and JAX_PLATFORMS may
        restrict the GPUs.

    Raises:
      ValueError: If there are GPUs, but too few; or none to share.
      TimeoutError: If nvidia-smi does not end.
    """
    cpu = {devices.MASK: '', 'JAX_PLATFORMS': 'cpu'}
    if self.only.startswith('server'):
      return {self.only: cpu}
    count, gpus = self.devices_per_worker, devices.gpus(environ)
    several = {'JAX_NUM_CPU_DEVICES': str(count)} if count > 1 else {}
    if self.only:  # It knows which of a host's are its own.
      return {self.only: {} if gpus else several}
    self._check_devices(gpus)
    variables = dict.fromkeys(self.names, cpu)
    workers = [name for name in self.names if name.startswith('worker')]
    for number, name in enumerate(workers):
      own = several
      if gpus:
        first = number % (len(gpus) // count) * count
        own = devices.mask(environ, gpus[first : first + count])
        own['SYNCOPATE_LOCAL_RANK'] = '0'  # It sees these alone.
      variables[name] = own
    return variables

  def _check_devices(self, gpus: Sequence[str]) -> None:
    """Refuses more workers than the GPUs are for, and shares of none."""
    count, share = self.devices_per_worker, self.workers_per_gpu
    if not gpus:
      none = '1, as no GPU is seen here'
      require(share == 1, 'workers_per_gpu', none, share)
      return
    seen, cpu = devices.count_in_words(len(gpus)), 'JAX_PLATFORMS=cpu uses none'
    most = f'at most {len(gpus)}, as {seen} can be used here ({cpu})'
    require(count <= len(gpus), 'devices_per_worker', most, count)
    places = len(gpus) // count
    processes = self.workers * self.hosts_per_worker
    some = (
      f'at most {places * share}, as {seen} can be used here and '
      f'devices_per_worker is {count} ({cpu})'
    )
    hosts = self.hosts_per_worker
    require(hosts <= places * share, 'hosts_per_worker', some, hosts)
    fewer = (
      f'at most {places * share // self.hosts_per_worker}, as {seen} can be '
      f'used here, devices_per_worker is {count} and workers_per_gpu is '
      f'{share} (--workers_per_gpu={-(-processes // places)} shares them; '
      f'{cpu})'
    )
    require(processes <= places * share, 'workers', fewer, self.workers)
    one = '1, as CUDA shows a process one MIG device'
    is_mig = any(gpu.startswith('MIG-') for gpu in gpus)
    require(count == 1 or not is_mig, 'devices_per_worker', one, count)
