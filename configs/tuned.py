"""Schemes whose learning rates are chosen for each: no config of a run.

Four virtual workers, 1, 1.5, 2 and 3 times slower with 10 % jitter, on links of
10 Gbit/s.  The files configs/sweeps/tuned_*.py choose rates on a split for
validation, with two seeds; entries of the ledger compare the schemes.
"""

from collections.abc import Mapping

import ml_collections

from configs import default

RATES = 0.005, 0.01, 0.02, 0.04, 0.08, 0.16
_BPS = 1.25e9  # 10 Gbit/s.
# Scheme and batching by name.
SCHEMES = {
  'bsp': ('bsp', 'fixed'),
  'lb_bsp': ('bsp', 'lb_bsp'),
  'ssp': ('ssp', 'fixed'),
  'asp': ('asp', 'fixed'),
  'dssp': ('dssp', 'fixed'),
  'elastic': ('elastic', 'fixed'),
  'r2sp': ('r2sp', 'fixed'),
}
_FIELDS = 'sync.name', 'batching.name'


def of(scheme: str) -> dict[str, object]:
  """Returns the fields that identify the records of a scheme, at any rate.

  Args:
    scheme: One of `SCHEMES`.
  """
  return dict(zip(_FIELDS, SCHEMES[scheme], strict=True))


def schemes_grid() -> str:
  """Returns the grid of a sweep over all schemes, as text."""
  rows = ', '.join(' & '.join(pair) for pair in SCHEMES.values())
  return f'{" & ".join(_FIELDS)} = {rows}'


def chosen_grid(rates: Mapping[str, float]) -> str:
  """Returns the grid of a sweep over schemes, each with its rate, as text.

  Args:
    rates: Learning rate by scheme, one of `SCHEMES`.
  """
  fields = (*_FIELDS, 'optimizer.learning_rate')
  values = [
    ' & '.join((*SCHEMES[scheme], f'{rate}')) for scheme, rate in rates.items()
  ]
  return f'{" & ".join(fields)} = {", ".join(values)}'


def digits() -> ml_collections.ConfigDict:
  """Returns the config of runs on digits: a dense layer of 64, 4 epochs."""
  config = _shared()
  config.model.name = 'mlp'
  config.model.mlp.hidden = (64,)
  config.epochs = 4.0
  config.eval_every = 0.25
  config.time_to = (0.9,)
  config.eval_loss = True
  return config


def text() -> ml_collections.ConfigDict:
  """Returns the config of runs on text: one layer of width 32, an epoch."""
  config = _shared()
  config.model.name = 'transformer'
  config.model.transformer.layers = 1
  config.model.transformer.width = 32
  config.model.transformer.heads = 2
  config.data.name = 'text'
  config.data.text.length = 32
  config.batching.worker_batch = 4
  config.epochs = 1.0
  config.eval_every = 0.1
  config.time_to = ()
  config.time_to_measure.bits_per_byte = (3.5,)
  config.optimizer.name = 'adamw'
  config.optimizer.clip_norm = 1.0
  return config


def _shared() -> ml_collections.ConfigDict:
  """Returns cluster, schedule and outputs of all runs."""
  config = default.get_config()
  config.schedule.name = 'cosine'
  for host in ('worker', 'server'):
    for way in ('up', 'down'):
      config.cluster.network[f'{host}_{way}_Bps'] = (_BPS,)
  config.outputs.timeline = False
  config.outputs.events = False
  config.outputs.board = False
  return config
