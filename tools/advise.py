"""Advises on scheme, batching, codec and route for a cluster.

  python -m tools.advise --model=vgg16 --cluster=FILE [--batch=32]
    [--local_steps=1]
  python -m tools.advise --model=vgg16 --cluster=FILE --from-trace=CSV
  python -m tools.advise --from-run=DIR [--model=vgg16] [--batch=32]

Simulates the times of combinations, and ranks them by the predicted time to an
accuracy: examples per second, divided by the examples that they needed relative
to BSP in the runs of the ledger.  FILE is JSON (tuning/clusters.py).  CSV
has speeds; DIR, the folder of a run, has speeds, links, bytes and batch
(tuning/recorded.py).
"""

import pathlib
import sys
import tempfile

from absl import app, flags

from configs import paths
from configs.checks import require
from learning import placement
from tools import pack
from tuning import clusters, needed, ranking, recorded
from tuning.simulating import Workload

_BATCH = 32
# Numbers of parameters of networks for ImageNet, without auxiliary heads.
MODELS = {
  'alexnet': 61_100_840,
  'inception_v3': 23_834_568,
  'resnet50': 25_557_032,
  'vgg16': 138_357_544,
}


def main(argv: list[str]) -> None:
  """Prints the ranking and the advice."""
  values = flags.FLAGS
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  placement.use_cpu_only()
  try:
    with tempfile.TemporaryDirectory() as folder:
      cluster, workload = read_problem(
        pathlib.Path(folder),
        model=values.model,
        batch=values.batch,
        local_steps=values.local_steps,
        file=values.cluster,
        run=values['from-run'].value,
        trace=values['from-trace'].value,
      )
      advice = ranking.advise(cluster, workload, needed.read_ratios(), _log)
  except (OSError, ValueError) as error:
    sys.exit(f'Refused: {error}')
  except KeyboardInterrupt:
    sys.exit(130)
  print(ranking.table(advice), ranking.explain(advice), sep='\n\n')


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
    return max(pack.size_bytes(model) // 4, 1) * 4
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
  """Returns the cluster and the workload that the flags describe.

  Args:
    folder: Folder for measurements of a run, needed as long as the cluster.
    model: Value of --model; None without the flag, as below.
    batch: Examples of an iteration, or of one of its local steps.
    local_steps: --local_steps.
    file: --cluster.
    run: --from-run.
    trace: --from-trace.

  Raises:
    ValueError: If a flag or its file is wrong; names it.
  """
  if run:
    alone = 'neither --cluster nor --from-trace beside it'
    require(not (file or trace), '--from-run', alone, file or trace)
    cluster, own = recorded.read_run(run, folder)
    size = size_bytes(model) if model else own.size_bytes
    return cluster, Workload(size, batch or own.batch, local_steps)
  beside = (
    'for its links, beside --from-trace' if trace else 'or --from-run=DIR'
  )
  if not file:
    raise ValueError(f'--cluster: expected a file, {beside}, got {file!r}.')
  if not model:
    raise ValueError(f'--model: expected a name, or bytes, got {model!r}.')
  workload = Workload(size_bytes(model), batch or _BATCH, local_steps)
  if not trace:
    return clusters.read(file), workload
  return recorded.read_trace(trace, file, workload.batch), workload


def _log(text: str) -> None:
  print(text, file=sys.stderr, flush=True)


if __name__ == '__main__':
  flags.DEFINE_string('model', None, 'A name, or bytes.')
  paths.define_path('cluster', 'File of the cluster.')
  paths.define_path('from-run', 'Folder of a run on the cluster.')
  paths.define_path('from-trace', 'CSV file of times of iterations.')
  flags.DEFINE_integer(
    'batch', None, f"Examples of an iteration; {_BATCH}, or the run's.", 1
  )
  flags.DEFINE_integer('local_steps', 1, 'Local steps of an iteration.', 1)
  app.run(main)
