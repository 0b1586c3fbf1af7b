"""Builds a run from a config, and trains.

`run` trains, and returns parameters, running statistics and summary.  `build`
checks the whole config, creates scheme, batching, wire, route, model, data and
runtime, and returns a run that has not begun.
"""

import copy
import functools
import importlib
import math
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
from absl import logging
from ml_collections import ConfigDict

from batching import build as batching
from batching.batching import Batching
from cluster import combinations
from cluster.coordinator import Coordinator
from cluster.milestones import Intervals, Milestones, SaveSchedule
from cluster.process import devices, exits
from cluster.process.exits import (
  DRAINED,
  LOST,
  HandedOver,
  Reason,
  Unmendable,
  end,
)
from cluster.runtime import Parts, Site
from cluster.speed import driving
from cluster.speed.speed import Speed
from cluster.training_loop import Run, Trained
from cluster.virtual import tuning
from configs import paths, relations, sections, user_parts
from configs.checks import require
from configs.fields.field import read_seconds
from configs.sections import Choose, build_section, error_prefix
from data.dataset import Dataset
from diagnosis import watch
from learning import build as learning
from learning import compilations, placement, staleness
from learning.learning import Learning
from outputs import manifests, serialization, tracking, transient
from outputs.console import Console
from outputs.files import RunFiles
from outputs.recorder import Recorder
from route import links
from route.route import Allreduce, ParameterServer, Plan, unused
from sync.scheme import Scheme
from wire.codec import Wire

if TYPE_CHECKING:
  from models.task import Task

# Module of each runtime: see `cluster.runtime`.
_RUNTIMES = {
  'virtual': 'cluster.virtual.site',
  'distributed': 'cluster.distributed',
}


def build(
  config: ConfigDict,
  *,
  workdir: str | None = None,
  scheme: Scheme | None = None,
  task: 'Task | None' = None,
  dataset: Dataset | None = None,
  process: Mapping[str, str] | None = None,
  own_process: bool = False,
) -> Run | Site:
  """Returns the run that a config describes, or this process's part in it.

  Args:
    config: Config from a file of configs/; every field is checked first.
    workdir: Folder for the outputs; None for a new one under runs/.  If it
      holds a run of the same config, that run resumes from its checkpoint.
    scheme: Scheme instead of the one that config.sync names; a copy of it is
      used.
    task: Task instead of that of the model that config.model names.
    dataset: Data set instead of the one that config.data names.
    process: Role and coordinator of this process of a distributed run, as
      `roles.find` takes them, unless the environment has them.
    own_process: Whether this process trains no model in another run: if this
      run has no model, JAX then starts without accelerators.

  Raises:
    ValueError: If a field of the config is wrong; names the field, what was
      expected and what came.  If `workdir` holds another run.
    OSError: If the folder cannot be created.
    Unmendable: If another process coordinates a distributed run and has not
      written its address in time; a restart may help.
  """
  own = {
    'scheme': scheme,
    'task': task and (task.params, task.stats),
    'dataset': dataset,
  }
  config, choose = _check_config(config, own)
  tracking.check(config.outputs.mlflow)
  compilations.configure(config)  # Before anything starts XLA.
  learn = functools.partial(learning.make, task=task, dataset=dataset)
  files = RunFiles(workdir)
  with files.release_on_error():
    run, description = _assemble(
      config,
      choose,
      own,
      learn=learn,
      describe=_manifest,
      files=files,
      process=process or {},
      own_process=own_process,
    )
  if isinstance(run, Run):
    if run.save_schedule.is_enabled:
      serialization.check('scheme, task', run.runtime.state())
    run.files.claim(description)
    with run.files.release_on_error():
      run.restore()
  return run


def run(config: ConfigDict, **options: Any) -> Trained | None:
  """Trains as a config describes.

  Args:
    config: As of `build`.
    **options: The other arguments of `build`.

  Returns:
    Parameters, running statistics and summary.  None in a process of a run on
    real hosts whose coordinator is another process.

  Raises:
    Exception: As `build` and `Run.train`.
  """
  built = build(config, **options)
  if isinstance(built, Run):
    return built.train()
  built()
  return None


