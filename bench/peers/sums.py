"""Measures the rows of torch in the tables of bench.allreduce."""

from bench.hosts import Case
from bench.peers import running
from cluster.speed import layers
from topology.packing.pack import pack

_LAYER_BYTES = 2.0**20


def rows(
  python: str, case: Case, size_bytes: int, rounds: int, dtype: str
) -> list[tuple[str, ...]]:
  """Returns a row of torch's all_reduce and a row of a step of its DDP.

  Args:
    python: Path of an interpreter that has torch.
    case: Hosts and their links.
    size_bytes: Bytes of the summed vector in float32.
    rounds: Number of measurements, of which the median is taken.
    dtype: Dtype of DDP's messages; all_reduce sends float32.
  """
  parts = layers.in_proportion(layers.equal_sizes(size_bytes, _LAYER_BYTES))
  hook = 'none' if dtype == 'float32' else dtype
  jobs = [
    running.sum_job(size_bytes, rounds),
    running.step_job(running.sleeping_model(parts, 0), steps=rounds, hook=hook),
  ]
  total, step = running.run(python, case, jobs)
  half = hook != 'none'
  optimum_s = size_bytes / float(pack(case.cluster).bound_Bps or 1)
  return [
    _row('gloo', size_bytes, optimum_s, total.round_s, total),
    _row('ddp', size_bytes, optimum_s / (1 + half), step.step_s, step),
  ]


def _row(
  name: str,
  size_bytes: int,
  optimum_s: float,
  took_s: float,
  cost: running.Sum | running.Step,
) -> tuple[str, ...]:
  return (
    name,
    f'{size_bytes / 1e6:g}',
    *('', ''),  # Number and depth of trees.
    f'{optimum_s:.3f}',
    f'{took_s:.3f}',
    f'{optimum_s / took_s:.3f}',
    f'{1e9 * cost.cpu_s / cost.sent_bytes:.2f}',
  )
