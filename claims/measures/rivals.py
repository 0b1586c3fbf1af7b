"""Measures sums and steps beside those of PyTorch on the same hosts of a lab.

Labs need root.  The environment variable SYNCOPATE_PEERS names an interpreter
that has torch.  Seeds are repetitions; those of odd seeds measure PyTorch
first.
"""

import contextlib
import json
import os
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence

from bench import allreduce, hosts, ladder
from bench.peers import running as peers
from claims.measures import answering
from configs.checks import require
from outputs import atomic

CASES = {'equal4': 'equal links', 'slow4': 'one of four hosts at a quarter'}
_SIZE_BYTES = {'quick': 5_000_000, 'full': 25_000_000}
_SECONDS = {'quick': 3.0, 'full': 12.0}
_ROUNDS = 5
_SCHEMES = 'forest', 'ring', 'psum'
_EXECUTOR = {'chunk_bytes': None, 'delay_s': 0.0, 'lanes': 1}
_WITH_FACTORS = 'slow4'
_STEPS = 20  # Of PowerSGD.
_BUCKETS = 2.0**20, None  # Of DDP, bytes; None: its default.


def measure(
  *, seed: int, scale: str, folder: pathlib.Path
) -> list[Mapping[str, object]]:
  """Returns seconds of sums, of steps and of steps with low-rank gradients.

  DDP's step is that of its faster size of buckets.

  Args:
    seed: Number of the repetition.
    scale: 'quick' or 'full'.
    folder: Folder of the records of each case, which is measured once.

  Raises:
    ValueError: If SYNCOPATE_PEERS names no interpreter.
    RuntimeError: If a run fails.
  """
  python = os.environ.get('SYNCOPATE_PEERS', '')
  require(bool(python), 'SYNCOPATE_PEERS', 'an interpreter', python)
  is_ours_first = seed % 2 == 0
  return [
    record
    for case in CASES
    for record in _read_case(python, case, scale, is_ours_first, folder)
  ]


def _read_case(
  python: str, case: str, scale: str, is_ours_first: bool, folder: pathlib.Path
) -> Sequence[Mapping[str, object]]:
  """Returns the records of a case, which is measured once.

  Args:
    python: Path of an interpreter that has torch.
    case: Name of the hosts.
    scale: 'quick' or 'full'.
    is_ours_first: Whether PyTorch is measured after us.
    folder: Folder of the records.
  """
  path = folder / f'{case}.json'
  if not path.exists():
    out = pathlib.Path(tempfile.mkdtemp(dir=folder))
    setup = ladder.Setup(
      hosts.cases()[case], _SIZE_BYTES[scale], _SECONDS[scale]
    )
    has_factors = case == _WITH_FACTORS
    records: list[Mapping[str, object]] = []
    with contextlib.redirect_stdout(sys.stderr):
      for is_ours in (is_ours_first, not is_ours_first):
        took = (
          _measure_ours(out, setup, has_factors=has_factors)
          if is_ours
          else _measure_torch(python, setup, has_factors=has_factors)
        )
        records += [
          {'links': case, 'system': name, 'took_s': seconds}
          for name, seconds in took.items()
        ]
    atomic.write(path, json.dumps(records))
  stored: Sequence[Mapping[str, object]] = json.loads(path.read_text())
  return stored


def _measure_ours(
  out: pathlib.Path, setup: ladder.Setup, *, has_factors: bool
) -> dict[str, float]:
  """Returns seconds of sums by scheme, and of steps.

  Args:
    out: Folder of the runs.
    setup: Hosts and gradient.
    has_factors: Whether to measure low-rank gradients, too.
  """
  jobs = [(scheme, setup.size_bytes) for scheme in _SCHEMES]
  _, results = allreduce.measure_case(
    setup.hosts, jobs, _ROUNDS, _EXECUTOR, 'float32'
  )
  took = {
    f'sum, {scheme}': statistics.median(result['took_s'])
    for scheme, result in zip(_SCHEMES, results, strict=True)
  }
  step = ladder.measure_rung(out, 'forest', 'overlap', setup)
  took['step, forest'] = step.step_s
  if has_factors:
    took['lowrank'] = ladder.measure_lowrank(out, setup).step_s
  return took


def _measure_torch(
  python: str, setup: ladder.Setup, *, has_factors: bool
) -> dict[str, float]:
  """Returns seconds of gloo's sum and of steps of DDP, in one lab.

  Args:
    python: Path of an interpreter that has torch.
    setup: Hosts and gradient.
    has_factors: Whether to measure PowerSGD, too.
  """
  jobs = [
    peers.sum_job(setup.size_bytes, _ROUNDS),
    *(ladder.ddp_job(setup, 'bfloat16', size) for size in _BUCKETS),
  ]
  if has_factors:
    jobs.append(ladder.powersgd_job(_STEPS))
  total, *steps = peers.run(python, setup.hosts, jobs)
  took = {'sum, gloo': total.round_s}
  if has_factors:
    took['powersgd'] = steps.pop().step_s
  return {**took, 'step, ddp': min(each.step_s for each in steps)}


if __name__ == '__main__':
  answering.print_records(measure, uses_folder=True)
