"""Measures sums and steps beside those of PyTorch on the same hosts of a lab.

Labs need root.  The environment variable SYNCOPATE_PEERS names an interpreter
that has torch.  Seeds are repetitions; those of odd seeds measure PyTorch
first.
"""

import contextlib
import os
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Mapping

from bench import allreduce, hosts, ladder
from bench.peers import running as peers
from claims.measures import answering
from configs.checks import require

CASES = {'equal4': 'equal links', 'slow4': 'one of four hosts at a quarter'}
_SIZE_BYTES = {'quick': 5_000_000, 'full': 25_000_000}
_SECONDS = {'quick': 3.0, 'full': 12.0}
_ROUNDS = 5
_SCHEMES = 'forest', 'ring', 'psum'
_EXECUTOR = {'chunk_bytes': None, 'delay_s': 0.0, 'lanes': 1}
_BUCKETS = 2.0**20, None  # Of DDP, bytes; None: its default.


def measure(
  *, seed: int, scale: str, folder: pathlib.Path
) -> list[Mapping[str, object]]:
  """Returns seconds of sums, of steps and of steps with low-rank gradients.

  DDP's step is that of its faster size of buckets.

  Raises:
    ValueError: If SYNCOPATE_PEERS names no interpreter.
    RuntimeError: If a run fails.
  """
  python = os.environ.get('SYNCOPATE_PEERS', '')
  require(bool(python), 'SYNCOPATE_PEERS', 'an interpreter', python)
  out = pathlib.Path(tempfile.mkdtemp(dir=folder))
  order = (True, False) if seed % 2 == 0 else (False, True)
  records: list[Mapping[str, object]] = []
  with contextlib.redirect_stdout(sys.stderr):
    for case in CASES:
      setup = ladder.Setup(
        hosts.cases()[case], _SIZE_BYTES[scale], _SECONDS[scale]
      )
      for is_ours in order:
        took = (
          _measure_ours(out / case, setup)
          if is_ours
          else _measure_torch(python, setup)
        )
        records += [
          {'links': case, 'system': name, 'took_s': seconds}
          for name, seconds in took.items()
        ]
    lowrank = ladder.measure_lowrank(out, setup)
    powersgd = ladder.measure_powersgd(python, setup, lowrank.step_s)
  factors = {'lowrank': lowrank.step_s, 'powersgd': powersgd.step_s}
  return [
    *records,
    *(
      {'links': case, 'system': name, 'took_s': seconds}
      for name, seconds in factors.items()
    ),
  ]


def _measure_ours(out: pathlib.Path, setup: ladder.Setup) -> dict[str, float]:
  """Returns seconds of sums by scheme, and of a step over a forest."""
  jobs = [(scheme, setup.size_bytes) for scheme in _SCHEMES]
  _, results = allreduce.measure_case(
    setup.hosts, jobs, _ROUNDS, _EXECUTOR, 'float32'
  )
  took = {
    f'sum, {scheme}': statistics.median(result['took_s'])
    for scheme, result in zip(_SCHEMES, results, strict=True)
  }
  step = ladder.measure_rung(out, 'forest', 'overlap', setup)
  return {**took, 'step, forest': step.step_s}


def _measure_torch(python: str, setup: ladder.Setup) -> dict[str, float]:
  """Returns seconds of gloo's sum and of a step of DDP in bfloat16."""
  (total,) = peers.run(
    python, setup.hosts, [peers.sum_job(setup.size_bytes, _ROUNDS)]
  )
  chosen = [('bfloat16', size) for size in _BUCKETS]
  by_size = ladder.measure_ddp(python, setup, chosen)
  step_s = min(each.step_s for each in by_size)
  return {'sum, gloo': total.round_s, 'step, ddp': step_s}


if __name__ == '__main__':
  answering.print_records(measure, uses_folder=True)
