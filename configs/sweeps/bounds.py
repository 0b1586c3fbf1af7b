"""Sweep of bounds and look-ahead: SSP, DSSP, ElasticBSP; three seeds.

The model and cluster of configs/compare.py: VGG11 at 1/8 width on digits, four
virtual workers, the slowest three times slower.  A value that is left out stays
at its default, as fields of other schemes have to.

python sweep.py --config=configs/sweeps/bounds.py --out=runs/bounds
"""

import ml_collections

from configs import compare

GRID = """
  sync.name & sync.ssp.bound & sync.dssp.high & sync.elastic.lookahead =
    bsp & & &, asp & & &,
    ssp & 1 & &, ssp & 3 & &, ssp & 10 & &,
    dssp & & 6 &, dssp & & 15 &,
    elastic & & & 5, elastic & & & 15, elastic & & & 60;
  seed = 0, 1, 2
"""


def get_config() -> ml_collections.ConfigDict:
  """Returns the config that all runs share."""
  return compare.get_config()
