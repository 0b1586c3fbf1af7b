"""Processes of one run on the nodes of a Ray cluster.

`RayProcesses` starts, watches and ends them as `processes.Group` does on one
machine, so that the launcher's rules for restarts hold for both.  A placement
group reserves a bundle of resources for each process, spread over the nodes.
Each start of a process is an actor in the bundle, which runs the process as its
child, and ends with it.  If a node is lost, Ray moves its bundles to other
nodes, and the launcher starts the processes there.

The processes meet by `rendezvous.json` in the run's folder, because the
coordinator's node is not known before it starts, and may change.
"""

import dataclasses
import os
import pathlib
import secrets
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cluster.process import devices, ray_cluster
from configs.checks import require
from launch.plan import Plan, environment, on_interface
from launch.processes import Command, Exit, Group
from launch.screen import Screen

_FLAG = '--on=ray'
_POLL_S = 0.5  # Between two answers of an actor while its process runs.
_LOG_INTERVAL_S = 10.0  # Between two lines while resources are missing.


class Request(NamedTuple):
  """Resources of each process.

  Attributes:
    cpus: CPUs of each process.
    wait_s: Time to wait until the cluster has all resources free.
  """

  cpus: float
  wait_s: float


class Reservation(NamedTuple):
  """Resources of a run that a cluster has reserved.

  Attributes:
    ray: The module ray, connected to the cluster.
    group: Placement group.
    bundles: Resources of each process, by its name, in the group's order.
    has_gpus: True if workers compute on GPUs.
  """

  ray: Any
  group: Any
  bundles: Mapping[str, Mapping[str, float]]
  has_gpus: bool

  def devices(self, plan: Plan) -> dict[str, dict[str, str]]:
    """Returns the variables that give each process its devices.

    Ray sets CUDA_VISIBLE_DEVICES in an actor to the GPUs of its bundle.
    """
    cpu = {devices.MASK: '', 'JAX_PLATFORMS': 'cpu'}
    count = plan.devices_per_worker
    several = {'JAX_NUM_CPU_DEVICES': str(count)} if count > 1 else {}
    worker = {'SYNCOPATE_LOCAL_RANK': '0'} if self.has_gpus else cpu | several
    return {
      name: worker if name.startswith('worker') else cpu for name in plan.names
    }


def make_bundles(
  plan: Plan, request: Request, *, has_gpus: bool
) -> dict[str, dict[str, float]]:
  """Returns the resources of each process of a run, by Ray's names.

  Raises:
    ValueError: If a worker would have a part of several GPUs.
  """
  count, share = plan.devices_per_worker, plan.workers_per_gpu
  if has_gpus:
    one = '1 if workers share GPUs'
    require(count == 1 or share == 1, 'devices_per_worker', one, count)
  else:
    none = '1, as the Ray cluster has no GPU'
    require(share == 1, 'workers_per_gpu', none, share)
  cpu = {'CPU': request.cpus}
  gpu = {'GPU': count / share} if has_gpus else {}
  return {
    name: cpu | gpu if name.startswith('worker') else cpu for name in plan.names
  }


def reserve(plan: Plan, request: Request, screen: Screen) -> Reservation:
  """Connects to the cluster, and reserves the resources of a run.

  Args:
    screen: Display of what the cluster lacks.

  Raises:
    ValueError: If Ray is missing, if there is no cluster, or if it does not
      have the resources in time, which others may use.
  """
  require(not plan.only, _FLAG, 'to launch all processes, without --rank', '')
  lab = os.environ.get('SYNCOPATE_LAB', '')
  require(not lab, 'SYNCOPATE_LAB', f'nothing with {_FLAG}', lab)
  require(request.cpus > 0, '--cpus_per_process', 'more than 0', request.cpus)
  ray = ray_cluster.connect(_FLAG)
  platforms = os.environ.get('JAX_PLATFORMS', '').split(',')[0]
  uses_gpus = platforms in ('', 'cuda', 'gpu')
  has_gpus = uses_gpus and ray.cluster_resources().get('GPU', 0.0) > 0
  bundles = make_bundles(plan, request, has_gpus=has_gpus)
  group = ray.util.placement_group([*bundles.values()], strategy='SPREAD')
  deadline, log_at = time.monotonic() + request.wait_s, 0.0
  while not group.wait(1):
    lacks = ray_cluster.describe_shortage(ray.nodes(), [*bundles.values()])
    lacks = lacks or 'other jobs use the resources'
    now = time.monotonic()
    if now >= deadline:
      ray.util.remove_placement_group(group)
      expected = f'a cluster with room for {len(bundles)} processes'
      waited = f'within --wait_s={request.wait_s:g} s'
      require(False, _FLAG, f'{expected} {waited}', lacks)
    if now >= log_at:
      screen.print_line(f'the run waits for resources of Ray: {lacks}')
      log_at = now + _LOG_INTERVAL_S
  return Reservation(ray, group, bundles, has_gpus)


