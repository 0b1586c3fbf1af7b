"""Local steps on digits: DiLoCo's and Asynchronous Local-SGD's claims."""

import ml_collections

from claims.entries import _local_steps as shared
from claims.entries._local_steps import ASYNC, DILOCO, SNOO
from claims.published import LESS, Claim, Entry
from configs import local_steps

# Inner and outer rates, from configs/sweeps/local_steps_digits.py.
_RATES: dict[str, tuple[float, float | None]] = {
  'bsp': (2e-3, None),
  'local_8': (2e-3, 0.3),
  'local_32': (2e-3, 0.3),
  'local_128': (2e-3, 0.3),
  'asp_naive': (2e-3, 0.3),
  'asp_delayed': (2e-3, 0.3),
  'elastic_balanced': (2e-3, 0.7),
  'alone_outer': (2e-3, 0.3),
  'quorum': (2e-3, 0.3),
  'average': (2e-3 / 3, None),
  'alone': (2e-3 / 3, None),
  'local_balanced': (2e-3, 0.7),
  'elastic_naive': (2e-3, 0.3),
  'elastic_naive_balanced': (2e-3, 0.3),
  'elastic_delayed': (2e-3, 0.3),
  'ssp_delayed': (2e-3, 0.7),
  'r2sp_delayed': (2e-3, 0.3),
}
_GRID = shared.grid(_RATES)
_LEVEL = '0.9'


def get_config() -> ml_collections.ConfigDict:
  """Returns the shared config: fold 0 tests."""
  config = local_steps.experiment('digits')
  config.time_to = (0.8, 0.9)
  config.eval_every = 0.25
  return config


def _as_good(method: str, other: str, source: str) -> Claim:
  return shared.as_good(method, other, source, in_bits=False)


ENTRY = Entry(
  family='local steps',
  title='Local steps on digits, under each scheme',
  published_setup='DiLoCo: language models of 60 to 400 million parameters '
  'on C4, 8 workers, 500 steps of AdamW, outer Nesterov. Asynchronous '
  'Local-SGD: up to 150 million, C4, workers of unequal speed',
  our_setup='4 virtual workers, 1, 1, 2 and 3 times slower with 10 % jitter, '
  'links of 10 Mbit/s; a dense layer of 32 on digits, 8 epochs, batches of 2 '
  'a step; AdamW, half a cosine to a tenth; outer momentum .9. Rates of each '
  'method from two seeds on another fold (docs/rare_communication.md). '
  'Equal examples for all methods',
  differences='model, data and length, so claims about quality are in shape '
  'at most; 8 epochs are 180, 45 and 11 outer updates with H = 8, 32 and 128',
  claims=(
    *(shared.fewer_bytes(f'local_{h}', h) for h in (8, 32, 128)),
    *(_as_good(f'local_{h}', 'bsp', DILOCO) for h in (8, 32, 128)),
    *shared.asynchronous(_LEVEL, in_bits=False),
    shared.ratio(
      f'delayed momentum is the remedy: examples to {_LEVEL}',
      f'examples_to.{_LEVEL}',
      *('asp_delayed', 'asp_naive', ASYNC, LESS),
    ),
    *(
      _as_good(method, 'local_32', 'ours')
      for method in (
        *('local_balanced', 'asp_delayed', 'elastic_delayed', 'ssp_delayed'),
        *('r2sp_delayed', 'quorum'),
      )
    ),
    *(
      shared.ratio(
        'time of as many examples', 'time_s', method, 'local_32', 'ours', LESS
      )
      for method in ('local_balanced', 'asp_delayed', 'quorum')
    ),
    shared.better('alone_outer', 'alone', SNOO, in_bits=False),
    shared.better('average', 'local_32', 'ours', in_bits=False),
  ),
  observations='Margins, methods and sizes were fixed after two trial runs, '
  'of BSP and of H = 32 under bsp.',
  grids={'quick': _GRID, 'full': _GRID},
  ranked=(
    *('final_accuracy', 'time_s', f'time_to.{_LEVEL}'),
    *(f'examples_to.{_LEVEL}', 'bytes', 'staleness_mean'),
  ),
)
