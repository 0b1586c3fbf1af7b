"""Times of iterations in a lab beside those of the virtual clock.  Needs root.

Four equal workers move 5 MB to servers and back, as bench/moving.py says; links
are nominal, less what frames take, and nothing is fitted to any of the runs.
"""

import contextlib
import itertools
import pathlib
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from bench import moving
from claims.measures import asked

_SCHEMES: Mapping[str, Mapping[str, Any]] = {
  'bsp': {'sync.name': 'bsp'},
  'bsp, pipelined': {'sync.name': 'bsp', 'route.server.pipelined': True},
  'asp': {'sync.name': 'asp'},
  'ssp': {'sync.name': 'ssp'},
  'elastic': {'sync.name': 'elastic'},
  'r2sp': {'sync.name': 'r2sp'},
}
_RATES_MBIT = 100, 200, 400
_COMPUTE_S = 0.02, 0.2
_SERVERS = 1, 2  # On hosts of their own.
_ROUNDS = 20


def measure(*, seed: int, scale: str) -> list[Mapping[str, Any]]:
  """Returns a record per condition, and one of all: by how much it misses."""
  del seed, scale  # Real runs differ anyway.
  found: list[Mapping[str, Any]] = []
  with (
    tempfile.TemporaryDirectory() as folder,
    contextlib.redirect_stdout(sys.stderr),  # Where runs say how they go.
  ):
    for scheme, rate, compute_s, servers in itertools.product(
      _SCHEMES, _RATES_MBIT, _COMPUTE_S, _SERVERS
    ):
      fields = _SCHEMES[scheme]
      given = (fields, compute_s, rate, _ROUNDS)
      out = pathlib.Path(folder)
      real_s = moving.real(out, scheme, *given, (), servers=servers)
      virtual_s = moving.virtual(*given, servers=servers, dedicated=True)
      found.append(
        {
          'scheme': scheme,
          'Mbit/s': rate,
          'compute_s': compute_s,
          'servers': servers,
          'real_s': real_s,
          'virtual_s': virtual_s,
          'miss': abs(virtual_s / real_s - 1),
        }
      )
  misses = [each['miss'] for each in found]
  return [
    *found,
    {
      'part': 'all',
      'conditions': len(found),
      'median': float(np.median(misses)),
      'p95': float(np.quantile(misses, 0.95)),
      'worst': float(np.max(misses)),
    },
  ]


if __name__ == '__main__':
  asked.answer(measure)
