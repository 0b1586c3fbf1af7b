"""Runs the real programs of SLURM on two hosts of a lab, for tests.

Each host of the lab (`tools.lab`) has two nodes: one of the partition `cpu`,
and one of the partition `gpu`, whose GPUs are null devices.  Jobs of the
partition `urgent` preempt those of `cpu`.  The controller runs on host0.  The
names of nodes resolve to addresses of the network eth0; no name resolves to
those of the second network, ib0.  All files are in one temporary folder,
including those of authentication: a SLURM or munge of this machine is neither
used nor changed.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from launch import lab
from launch.processes import Command, Group
from tests.support import labs

HOSTS = ('host0', 'host1')
SECOND = '172.31.7'  # Prefix of the addresses in the network ib0.
_PROGRAMS = ('munged', 'slurmctld', 'slurmd', 'srun', 'sbatch', 'sinfo')
_START_S = 60.0
_GPUS = 4  # GPUs of each node of the partition `gpu`; null devices.
_CPUS = 16  # CPUs of each node, independent of the machine.
# A job that is requeued waits as long as credentials are valid (120 s by
# default); the start of a step may take as long.
_REQUEUE_S = 10
# Time between the signal to a job that is preempted and its end.  Without it
# the job is killed at once.
_GRACE_S = 60
_CONF = """
ClusterName=lab
SlurmctldHost=host0(10.213.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire={requeue_s}
CredType=cred/munge
CommunicationParameters=DisableIPv6
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldPort=6817
"""
_NODE = 'NodeName={name} NodeHostname=host{n} NodeAddr=10.213.0.{address} '
_NODE += f'Port={{port}} CPUs={_CPUS} RealMemory=2000 State=UNKNOWN'


def why_not() -> str:
  """Returns the reason why this machine cannot run SLURM; '' if it can."""
  missing = [
    each for each in _PROGRAMS if shutil.which(each, path=_path()) is None
  ]
  if missing:
    return f'SLURM is not installed (slurm-wlm, munge): no {missing}.'
  return labs.why_not()


class Slurm:
  """SLURM cluster of a lab.

  Attributes:
    folder: Folder of SLURM's files and logs.
    name: Name of the lab.
  """

  def __init__(self, folder: pathlib.Path, name: str, group: Group):
    """Initializes a cluster, which `start` starts."""
    self.folder, self.name = folder, name
    self._group = group
    self._daemons: list[str] = []

  def run(
    self,
    argv: Sequence[str],
    *,
    cwd: pathlib.Path,
    environ: Mapping[str, str],
    limit_s: float,
  ) -> subprocess.CompletedProcess[str]:
    """Runs a command on host0, which may start jobs.

    Args:
      argv: Words of the command.
      cwd: Working directory of the command.
      environ: Environment variables to add to those of this process.
      limit_s: Time limit of the command, seconds.

    Returns:
      The exit code of the command and, in `stdout`, all of its output.

    Raises:
      subprocess.TimeoutExpired: If the command takes longer.
    """
    variables = {'SLURM_CONF': str(self.folder / 'slurm.conf'), 'PATH': _path()}
    return subprocess.run(
      lab.command(HOSTS[0], argv, self.name),
      cwd=cwd,
      env=os.environ | variables | environ,
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      timeout=limit_s,
    )

  def show(self, *words: str) -> str:
    """Returns the output of `scontrol`; raises CalledProcessError."""
    done = self.run(
      ['scontrol', *words], cwd=self.folder, environ={}, limit_s=_START_S
    )
    done.check_returncode()
    return done.stdout

  def fail_host(self, host: str) -> None:
    """Kills all processes of a host, as a loss of power does.

    Its nodes are marked as lost at once.  SLURM would do so by itself once they
    have not answered for 5 minutes.

    Args:
      host: Name of the host, other than that of the controller.
    """
    inside = ['ip', 'netns', 'pids', f'{self.name}-{host}']
    pids = subprocess.run(inside, check=True, capture_output=True, text=True)
    for pid in pids.stdout.split():
      with contextlib.suppress(ProcessLookupError):
        os.kill(int(pid), signal.SIGKILL)
    nodes = ','.join(_nodes(HOSTS.index(host)))
    self.show('update', f'nodename={nodes}', 'state=down', 'reason=power')

  def start_nodes(self, host: str) -> None:
    """Starts the nodes of a host, also after `fail_host`."""
    code = self._group.code
    self._daemons = [each for each in self._daemons if code(each) is None]
    for node in _nodes(HOSTS.index(host)):
      self.start_daemon(host, ['slurmd', '-D', '-N', node])

  def wait_for_nodes(self) -> None:
    """Waits until all nodes are idle.

    Raises:
      RuntimeError: If they do not start; includes the logs.
    """
    self.wait_until(lambda: self._idle() == 2 * len(HOSTS))

  def start_daemon(self, host: str, argv: Sequence[str]) -> None:
    """Starts a program of SLURM on a host."""
    variables = {'SLURM_CONF': str(self.folder / 'slurm.conf'), 'PATH': _path()}
    name = f'out-{len([*self.folder.glob("out-*.log")])}'
    words = lab.command(host, argv, self.name)
    self._group.start(Command(name, words, variables))
    self._daemons.append(name)

  def wait_until(self, condition: Callable[[], bool]) -> None:
    """Waits for a condition; raises RuntimeError if a daemon ends."""
    deadline = time.monotonic() + _START_S
    while not condition():
      code = self._group.code
      ended = any(code(daemon) is not None for daemon in self._daemons)
      if ended or time.monotonic() > deadline:
        raise RuntimeError(f'SLURM does not start:\n{self.logs()}')
      time.sleep(0.2)

  def _idle(self) -> int:
    """Returns the number of idle nodes."""
    argv = ['sinfo', '--noheader', '--Node', '--format=%N %t']
    done = self.run(argv, cwd=self.folder, environ={}, limit_s=_START_S)
    # A node has a line for each of its partitions.
    return sum(line.endswith(' idle') for line in {*done.stdout.splitlines()})

  def logs(self) -> str:
    """Returns the last 3000 characters of each log of SLURM's programs."""
    parts = [
      f'{path.name}:\n{path.read_text(errors="replace")[-3000:]}'
      for path in sorted(self.folder.glob('*.log'))
    ]
    return '\n'.join(parts)


@contextlib.contextmanager
def start() -> Iterator[Slurm]:
  """Starts a lab and SLURM in it; ends both at the end.

  Yields:
    The SLURM cluster.

  Raises:
    RuntimeError: If SLURM does not start; includes its logs.
  """
  # In /tmp, because the paths of sockets must be short.
  folder = pathlib.Path(tempfile.mkdtemp(prefix='slurm-', dir='/tmp'))
  with contextlib.ExitStack() as stack:
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    name = stack.enter_context(labs.start(len(HOSTS)))
    group = stack.enter_context(Group(folder, grace_s=10.0))
    slurm = Slurm(folder, name, group)
    _configure(slurm)
    _start(slurm)
    yield slurm


def _path() -> str:
  """Returns PATH with the folders of daemons."""
  return os.environ['PATH'] + ':/usr/sbin:/sbin'


def _configure(slurm: Slurm) -> None:
  """Writes the files of SLURM, and adds the network ib0 to the hosts."""
  folder = slurm.folder
  folder.chmod(0o755)
  lines = [_CONF.format(folder=folder, requeue_s=_REQUEUE_S)]
  for n, _ in enumerate(HOSTS):
    for kind, port in (('host', 6818), ('gpu', 6819)):
      values = {'name': f'{kind}{n}', 'n': n, 'address': n + 1, 'port': port}
      gres = f' Gres=gpu:{_GPUS}' if kind == 'gpu' else ''
      lines.append(_NODE.format(**values) + gres)
  rest = 'MaxTime=INFINITE State=UP'
  lines.append(
    f'PartitionName=cpu Nodes=host[0-1] Default=YES {rest} PriorityTier=1 '
    f'GraceTime={_GRACE_S}'
  )
  lines.append(f'PartitionName=urgent Nodes=host[0-1] {rest} PriorityTier=2')
  lines.append(f'PartitionName=gpu Nodes=gpu[0-1] {rest}')
  (folder / 'slurm.conf').write_text('\n'.join(lines) + '\n')
  # SLURM numbers the GPUs of tasks (CUDA_VISIBLE_DEVICES) only if they are
  # devices.
  null = os.makedev(1, 3)
  for n in range(_GPUS):
    os.mknod(folder / f'gpu{n}', 0o666 | stat.S_IFCHR, null)
  (folder / 'gres.conf').write_text(
    f'NodeName=gpu[0-1] Name=gpu File={folder}/gpu[0-{_GPUS - 1}]\n'
  )
  # No resource is limited: hosts of a lab have no cgroup file system.
  (folder / 'cgroup.conf').write_text('CgroupPlugin=cgroup/v1\n')
  (folder / 'state').mkdir()
  key = folder / 'munge.key'
  key.touch(0o600)
  key.write_bytes(os.urandom(1024))
  for n, host in enumerate(HOSTS):
    inside = ['ip', '-n', f'{slurm.name}-{host}']
    for words in (
      'link add link eth0 name ib0 type macvlan mode bridge',
      f'addr add {SECOND}.{n + 1}/24 dev ib0',
      'link set ib0 up',
    ):
      subprocess.run([*inside, *words.split()], check=True)


def _start(slurm: Slurm) -> None:
  """Starts SLURM's programs, and waits until all nodes are idle."""
  folder = slurm.folder
  munged = ['munged', '--foreground', '--force']
  for option, file in (
    ('key-file', 'munge.key'),
    ('socket', 'munge.socket'),
    ('pid-file', 'munge.pid'),
    ('seed-file', 'munge.seed'),
    ('log-file', 'munge.log'),
  ):
    munged.append(f'--{option}={folder / file}')
  slurm.start_daemon(HOSTS[0], munged)
  slurm.wait_until((folder / 'munge.socket').exists)
  slurm.start_daemon(HOSTS[0], ['slurmctld', '-D'])
  for host in HOSTS:
    slurm.start_nodes(host)
  slurm.wait_for_nodes()


def _nodes(number: int) -> list[str]:
  """Returns the names of the nodes of a host, of each partition one."""
  return [f'{kind}{number}' for kind in ('host', 'gpu')]
