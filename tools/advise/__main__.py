"""Says which combination of when, how much, what and where pays on a cluster.

  python -m tools.advise --model=vgg16 --cluster=FILE [--batch=32]

Simulates combinations in time alone, and ranks them by the predicted time to an
accuracy: examples per second, over how many more examples than BSP they needed
in the runs of the ledger.  FILE is JSON, as tools/advise/clusters.py says.
"""

import sys

from absl import app, flags

from tools import pack
from tools.advise import clusters, needed, ranking
from tools.advise.simulating import Workload

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
  try:
    workload = Workload(size_bytes(given.model), given.batch)
    cluster = clusters.read(given.cluster)
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


def _tell(text: str) -> None:
  print(text, file=sys.stderr, flush=True)


if __name__ == '__main__':
  flags.DEFINE_string('model', None, 'A name, or bytes.', required=True)
  flags.DEFINE_string('cluster', None, 'File of the cluster.', required=True)
  flags.DEFINE_integer('batch', 32, 'Examples of an iteration.', lower_bound=1)
  app.run(main)
