"""Builds a run from a config.

`build` checks the whole config and makes the scheme, the batching, the wire,
the route, what is learned and the place where it is learned; calling what it
returns trains.
"""

import copy
import functools
import importlib
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ml_collections import ConfigDict

from batching import build as batching
from batching.batching import Batching
from cluster.lead import Lead
from cluster.run import Run
from cluster.runtime import Parts, Site
from cluster.speed import driving
from cluster.speed.speed import Speed
from configs import default, sections
from configs.checks import require
from configs.sections import Choose, made, named
from data.dataset import Dataset
from learning import build as learning
from learning import compilations
from outputs.console import Console
from outputs.files import RunFiles, manifest
from outputs.journal import Journal, Milestones
from route import links
from route.route import Plan, Reduced, Served, unused
from sync.scheme import Scheme
from wire.codec import Wire

if TYPE_CHECKING:
  from models.task import Task


def build(
  config: ConfigDict,
  *,
  workdir: str | None = None,
  scheme: Scheme | None = None,
  task: 'Task | None' = None,
  dataset: Dataset | None = None,
  process: Mapping[str, str] | None = None,
) -> Run | Site:
  """Returns the run that a config describes, or this process's part in it.

  Args:
    config: As made by a file of configs/; every field is checked first.
    workdir: Folder for the outputs; None makes a new one under runs/.  If it
      holds a run of the same config, that run goes on from its checkpoint.
    scheme: Replaces the one that config.sync names.
    task: Replaces the one of the model that config.model names.
    dataset: Replaces the one that config.data names.
    process: Which one of a distributed run this is: what `roles.find` takes as
      role and lead, as far as the environment does not say it.

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
  files = RunFiles(workdir)
  scheme = copy.deepcopy(scheme) or made(
    'sync', choose, num_workers=config.cluster.workers
  )
  _check_reduction(config, scheme)
  wire = made('wire', choose)
  plan = _plan(config, choose, scheme, wire)
  place = importlib.import_module(f'cluster.{config.cluster.runtime}.site')
  meeting = place.meet(config, plan, files=files, process=process or {})
  speed = place.speed(config, choose)
  parts = Parts(
    batching=_batching(config, choose, scheme, speed),
    learned=learning.make(config, choose, task, dataset, meeting.devices),
    wire=wire,
    plan=plan,
    speed=speed,
    files=files,
    described=manifest(_resolved(config, plan).to_dict(), own),
  )
  milestones = _milestones(config, parts.learned.num_train)
  site = place.make(config, meeting, parts)
  if not site.leads:
    return site
  return _run(config, scheme, milestones, parts, site)


def _run(
  config: ConfigDict,
  scheme: Scheme,
  milestones: Milestones,
  parts: Parts,
  site: Site,
) -> Run:
  learned, files = parts.learned, parts.files
  console = Console(target=milestones.target, clock=site.clock)
  journal = Journal(
    milestones=milestones,
    holder=site.holder,
    evaluate=learned.evaluate,
    files=files,
    console=console,
    later=site.later,
  )
  lead = Lead(
    scheme=scheme,
    batching=parts.batching,
    holder=site.holder,
    stream=learned.stream,
    journal=journal,
    num_workers=config.cluster.workers,
    ahead=isinstance(parts.plan, Reduced),
  )
  run = Run(
    name=type(scheme).__name__.lower(),
    runtime=site.runtime(lead),
    journal=journal,
    files=files,
    checkpoints=site.checkpoints,
    console=console,
  )
  site.checkpoints.check('scheme, task', run.runtime.state())
  files.claim(parts.described)
  with files.given_back():
    run.restore()
  return run


def _checked(config: ConfigDict, own: Mapping[str, Any]) -> Choose:
  """Returns what chooses a section of the config, all of which is checked."""
  defaults = default.get_config()
  sections.check_fields(config, defaults)
  sections.check_values(config)
  sections.check_used(config, defaults, own)
  for section in ('sync', 'batching', 'wire', 'route', 'model'):
    sections.chosen(config, defaults, section)
  return functools.partial(sections.chosen, config, defaults)


def _check_reduction(config: ConfigDict, scheme: Scheme) -> None:
  """Refuses an average over barriers alone where it is none or the mean."""
  name, reduction = type(scheme).__name__, config.optimizer.reduction
  if reduction != 'barrier_mean':
    return
  field = 'config.optimizer.reduction'
  expected = f"'sum' or 'mean', as no update of {name} is of several pushes"
  require(getattr(scheme, 'barriers', False), field, expected, reduction)
  expected = f"'mean', as every update of {name} is of a barrier"
  require(not getattr(scheme, 'together', False), field, expected, reduction)


def _plan(
  config: ConfigDict, choose: Choose, scheme: Scheme, wire: Wire
) -> Plan:
  """Returns where everything travels, if scheme and wire can do so."""
  route = config.route
  virtual = config.cluster.runtime == 'virtual'
  made_ = made('route', choose)
  known = links.virtual(config).cluster if virtual else None
  with named(f'config.route.{route.name}'):
    plan = made_.plan(
      known,
      num_workers=config.cluster.workers,
      distributed=not virtual,
      divisible=config.optimizer.clip_norm == math.inf,
      range_bytes=route.range_bytes,
      overlap=route.overlap,
    )
    require(isinstance(plan, Plan), 'plan', 'Served or Reduced', plan)
  reason = f'config.route.name is {route.name!r}'
  sections.check_default(config, default.get_config(), unused(plan), reason)
  (_check_served if isinstance(plan, Served) else _check_reduced)(
    config, plan, scheme, wire
  )
  return plan


def _check_served(
  config: ConfigDict, plan: Served, scheme: Scheme, wire: Wire
) -> None:
  field = f'config.route.{config.route.name}.pipelined'
  name = type(scheme).__name__
  together = getattr(scheme, 'together', False) or not plan.pipelined
  expected = f'False, as {name} does not release all workers together'
  require(together, field, expected, plan.pipelined)
  elementwise = wire.elementwise or not plan.pipelined
  expected = f'False, as {config.wire.name} does not treat numbers one by one'
  require(elementwise, field, expected, plan.pipelined)


def _check_reduced(
  config: ConfigDict, plan: Reduced, scheme: Scheme, wire: Wire
) -> None:
  """Refuses what sums among workers cannot do, or cannot do so far."""
  name, size = type(scheme).__name__, plan.range_bytes
  field = 'config.route.range_bytes'
  require(size >= 0, field, 'at least 0', size)
  together = getattr(scheme, 'together', False)
  expected = f"'server', as {name} does not release all workers together"
  require(together, 'config.route.name', expected, plan.name)
  wire_name, rounds = config.wire.name, wire.push.dtype is not None
  expected = (
    f"'server', as config.wire.{wire_name} does more than round numbers"
  )
  require(rounds, 'config.route.name', expected, plan.name)


def _resolved(config: ConfigDict, plan: Plan) -> ConfigDict:
  """Returns a config that says how many servers the plan has."""
  resolved = copy.deepcopy(config)
  own = resolved.route[resolved.route.name]
  if isinstance(plan, Served) and 'servers' in own:
    own.servers = plan.servers
  return resolved


def _batching(
  config: ConfigDict, choose: Choose, scheme: Scheme, speed: Speed | None
) -> Batching:
  factors = speed.model.num_driving if speed else len(driving.NAMES)
  made_ = batching.make(config, choose, num_factors=factors)
  fits = getattr(scheme, 'barriers', False) or not made_.barrier
  known = 'one that needs no barrier, as the scheme has none'
  require(fits, 'config.batching.name', known, config.batching.name)
  return made_


def _milestones(config: ConfigDict, num_train: int) -> Milestones:
  epochs = config.epochs
  target = round(epochs * num_train)
  require(target > 0, 'config.epochs', 'at least one example', epochs)
  return Milestones(
    target=target,
    epoch=num_train,
    eval_every=max(round(config.eval_every * num_train), 1),
    log_every=config.log_every,
    accuracies=config.time_to,
  )
