"""Methods of communicating rarely, on digits and text: no config of a run.

Four virtual workers, 1, 1, 2 and 3 times slower with 10 % jitter, on links of
10 Mbit/s, compute as many examples with every method.  The files
configs/sweeps/local_steps_digits.py and local_steps_text.py tune their rates;
entries of the ledger compare them.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence

import ml_collections

from configs import default

_LINK_BPS = 1.25e6  # 10 Mbit/s.
_FIELDS = (
  'cluster.workers',
  'cluster.speed.slowdown',
  'sync.name',
  'batching.local_steps',
  'batching.name',
  'batching.lb_bsp.unit',
  'optimizer.reduction',
  'outer.name',
)
_RATES = 'optimizer.learning_rate', 'outer.learning_rate'


def _local(
  sync: str,
  outer: str,
  *,
  steps: int = 32,
  balanced: bool = False,
  workers: int = 4,
) -> tuple[str, ...]:
  """Returns the values of _FIELDS for local steps."""
  slowdown = '' if workers == 4 else '(1.0,)'
  batching = ('lb_bsp', 'steps') if balanced else ('', '')
  return (f'{workers}', slowdown, sync, f'{steps}', *batching, '', outer)


_WITHOUT_MOMENTUM = 'bsp', 'average', 'alone'
# Values of _FIELDS by method; '' leaves a default.
METHODS: Mapping[str, tuple[str, ...]] = {
  'bsp': ('4', '', 'bsp', '1', '', '', 'mean', ''),
  'local_8': _local('bsp', 'nesterov', steps=8),
  'local_32': _local('bsp', 'nesterov'),
  'local_128': _local('bsp', 'nesterov', steps=128),
  'asp_naive': _local('asp', 'nesterov'),
  'asp_delayed': _local('asp', 'delayed_nesterov'),
  'elastic_balanced': _local('elastic', 'delayed_nesterov', balanced=True),
  'alone_outer': _local('bsp', 'nesterov', workers=1),
  'quorum': _local('quorum', 'nesterov'),
  'average': _local('bsp', 'sgd'),
  'alone': ('1', '(1.0,)', 'bsp', '1', '', '', 'mean', ''),
  'local_balanced': _local('bsp', 'nesterov', balanced=True),
  'elastic_naive': _local('elastic', 'nesterov'),
  'elastic_naive_balanced': _local('elastic', 'nesterov', balanced=True),
  'elastic_delayed': _local('elastic', 'delayed_nesterov'),
  'ssp_delayed': _local('ssp', 'delayed_nesterov'),
  'r2sp_delayed': _local('r2sp', 'delayed_nesterov'),
}


def grid(rows: Iterable[tuple[str, float, float | None]]) -> str:
  """Returns a grid of methods with rates, as text: see `sweeps.grid`.

  Args:
    rows: Method, inner rate, and outer rate; None for one without.
  """
  values = [
    ' & '.join(
      (*METHODS[method], f'{inner}', '' if outer is None else f'{outer}')
    )
    for method, inner, outer in rows
  ]
  return f'{" & ".join((*_FIELDS, *_RATES))} = {", ".join(values)}'


def tuning(
  methods: Iterable[str],
  *,
  inner: Sequence[float],
  outer: Sequence[float],
) -> str:
  """Returns the grid of candidate rates of each method, two seeds, as text.

  Methods with momentum between the workers try all pairs; the others try the
  inner rates and a third of the lowest.

  Args:
    methods: Names in METHODS.
    inner: Rates of config.optimizer, ascending.
    outer: Rates of config.outer.
  """
  lone = (inner[0] / 3, *inner)
  rows: list[tuple[str, float, float | None]] = []
  for method in methods:
    if method in _WITHOUT_MOMENTUM:
      rows += [(method, rate, None) for rate in lone]
    else:
      rows += [(method, *pair) for pair in itertools.product(inner, outer)]
  return f'{grid(rows)}; seed = 0, 1'


def experiment(variant: str) -> ml_collections.ConfigDict:
  """Returns the config that all runs share, with the test split.

  Args:
    variant: 'digits' or 'text'.

  Raises:
    ValueError: If there is no such variant.
  """
  if variant not in ('digits', 'text'):
    raise ValueError(f"variant: expected 'digits' or 'text', got {variant!r}.")
  config = default.get_config()
  config.cluster.speed.slowdown = (1.0, 1.0, 2.0, 3.0)
  for host in ('worker', 'server'):
    for link in ('up', 'down'):
      config.cluster.network[f'{host}_{link}_Bps'] = (_LINK_BPS,)
  config.data.ahead = 0  # Iterations of many steps: no more than an epoch.
  config.optimizer.name = 'adamw'
  config.optimizer.clip_norm = 1.0
  config.schedule.name = 'cosine'
  config.schedule.cosine.final = 0.1
  config.outputs.timeline = False
  config.outputs.board = False
  config.time_to = ()
  if variant == 'digits':
    config.model.name = 'mlp'
    config.model.mlp.hidden = (32,)
    config.batching.worker_batch = 2
    config.epochs = 8.0
    config.eval_every = 0.5
    return config
  config.model.name = 'transformer'
  config.model.transformer.layers = 1
  config.model.transformer.width = 32
  config.model.transformer.heads = 2
  config.data.name = 'text'
  config.data.text.length = 32
  config.batching.worker_batch = 2
  config.epochs = 1.0
  config.eval_every = 0.1
  return config
