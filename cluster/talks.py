"""Conversations of the workers of a run that sum among themselves."""

import math

from ml_collections import ConfigDict

from configs.sections import named
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
  sizes = {'bucket_bytes': math.inf, 'step_statistics': 0}
  layout, hosted = learned.layout(**sizes), plan.forest is not None
  with named(f'config.wire.{config.wire.name}'):
    # What does not fit is refused.
    Talks(wire, layout.gradient_size, layout.matrices(), hosted=hosted)
    layout = learned.layout(**sizes, multiple=wire.push.multiple)
    return Talks(wire, layout.gradient_size, layout.matrices(), hosted=hosted)
