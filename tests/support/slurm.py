"""Runs the real programs of SLURM on two hosts of a lab, for tests.

Each host of the lab (`tools.lab`) has two nodes: one of the partition `cpu`,
and one of the partition `gpu`, whose GPUs are empty files.  The controller runs
on host0.  The names of nodes resolve to addresses of the network eth0; no name
resolves to those of the second network, ib0.  All files are in one temporary
folder, including those of authentication: a SLURM or munge of this machine is
neither used nor changed.
"""

import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from tests.support import labs
from tools import lab

HOSTS = ('host0', 'host1')
SECOND = '172.31.7'  # Prefix of the addresses in the network ib0.
_PROGRAMS = ('munged', 'slurmctld', 'slurmd', 'srun', 'sbatch', 'sinfo')
_START_S = 60.0
_GPUS = 4  # GPUs of each node of the partition `gpu`; empty files.
_CPUS = 16  # CPUs of each node, independent of the machine.
_CONF = """
ClusterName=lab
SlurmctldHost=host0(10.213.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
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

  def __init__(self, folder: pathlib.Path, name: str):
    """Initializes a cluster, which `start` starts."""
    self.folder, self.name = folder, name

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
    slurm = Slurm(folder, stack.enter_context(labs.start(len(HOSTS))))
    _configure(slurm)
    _start(slurm, stack)
    yield slurm


def _path() -> str:
  """Returns PATH with the folders of daemons."""
  return os.environ['PATH'] + ':/usr/sbin:/sbin'


def _configure(slurm: Slurm) -> None:
  """Writes the files of SLURM, and adds the network ib0 to the hosts."""
  folder = slurm.folder
  folder.chmod(0o755)
  lines = [_CONF.format(folder=folder)]
  for n, _ in enumerate(HOSTS):
    for kind, port in (('host', 6818), ('gpu', 6819)):
      values = {'name': f'{kind}{n}', 'n': n, 'address': n + 1, 'port': port}
      gres = f' Gres=gpu:{_GPUS}' if kind == 'gpu' else ''
      lines.append(_NODE.format(**values) + gres)
  rest = 'MaxTime=INFINITE State=UP'
  lines.append(f'PartitionName=cpu Nodes=host[0-1] Default=YES {rest}')
  lines.append(f'PartitionName=gpu Nodes=gpu[0-1] {rest}')
  (folder / 'slurm.conf').write_text('\n'.join(lines) + '\n')
  for n in range(_GPUS):
    (folder / f'gpu{n}').touch()
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


def _start(slurm: Slurm, stack: contextlib.ExitStack) -> None:
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
  commands = [(HOSTS[0], munged), (HOSTS[0], ['slurmctld', '-D'])]
  commands += [
    (host, ['slurmd', '-D', '-N', f'{kind}{n}'])
    for n, host in enumerate(HOSTS)
    for kind in ('host', 'gpu')
  ]
  environ = os.environ | {'SLURM_CONF': str(folder / 'slurm.conf')}
  environ['PATH'] = _path()
  daemons = []
  for number, (host, argv) in enumerate(commands):
    out = stack.enter_context((folder / f'out-{number}.log').open('w'))
    daemon = subprocess.Popen(
      lab.command(host, argv, slurm.name),
      env=environ,
      stdin=subprocess.DEVNULL,
      stdout=out,
      stderr=out,
    )
    daemons.append(daemon)
    stack.callback(_end, daemon)
    if number == 0:
      _until(lambda: (folder / 'munge.socket').exists(), slurm, daemons)
  _until(lambda: _idle(slurm) == 2 * len(HOSTS), slurm, daemons)


def _idle(slurm: Slurm) -> int:
  """Returns the number of idle nodes."""
  argv = ['sinfo', '--noheader', '--Node', '--format=%t']
  done = slurm.run(argv, cwd=slurm.folder, environ={}, limit_s=_START_S)
  return done.stdout.split().count('idle')


def _until(
  condition: Callable[[], bool],
  slurm: Slurm,
  daemons: Sequence[subprocess.Popen],
) -> None:
  deadline = time.monotonic() + _START_S
  while not condition():
    ended = any(daemon.poll() is not None for daemon in daemons)
    if ended or time.monotonic() > deadline:
      raise RuntimeError(f'SLURM does not start:\n{slurm.logs()}')
    time.sleep(0.2)


def _end(process: subprocess.Popen) -> None:
  process.terminate()
  try:
    process.wait(10)
  except subprocess.TimeoutExpired:
    process.kill()
    process.wait()