class _Output:
  """Output of a process that the launcher has not fetched yet."""

  lost = False

  def __init__(self) -> None:
    self._data = b''

  def feed(self, name: str, data: bytes) -> None:
    self._data += data

  def finish(self, name: str) -> None:
    """Does nothing: the launcher ends the last line."""

  def take(self) -> bytes:
    """Returns the output since the last call."""
    data, self._data = self._data, b''
    return data


class Actor:
  """Parent of one process on a node; Ray runs its methods in one thread."""

  def __init__(self) -> None:
    self._output = _Output()
    self._processes = Group(None, output=self._output, is_bound=True)
    self._processes.__enter__()  # Until this process is killed.

  def start(
    self,
    name: str,
    argv: Sequence[str],
    environ: Mapping[str, str | None],
    *,
    cwd: str,
    workdir: str,
    text: str,
  ) -> int:
    """Starts the process and returns its process id.

    Args:
      argv: Arguments of this node's Python.
      environ: Variables to add to those of this node.
      text: Content of the file of `ray_cluster.SharedFolder`.

    Raises:
      ValueError: If this node lacks one of the folders.
      OSError: If the command cannot be run.
    """
    import ray

    node = ray.util.get_node_ip_address()
    has_code = pathlib.Path(cwd).is_dir()
    expected = 'a repository in the same folder on all nodes'
    absent = f'{cwd}, which node {node} does not have'
    require(has_code, _FLAG, expected, absent)
    ray_cluster.require_shared(workdir, text, flag='--workdir', node=node)
    os.chdir(cwd)
    words = on_interface([sys.executable, *argv], node)
    # Compiled programs may differ between hosts.
    cache = pathlib.Path(workdir) / 'compiled' / socket.gethostname()
    own = {**environment(os.environ, cache), **environ}
    return self._processes.start(Command(name, words, own))

  def poll(self) -> tuple[bytes, Exit | None]:
    """Returns new output, and the end of the process if it has ended."""
    ended = self._processes.next_ends(_POLL_S)
    return self._output.take(), ended[0] if ended else None

  def signal(self, name: str, number: int) -> None:
    """Sends a signal to the process, if it runs."""
    if name in self._processes.names():
      self._processes.signal(name, number)


@dataclasses.dataclass
class _Remote:
  """A process on a node.

  Attributes:
    actor: Its parent.
    answer: Answer of the actor that is awaited: to `start`, then to `poll`.
    pid: Process id there; 0 until it is known.
    began: Time when the process, or before that its actor, was started.
  """

  actor: Any
  answer: Any
  pid: int
  began: float


