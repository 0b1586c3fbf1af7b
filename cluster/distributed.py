"""The 'distributed' runtime: a process's part of a run on real hosts.

See `cluster.runtime` for the interface.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence

import jax
from absl import logging
from ml_collections import ConfigDict

from cluster.allreduce.site import AllreduceSite
from cluster.allreduce.sums import native
from cluster.islands.meeting import Follower, Leader
from cluster.islands.site import FollowerSite
from cluster.membership import rendezvous_files
from cluster.membership.process import Meeting
from cluster.membership.succession import find_running
from cluster.membership.terms import Terms
from cluster.membership.versions import find_versions
from cluster.network import (
  credentials,
  descriptors,
  memory,
  sockets,
  streams,
  tcp_idle,
)
from cluster.network.handshake import Security
from cluster.network.messages import FollowerReady
from cluster.parameter_server.site import ParameterServerSite
from cluster.process import devices, exits, roles, xla_group
from cluster.runtime import Parts, Site
from cluster.speed import build
from cluster.speed.speed import Speed
from configs.checks import require
from configs.sections import Choose, error_prefix
from learning import placement
from learning.island import IslandPushes
from learning.learning import Learning
from outputs.files import RunFiles
from outputs.manifests import fingerprint, identity
from outputs.transient import Busy, start_limit_s
from route.route import Allreduce, ParameterServer, Plan
from system import clock

_SHARE = 'config.cluster.workers_per_gpu'


def meet(
  config: ConfigDict,
  plan: Plan,
  *,
  files: RunFiles,
  process: Mapping[str, str],
) -> Meeting:
  """Returns the role of this process, and how to connect to the others.

  Processes are not part of one jax.distributed (except on the `native` route):
  its coordination service would end processes whose run can continue.  So each
  selects its own devices, before XLA starts.  Each island has a coordination
  service of its own.

  Raises:
    ValueError: If a setting is wrong; names the field.
    OSError: If the coordinator cannot write to the run's folder.
    Unmendable: If the coordinator has not written its address there in time.
  """
  workers, count = config.cluster.workers, config.cluster.devices_per_worker
  is_native = isinstance(plan, Allreduce) and plan.forest is None
  is_joined = is_native or config.cluster.hosts_per_worker > 1
  tls = xla_group.find_tls(config.cluster) if is_joined else None
  share, ids = config.cluster.workers_per_gpu, range(0)
  alone = f'1, as config.route.name is {config.route.name!r}: NCCL refuses'
  require(share == 1 or not is_native, _SHARE, f'{alone} a GPU twice', share)
  shared = 'the folder that all processes of the run share'
  require(files.has_given_folder, 'workdir', shared, None)
  with error_prefix('config.cluster'):
    address = streams.interface_address(config.cluster.interface)
  dedicated = _dedicated(plan)
  role = roles.find(
    os.environ,
    workers=workers,
    dedicated=dedicated,
    here=address,
    port=config.cluster.port,
    hosts=config.cluster.hosts_per_worker,
    **process,
  )
  port = roles.listening_port(
    config.cluster.port,
    f'{role.kind} {role.index}',
    workers=workers,
    dedicated=dedicated,
    hosts=config.cluster.hosts_per_worker,
  )
  exits.describe_process(rank=role.name.replace(' ', ':'))
  finished = files.read_summary(config.epochs) is not None
  if not finished:
    descriptors.raise_limit(workers)
    memory.advise()
  if role.kind == 'server':
    count = 0
    placement.use_cpu_only()
  elif seen := _gpus():
    ids = devices.claim(os.environ, seen, count=count, share=share)
    if len(ids) < len(seen):
      visible = ','.join(map(str, ids))
      jax.config.update('jax_cuda_visible_devices', visible)
  else:
    require(share == 1, _SHARE, '1, as no GPU is seen here', share)
  security, successor = Security(), ''
  island: Leader | Follower | None = None
  has_successors = not is_native
  if isinstance(plan, ParameterServer):
    has_successors = plan.mirror_s > 0
  leading = role.name == roles.leading(dedicated)
  if not finished and has_successors and leading:
    successor = _find_successor(config, address, files)
    # It may just have ended.
    finished = files.read_summary(config.epochs) is not None
  if finished:
    # No process will connect to it.
    unused = role.coordinator or sockets.join(address, 0)
    role = dataclasses.replace(role, coordinator=unused)
  else:
    if successor:
      role = dataclasses.replace(role, coordinator=successor)
    role, security = _rendezvous(
      config, role, dedicated, address, port, files, follows=bool(successor)
    )
    if is_native:
      with error_prefix('config.cluster'):
        native.use_interface(config.cluster.interface)
      native.join(
        role.coordinator,
        config.route.native.port or (port and port - role.index + workers),
        host=address,
        index=role.index,
        workers=workers,
        devices=ids,
        start_s=config.cluster.start_s,
        tls=tls,
      )
    if config.cluster.hosts_per_worker > 1 and role.kind == 'worker':
      with error_prefix('config.cluster'):
        native.use_interface(config.cluster.interface)
      island = _join_island(
        config, role, dedicated, address, files, security, devices=ids, tls=tls
      )
  return Meeting(
    role,
    address,
    finished,
    devices=count,
    security=security,
    port=port,
    follows=bool(successor),
    island=island,
  )


def _join_island(
  config: ConfigDict,
  role: roles.Role,
  dedicated: int,
  address: str,
  files: RunFiles,
  security: Security,
  *,
  devices: Sequence[int],
  tls: xla_group.Tls | None,
) -> Leader | Follower:
  """Joins the other processes of an island; returns this process's end.

  Raises:
    OSError: If a port is taken, or the address cannot be written.
    Unmendable: If the others are not there in time.
  """
  cluster = config.cluster
  hosts, timeout_s = cluster.hosts_per_worker, cluster.timeout_s
  if role.member:
    follower = Follower(role.index, role.member, hosts, timeout_s=timeout_s)
    follower.meet(
      files.workdir,
      security,
      devices=devices,
      start_s=cluster.start_s,
      tls=tls,
    )
    return follower
  leader = Leader(role.index, hosts, timeout_s=timeout_s)
  ports = roles.island_ports(
    cluster.port, role.index, workers=cluster.workers, dedicated=dedicated
  )
  leader.meet(
    files.workdir,
    address,
    ports,
    security,
    devices=devices,
    start_s=cluster.start_s,
    tls=tls,
  )
  return leader


def _gpus() -> list[str]:
  """Returns the GPUs that a worker sees; none if JAX uses the CPU alone."""
  return [] if placement.is_cpu_only() else devices.gpus(os.environ)


def _find_successor(config: ConfigDict, address: str, files: RunFiles) -> str:
  """Returns the address of a coordinator in place of this one; '' if none.

  The first process of a run without one is the coordinator.  It then holds the
  lock of the folder, which names no other.  A coordinator that cannot be
  reached, but holds the lock, continues the run: this process asks again until
  it answers.

  Raises:
    Busy: If the lock is held all the time until a start's limit.
    Unmendable: If other workers continue the run, and elect none in time.
  """
  terms, cluster = Terms(files.workdir), config.cluster
  token = files.workdir / rendezvous_files.TOKEN
  deadline = clock.monotonic() + start_limit_s(cluster)
  while terms.find() and (cluster.token_file or token.exists()):
    security = credentials.security(cluster, address, str(token))
    found = find_running(
      terms, security, timeout_s=cluster.timeout_s, limit_s=cluster.start_s
    )
    if found:
      logging.info('The run is coordinated at %s now.', found)
      return found
    try:
      files.hold(cluster, limit_s=cluster.timeout_s)
      break
    except Busy:
      if clock.monotonic() >= deadline:
        raise
  files.hold(cluster)
  terms.forget()
  return ''


def _rendezvous(
  config: ConfigDict,
  role: roles.Role,
  dedicated: int,
  address: str,
  port: int,
  files: RunFiles,
  *,
  follows: bool,
) -> tuple[roles.Role, Security]:
  """Returns the role with the coordinator's address, and the credentials.

  An address or a token that flags, config and environment do not give is in the
  run's folder, where the coordinator writes it.
  """
  place = rendezvous_files.Place(role.coordinator, config.cluster.token_file)
  is_leading = role.name == roles.leading(dedicated)
  if is_leading and not follows:
    files.hold(config.cluster)
    place = rendezvous_files.host(
      files.workdir,
      place,
      address=address,
      launch=role.launch,
      ports=lambda: port or roles.free_ports(1)[0],
    )
  else:
    limit_s = config.cluster.start_s
    place = rendezvous_files.join(
      files.workdir, place, launch=role.launch, limit_s=limit_s
    )
  security = credentials.security(config.cluster, address, place.token_file)
  role = dataclasses.replace(role, coordinator=place.coordinator)
  return role, security


def speed(
  config: ConfigDict, choose: Choose, learned: Learning
) -> Speed | None:
  """Returns the injected speed of workers; None for their real speed."""
  injected = config.cluster.speed.injected
  return build.make(config, choose, learned) if injected else None


def make(
  config: ConfigDict, meeting: Meeting, parts: Parts
) -> Site | FollowerSite:
  """Returns this process's part of a run on real hosts.

  The part is a coordinator, a worker, a server or several of these, or a
  follower of an island, as `meeting` says.

  Args:
    config: Config of the run.
    meeting: Role of this process, and how to connect to the others.
    parts: Model, data, scheme and the other components of the run.

  Raises:
    ValueError: If a setting is wrong; names the field.
  """
  if config.cluster.interface != 'lo':
    tcp_idle.log_advice()
  if meeting.role.member:
    return _make_follower(config, meeting, parts)
  make_server_site, make_replica_site = _site_types(config)
  site: ParameterServerSite | AllreduceSite
  if isinstance(parts.plan, ParameterServer):
    site = make_server_site(config, meeting, parts, parts.plan)
  else:
    site = make_replica_site(config, meeting, parts, parts.plan)
  if meeting.followers:
    ready = _describe(config, parts)
    meeting.followers.check(ready, start_s=config.cluster.start_s)
  if site.is_coordinator:
    if not config.cluster.speed.injected:
      logging.info('Not used by real hosts: config.cluster.speed.')
    logging.info('Not used by real hosts: config.cluster.network.')
  return site


def _make_follower(
  config: ConfigDict, meeting: Meeting, parts: Parts
) -> FollowerSite:
  """Returns the part of a process that follows the leader of its island."""
  follower, pushes = meeting.island, parts.learned.pushes
  if not isinstance(follower, Follower):  # The run has finished before.
    return FollowerSite(None, None)
  if not isinstance(pushes, IslandPushes):
    raise TypeError(f'Expected pushes of an island, got {pushes!r}.')
  follower.report(_describe(config, parts))
  return FollowerSite(follower, pushes)


def _describe(config: ConfigDict, parts: Parts) -> FollowerReady:
  """Returns what all processes of an island must share."""
  return FollowerReady(
    fingerprint=fingerprint(parts.manifest),
    versions=find_versions(parts.manifest, parts.learned.data_digest),
    devices=config.cluster.devices_per_worker,
    fields=identity(parts.manifest),
  )


def _site_types(
  config: ConfigDict,
) -> tuple[type[ParameterServerSite], type[AllreduceSite]]:
  """Returns the classes of sites; those with failures if a config has some."""
  if config.cluster.faults == ():
    return ParameterServerSite, AllreduceSite
  from cluster.allreduce.faults import FaultyAllreduceSite
  from cluster.parameter_server.faults import FaultyParameterServerSite

  return FaultyParameterServerSite, FaultyAllreduceSite


def _dedicated(plan: Plan) -> int:
  """Returns the number of servers that have processes of their own."""
  return (
    plan.servers if isinstance(plan, ParameterServer) and plan.dedicated else 0
  )
