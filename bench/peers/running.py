"""Runs PyTorch's gloo, DDP and torchft on hosts of a lab, for comparison.

They have an environment of their own (requirements-peers.txt, `make peers`);
the program ddp.py runs under its interpreter.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bench import clusters
from bench.hosts import Case
from cluster.speed.layers import Layer
from launch import lab

# Arguments of the flag --peers; `require_torch` checks its value.
FLAG = {'metavar': 'PYTHON', 'help': 'an interpreter that has torch'}
_PROGRAM = pathlib.Path(__file__).with_name('ddp.py')
_LIMIT_S = 600.0
_INTERFACE = 'eth0'  # Interface of the hosts of a lab.
_ENVIRON = {
  'MASTER_PORT': '29500',
  'GLOO_SOCKET_IFNAME': _INTERFACE,
  'CUDA_VISIBLE_DEVICES': '',
}


class Sum(NamedTuple):
  """Median times of sums.

  Attributes:
    round_s: Seconds from the first start to the last end.
    cpu_s: CPU seconds of all ranks.
    sent_bytes: Bytes sent by all ranks, with frames and headers.
  """

  round_s: float
  cpu_s: float
  sent_bytes: float


class Step(NamedTuple):
  """Median times of steps of DDP, or of rounds of DiLoCo.

  Attributes:
    step_s: Seconds from the end of a step or round to the next one.
    compute_s: Seconds of a step without communication, of the slowest rank.
    cpu_s: CPU seconds of all ranks.
    sent_bytes: Bytes sent by all ranks, with frames and headers.
    parameters: Number of parameters of the model.
  """

  step_s: float
  compute_s: float
  cpu_s: float
  sent_bytes: float
  parameters: int


def require_torch(parser: argparse.ArgumentParser, python: str | None) -> None:
  """Prints whether torch is measured, and its version.

  Args:
    parser: Parser that reports an interpreter without torch.
    python: Path of the interpreter, or None.

  Raises:
    SystemExit: If the interpreter has no torch with gloo.
  """
  if not python:
    print(
      'DDP of torch is not measured: run make peers, and then use '
      '--peers=.venv-peers/bin/python.',
      flush=True,
    )
    return
  try:
    print(f'Compared with torch {version(python)}, DDP over gloo.', flush=True)
  except ValueError as error:
    parser.error(str(error))


def version(python: str) -> str:
  """Returns the version of an interpreter's torch.

  Raises:
    ValueError: If there is no such interpreter, or it has no torch with gloo.
  """
  words = 'import torch, torch.distributed as d; '
  words += 'print(torch.__version__ if d.is_gloo_available() else "")'
  try:
    done = subprocess.run([python, '-c', words], capture_output=True, text=True)
    lines = done.stderr.strip().splitlines()[-1:] or ['torch without gloo']
    result = done.stdout.strip()
  except OSError as error:
    result, lines = '', [str(error)]
  if not result:
    raise ValueError(
      '--peers: expected an interpreter that has torch with gloo (make peers), '
      f'got {python}: {lines[0]}'
    )
  return result


def sum_job(size_bytes: int, rounds: int) -> dict[str, Any]:
  """Returns a job of all_reduce of float32, with a `Sum` as result."""
  return {'kind': 'sum', 'bytes': size_bytes, 'rounds': rounds}


def step_job(
  model: Mapping[str, Any],
  *,
  steps: int,
  batch: int = 1,
  bucket_bytes: float | None = None,
  hook: str = 'none',
  rank: int = 1,
) -> dict[str, Any]:
  """Returns a job of steps of DDP, with a `Step` as result.

  Args:
    model: Value of `sleeping_model`; or {'name': 'vgg', 'blocks': channels of
      each block's convolutions, 'hidden': width} or {'name': 'mlp', 'hidden':
      widths}, for images of 32 x 32 x 3 and ten classes, with plain SGD.
    steps: Number of measured steps.
    batch: Examples of a rank in a step.
    bucket_bytes: Size of DDP's buckets; 0 for one per tensor, None for DDP's
      default of 1 MiB and then 25.
    hook: Kind of messages: 'none' (float32), 'float16', 'bfloat16', 'powersgd'.
    rank: Rank of PowerSGD.
  """
  return {
    'kind': 'step',
    'model': dict(model),
    'steps': steps,
    'batch': batch,
    'bucket_bytes': bucket_bytes,
    'hook': hook,
    'rank': rank,
  }


def diloco_job(
  layers: Sequence[Layer], *, step_s: float, local_steps: int, rounds: int
) -> dict[str, Any]:
  """Returns a job of rounds of torchft's DiLoCo, with a `Step` as result.

  Args:
    layers: Parameters of the model.
    step_s: Seconds of the sleep that stands for a local step.
    local_steps: Local steps of a round (H).
    rounds: Number of measured rounds.
  """
  return {
    'kind': 'diloco',
    'layers': [(each.bytes, each.ready) for each in layers],
    'seconds': step_s,
    'local_steps': local_steps,
    'rounds': rounds,
  }


def sleeping_model(layers: Sequence[Layer], seconds: float) -> dict[str, Any]:
  """Returns a model in which a sleep stands for computation.

  Args:
    layers: Layers in the order of the backward pass.
    seconds: Seconds of the sleep.
  """
  rows = [(each.bytes, each.ready) for each in layers]
  return {'name': 'sleeping', 'layers': rows, 'seconds': seconds}


def run(
  python: str,
  hosts: Case,
  jobs: Sequence[Mapping[str, Any]],
  limit_s: float = _LIMIT_S,
) -> list[Any]:
  """Returns the times of jobs on hosts of a new lab, with one rank per host.

  Each rank has as many threads as its equal part of this machine's processors,
  at least one.

  Args:
    python: Path of an interpreter that has torch.
    hosts: Hosts of the lab and their links.
    jobs: Jobs of `sum_job` and `step_job`.
    limit_s: Seconds after which all processes are stopped.

  Returns:
    A `Sum` or `Step` for each job.

  Raises:
    RuntimeError: If a rank fails or takes too long; has the end of the output
      of all ranks.
  """
  count = len(hosts.up)
  task = {
    'ranks': count,
    'threads': max((os.cpu_count() or 1) // count, 1),
    'environ': {'MASTER_ADDR': 'host0', **_ENVIRON},
    'jobs': [*jobs],
  }
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder)
    (path / 'links.json').write_text(json.dumps(hosts.links))
    (path / 'task.json').write_text(json.dumps(task))
    words = [sys.executable, '-m', 'tools.lab', f'--hosts={count}']
    words += [f'--link={max(hosts.up)}mbit', f'--links={path}/links.json']
    words += ['--', sys.executable, '-m', 'bench.peers.running']
    words += [python, folder]
    log = path / 'log'
    clusters.finish(clusters.start(words, log), log, limit_s)
    ranks = [
      json.loads((path / f'{rank}.json').read_text()) for rank in range(count)
    ]
  return [
    (_sum if job['kind'] == 'sum' else _step)(each)
    for job, each in zip(jobs, zip(*ranks, strict=True), strict=True)
  ]


def _sum(ranks: Sequence[Mapping[str, Any]]) -> Sum:
  rounds = zip(*(each['rounds'] for each in ranks), strict=True)
  took_s = [
    max(end for _, end in each) - min(start for start, _ in each)
    for each in rounds
  ]
  return Sum(statistics.median(took_s), *_costs(ranks))


def _step(ranks: Sequence[Mapping[str, Any]]) -> Step:
  return Step(
    statistics.median(took_s for each in ranks for took_s in each['steps_s']),
    max(each['compute_s'] for each in ranks),
    *_costs(ranks),
    ranks[0]['parameters'],
  )


def _costs(ranks: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
  cpu_s, sent_bytes = (
    sum(each[name] for each in ranks) for name in ('cpu_s', 'sent_bytes')
  )
  return cpu_s, sent_bytes


def _coordinator(python: str, folder: str) -> int:
  """Starts the ranks in the lab; returns 1 if a rank fails, else 0."""
  names = os.environ['SYNCOPATE_HOSTS'].split(',')
  ranks = [
    subprocess.Popen(
      lab.command(host, [python, '-P', str(_PROGRAM), folder, str(rank)])
    )
    for rank, host in enumerate(names)
  ]
  # The other ranks wait for a failed one; the end of the lab kills them.
  while (codes := [each.poll() for each in ranks]).count(0) < len(ranks):
    if any(codes):
      return 1
    time.sleep(0.05)
  return 0


if __name__ == '__main__':
  sys.exit(_coordinator(*sys.argv[1:]))
