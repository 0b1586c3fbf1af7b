"""A learning rate that drops by updates, as published, or by examples."""

from typing import Any

import ml_collections

from claims.entries import _shared
from claims.published import Claim, Entry, Measure

_GRID = """
  schedule.counts = updates, examples;
  sync.name & optimizer.reduction =
    bsp & sum, bsp & mean, asp & sum, ssp & sum, elastic & sum
"""


def get_config() -> ml_collections.ConfigDict:
  """Returns the shared config: the rate drops at 2/3 of 6 epochs."""
  config = _shared.digits(epochs=6.0)
  config.optimizer.learning_rate = 0.01
  config.schedule.name = 'step'
  config.schedule.step.epochs = (4.0,)
  return config


def _of(scheme: str, counts: str) -> dict[str, Any]:
  return {
    'sync.name': scheme,
    'optimizer.reduction': 'sum',
    'schedule.counts': counts,
  }


ENTRY = Entry(
  family='ElasticBSP',
  title='Schedules that count updates',
  published_setup='ResNet-50 on CIFAR-100, rate times .1 at epoch 200 of 300; '
  "jumps in the figure's curves of ASP, SSP and DSSP come at 17 % of the run, "
  'those of BSP and ElasticBSP at 66 %: the schedule counts updates of the '
  'server',
  our_setup='digits, 4 equal workers, rate .01 times .1 at 2/3 of 6 epochs, '
  'counted by updates (a superstep of BSP being one) or by examples',
  differences='model and data; the published schedule is read off a figure',
  claims=(
    Claim(
      text='ASP loses accuracy if the rate drops by updates: by updates minus '
      'by examples',
      source='ElasticBSP, figure of ResNet-50',
      mark='derived',
      measure=Measure(
        'final_accuracy', _of('asp', 'updates'), minus=_of('asp', 'examples')
      ),
      shape=(-1.0, 0.0),
    ),
    Claim(
      text='SSP does: by updates minus by examples',
      source='ElasticBSP, figure of ResNet-50',
      mark='derived',
      measure=Measure(
        'final_accuracy', _of('ssp', 'updates'), minus=_of('ssp', 'examples')
      ),
      shape=(-1.0, 0.0),
      same_as=_of('asp', 'updates'),
    ),
    Claim(
      text='ElasticBSP does not: by updates minus by examples',
      source='ElasticBSP, figure of ResNet-50',
      mark='derived',
      measure=Measure(
        'final_accuracy',
        _of('elastic', 'updates'),
        minus=_of('elastic', 'examples'),
      ),
      shape=(-0.005, 0.005),
    ),
    Claim(
      text='by examples the schemes differ little: final accuracy, ElasticBSP '
      'minus ASP',
      source='ours',
      mark='ours',
      measure=Measure(
        'final_accuracy',
        _of('elastic', 'examples'),
        minus=_of('asp', 'examples'),
      ),
      confirmed=(-0.01, 0.01),
    ),
  ),
  observations='Here ElasticBSP loses as much as ASP, because each push '
  'between barriers is an update; the published one seems to count '
  'supersteps.',
  grids={'quick': _GRID, 'full': _GRID},
)