def run_process(
  config: ConfigDict, *, workdir: str | None, process: Mapping[str, str]
) -> None:
  """Builds and runs this process's part of a run, until the process ends.

  Errors that a restart may mend end the process at once with the code 75: its
  threads may wait for other processes for ever.  The end is recorded in the
  folder of the run.

  Args:
    config: As of `build`.
    workdir: As of `build`.
    process: As of `build`.

  Raises:
    SystemExit: After a signal, or if the coordinator has ended the run.
    KeyboardInterrupt: After SIGINT.
  """
  folder = pathlib.Path(workdir) if workdir else None
  with exits.ExitRecord(folder, process.get('role', 'process')):
    try:
      _run(config, workdir, process)
    except HandedOver as error:
      logging.info('%s', error)
      end(DRAINED, Reason.DRAINED, str(error))
    except Unmendable as error:
      logging.error('%s', error)
      end(LOST, Reason.UNMENDABLE, str(error), error)


def _run(
  config: ConfigDict, workdir: str | None, process: Mapping[str, str]
) -> None:
  """Trains; a transient error ends the process with the code LOST."""
  make = functools.partial(
    build, config, workdir=workdir, process=process, own_process=True
  )
  try:
    built = transient.retry(
      make,
      limit_s=lambda: transient.start_limit_s(config.cluster),
      what='The start',
    )
  except (OSError, ValueError) as error:
    # Not sys.exit: jax.distributed waits at the end for all other processes.
    code = transient.exit_code(error)
    reason = Reason.TRANSIENT if code == LOST else Reason.INVALID
    end(code, reason, str(error), error)
  if isinstance(built, Run):
    exits.describe_process(folder=built.files.workdir)
  try:
    built()
  except MemoryError as error:
    logging.exception('The host is out of memory')
    end(LOST, Reason.TRANSIENT, str(error), error)
  except OSError as error:
    if not transient.is_transient(error):
      raise
    logging.exception('The run has met a transient error')
    end(LOST, Reason.TRANSIENT, str(error), error)


def check(config: ConfigDict) -> Mapping[str, Any]:
  """Checks the config of a virtual run in little time; creates no folder.

  The checks are those of `build` without those that need the model and the
  data, which take seconds to create: their own fields and files, and the number
  of examples.

  Returns:
    The config with the choices of the plan.

  Raises:
    ValueError: As of `build`.
  """
  own = dict.fromkeys(('scheme', 'task', 'dataset'))
  config, choose = _check_config(config, own)
  run, resolved = _assemble(
    config,
    choose,
    own,
    learn=learning.stand_in,
    describe=lambda resolved, own, learned: resolved,
    files=RunFiles(None),
    process={},
  )
  run.checkpoints.close()
  return resolved


