"""Conversations of the workers of a run that sum among themselves."""

import math

from ml_collections import ConfigDict

from configs.sections import named
from learning.learning import Learning
from wire.codec import Wire
from wire.talks import Talks

ITEM = 4  # Bytes of a number that is said.


def of_run(config: ConfigDict, wire: Wire, learned: Learning) -> Talks | None:
  """Returns the conversations of a run; None if its wire needs none.

  Args:
    config: Of the run.
    wire: Of it.
    learned: What is learned.

  Raises:
    ValueError: If the wire cannot have vectors like these; names the field.
  """
  if not wire.push.rounds:
    return None
  sizes = {'range_bytes': math.inf, 'books': 0}
  pool = learned.pool(**sizes)
  with named(f'config.wire.{config.wire.name}'):
    Talks(wire, pool.gradient, pool.rows)  # What does not fit is refused.
    pool = learned.pool(**sizes, multiple=wire.push.multiple)
    return Talks(wire, pool.gradient, pool.rows)
