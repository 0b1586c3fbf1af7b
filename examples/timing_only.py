"""Compares the times of schemes with many workers, without a model.

  python -m examples.timing_only [--workers=64] [--iterations=100]
    [--schemes=bsp,asp,ssp,dssp,elastic,r2sp] [--batching=fixed]
    [--slow=2] [--stay=0.98] [--bound=inf]

An iteration takes half a second, three times that in slow phases, in which each
worker spends half of its time; phases last 1 / (1 - stay) iterations in the
mean.  Every eighth worker is `slow` times slower in all phases.  `bound` is the
largest lead between barriers of ElasticBSP.  Workers push 100 MB to eight
servers and pull as much, over links of 10 Gbit/s.  Prints, after the table of
each run, one of all runs: examples per second, share of waiting, mean and
largest staleness, and goodput.  Takes two seconds per scheme on two cores.
"""

import argparse
import math
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections

import train
from configs import timing

_SCHEMES = 'bsp,asp,ssp,dssp,elastic,r2sp'
_LINK_BPS = 1.25e9
_COLUMNS = ('examples/s', 'waiting', 'staleness', 'largest', 'goodput')


def config(
  scheme: str,
  *,
  batching: str,
  workers: int,
  iterations: int,
  slow: float,
  stay: float,
  bound: float = math.inf,
) -> ml_collections.ConfigDict:
  """Returns the config of a run of about `iterations` for each worker."""
  result = timing.config(
    timing.fields(
      workers=workers,
      iterations=iterations,
      size_bytes=100_000_000,
      batch=32,
    ),
    timing.links(_LINK_BPS, _LINK_BPS),
    {
      'sync.name': scheme,
      'batching.name': batching,
      'route.server.servers': 8,
      'cluster.speed.name': 'regime',
      'cluster.speed.regime.stay': stay,
      'cluster.speed.regime.sigma': 0.1,
      'cluster.speed.fixed_s': 0.18,
      'cluster.speed.per_example_s': 0.01,
      'cluster.speed.slowdown': tuple(
        slow if worker % 8 == 7 else 1.0 for worker in range(workers)
      ),
    },
  )
  if scheme == 'elastic':
    result.sync.elastic.bound = bound
  return result


def row(summary: Mapping[str, Any]) -> tuple[str, ...]:
  """Returns the cells of a run's row in the table."""
  return (
    f'{summary["examples"] / summary["virtual_s"]:.0f}',
    f'{summary["waiting_share"]:.1%}',
    f'{summary["staleness_mean"]:.2f}',
    str(summary['staleness_max']),
    f'{summary["goodput"]:.1%}',
  )


def main(argv: Sequence[str] | None = None) -> None:
  """Runs each scheme and prints the table."""
  parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
  parser.add_argument('--workers', type=int, default=64)
  parser.add_argument('--iterations', type=int, default=100)
  parser.add_argument('--schemes', default=_SCHEMES)
  parser.add_argument('--batching', default='fixed')
  parser.add_argument('--slow', type=float, default=2.0)
  parser.add_argument('--stay', type=float, default=0.98)
  parser.add_argument('--bound', type=float, default=math.inf)
  given = parser.parse_args(argv)
  rows = {}
  for scheme in given.schemes.split(','):
    scheme_config = config(
      scheme,
      batching=given.batching,
      workers=given.workers,
      iterations=given.iterations,
      slow=given.slow,
      stay=given.stay,
      bound=given.bound,
    )
    with tempfile.TemporaryDirectory() as folder:
      rows[scheme] = row(
        train.build(scheme_config, workdir=f'{folder}/run', own_process=True)()
      )
  print('scheme  ', *(column.rjust(12) for column in _COLUMNS))
  for scheme, cells in rows.items():
    print(scheme.ljust(8), *(cell.rjust(12) for cell in cells))


if __name__ == '__main__':
  main()
