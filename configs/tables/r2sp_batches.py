"""R2SP's table II and figure 10: batches for workers of three speeds."""

import ml_collections

from configs.published import LESS, MORE, Claim, Entry, Measure, near
from configs.tables import _shared

_SPEEDS = 429, 628, 917  # Examples per second: g2, p2, g3.
_KINDS = 0, 0, 1, 1, 2, 2, 2, 2  # Of cluster B's workers.
_SLOWDOWN = tuple(_SPEEDS[0] / _SPEEDS[kind] for kind in _KINDS)
_TUNED = {0: 512, 2: 901, 4: 1264}
_GRID = """
  model.name & data.name & batching.worker_batch & cluster.speed.per_example_s
    & model.none.num_train & epochs =
    none & & 512 & 0.002331 & 409600 & 2.0,
    mlp & digits & 8 & 0.149184 & & 12.0;
  batching.name = fixed, r2sp
"""


def get_config() -> ml_collections.ConfigDict:
  """Returns what the runs share: cluster B, 1.19 s of computing at most."""
  config = _shared.digits(epochs=12.0)
  config.sync.name = 'r2sp'
  config.model.none.size_bytes = 1_900_000
  config.optimizer.learning_rate = 0.02
  config.cluster.workers = 8
  config.cluster.speed.fixed_s = 0.0
  config.cluster.speed.slowdown = _SLOWDOWN
  config.cluster.speed.lognormal.sigma = 0.02
  return config


def _of(model: str, batching: str) -> dict:
  return {'model.name': model, 'batching.name': batching}


ENTRY = Entry(
  family='R2SP',
  title='Table II and figure 10: batches for unequal workers',
  theirs='cluster B: 2 g2.2xlarge, 2 p2.xlarge, 4 g3.4xlarge, 2 servers; '
  'ResNet32, batch 512',
  ours='8 virtual workers of the same speeds (429, 628 and 917 examples/s) '
  'with 2 % jitter, 1.9 MB; time alone with batches of 512, and a dense layer '
  'on digits with batches of 8 whose examples take 64 times as long',
  differs='speeds are taken from table II, so the arithmetic of batches is '
  'what is compared; of figure 10 the model and the data differ',
  claims=(
    *(
      Claim(
        text=f'batch that is tuned, of {_SPEEDS[_KINDS[worker]]} examples/s',
        source='R2SP, table II',
        mark='found',
        paper=paper,
        measure=Measure(f'batch.{worker}', _of('none', 'r2sp')),
        confirmed=near(paper, 0.1),
        shape=near(paper, 0.3),
      )
      for worker, paper in _TUNED.items()
    ),
    Claim(
      text='examples per second, batches tuned over equal',
      source='R2SP, table II',
      mark='derived',
      paper=round(7882 / 4096, 2),
      measure=Measure(
        'examples_per_s', _of('none', 'r2sp'), _of('none', 'fixed')
      ),
      confirmed=near(7882 / 4096, 0.1),
      shape=MORE,
    ),
    Claim(
      text='time to converge, batches tuned over equal',
      source='R2SP, figure 10',
      mark='read off',
      paper=0.6,
      measure=Measure('time_to.0.93', _of('mlp', 'r2sp'), _of('mlp', 'fixed')),
      shape=LESS,
    ),
  ),
  grids={'quick': _GRID, 'full': _GRID},
  derived='batches',
)
