"""Conversations of the workers of a run that sum among themselves."""

import math

from ml_collections import ConfigDict

from configs.sections import error_prefix
from learning.learning import Learning
from route.route import Allreduce
from wire.codec import Wire
from wire.talks import Talks

ITEM = 4  # Bytes of a number that is said.


def of_run(
  config: ConfigDict, plan: Allreduce, wire: Wire, learned: Learning
) -> Talks | None:
  """Returns the conversations of a run; None if its wire needs none.

  Args:
    config: Of the run.
    plan: Where everything travels.
    wire: Of the run.
    learned: What is learned.

  Raises:
    ValueError: If the wire cannot have vectors like these; names the field.
  """
  if not wire.push.rounds:
    return None
  sizes = {'bucket_bytes': math.inf, 'books': 0}
  pool, hosted = learned.pool(**sizes), plan.forest is not None
  with error_prefix(f'config.wire.{config.wire.name}'):
    # What does not fit is refused.
    Talks(wire, pool.gradient, pool.rows, hosted=hosted)
    pool = learned.pool(**sizes, multiple=wire.push.multiple)
    return Talks(wire, pool.gradient, pool.rows, hosted=hosted)
