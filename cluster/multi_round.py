"""Builds the multi-round allreduce of a run, for both runtimes."""

import math

from ml_collections import ConfigDict

from configs.sections import chosen_path, error_prefix
from learning.learning import Learning
from route.route import Allreduce
from wire.codec import Wire
from wire.multi_round import MultiRoundAllreduce


def build(
  config: ConfigDict, plan: Allreduce, wire: Wire, learned: Learning
) -> MultiRoundAllreduce | None:
  """Returns the multi-round allreduce of a run; None if its wire has none.

  Args:
    config: Config of the run.
    plan: Allreduce over a forest, on hosts, or by XLA.
    wire: Codecs of the run.
    learned: Model and data of the run.

  Raises:
    ValueError: If the wire does not fit the model's gradient; names the field.
  """
  if wire.push.allreduce is None:
    return None
  uses_numpy = plan.forest is not None
  layout = learned.layout(bucket_bytes=math.inf, step_statistics=0)
  with error_prefix(chosen_path(config, 'wire')):
    # Checks the gradient before padding, which would hide that it is too short.
    MultiRoundAllreduce(
      wire, layout.gradient_size, layout.matrices(), uses_numpy=uses_numpy
    )
    layout = learned.layout(
      bucket_bytes=math.inf, step_statistics=0, multiple=wire.push.padding
    )
    return MultiRoundAllreduce(
      wire, layout.gradient_size, layout.matrices(), uses_numpy=uses_numpy
    )
