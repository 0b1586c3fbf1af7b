"""Checks that reject combinations of scheme, wire and route."""

from ml_collections import ConfigDict

from configs import sections
from configs.checks import require
from route.route import Allreduce, ParameterServer, Plan
from sync.scheme import Scheme
from wire.codec import Wire


def check_fragments(config: ConfigDict, plan: Plan, scheme: Scheme) -> None:
  """Rejects fragments that scheme, route, wire or batching cannot carry.

  Args:
    config: Config, whose fields are checked one by one.
    plan: Plan of the route.
    scheme: Scheme of the run.

  Raises:
    ValueError: If they cannot be combined; names the field.
  """
  if not sections.has_fragments(config):
    return
  route, name = config.route, type(scheme).__name__
  reason = (
    f'as config.route.fragments is {route.fragments}, overlap_steps '
    f'{route.overlap_steps} and blend {route.blend:g}'
  )
  hosts = config.cluster.hosts_per_worker
  text = f'1, {reason}: only whole models move between islands'
  require(hosts == 1, 'config.cluster.hosts_per_worker', text, hosts)
  expected = (
    f"'bsp', {reason}: an update is of one fragment, divided by the examples "
    f'of its pushes, and a push that is late under {name} is of another one'
  )
  is_synchronous = getattr(scheme, 'is_synchronous', False)
  require(is_synchronous, 'config.sync.name', expected, config.sync.name)
  expected = f"a route of hosts such as 'ring', {reason}: "
  if isinstance(plan, ParameterServer):
    text = expected + 'servers send and get the whole model'
    raise ValueError(f'config.route.name: expected {text}, got {route.name!r}.')
  text = expected + 'XLA sums the whole model after the last step'
  require(plan.forest is not None, 'config.route.name', text, plan.name)
  text = f'False, {reason}: sums differ in their sizes'
  require(not plan.adapt, f'config.route.{plan.name}.adapt', text, plan.adapt)
  text = f'a number, {reason}: times of fragments are not predicted'
  is_number = plan.bucket_bytes is not None
  require(is_number, 'config.route.bucket_bytes', text, sections.AUTO)
  text = f"'dense', {reason}: residuals are of the whole model"
  wire, batching = config.wire.name, config.batching.name
  require(wire == 'dense', 'config.wire.name', text, wire)
  text = (
    f"'fixed', {reason}: a displacement is of several iterations, whose "
    'batches must not differ'
  )
  require(batching == 'fixed', 'config.batching.name', text, batching)
  text = f"'sgd' or 'nesterov', {reason}: a delay counts updates of fragments"
  fits = config.outer.name != 'delayed_nesterov'
  require(fits, 'config.outer.name', text, config.outer.name)


def check(config: ConfigDict, plan: Plan, scheme: Scheme, wire: Wire) -> None:
  """Checks that scheme, wire, route and reduction can be combined.

  Args:
    config: Config, whose fields are checked one by one.
    plan: Plan of the route.
    scheme: Scheme of the run.
    wire: Wire of the run.

  Raises:
    ValueError: If they cannot be combined; names the field.
  """
  _check_reduction(config, scheme)
  _check_staleness(config, scheme)
  _check_min_workers(config, plan)
  if isinstance(plan, ParameterServer):
    _check_parameter_server(config, plan, scheme, wire)
  else:
    _check_allreduce(config, plan, scheme, wire)


def _check_reduction(config: ConfigDict, scheme: Scheme) -> None:
  """Rejects an average over barriers for schemes without barriers or others."""
  name, reduction = type(scheme).__name__, config.optimizer.reduction
  if reduction != 'barrier_mean':
    return
  field = 'config.optimizer.reduction'
  expected = f"'sum' or 'mean', as no update of {name} is of several pushes"
  require(getattr(scheme, 'has_barriers', False), field, expected, reduction)
  expected = f"'mean', as every update of {name} is of a barrier"
  require(
    not getattr(scheme, 'is_synchronous', False), field, expected, reduction
  )


def _check_staleness(config: ConfigDict, scheme: Scheme) -> None:
  """Rejects weights by staleness where they would change nothing."""
  field, weight = 'config.staleness.name', config.staleness.name
  if weight == 'constant':
    return
  name = type(scheme).__name__
  is_stale = not getattr(scheme, 'is_synchronous', False)
  expected = f"'constant', as no push of {name} is stale"
  require(is_stale, field, expected, weight)
  optimizer = config.optimizer.name
  is_linear = optimizer == 'sgd' or config.batching.local_steps > 1
  expected = f"'constant', as {optimizer} takes steps whatever a push's scale"
  require(is_linear, field, expected, weight)


def _check_min_workers(config: ConfigDict, plan: Plan) -> None:
  """Rejects a start without workers that the route needs."""
  field, least = 'config.cluster.min_workers', config.cluster.min_workers
  workers = config.cluster.workers
  if isinstance(plan, ParameterServer):
    servers = 0 if plan.dedicated else plan.servers
    expected = (
      f'0 or at least {servers}, as many workers hold parameters '
      '(config.route.server.servers)'
    )
    require(not 0 < least < servers, field, expected, least)
  elif plan.forest is None:
    expected = (
      f'0 or {workers}, as config.route.name is {plan.name!r} and XLA needs '
      'all workers'
    )
    require(least in (0, workers), field, expected, least)


def _check_parameter_server(
  config: ConfigDict, plan: ParameterServer, scheme: Scheme, wire: Wire
) -> None:
  field = f'{sections.chosen_path(config, "route")}.pipelined'
  name = type(scheme).__name__
  fits = getattr(scheme, 'is_synchronous', False) or not plan.pipelined
  expected = f'False, as {name} does not release all workers together'
  require(fits, field, expected, plan.pipelined)
  elementwise = wire.elementwise or not plan.pipelined
  expected = f'False, as {config.wire.name} does not treat numbers one by one'
  require(elementwise, field, expected, plan.pipelined)


def _check_allreduce(
  config: ConfigDict, plan: Allreduce, scheme: Scheme, wire: Wire
) -> None:
  """Rejects schemes and codecs that do not fit an allreduce."""
  name, size = type(scheme).__name__, plan.bucket_bytes
  field = 'config.route.bucket_bytes'
  require(size is None or size >= 0, field, 'at least 0', size)
  fits = getattr(scheme, 'is_synchronous', False)
  expected = f"'server', as {name} does not release all workers together"
  require(fits, 'config.route.name', expected, plan.name)
  push, name = wire.push, config.wire.name
  expected = f"'server', as messages of {name} are not summed on their way"
  can_sum = push.dtype is not None or push.allreduce is not None
  require(can_sum, 'config.route.name', expected, plan.name)
