"""Checks the configs of planned runs before the first one starts."""

from ml_collections import ConfigDict

import train
from configs.checks import require
from outputs import manifests
from sweeps import plan

# Parts of a run that Python code may replace; those of a sweep replace none.
_REPLACED: dict[str, None] = dict.fromkeys(('scheme', 'task', 'dataset'))


def resolve(arguments: tuple[str, ...]) -> plan.ResolvedConfig:
  """Returns the checked config of a run.

  Args:
    arguments: Flags of main.py, without --workdir.

  Raises:
    ValueError: If main.py would refuse the config, as far as that shows
      without making model and data, or if a sweep could not resume the run.
  """
  config = plan.parse_config(arguments)
  try:
    _check_resumable(config)
    resolved = train.check(config)
  except ValueError as error:
    description = ' '.join(arguments[1:])
    raise ValueError(f'{error}  (of the run {description})') from error
  described = manifests.described(resolved, _REPLACED)
  return plan.ResolvedConfig(
    fields=manifests.flatten(resolved),
    identity=manifests.fingerprint(described),
    files=described['files'],
  )


def _check_resumable(config: ConfigDict) -> None:
  runtime = config.cluster.runtime
  expected = "'virtual': a sweep starts one process for each run"
  require(runtime == 'virtual', 'config.cluster.runtime', expected, runtime)
  rhythm = config.checkpoint
  has_checkpoints = rhythm.every_s < float('inf') or rhythm.every_examples > 0
  expected = 'checkpoints, from which a sweep resumes runs'
  require(has_checkpoints, 'config.checkpoint', expected, rhythm.to_dict())