def _assemble(
  config: ConfigDict,
  choose: Choose,
  own: Mapping[str, Any],
  *,
  learn: Callable[..., Learning],
  describe: Callable[..., Mapping[str, Any]],
  files: RunFiles,
  process: Mapping[str, str],
  own_process: bool = False,
) -> tuple[Run | Site, Mapping[str, Any]]:
  """Returns the run, or this process's part in it, and its description.

  Where the coordinator is, this is a `Run`, which drives the site's runtime.
  In every other process it is the `Site` itself.

  Args:
    config: Checked config.
    choose: Function that selects a section of the config.
    own: Scheme, task and data set that replace those of the config; None each
      for none.
    learn: Function that creates the model and the data.
    describe: Function from the resolved config, `own` and the learning to the
      description.
    files: Writer of the run's files.
    process: As of `build`.
    own_process: As of `build`.
  """
  placement.keep_cpu()
  scheme = copy.deepcopy(own['scheme']) or build_section(
    'sync', choose, num_workers=config.cluster.workers
  )
  is_own = own['scheme'] is not None
  name = type(scheme).__name__.lower() if is_own else config.sync.name
  weigh = staleness.make(choose)
  wire = build_section('wire', choose)
  plan = _plan(config, choose, scheme, wire)
  if own_process and not _uses_accelerators(config, plan):
    placement.use_cpu_only()
  if config.cluster.runtime == 'virtual' and config.model.name != 'none':
    platforms = {'JAX_PLATFORMS': jax.config.values['jax_platforms'] or ''}
    devices.require_cuda({**os.environ, **platforms})
  runtime = importlib.import_module(_RUNTIMES[config.cluster.runtime])
  meeting = runtime.meet(config, plan, files=files, process=process)
  learned = learn(
    config,
    choose,
    devices=meeting.devices,
    followers=meeting.followers,
    is_island=meeting.island is not None,
  )
  speed = runtime.speed(config, choose, learned)
  plan = tuning.choose_bucket_bytes(config, choose, plan, learned, wire)
  batching_part = _batching(config, choose, scheme, speed)
  _check_states(config, scheme, batching_part)
  parts = Parts(
    batching=batching_part,
    learned=learned,
    wire=wire,
    plan=plan,
    speed=speed,
    files=files,
    manifest=describe(_resolve_config(config, plan).to_dict(), own, learned),
  )
  intervals = _intervals(config, parts.learned.num_train)
  site = runtime.make(config, meeting, parts)
  make_run = functools.partial(
    _make_run, config, name, scheme, weigh, intervals, parts, site
  )
  if site.is_coordinator:
    return make_run(), parts.manifest
  site.make_run = make_run
  return site, parts.manifest


def _make_run(
  config: ConfigDict,
  name: str,
  scheme: Scheme,
  weigh: staleness.Weight,
  intervals: Intervals,
  parts: Parts,
  site: Site,
) -> Run:
  learned, files = parts.learned, parts.files
  measures = learned.evaluate.measures if learned.evaluate else {}
  console = Console(
    target=intervals.target,
    clock=site.clock,
    primary=next(iter(measures), 'accuracy'),
  )
  recorder = Recorder(
    epoch=learned.num_train,
    files=files,
    console=console,
    measures=measures,
    accuracies=()
    if measures and 'accuracy' not in measures
    else config.time_to,
    losses=config.time_to_loss,
    figures=config.time_to_measure.to_dict(),
    watch=watch.make(
      config.cluster.workers, has_links=isinstance(parts.plan, ParameterServer)
    )
    if config.outputs.events and config.cluster.workers > 1
    else None,
  )
  save_schedule = SaveSchedule(
    every_s=config.checkpoint.every_s,
    every_examples=config.checkpoint.every_examples,
  )
  milestones = Milestones(
    intervals=intervals,
    recorder=recorder,
    store=site.store,
    evaluate=site.evaluate,
    run_in_thread=site.run_in_thread,
    save_schedule=save_schedule,
    plans_ahead=isinstance(parts.plan, Allreduce)
    and config.cluster.runtime == 'distributed',
  )
  coordinator = Coordinator(
    scheme=scheme,
    batching=parts.batching,
    store=site.store,
    stream=learned.stream,
    recorder=recorder,
    milestones=milestones,
    num_workers=config.cluster.workers,
    ahead=isinstance(parts.plan, Allreduce),
    find_stage=functools.partial(parts.find_stage, site.store),
    weigh=weigh,
  )
  return Run(
    name=name,
    runtime=site.runtime(coordinator),
    milestones=milestones,
    recorder=recorder,
    files=files,
    checkpoints=site.checkpoints,
    save_schedule=save_schedule,
    console=console,
  )


def _check_config(
  config: ConfigDict, own: Mapping[str, Any]
) -> tuple[ConfigDict, Choose]:
  """Checks the whole config.

  Returns:
    The config with whole paths, and a function that selects a section of it.
  """
  sections.check_fields(config)
  config = sections.convert_numbers(paths.expand_home(config))
  config = sections.resolve_own(config)
  relations.check_relations(config)
  sections.check_used(config, own)
  chosen = ('sync', 'batching', 'wire', 'route', 'model', 'outer', 'staleness')
  for section in chosen:
    sections.choose_section(config, section)
  choose = functools.partial(sections.choose_section, config)
  return config, choose


