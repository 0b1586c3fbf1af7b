"""Measures the rungs of GradientFlow's ladder on real links, in a lab.

Labs need root.  Seeds are repetitions, which take the rungs in turned orders.
"""

import contextlib
import pathlib
import sys
import tempfile
from collections.abc import Mapping

from bench import ladder
from bench.hosts import Case
from claims.measures import answering

HOSTS, MBIT = 4, 200
_SIZE_BYTES = {'quick': 5_000_000, 'full': 25_000_000}
_SECONDS = {'quick': 3.0, 'full': 12.0}
_RUNGS = 'tensors', 'fused', 'half', 'overlap', 'ahead', 'sparse', 'both'


def measure(
  *, seed: int, scale: str, folder: pathlib.Path
) -> list[Mapping[str, object]]:
  """Returns the seconds of a step, and their exposed part, of each rung."""
  mbit = [MBIT] * HOSTS
  setup = ladder.Setup(
    Case(mbit, mbit, {}), _SIZE_BYTES[scale], _SECONDS[scale]
  )
  out = pathlib.Path(tempfile.mkdtemp(dir=folder))
  place = seed % len(_RUNGS)
  records: list[Mapping[str, object]] = []
  with contextlib.redirect_stdout(sys.stderr):
    for rung in (*_RUNGS[place:], *_RUNGS[:place]):
      took = ladder.measure_rung(out, 'ring', rung, setup)
      records.append(
        {
          'rung': rung,
          'step_s': took.step_s,
          'exposed_s': took.step_s - took.compute_s,
        }
      )
  return records


if __name__ == '__main__':
  answering.print_records(measure, uses_folder=True)
