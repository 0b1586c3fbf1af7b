"""Describes, evaluates or exports a checkpoint of a run.

  python -m tools.checkpoint RUN [--number=7]
    [--evaluate] [--export=FILE.npz|FILE.safetensors]

RUN is the folder of a run of a model and a data set that the config names,
virtual or on real hosts.  Without --evaluate or --export, prints which
checkpoints there are.  An exported file has an array for each parameter, by its
path, and for each running statistic; --config.model.init=FILE starts another
run from it.
"""

import pathlib
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from absl import app, flags

import analysis
from analysis import checking, recorded_configs
from cluster.parameter_server.checkpoints import read_servers, server_part
from configs import paths
from configs.checks import require
from learning import build as learning
from learning import exported
from learning.learning import Learning
from outputs import atomic, checkpoints
from wire import dense

_NUMBER = flags.DEFINE_integer(
  'number', None, 'Number of the checkpoint; by default the newest.'
)
_EVALUATE = flags.DEFINE_bool(
  'evaluate', False, 'Prints the figures of the checkpoint on the test split.'
)
flags.DEFINE_list('own', [], checking.OWN)
_EXPORT = paths.define_path(
  'export',
  'File that the parameters are written to: FILE.npz or FILE.safetensors.',
)


class Version(NamedTuple):
  """Version of a model from a checkpoint.

  Attributes:
    number: Number of the checkpoint.
    version: Number of updates applied or skipped.
    examples: Number of examples in applied updates.
    params: Pytree of float32 arrays, in the form of the model's.
    stats: The same of running statistics; () if there are none.
  """

  number: int
  version: int
  examples: int
  params: Any
  stats: Any


def read(
  path: pathlib.Path, number: int | None = None
) -> tuple[Version, Learning]:
  """Returns a checkpoint's version, and the model and data of the run.

  Args:
    path: Folder of the run.
    number: Number of the checkpoint; None for the newest.

  Raises:
    ValueError: If there is no such checkpoint, or if the run's model or data
      set was its caller's own.
    OSError: If it cannot be read.
  """
  for part, value in analysis.read(path).manifest['own'].items():
    if part in ('task', 'dataset'):
      expected = 'one that the config names'
      require(value is None, f'{path}: {part}', expected, "the caller's own")
  directory = path / 'checkpoints'
  numbers = checkpoints.steps(directory)
  require(bool(numbers), str(path), 'a run with a checkpoint', 'none')
  if number is None:
    number = numbers[-1]
  require(number in numbers, '--number', f'one of {numbers}', number)
  learned = learning.from_config(recorded_configs.restore_config(path))
  return _read_version(directory, number, learned), learned


def _read_version(
  directory: pathlib.Path, number: int, learned: Learning
) -> Version:
  parts = checkpoints.part_names(directory, number)
  servers = sum(part.startswith(server_part('')) for part in parts)
  if servers:
    shards = read_servers(directory, number, servers)
    codec = learned.shard_codec(
      servers=servers, wire=dense.make(dtype='float32')
    )
    params, stats = codec.join(
      [(shard['params'], shard['stats']) for shard in shards]
    )
    newest = shards[0]
  else:
    own = checkpoints.read(directory, number, [checkpoints.COORDINATOR])
    state = own[checkpoints.COORDINATOR]['state']['runtime']
    newest = state['store']['learner']
    params, stats = newest['params'], newest['stats']
  return Version(number, newest['version'], newest['examples'], params, stats)


def describe(path: pathlib.Path) -> str:
  """Returns a line for each complete checkpoint of a run."""
  directory = path / 'checkpoints'
  lines = [
    f'{number}: {", ".join(checkpoints.part_names(directory, number))}'
    for number in checkpoints.steps(directory)
  ]
  return '\n'.join(lines) or 'no complete checkpoint'


def evaluate(version: Version, learned: Learning) -> Mapping[str, float]:
  """Returns the figures of a version on the run's test split, by name.

  Raises:
    ValueError: If the run has no model.
  """
  if learned.evaluate is None:
    raise ValueError('learned: expected a model, got none.')
  return learned.evaluate(version.params, version.stats)


def main(argv: list[str]) -> None:
  """Describes, evaluates or exports the checkpoint that the flags name."""
  if len(argv) != 2:
    raise app.UsageError(f'Expected the folder of one run, got {argv[1:]}.')
  path = pathlib.Path(argv[1])
  try:
    checking.import_modules()
    if _EXPORT.value:
      exported.check_suffix(pathlib.Path(_EXPORT.value), '--export')
    if not (_EVALUATE.value or _EXPORT.value):
      analysis.read(path)
      print(describe(path))
      return
    version, learned = read(path, _NUMBER.value)
    print(
      f'{path}: checkpoint {version.number}, version {version.version}, '
      f'{version.examples} examples'
    )
    for name, figure in (
      evaluate(version, learned) if _EVALUATE.value else {}
    ).items():
      print(f'{name}: {figure:.6g}')
    if _EXPORT.value:
      file = pathlib.Path(_EXPORT.value)
      content = exported.encode(file.suffix, version.params, version.stats)
      atomic.write(file, content)
      print(f'parameters: {file}')
  except (OSError, ValueError) as error:
    sys.exit(f'Refused: {error}')


if __name__ == '__main__':
  app.run(main)
