"""The toy example of Asynchronous Local-SGD: a mixture of Gaussians."""

import ml_collections

from claims.entries import _local_steps as shared
from claims.entries._local_steps import ASYNC
from claims.published import LESS, MORE, Claim, Entry, Measure
from configs import default

_STEP_S = 0.58, 0.75, 1.51, 3.33
_STEPS = 20
_BATCH = 8
_NUM_TRAIN = 6400  # An epoch has ten phases of all workers.
_FIELDS = (
  'sync.name',
  'outer.name',
  'outer.learning_rate',
  'batching.name',
  'batching.lb_bsp.unit',
)
# Weights of asynchronous updates are sqrt(K) / K, twice our mean of K = 4.
_METHODS = (
  ('bsp', 'nesterov', '0.1', '', ''),
  ('asp', 'nesterov', '0.2', '', ''),
  ('asp', 'delayed_nesterov', '0.1', '', ''),
  ('elastic', 'nesterov', '0.2', '', ''),
  ('elastic', 'delayed_nesterov', '0.1', 'lb_bsp', 'steps'),
)
_ROWS = ', '.join(' & '.join(row) for row in _METHODS)
_GRID = f'{" & ".join(_FIELDS)} = {_ROWS}'
_LEVEL = '0.7'


def get_config() -> ml_collections.ConfigDict:
  """Returns the shared config: constant speeds, links that cost nothing."""
  config = default.get_config()
  config.data.name = 'synthetic'
  config.data.synthetic.num_train = _NUM_TRAIN
  config.data.synthetic.num_test = 1000
  config.data.synthetic.pixels = 4
  config.data.synthetic.channels = 1
  config.model.name = 'mlp'
  config.model.mlp.hidden = (64,)
  config.batching.worker_batch = _BATCH
  config.batching.local_steps = _STEPS
  config.optimizer.name = 'adamw'
  config.optimizer.learning_rate = 2e-4
  config.optimizer.adamw.weight_decay = 1e-3
  config.schedule.name = 'cosine'
  config.eval_every = 0.25
  config.time_to = (0.7, 0.8)
  config.outputs.timeline = False
  config.outputs.board = False
  speed = config.cluster.speed
  speed.name = 'constant'
  speed.fixed_s = 0.0
  speed.per_example_s = _STEP_S[0] / _BATCH
  speed.slowdown = tuple(each / _STEP_S[0] for each in _STEP_S)
  for host in ('worker', 'server'):
    for link in ('up', 'down'):
      config.cluster.network[f'{host}_{link}_Bps'] = (1e12,)
  return config


def _of(method: int) -> dict[str, object]:
  sync, outer, _, batching, _ = _METHODS[method]
  return {
    'sync.name': sync,
    'outer.name': outer,
    'batching.name': batching or 'fixed',
  }


_SYNC, _NAIVE, _DELAYED, _ELASTIC, _BALANCED = map(_of, range(len(_METHODS)))


def _claim(text: str, measure: Measure, shape: tuple[float, float]) -> Claim:
  return shared.claim(text, ASYNC, measure, shape)


ENTRY = Entry(
  family='local steps',
  title='The released toy example: a mixture of Gaussians',
  published_setup='classification of a mixture of Gaussians, 4 workers at .58, '
  '.75, 1.51 and 3.33 s a step, 20 steps between updates, 400 phases; AdamW '
  '2e-4 with a cosine, decay .001; outer Nesterov .1, momentum .9; '
  'asynchronous updates weigh sqrt(K) / K (AsyncLocalSGDToyExample.ipynb)',
  our_setup='the same times, steps, optimizers and weights; ten classes, each '
  'a Gaussian in 16 dimensions (data/synthetic.py), 6,400 examples, a dense '
  'layer of 64, batches of 8; 100 phases of all workers, 400 with '
  '--scale=full',
  differences='model, data and phases, and steps divided by LB-BSP at '
  "ElasticBSP's barriers instead of once, by speed ratios; no grace period. "
  'Claims about quality are in shape at most',
  claims=(
    _claim(
      f'naive asynchrony with outer momentum needs more examples to {_LEVEL} '
      'than synchronous local steps',
      Measure(f'examples_to.{_LEVEL}', _NAIVE, _SYNC),
      MORE,
    ),
    _claim(
      'naive asynchrony ends with a lower accuracy: its own minus that of '
      'synchronous local steps',
      Measure('final_accuracy', _NAIVE, minus=_SYNC),
      (-1.0, 0.0),
    ),
    _claim(
      'delayed momentum over naive asynchrony, ASP: accuracy gained',
      Measure('final_accuracy', _DELAYED, minus=_NAIVE),
      (0.0, 1.0),
    ),
    _claim(
      'delayed momentum with balanced steps matches synchronous local steps: '
      'final accuracy, at most .02 less',
      Measure('final_accuracy', _BALANCED, minus=_SYNC),
      (-0.02, 1.0),
    ),
    _claim(
      'and is faster: time of as many examples over synchronous local steps',
      Measure('time_s', _BALANCED, _SYNC),
      LESS,
    ),
    _claim(
      f'and is faster: time to {_LEVEL} over synchronous local steps',
      Measure(f'time_to.{_LEVEL}', _BALANCED, _SYNC),
      LESS,
    ),
    _claim(
      'delayed momentum with balanced steps over naive asynchrony with fixed '
      'ones, ElasticBSP: accuracy gained',
      Measure('final_accuracy', _BALANCED, minus=_ELASTIC),
      (0.0, 1.0),
    ),
  ),
  observations='The level of .7 was chosen with one run, of synchronous local '
  'steps.',
  grids={'quick': f'{_GRID}; epochs = 10.0', 'full': f'{_GRID}; epochs = 40.0'},
  ranked=(
    *('final_accuracy', 'time_s', f'time_to.{_LEVEL}'),
    *(f'examples_to.{_LEVEL}', 'bytes', 'staleness_mean'),
  ),
)
