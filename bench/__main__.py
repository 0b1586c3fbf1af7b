"""Runs every benchmark that needs neither root nor long.

  python -m bench

Not among them, and so not in `make bench`: the benchmarks of real hosts, which
need root for network namespaces (`bench.lab`, `bench.empty`, `bench.joining`),
and `bench.lead` and `bench.gpu`, which take minutes.  docs/benchmarks.md has
their commands.
"""

import subprocess
import sys

from absl import app

_NAMES = (
  'overhead',
  'zipline',
  'handover',
  'transport',
  'loopback',
  'predictors',
  'forest',
)


def main(argv: list[str]) -> None:
  """Runs each benchmark in a process of its own, up to the first failure."""
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  for name in _NAMES:
    subprocess.run([sys.executable, '-m', f'bench.{name}'], check=True)


if __name__ == '__main__':
  app.run(main)
