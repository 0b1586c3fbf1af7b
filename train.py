"""Builds a run from a config: with learning.py, the only place that reads one.

`build` checks the whole config and makes the scheme, the data, the model, the
optimiser and the cluster; calling what it returns trains.
"""

import copy
import functools
import json
import math
import os
import pathlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
from absl import logging
from ml_collections import ConfigDict

from batching import curves
from batching.batching import Batching
from batching.curves import Curve
from cluster.distributed import roles
from cluster.distributed.faults import Faults
from cluster.distributed.meeting import Rendezvous
from cluster.distributed.site import Processes
from cluster.lead import Lead
from cluster.run import Run
from cluster.speed import driving
from cluster.speed import speed as speeds
from cluster.transport import memory
from cluster.transport import streams as transport
from cluster.transport.heart import START
from cluster.virtual.network import Network
from cluster.virtual.runtime import VirtualCluster
from configs import default, sections
from configs.checks import require
from configs.sections import named
from data.dataset import Dataset
from learning import build as learning
from learning import compilations
from learning.build import Choose, Learning, made
from models.task import Task
from outputs.checkpoints import Checkpoints
from outputs.console import Console
from outputs.files import RunFiles, fingerprint, manifest
from outputs.journal import Journal
from sync.scheme import Scheme


def build(
  config: ConfigDict,
  *,
  workdir: str | None = None,
  scheme: Scheme | None = None,
  task: Task | None = None,
  dataset: Dataset | None = None,
  process: Mapping[str, str] | None = None,
) -> Run | Processes:
  """Returns the run that a config describes, or this process's part in it.

  Args:
    config: As made by a file of configs/; every field is checked first.
    workdir: Folder for the outputs; None makes a new one under runs/.  If it
      holds a run of the same config, that run goes on from its checkpoint.
    scheme: Replaces the one that config.sync names.
    task: Replaces the one of the model that config.model names.
    dataset: Replaces the one that config.data names.
    process: Which one of a distributed run this is: what `roles.find` takes as
      role, coordinator and lead, as far as the environment does not say it.

  Raises:
    ValueError: If anything about the config is wrong; names the field, what
      was expected and what came.  If `workdir` holds another run.
    OSError: If the folder cannot be made.
  """
  compilations.make_repeatable()
  own = {
    'scheme': scheme,
    'task': task and (task.params, task.stats),
    'dataset': dataset,
  }
  choose = _checked(config, own)
  real = config.cluster.runtime == 'distributed'
  files = RunFiles(workdir)
  meeting = _meeting(config, workdir, process or {}) if real else None
  if meeting and files.finished() is None:
    memory.advise()
    meeting.join()
  scheme = copy.deepcopy(scheme) or made(
    'sync', choose, num_workers=config.cluster.workers
  )
  injected = config.cluster.speed.injected
  speed = _speed(config, choose) if injected or not real else None
  batching = _batching(config, choose, scheme, speed)
  if config.model.name == 'none':
    learned = learning.nothing(config, choose)
  else:
    learned = learning.learning(config, choose, task, dataset)
  console = Console(
    target=learned.plan.target, clock='real' if real else 'virtual'
  )
  described = manifest(config.to_dict(), own)
  pipelined = getattr(scheme, 'pipelined', False)
  if meeting:
    processes = _processes(
      config, meeting, learned, batching, speed, files, described, pipelined
    )
    if not processes.leads:
      return processes
    if not injected:
      logging.info('Not used by real hosts: config.cluster.speed.')
    logging.info('Not used by real hosts: config.cluster.network.')
    server = processes.servers
  else:
    require(not process, 'process', 'nothing in the virtual runtime', process)
    server = learned.server(learned.params, learned.stats)
  journal = Journal(
    plan=learned.plan,
    server=server,
    evaluate=learned.evaluate,
    files=files,
    console=console,
    later=ThreadPoolExecutor(1).submit if real else None,
  )
  lead = Lead(
    scheme=scheme,
    batching=batching,
    server=server,
    stream=learned.stream,
    journal=journal,
    num_workers=config.cluster.workers,
  )
  if meeting:
    cluster = processes.cluster(lead)
  else:
    cluster = _virtual(config, lead, learned, speed, pipelined)
  with named('config.checkpoint'):
    checkpoints = (
      processes.checkpoints
      if meeting
      else Checkpoints(
        files.workdir / 'checkpoints', **config.checkpoint.to_dict()
      )
    )
  checkpoints.check('scheme, task', cluster.state())
  files.claim(described)
  run = Run(
    name=type(scheme).__name__.lower(),
    cluster=cluster,
    journal=journal,
    files=files,
    checkpoints=checkpoints,
    console=console,
  )
  run.restore()
  return run


def _checked(config: ConfigDict, own: Mapping[str, Any]) -> Choose:
  """Returns what chooses a section of the config, all of which is checked."""
  defaults = default.get_config()
  sections.check_fields(config, defaults)
  sections.check_values(config)
  sections.check_used(config, defaults, own)
  for section in ('wire', 'route'):
    sections.chosen(config, defaults, section)
  return functools.partial(sections.chosen, config, defaults)


def _speed(config: ConfigDict, choose: Choose) -> speeds.Speed:
  name, own = choose('cluster.speed')
  workers, section = config.cluster.workers, config.cluster.speed
  with named(f'config.cluster.speed.{name}'):
    model = getattr(speeds, name)(num_workers=workers, seed=config.seed, **own)
  with named('config.cluster.speed'):
    return speeds.Speed(
      fixed_s=section.fixed_s,
      per_example_s=section.per_example_s,
      least_s=section.least_s,
      slowdown=sections.each('slowdown', section.slowdown, workers),
      model=model,
    )