class RayProcesses:
  """Processes on the nodes of a cluster; a context that ends them all.

  The folder of the run must be one that all nodes share.

  Args:
    reservation: Resources of the processes, which are freed at the end.
    screen: Display of their output.
    workdir: Folder of the run.
  """

  def __init__(
    self, reservation: Reservation, screen: Screen, workdir: pathlib.Path
  ):
    self._ray, self._reservation = reservation.ray, reservation
    self._screen = screen
    self._folder = ray_cluster.SharedFolder(workdir)
    self._running: dict[str, _Remote] = {}
    self._launch = ''

  def __enter__(self) -> 'RayProcesses':
    self._folder.__enter__()
    return self

  def __exit__(self, *exception: object) -> None:
    self.kill(*self.names())
    self._folder.__exit__()
    self._ray.util.remove_placement_group(self._reservation.group)
    self._ray.shutdown()

  def names(self) -> list[str]:
    """Returns the names of the running processes."""
    return list(self._running)

  def forget_address(self) -> None:
    """Makes processes that start from now on meet at a new address."""
    self._launch = secrets.token_hex(8)

  def start(self, command: Command) -> int | None:
    """Starts a process as soon as a node has room for it.

    Returns None: the process has no id yet.

    Args:
      command: The process; no running process has its name.  The first word
        stands for a node's own Python, and `env` is added to that of the node.
    """
    name = command.name
    names = [*self._reservation.bundles]
    bundle = self._reservation.bundles[name]
    strategies = self._ray.util.scheduling_strategies
    actor = (
      self._ray.remote(Actor)
      .options(
        num_cpus=bundle['CPU'],
        num_gpus=bundle.get('GPU', 0),
        scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(
          self._reservation.group, names.index(name)
        ),
      )
      .remote()
    )
    answer = actor.start.remote(
      name,
      command.argv[1:],
      {**command.env, 'SYNCOPATE_LAUNCH': self._launch},
      cwd=os.getcwd(),
      workdir=str(self._folder.path),
      text=self._folder.text,
    )
    self._running[name] = _Remote(actor, answer, 0, time.monotonic())
    return None

  def wake(self) -> None:
    """Does nothing: `next_ends` returns soon."""

  def next_ends(self, timeout_s: float) -> list[Exit]:
    """Shows output until a process ends, or for a short time.

    Returns:
      The ends of processes, once all their output has been shown.

    Raises:
      ValueError: If a node lacks a folder of the run.
      OSError: If a node cannot run the command.
    """
    limit_s = max(min(timeout_s, _POLL_S), 0.0)
    answers = {each.answer: name for name, each in self._running.items()}
    if not answers:
      time.sleep(limit_s)
      return []
    ready, _ = self._ray.wait([*answers], timeout=limit_s)
    more, _ = self._ray.wait([*answers], num_returns=len(answers), timeout=0)
    received = [self._receive(answers[ref]) for ref in {*ready, *more}]
    return [ended for ended in received if ended is not None]

  def signal(self, name: str, number: int) -> None:
    """Sends a signal to a running process."""
    self._running[name].actor.signal.remote(name, number)

  def kill(self, *names: str) -> list[Exit]:
    """Kills processes and their descendants; returns their ends.

    Args:
      *names: Names of processes; those that are not running are ignored.
    """
    found = [name for name in names if name in self._running]
    return [self._remove(name, -signal.SIGKILL) for name in found]

  def _receive(self, name: str) -> Exit | None:
    """Takes the answer of an actor; returns the end of its process, if any."""
    remote, errors = self._running[name], self._ray.exceptions
    try:
      answer = self._ray.get(remote.answer)
    except errors.ActorUnavailableError:  # It may be there again.
      remote.answer = remote.actor.poll.remote()
      time.sleep(_POLL_S)
      return None
    except errors.RayActorError as error:
      reason = str(error).strip().splitlines()[0]
      self._screen.print_line(
        f'{name} was lost with its actor of Ray: {reason}'
      )
      return self._remove(name, -signal.SIGKILL)
    except errors.RayTaskError as error:
      raise error.cause from error
    if isinstance(answer, int):
      remote.pid, remote.began = answer, time.monotonic()
    else:
      data, ended = answer
      self._screen.feed(name, data)
      if ended is not None:
        self._remove(name, ended.code)
        return Exit(*ended)
    remote.answer = remote.actor.poll.remote()
    return None

  def _remove(self, name: str, code: int) -> Exit:
    """Removes a process with its actor, if that is there; returns its end."""
    remote = self._running.pop(name)
    self._ray.kill(remote.actor)
    self._screen.finish(name)
    return Exit(name, remote.pid, code, time.monotonic() - remote.began)