def _plan(
  config: ConfigDict, choose: Choose, scheme: Scheme, wire: Wire
) -> Plan:
  """Returns the plan of the route, once scheme and wire are known to fit it."""
  route = config.route
  virtual = config.cluster.runtime == 'virtual'
  chosen = build_section('route', choose)
  known = links.read_virtual(config).cluster if virtual else None
  with error_prefix(sections.chosen_path(config, 'route')):
    plan: Plan = chosen.plan(
      known,
      num_workers=config.cluster.workers,
      distributed=not virtual,
      # With local steps workers clip the gradients of their own steps.
      divisible=config.optimizer.clip_norm == math.inf
      or config.batching.local_steps > 1,
      bucket_bytes=sections.bucket_bytes(config),
      # No part of a displacement is known before the last local step.
      overlap=route.overlap and config.batching.local_steps == 1,
    )
    expected = 'ParameterServer or Allreduce'
    is_plan = isinstance(plan, (ParameterServer, Allreduce))
    require(is_plan, 'plan', expected, plan)
  combinations.check_fragments(config, plan, scheme)
  reason = f'config.route.name is {route.name!r}'
  sections.check_default(config, unused(plan), reason)
  combinations.check(config, plan, scheme, wire)
  return plan


def _manifest(
  resolved: Mapping[str, Any], own: Mapping[str, Any], learned: Learning
) -> Mapping[str, Any]:
  ahead = learned.stream.ahead
  if ahead != resolved['data']['ahead']:
    logging.info(
      'Workers prefetch %d iterations, not config.data.ahead, %d: an epoch has '
      'no more.',
      ahead,
      resolved['data']['ahead'],
    )
  return manifests.manifest(
    resolved,
    own,
    measures=learned.evaluate.measures if learned.evaluate else {},
    prefetched_iterations=ahead,
  )


def _check_states(
  config: ConfigDict, scheme: Scheme, batching: Batching
) -> None:
  """Checks that the states of the user's own parts are plain data."""
  parts = {'sync': scheme, 'batching': batching}
  if config.batching.name == 'lb_bsp':
    parts['batching.lb_bsp.predictor'] = batching
  for section, state in parts.items():
    path = f'config.{section}.name'
    name = manifests.read_field({'config': config}, path)
    if user_parts.is_own(name):
      serialization.check(f'{path}: {name}', state)


def _uses_accelerators(config: ConfigDict, plan: Plan) -> bool:
  """Returns whether workers compute on accelerators, or XLA sums on them."""
  real = config.cluster.runtime == 'distributed'
  native = isinstance(plan, Allreduce) and plan.forest is None
  return config.model.name != 'none' or (real and native)


def _resolve_config(config: ConfigDict, plan: Plan) -> ConfigDict:
  """Returns the config with the servers or buckets that the plan has chosen."""
  resolved = copy.deepcopy(config)
  if isinstance(plan, Allreduce):
    resolved.route.bucket_bytes = plan.chosen_bucket_bytes
  elif resolved.route.name == 'server':
    resolved.route.server.servers = plan.servers
  return resolved


def _batching(
  config: ConfigDict, choose: Choose, scheme: Scheme, speed: Speed | None
) -> Batching:
  factors = speed.model.num_driving if speed else len(driving.NAMES)
  chosen = batching.make(config, choose, num_factors=factors)
  if chosen.needs_barriers and not getattr(scheme, 'has_barriers', False):
    raise ValueError(
      'config.batching.name: expected one of '
      f'{batching.names_without_barriers()}, as config.sync.name '
      f'{config.sync.name!r} has no barriers, got {config.batching.name!r}.'
    )
  return chosen


def _intervals(config: ConfigDict, num_train: int) -> Intervals:
  target = round(config.epochs * num_train)
  require(target > 0, 'config.epochs', 'at least one example', config.epochs)
  seconds = read_seconds(config.eval_every)
  return Intervals(
    target=target,
    eval_every=max(round(config.eval_every * num_train), 1)
    if seconds is None
    else seconds,
    log_every=config.log_every,
    is_timed=seconds is not None,
  )
