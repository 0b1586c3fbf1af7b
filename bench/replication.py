"""Measures what the replication of the coordinator's state costs.

  python -m bench.replication [--workers=4] [--iterations=2000]

A run on a ring without a model and without computation, on this machine: an
iteration is as short as it can be.  In every other block of 50 iterations the
coordinator does not send its state to the members that may succeed it
(`cluster.allreduce.replication`), so that both kinds meet the same conditions.
The first iterations of a block are not counted.
"""

import argparse
import collections
import itertools
import os
import pathlib
import statistics
import sys
import tempfile
from unittest import mock

from absl import app

import main as product
from bench import clusters
from cluster.allreduce.runtime import AllreduceRuntime
from tools.reading import records

_BATCH, _BLOCK, _SKIPPED = 16, 50, 5
_EPOCH = 50  # Iterations.
_FIELDS = {
  'model.name': 'none',
  'model.none.size_bytes': 4096,
  'sync.name': 'bsp',
  'route.name': 'ring',
  'log_every': 10**9,
  'batching.worker_batch': _BATCH,
  'checkpoint.every_s': 'inf',
  'outputs.timeline': False,
  'outputs.board': False,
}


def main(argv: list[str] | None = None) -> None:
  """Executes the run and prints the times of its iterations."""
  parser = argparse.ArgumentParser(
    prog='bench.replication', description=__doc__.splitlines()[0]
  )
  parser.add_argument('--workers', type=int, default=4)
  parser.add_argument('--iterations', type=int, default=2000)
  flags = parser.parse_args(argv)
  folder = pathlib.Path(tempfile.mkdtemp()) / 'run'
  words = clusters.command(
    folder,
    'configs/default.py',
    {
      **_FIELDS,
      'model.none.num_train': _EPOCH * _BATCH * flags.workers,
      'epochs': flags.iterations / _EPOCH,
      'eval_every': flags.iterations / _EPOCH,
    },
    workers=flags.workers,
    servers=0,
    dedicated=False,
  )
  words.insert(words.index('--'), '--module=bench.replication')
  log = folder.with_name('run.log')
  clusters.finish(clusters.start(words, log), log)
  ends = sorted(
    {e['time'] for e in records.read_events(folder) if e['event'] == 'push'}
  )
  times: dict[bool, list[float]] = collections.defaultdict(list)
  for version, (before, end) in enumerate(itertools.pairwise(ends), start=1):
    if version % _BLOCK >= _SKIPPED:
      times[_replicates(version)].append(end - before)
  with_s, without_s = (statistics.median(times[each]) for each in (True, False))
  print(
    f'{flags.workers} workers: an iteration takes {1e3 * with_s:.2f} ms with '
    f'replicated state, {1e3 * without_s:.2f} ms without: '
    f'{with_s / without_s:.3f} times as long'
  )


def _replicates(version: int) -> bool:
  """Returns whether the state of this version is replicated."""
  return version // _BLOCK % 2 == 0


def _train() -> None:
  """Runs main.py, whose coordinator replicates its state at times."""
  replicate = AllreduceRuntime._replicate

  def replicate_at_times(runtime: AllreduceRuntime) -> None:
    if _replicates(runtime._store.version):
      replicate(runtime)

  with mock.patch.object(AllreduceRuntime, '_replicate', replicate_at_times):
    app.run(product.main)


if __name__ == '__main__':
  # The launcher names the role of a process of the run.
  if any(word.startswith('--role=') for word in sys.argv):
    _train()
  else:
    os.environ.setdefault('JAX_PLATFORMS', 'cpu')
    main()
