"""What cannot be combined: scheme, wire and route that do not go together."""

from ml_collections import ConfigDict

from configs.checks import require
from route.route import Allreduce, ParameterServer, Plan
from sync.scheme import Scheme
from wire.codec import Wire


def check(config: ConfigDict, plan: Plan, scheme: Scheme, wire: Wire) -> None:
  """Checks that everything can travel as planned, and be averaged as said.

  Args:
    config: Checked field by field.
    plan: Of the route.
    scheme: That config.sync names, or one in its place.
    wire: That config.wire names.

  Raises:
    ValueError: If it cannot; names the field.
  """
  _check_reduction(config, scheme)
  if isinstance(plan, ParameterServer):
    _check_served(config, plan, scheme, wire)
  else:
    _check_reduced(config, plan, scheme, wire)


def _check_reduction(config: ConfigDict, scheme: Scheme) -> None:
  """Refuses an average over barriers alone where it is none or the mean."""
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


def _check_served(
  config: ConfigDict, plan: ParameterServer, scheme: Scheme, wire: Wire
) -> None:
  field = f'config.route.{config.route.name}.pipelined'
  name = type(scheme).__name__
  together = getattr(scheme, 'is_synchronous', False) or not plan.pipelined
  expected = f'False, as {name} does not release all workers together'
  require(together, field, expected, plan.pipelined)
  elementwise = wire.elementwise or not plan.pipelined
  expected = f'False, as {config.wire.name} does not treat numbers one by one'
  require(elementwise, field, expected, plan.pipelined)


def _check_reduced(
  config: ConfigDict, plan: Allreduce, scheme: Scheme, wire: Wire
) -> None:
  """Refuses what sums among workers cannot do."""
  name, size = type(scheme).__name__, plan.bucket_bytes
  field = 'config.route.bucket_bytes'
  require(size is None or size >= 0, field, 'at least 0', size)
  together = getattr(scheme, 'is_synchronous', False)
  expected = f"'server', as {name} does not release all workers together"
  require(together, 'config.route.name', expected, plan.name)
  push, own = wire.push, config.wire.name
  expected = f"'server', as messages of {own} are not summed on their way"
  summed = push.dtype is not None or push.allreduce is not None
  require(summed, 'config.route.name', expected, plan.name)
