"""Says which combination of when, how much, what and where pays on a cluster.

  python -m tools.advise --model=vgg16 --cluster=FILE [--batch=32]
  python -m tools.advise --model=vgg16 --cluster=FILE --from-trace=CSV
  python -m tools.advise --from-run=DIR [--model=vgg16] [--batch=32]

Simulates combinations in time alone, and ranks them by the predicted time to an
accuracy: examples per second, over how many more examples than BSP they needed
in the runs of the ledger.  FILE is JSON, as tools/advise/clusters.py says; CSV
has speeds, and DIR, the folder of a run, speeds, links, bytes and batch, as
tools/advise/recorded.py says.
"""

import pathlib
import sys
import tempfile

from absl import app, flags

from configs.checks import require
from learning import placement
from tools import pack
from tools.advise import clusters, needed, ranking, recorded
from tools.advise.simulating import Workload

_BATCH = 32
# Parameters of the published networks for ImageNet; without auxiliary heads.
MODELS = {
  'alexnet': 61_100_840,
  'inception_v3': 23_834_568,
  'resnet50': 25_557_032,
  'vgg16': 138_357_544,
}


def main(argv: list[str]) -> None:
  """Prints the table and what follows from it."""
  given = flags.FLAGS
  if len(argv) > 1:
    raise app.UsageError(f'Expected only flags, got {argv[1:]}.')
  placement.use_cpu_only()
  try:
    with tempfile.TemporaryDirectory() as folder:
      cluster, workload = asked(
        pathlib.Path(folder),
        model=given.model,
        batch=given.batch,
        file=given.cluster,
        run=given['from-run'].value,
        trace=given['from-trace'].value,
      )
      advice = ranking.advise(cluster, workload, needed.measured(), _tell)
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


def asked(
  folder: pathlib.Path,
  *,
  model: str | None = None,
  batch: int | None = None,
  file: str | None = None,
  run: str | None = None,
  trace: str | None = None,
) -> tuple[clusters.Described, Workload]:
  """Returns the cluster and what is trained there, as the flags say.

  Args:
    folder: For what a run has shown; it has to stay as long as the cluster.
    model: Flag of this name, as the others; None if it is not given.
    batch: Examples of an iteration.
    file: --cluster.
    run: --from-run.
    trace: --from-trace.

  Raises:
    ValueError: If they, or what they name, are wrong; names them.
  """
  if run:
    alone = 'neither --cluster nor --from-trace beside it'
    require(not (file or trace), '--from-run', alone, file or trace)
    cluster, own = recorded.of_run(run, folder)
    size = size_bytes(model) if model else own.size_bytes
    return cluster, Workload(size, batch or own.batch)
  beside = (
    'for its links, beside --from-trace' if trace else 'or --from-run=DIR'
  )
  if not file:
    raise ValueError(f'--cluster: expected a file, {beside}, got {file!r}.')
  if not model:
    raise ValueError(f'--model: expected a name, or bytes, got {model!r}.')
  workload = Workload(size_bytes(model), batch or _BATCH)
  if not trace:
    return clusters.read(file), workload
  return recorded.of_trace(trace, file, workload.batch), workload


def _tell(text: str) -> None:
  print(text, file=sys.stderr, flush=True)


if __name__ == '__main__':
  flags.DEFINE_string('model', None, 'A name, or bytes.')
  flags.DEFINE_string('cluster', None, 'File of the cluster.')
  flags.DEFINE_string('from-run', None, 'Folder of a run on the cluster.')
  flags.DEFINE_string('from-trace', None, 'CSV file of times of iterations.')
  flags.DEFINE_integer(
    'batch', None, f"Examples of an iteration; {_BATCH}, or the run's.", 1
  )
  app.run(main)
