"""Candidates: configs that differ from the present one in how they run.

Candidates are the combinations of `combinations.ALL`, put into the user's
config, and the same with the present scheme.  By default they keep learning as
it is: no gradient becomes staler than the present scheme allows, and the local
steps stay.  Only the wire may change, from float32 to bfloat16.
"""

import copy
import math
from collections.abc import Collection
from typing import NamedTuple

from ml_collections import ConfigDict

import train
from analysis import recorded_configs
from configs import default, user_parts
from configs.checks import require
from outputs import console
from tuning import combinations, examples
from tuning.combinations import BSP, Combination
from tuning.examples import ExamplesRatio, Ratios

STALENESS, LOCAL_STEPS = 'staleness', 'local_steps'
ALLOWED = (STALENESS, LOCAL_STEPS)
STEPS = (8, 32)  # Local steps of candidates.
_CLASSES = combinations.STALENESS
_ROUTES = ('server', 'ring', 'forest')  # Those of local steps.


class Candidate(NamedTuple):
  """A config to compare with the present one.

  Attributes:
    name: Scheme, batching, wire, route and local steps, as text.
    config: The config.
    changes: What it changes about learning, of `ALLOWED`.
    ratio: Examples that it needs over those of the present config.
  """

  name: str
  config: ConfigDict
  changes: tuple[str, ...]
  ratio: ExamplesRatio


class Rejection(NamedTuple):
  """A candidate that cannot run.

  Attributes:
    name: Its name.
    reason: Message of the check that rejected it.
  """

  name: str
  reason: str


def check_present(config: ConfigDict, workers: int) -> None:
  """Checks the present config.

  Args:
    workers: Number of workers on which it runs.

  Raises:
    ValueError: If it is refused, or if its scheme is unknown; names the field.
  """
  scheme = config.sync.name
  expected = f'one of {sorted(_CLASSES)}, or a module of your own'
  is_known = scheme in _CLASSES or user_parts.is_own(scheme)
  require(is_known, 'config.sync.name', expected, scheme)
  _check(config, workers)


def propose(
  config: ConfigDict,
  *,
  workers: int,
  allow: Collection[str],
  ratios: Ratios,
) -> tuple[list[Candidate], list[Rejection]]:
  """Returns the candidates for a config, and those that cannot run.

  Args:
    config: Present config.
    workers: Number of workers.
    allow: Changes of learning that are allowed, of `ALLOWED`.
    ratios: Ratios of `examples.read_ratios`.

  Raises:
    ValueError: If a change is unknown.
  """
  for each in allow:
    require(each in ALLOWED, '--allow', f'some of {ALLOWED}', each)
  steps = config.batching.local_steps
  base = examples.find(ratios, _present(config), steps)
  own = [each._replace(sync=config.sync.name) for each in combinations.ALL]
  every = dict.fromkeys((*combinations.ALL, *own))
  choices = [(each, steps) for each in every]
  if LOCAL_STEPS in allow and steps == 1:
    plain = [BSP._replace(route=route) for route in _ROUTES]
    choices += [(each, many) for many in STEPS for each in plain]
  seen, found, rejected = [config], list[Candidate](), list[Rejection]()
  for combination, steps in choices:
    changes = _changes(config, combination, steps)
    if not set(changes) <= set(allow):
      continue
    changed = apply(config, combination, steps)
    if changed in seen:
      continue
    seen.append(changed)
    ratio = examples.SAME
    if changes:
      ratio = _over(examples.find(ratios, combination, steps), base)
    candidate = Candidate(name(changed), changed, changes, ratio)
    try:
      _check(changed, workers)
    except ValueError as error:
      rejected.append(Rejection(candidate.name, str(error)))
    else:
      found.append(candidate)
  return found, rejected


