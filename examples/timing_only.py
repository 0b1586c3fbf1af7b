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

import math
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections
from absl import app, flags

import train
from configs import timing

SCHEMES = ['bsp', 'asp', 'ssp', 'dssp', 'elastic', 'r2sp']
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


def compare(schemes: Sequence[str], **settings: Any) -> None:
  """Runs each scheme and prints the table.

  Args:
    schemes: Values of config.sync.name.
    **settings: Further arguments of `config`.
  """
  rows = {}
  for scheme in schemes:
    with tempfile.TemporaryDirectory() as folder:
      run = train.build(
        config(scheme, **settings), workdir=f'{folder}/run', own_process=True
      )
      rows[scheme] = row(run())
  print('scheme  ', *(column.rjust(12) for column in _COLUMNS))
  for scheme, cells in rows.items():
    print(scheme.ljust(8), *(cell.rjust(12) for cell in cells))


def main(argv: list[str]) -> None:
  """Compares schemes as the flags say."""
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  values = flags.FLAGS
  compare(
    values.schemes,
    batching=values.batching,
    workers=values.workers,
    iterations=values.iterations,
    slow=values.slow,
    stay=values.stay,
    bound=values.bound,
  )


if __name__ == '__main__':
  flags.DEFINE_integer('workers', 64, 'Number of workers.')
  flags.DEFINE_integer('iterations', 100, 'Iterations of each worker.')
  flags.DEFINE_list('schemes', SCHEMES, 'Values of config.sync.name.')
  flags.DEFINE_string('batching', 'fixed', 'Value of config.batching.name.')
  flags.DEFINE_float('slow', 2.0, 'Slowdown of every eighth worker.')
  flags.DEFINE_float('stay', 0.98, 'Probability that a phase goes on.')
  flags.DEFINE_float(
    'bound', math.inf, 'Largest lead between barriers of elastic, iterations.'
  )
  app.run(main)
