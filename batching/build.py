"""Builds the batching of a run from its config, with predictor and curves."""

import importlib
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from batching import curves
from batching.batching import Batching
from batching.curves import Curve
from configs import declared, default, user_parts
from configs.checks import require
from configs.sections import (
  Choose,
  build_section,
  error_prefix,
  iteration_steps,
  read_json,
)


def make(config: ConfigDict, choose: Choose, *, num_factors: int) -> Batching:
  """Returns the batching that config.batching names.

  Args:
    config: Config of the run, checked.
    choose: Returns the name and the fields of a section of the config.
    num_factors: Number of driving factors that its predictor, if any, gets.

  Raises:
    ValueError: If a setting is wrong, or a file of curves; names the field.
  """
  workers, section = config.cluster.workers, config.batching
  _, own = choose('batching')
  if user_parts.is_own(section.name):
    own = {}  # Curves, predictor and unit are fields of our own modules.
  shared: dict[str, Any] = {}
  if 'curves' in own:
    shared['curves'] = _curves(f'config.batching.{section.name}', own)
  if 'predictor' in own:
    shared['predictor'] = build_section(
      f'batching.{section.name}.predictor',
      choose,
      num_workers=workers,
      num_factors=num_factors,
      seed=config.seed,
    )
  if 'unit' in own:
    shared['step_examples'] = section.worker_batch
    reason = f'as config.batching.local_steps is {section.local_steps}'
    field, expected = f'config.batching.{section.name}.unit', "'examples'"
    valid = own['unit'] != 'steps' or section.local_steps > 1
    require(valid, field, f'{expected}, {reason}', own['unit'])
  batching: Batching = build_section(
    'batching',
    choose,
    num_workers=workers,
    worker_batch=section.worker_batch * iteration_steps(config),
    **shared,
  )
  return batching


def names_without_barriers() -> list[str]:
  """Returns the names of our batchings that work without barriers."""
  return [
    name
    for name in declared.options('batching')
    if not any(
      getattr(member, 'needs_barriers', False)
      for member in vars(importlib.import_module(f'batching.{name}')).values()
    )
  ]


def _curves(field: str, own: Mapping[str, Any]) -> list[Curve]:
  """Returns the curves in the files of a section; refuses unused fields."""
  paths = own['curves']
  usual = default.get_config().batching[field.rpartition('.')[2]]
  for unused in ('window', 'step') if paths else ('smoothing',):
    expected = f'the default {usual[unused]!r}, with curves {paths!r}'
    valid = own[unused] == usual[unused]
    require(valid, f'{field}.{unused}', expected, own[unused])
  found = []
  for path in paths.split(',') if paths else ():
    content = read_json(f'{field}.curves: {path}', 'a profile', path)
    with error_prefix(f'{field}.curves: {path}'):
      found.append(curves.parse(content))
  return found
