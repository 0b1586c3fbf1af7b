"""Cluster and workload to advise on, as flags of tools.tune describe them."""

import pathlib

from configs import units
from configs.checks import require
from tuning import clusters, recorded
from tuning.simulating import Workload

BATCH = 32  # Examples of an iteration, unless they are given.
# Numbers of parameters of networks for ImageNet, without auxiliary heads.
MODELS = {
  'alexnet': 61_100_840,
  'inception_v3': 23_834_568,
  'resnet50': 25_557_032,
  'vgg16': 138_357_544,
}


def size_bytes(model: str) -> int:
  """Returns the bytes of a model's parameters in float32.

  Args:
    model: A name of `MODELS`, or bytes such as '100MB'.

  Raises:
    ValueError: If it is neither.
  """
  if model in MODELS:
    return 4 * MODELS[model]
  try:
    return max(units.parse_bytes(model) // 4, 1) * 4
  except ValueError as error:
    raise ValueError(
      f'model: expected one of {sorted(MODELS)}, or its bytes such as '
      f"'100MB', got {model!r}."
    ) from error


def read_problem(
  folder: pathlib.Path,
  *,
  model: str | None = None,
  batch: int | None = None,
  local_steps: int = 1,
  file: str | None = None,
  run: str | None = None,
  trace: str | None = None,
) -> tuple[clusters.ClusterDescription, Workload]:
  """Returns the cluster and the workload that flags describe.

  Args:
    folder: Folder for measurements of a run, needed as long as the cluster.
    model: Value of --model: see `size_bytes`; None without the flag.
    batch: Examples of an iteration, or of one of its local steps.
    local_steps: Value of --local_steps.
    file: Value of --cluster.
    run: Value of --from_run.
    trace: Value of --from_trace.

  Raises:
    ValueError: If a flag or its file is wrong; names it.
  """
  if run:
    alone = 'neither --cluster nor --from_trace beside it'
    require(not (file or trace), '--from_run', alone, file or trace)
    cluster, own = recorded.read_run(run, folder)
    size = size_bytes(model) if model else own.size_bytes
    return cluster, Workload(size, batch or own.batch, local_steps)
  beside = (
    'for its links, beside --from_trace' if trace else 'or --from_run=DIR'
  )
  if not file:
    raise ValueError(f'--cluster: expected a file, {beside}, got {file!r}.')
  if not model:
    raise ValueError(f'--model: expected a name, or bytes, got {model!r}.')
  workload = Workload(size_bytes(model), batch or BATCH, local_steps)
  if not trace:
    return clusters.read(file), workload
  return recorded.read_trace(trace, file, workload.batch), workload
