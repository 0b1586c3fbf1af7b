"""Local steps on text: DiLoCo's and Asynchronous Local-SGD's claims."""

import ml_collections

from claims.entries import _local_steps as shared
from claims.entries._local_steps import DILOCO
from claims.published import Entry
from configs import local_steps

# Inner and outer rates, from configs/sweeps/local_steps_text.py.
_RATES: dict[str, tuple[float, float | None]] = {
  'bsp': (3e-3, None),
  'local_8': (3e-3, 0.3),
  'local_32': (3e-3, 0.3),
  'asp_naive': (3e-3, 0.3),
  'elastic_balanced': (1e-2, 0.3),
}
_GRID = shared.grid(_RATES)
_LEVEL = '0.25'


def get_config() -> ml_collections.ConfigDict:
  """Returns the shared config: the last tenth of the text tests."""
  config = local_steps.experiment('text')
  config.time_to = (0.25,)
  return config


ENTRY = Entry(
  family='local steps',
  title='Local steps on text',
  published_setup='as on digits',
  our_setup='the cluster of the digits; a transformer of one layer and width '
  "32 on Python's manual, byte by byte, one epoch, two rows of 32 bytes a "
  'step; AdamW, half a cosine to a tenth; outer momentum .9. Rates of each '
  'method from two seeds on the end of the first nine tenths',
  differences='model, data and length, so claims about quality are in shape '
  'at most; an epoch is 205 and 51 outer updates with H = 8 and 32',
  claims=(
    *(shared.fewer_bytes(f'local_{h}', h) for h in (8, 32)),
    *(
      shared.as_good(f'local_{h}', 'bsp', DILOCO, in_bits=True) for h in (8, 32)
    ),
    *shared.asynchronous(_LEVEL, in_bits=True),
  ),
  observations='Margins, methods and sizes were fixed after two trial runs, '
  'of BSP (2.86 bits per byte) and of H = 32 under bsp (3.61).',
  grids={'quick': _GRID, 'full': _GRID},
  ranked=(
    *('final_bits_per_byte', 'final_accuracy', 'time_s'),
    *(f'time_to.{_LEVEL}', f'examples_to.{_LEVEL}', 'bytes'),
  ),
)
