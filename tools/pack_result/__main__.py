"""Packs a run's result into one file, for others to add to theirs.

  python -m tools.pack_result RUN_DIR [--out=FILE]

The file has the manifest, the summary, the hardware, and the checksums of the
run's files.  Refused is a run that has not finished, one of code with changes
that are not committed, one whose files do not agree with each other, and one
that is not as it was when it was packed before.

RUN_DIR may also be the folder of a benchmark that writes rows with aims, such
as bench.gpu; the file then has its rows, too.  A dry run is refused.
"""

import hashlib
import json
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import app, flags

from configs import paths
from configs.checks import require
from outputs import atomic
from tools.reading import benchmarks, records

_FORMAT, _VERSION = 'syncopate.result', 1
# Folders that are no part of a result.
_ALONE = ('checkpoints', benchmarks.SCRATCH)
_AGREE = ('time', 'iterations', 'examples', 'updates')
_HARDWARE = (
  *('host', 'cores', 'devices', 'python', 'versions', 'xla_flags'),
  'numerics',
)


def main(argv: list[str]) -> None:
  """Packs the run that the command line names."""
  if len(argv) != 2:
    raise app.UsageError(f'Expected the folder of a run, got {argv[1:]}.')
  folder = pathlib.Path(argv[1])
  out = flags.FLAGS.out or f'{folder.resolve()}.result.json'
  try:
    write(pack(folder), pathlib.Path(out))
  except (OSError, ValueError) as error:
    sys.exit(f'Refused: {error}')
  print(f'Result: {out}')


def pack(folder: pathlib.Path) -> dict[str, Any]:
  """Returns a run's result.

  Args:
    folder: Folder of a run, or of a benchmark.

  Raises:
    ValueError: If it has not finished, if its code is not known, or if its
      files do not agree.
    OSError: If a file cannot be read.
  """
  if benchmarks.is_benchmark(folder):
    return _packed_benchmark(folder)
  run = records.load(folder)
  if run.summary is None:
    raise ValueError(
      f'{folder}: expected a run that has finished, got one without '
      'summary.json.'
    )
  require(run.ended == 'finished', f'{folder}: ended', "'finished'", run.ended)
  manifest = json.loads((folder / 'manifest.json').read_text())
  _check_code(folder, manifest)
  _check_agreement(folder, run.rows, run.summary)
  if records.has_events(run):
    pushes = sum(row['event'] == 'push' for row in records.read_events(folder))
    require(
      pushes == run.summary['iterations'],
      f'{folder}/events.jsonl: pushes',
      f'{run.summary["iterations"]}, as in summary.json',
      pushes,
    )
  return _result(folder, manifest, run.summary)


def _packed_benchmark(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the result of a benchmark, with its rows."""
  benchmark = benchmarks.load(folder)
  dry = benchmark.manifest.get('dry_run')
  measured = 'false, as a dry run measures nothing'
  where = f'{folder}/{benchmarks.MANIFEST}: dry_run'
  require(dry is False, where, measured, dry)
  _check_code(folder, benchmark.manifest)
  result = _result(folder, benchmark.manifest, benchmark.summary)
  return {**result, 'rows': benchmark.rows}


def _result(
  folder: pathlib.Path, manifest: Mapping[str, Any], summary: Mapping[str, Any]
) -> dict[str, Any]:
  return {
    'format': _FORMAT,
    'version': _VERSION,
    'manifest': manifest,
    'summary': summary,
    'hardware': {name: manifest.get(name) for name in _HARDWARE},
    'files': dict(_checksums(folder)),
  }


def write(result: Mapping[str, Any], path: pathlib.Path) -> None:
  """Writes a result.

  Raises:
    ValueError: If the file is there already, with another result.
    OSError: If it cannot be written.
  """
  if path.exists():
    try:
      before = json.loads(path.read_text())['files']
    except (KeyError, TypeError, json.JSONDecodeError) as error:
      raise ValueError(
        f'{path}: expected a result or no file, got something else.'
      ) from error
    names = before.keys() | result['files'].keys()
    changed = sorted(
      name for name in names if before.get(name) != result['files'].get(name)
    )
    require(
      not changed,
      f'{path}',
      'the files of the run as they were packed before',
      f'others of {", ".join(changed)}',
    )
  atomic.write(path, f'{json.dumps(result, indent=1)}\n')


def _check_code(folder: pathlib.Path, manifest: Mapping[str, Any]) -> None:
  for name, expected, met in (
    ('git_revision', 'a commit', bool(manifest.get('git_revision'))),
    ('git_changes', 'none', not manifest.get('git_changes')),
  ):
    where = f'{folder}/manifest.json: {name}'
    require(met, where, expected, manifest.get(name))


def _check_agreement(
  folder: pathlib.Path,
  rows: Sequence[Mapping[str, Any]],
  summary: Mapping[str, Any],
) -> None:
  """Refuses rows that go further than the summary, or end otherwise."""
  if not rows:
    raise ValueError(f'{folder}/metrics.jsonl: expected rows, got none.')
  evaluated = [row for row in rows if row['accuracy'] is not None]
  if evaluated:
    accuracy = summary.get('final_accuracy')
    require(
      evaluated[-1]['accuracy'] == accuracy,
      f'{folder}/metrics.jsonl: accuracy of the last evaluation',
      f'{accuracy}, as in summary.json',
      evaluated[-1]['accuracy'],
    )
  for name in _AGREE:
    most = summary['time_s' if name == 'time' else name]
    reached = max(row.get(name, 0) for row in rows)
    require(
      reached <= most,
      f'{folder}/metrics.jsonl: {name}',
      f'at most {most}, as in summary.json',
      reached,
    )


def _checksums(folder: pathlib.Path) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields the files of a run with their sizes and SHA-256."""
  for path in sorted(folder.rglob('*')):
    name = path.relative_to(folder)
    if path.is_file() and name.parts[0] not in _ALONE and name.name[0] != '.':
      with path.open('rb') as file:
        digest = hashlib.file_digest(file, 'sha256').hexdigest()
      yield str(name), {'bytes': path.stat().st_size, 'sha256': digest}


if __name__ == '__main__':
  paths.define_path('out', 'File; beside the folder by default.')
  app.run(main)