def _batching(
  config: ConfigDict,
  choose: Choose,
  scheme: Scheme,
  speed: speeds.Speed | None,
) -> Batching:
  workers, section = config.cluster.workers, config.batching
  _, own = choose('batching')
  shared = {}
  if 'curves' in own:
    shared['curves'] = _curves(f'config.batching.{section.name}', own)
  if 'predictor' in own:
    factors = speed.model.num_driving if speed else len(driving.NAMES)
    shared['predictor'] = made(
      f'batching.{section.name}.predictor',
      choose,
      num_workers=workers,
      num_factors=factors,
      seed=config.seed,
    )
  batching = made(
    'batching',
    choose,
    num_workers=workers,
    worker_batch=section.worker_batch,
    **shared,
  )
  fits = getattr(scheme, 'barriers', False) or not batching.barrier
  known = 'one that needs no barrier, as the scheme has none'
  require(fits, 'config.batching.name', known, section.name)
  return batching


def _curves(field: str, own: Mapping[str, Any]) -> list[Curve]:
  """Returns the curves that a batching's files hold.

  Args:
    field: The batching's section, for messages.
    own: Its fields; with curves some are not used, and others without.

  Raises:
    ValueError: If a field that is not used differs from its default, or if a
      file holds no curve.
  """
  paths = own['curves']
  usual = default.get_config().batching[field.rpartition('.')[2]]
  for unused in ('window', 'step') if paths else ('smoothing',):
    expected = f'the default {usual[unused]!r}, with curves {paths!r}'
    valid = own[unused] == usual[unused]
    require(valid, f'{field}.{unused}', expected, own[unused])
  found = []
  for path in paths.split(',') if paths else ():
    with named(f'{field}.curves: {path}'):
      try:
        found.append(curves.parse(json.loads(pathlib.Path(path).read_text())))
      except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f'expected a profile, got {error}.') from error
  return found


def _virtual(
  config: ConfigDict,
  lead: Lead,
  learned: Learning,
  speed: speeds.Speed,
  pipelined: bool,
) -> VirtualCluster:
  with named('config.cluster'):
    return VirtualCluster(
      lead=lead,
      gradient=learned.gradient,
      wire=learned.wire,
      speed=speed,
      network=_network(config),
      num_servers=config.route.server.servers,
      pipelined=pipelined,
      script=config.cluster.script,
    )


def _meeting(
  config: ConfigDict, workdir: str | None, process: Mapping[str, str]
) -> Rendezvous:
  """Returns where the other processes of a distributed run are met."""
  workers, servers = config.cluster.workers, config.route.server.servers
  dedicated, wait_s = config.route.server.dedicated, config.cluster.timeout_s
  the_same = 'the folder that all processes of the run share'
  require(bool(workdir), 'workdir', the_same, workdir)
  most = f'at most config.cluster.workers, {workers}, unless they are dedicated'
  fits = dedicated or servers <= workers
  require(fits, 'config.route.server.servers', most, servers)
  role = roles.find(
    os.environ,
    workers=workers,
    dedicated=servers if dedicated else 0,
    **process,
  )
  with named('config.cluster'):
    address = transport.interface_address(config.cluster.interface)
  return Rendezvous(
    role, workers=workers, address=address, wait_s=START * wait_s
  )


def _processes(
  config: ConfigDict,
  meeting: Rendezvous,
  learned: Learning,
  batching: Batching,
  speed: speeds.Speed | None,
  files: RunFiles,
  described: Mapping[str, Any],
  pipelined: bool,
) -> Processes:
  servers, optimizer = config.route.server.servers, config.optimizer
  if config.model.name != 'none':
    whole = (
      'an optimizer without norms of layers, as servers hold parts of them'
    )
    require(optimizer.name != 'lars', 'config.optimizer.name', whole, 'lars')
    one = 'inf unless one server applies updates as a whole'
    clips = (servers > 1 or pipelined) and optimizer.clip_norm < math.inf
    whole = 'False for models with running statistics'
    valid = not (pipelined and jax.tree.leaves(learned.stats))
    require(valid, 'config.sync.bsp.pipelined', whole, pipelined)
    field = 'config.optimizer.clip_norm'
    require(not clips, field, one, optimizer.clip_norm)
  with named('config.cluster'):
    faults = Faults(
      config.cluster.faults,
      num_workers=config.cluster.workers,
      directory=files.workdir / 'faults',
      interface=config.cluster.interface,
      timeout_s=config.cluster.timeout_s,
    )
  with named('config.route.server'):
    layout = learned.layout(num_servers=servers)
  with named('config.checkpoint'):
    return Processes(
      meeting=meeting,
      num_servers=servers,
      dedicated=config.route.server.dedicated,
      layout=layout,
      learning=learned,
      batching=batching,
      pipelined=pipelined,
      speed=speed,
      faults=faults,
      directory=files.workdir / 'checkpoints',
      checkpoint=config.checkpoint.to_dict(),
      fingerprint=fingerprint(described),
      security=_security(config),
      timeout_s=config.cluster.timeout_s,
    )


def _security(config: ConfigDict) -> transport.Security:
  found = {}
  for part in transport.Security._fields:
    path = config.cluster[f'{part}_file']
    try:
      found[part] = pathlib.Path(path).read_bytes() if path else b''
    except OSError as error:
      raise ValueError(
        f'config.cluster.{part}_file: expected a file, got {error}.'
      ) from error
  token = found['token'].decode().strip()
  return transport.Security(**found | {'token': token})


def _network(config: ConfigDict) -> Network:
  links = sections.links(
    config.cluster.network,
    worker=config.cluster.workers,
    server=config.route.server.servers,
  )
  with named('config.cluster.network'):
    return Network(**links)
