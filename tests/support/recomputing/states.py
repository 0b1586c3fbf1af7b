"""States of workers, and checks of them where the number of workers changes."""

import pathlib

from ml_collections import ConfigDict

from configs.checks import require
from wire.codec import Wire


def check_droppable(path: pathlib.Path, config: ConfigDict, wire: Wire) -> None:
  """Checks that workers have no states that a change of their number moves.

  It is not recorded which worker has taken over which of these states.

  Args:
    path: Folder of the run.
    config: Config of the run.
    wire: Codecs of the run.

  Raises:
    ValueError: If they have, or if updates depend on the number of workers.
  """
  field = f'{path}: workers'
  reason = 'the same number at each start, as'
  expected = f'{reason} workers keep residuals ({config.wire.name})'
  require(wire.plain, field, expected, 'another number')
  expected = f'{reason} workers have inner optimizers'
  require(config.batching.local_steps == 1, field, expected, 'another number')
  section = config.optimizer
  expected = f'{reason} updates divide by it ({section.reduction})'
  require(section.reduction != 'mean', field, expected, 'another number')
