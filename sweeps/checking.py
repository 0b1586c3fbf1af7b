"""Checks runs of a sweep before the first one starts."""

from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

import train
from configs.checks import require
from outputs import manifests
from sweeps import plan

# Parts of a run that its config does not describe: none.
_OWN = dict.fromkeys(('scheme', 'task', 'dataset'))


def checked(line: tuple[str, ...]) -> plan.Checked:
  """Returns what is known of the run that flags describe.

  Raises:
    ValueError: If main.py would refuse its config, as far as that shows
      without making model and data, or if a sweep cannot go on with it.
  """
  config = plan.config(line)
  try:
    _check(config)
    resolved = train.check(config)
  except ValueError as error:
    raise ValueError(f'{error}  (of the run {" ".join(line[1:])})') from error
  return plan.Checked(
    fields=dict(_leaves(resolved)),
    identity=manifests.fingerprint(manifests.described(resolved, _OWN)),
  )


def _check(config: ConfigDict) -> None:
  runtime = config.cluster.runtime
  expected = "'virtual': a sweep starts one process for each run"
  require(runtime == 'virtual', 'config.cluster.runtime', expected, runtime)
  rhythm = config.checkpoint
  wanted = rhythm.every_s < float('inf') or rhythm.every_examples > 0
  expected = 'checkpoints, from which a sweep goes on'
  require(wanted, 'config.checkpoint', expected, rhythm.to_dict())


def _leaves(
  config: Mapping[str, Any], above: str = ''
) -> Iterator[tuple[str, Any]]:
  for field, value in config.items():
    if isinstance(value, dict):
      yield from _leaves(value, f'{above}{field}.')
    else:
      yield above + field, value