def apply(
  config: ConfigDict, combination: Combination, local_steps: int
) -> ConfigDict:
  """Returns a copy of a config with a combination and a number of local steps.

  Fields of parts that are no longer used return to their defaults.  A wire
  other than 'dense', or one of half precision, stays.
  """
  changed, defaults = copy.deepcopy(config), default.get_config()
  if combination.sync != config.sync.name:
    changed.sync = defaults.sync
    changed.sync.name = combination.sync
  if combination.sync == 'bsp':
    changed.staleness = defaults.staleness
  if combination.batching != config.batching.name:
    _reset(changed.batching, defaults.batching)
    changed.batching.name = combination.batching
    if combination.batching == 'lb_bsp':
      changed.batching.lb_bsp.predictor.name = 'ema'
  if config.wire.name == 'dense' and config.wire.dense.dtype == 'float32':
    changed.wire.dense.dtype = combination.dtype
  if combination.route != config.route.name:
    route = config.route.name
    if 'server' in (route, combination.route):
      changed.route = defaults.route
    else:
      _reset(changed.route, defaults.route)
    changed.route.name = combination.route
  changed.route.server.pipelined = combination.pipelined
  if local_steps != config.batching.local_steps:
    # Averages of the workers' parameters, which need no rates of their own.
    changed.batching.local_steps = local_steps
    changed.outer = defaults.outer
    if local_steps > 1:
      changed.optimizer.reduction = defaults.optimizer.reduction
  return changed


def _reset(section: ConfigDict, defaults: ConfigDict) -> None:
  """Gives the fields of a section's choice their defaults."""
  if user_parts.is_own(section.name):
    section[user_parts.SECTION] = ConfigDict()
  else:
    section[section.name].update(defaults[section.name])


def measuring_config(config: ConfigDict, route: str = '') -> ConfigDict:
  """Returns the config of a run that measures the cluster.

  This is BSP with equal batches and one local step, over the config's own wire.

  Args:
    route: Route of the run; '' for the config's own.
  """
  changed, defaults = copy.deepcopy(config), default.get_config()
  same = _present(config)._replace(sync='bsp', batching='fixed')
  if route:
    same = same._replace(route=route, pipelined=False)
  for field in ('fragments', 'overlap_steps', 'blend'):
    changed.route[field] = defaults.route[field]
  return apply(changed, same, 1)


def name(config: ConfigDict) -> str:
  """Returns a config's scheme, batching, wire, route and local steps."""
  combination = _present(config)
  wire = config.wire.name
  if wire != 'dense':
    combination = combination._replace(dtype=wire)
  steps = config.batching.local_steps
  return (
    f'{combination}, {steps} local steps' if steps > 1 else f'{combination}'
  )


def _present(config: ConfigDict) -> Combination:
  """Returns the combination that is closest to a config."""
  return Combination(
    config.sync.name,
    config.batching.name,
    config.wire.dense.dtype,
    config.route.name,
    config.route.server.pipelined,
  )


def _changes(
  config: ConfigDict, combination: Combination, steps: int
) -> tuple[str, ...]:
  """Returns what a combination changes about learning."""
  now = _CLASSES.get(config.sync.name, 0)
  stale = _CLASSES.get(combination.sync, 0) > now
  changed = stale, steps != config.batching.local_steps
  return tuple(
    each for each, differs in zip(ALLOWED, changed, strict=True) if differs
  )


def _over(ratio: ExamplesRatio, base: ExamplesRatio) -> ExamplesRatio:
  """Returns a ratio to BSP as one to the present config."""
  return ratio._replace(
    median=ratio.predicted / base.predicted,
    least=ratio.least / base.predicted,
    most=ratio.most / base.predicted if base.is_known else math.inf,
  )


def _check(config: ConfigDict, workers: int) -> None:
  """Checks a config as that of a virtual run, which knows all parts."""
  virtual = recorded_configs.virtual_config(config)
  virtual.cluster.workers = workers
  virtual.cluster.speed.slowdown = (1.0,)
  with console.hidden():
    train.check(virtual)
