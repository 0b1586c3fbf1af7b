"""Rows of torch for the tables of bench.allreduce."""

from bench.peers import running
from bench.shaped import Case
from cluster.speed import layers
from topology.packing.pack import pack

_LAYER_BYTES = 2.0**20


def rows(
  python: str, case: Case, size_bytes: int, rounds: int, dtype: str
) -> list[tuple[str, ...]]:
  """Returns a row of all_reduce, and one of a step of DDP.

  Args:
    python: An interpreter that has torch.
    case: The links.
    size_bytes: Bytes of the summed vector in float32.
    rounds: Number of measurements, of which the median is taken.
    dtype: Dtype of DDP's messages; all_reduce sends float32.
  """
  parts = layers.in_proportion(layers.equal_sizes(size_bytes, _LAYER_BYTES))
  hook = 'none' if dtype == 'float32' else dtype
  jobs = [
    running.sum_of(size_bytes, rounds),
    running.step_of(running.slept(parts, 0), steps=rounds, hook=hook),
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
    *('', ''),  # Of trees.
    f'{optimum_s:.3f}',
    f'{took_s:.3f}',
    f'{optimum_s / took_s:.3f}',
    f'{1e9 * cost.cpu_s / cost.sent_bytes:.2f}',
  )
