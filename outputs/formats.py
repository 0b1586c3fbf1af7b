"""Format numbers of what runs leave, and the message for other formats."""

from collections.abc import Mapping
from typing import Any

RUN_FOLDER = 6  # `format` in manifest.json.
CHECKPOINT = 14  # In every part of a checkpoint.

# Last commits that read earlier formats: of run folders, of checkpoints.
_LAST_COMMITS = {
  3: '8a71d1c',
  4: 'c1fb79a',
  5: '1813ba71',
  8: '8a71d1c',
  9: 'c1fb79a',
  10: 'c2c12a6',
  11: '32b50bd',
  12: '51a63563',
  13: 'f8ec41a1',
}
_FIRST_COMMIT = '0045af2'  # Reads all formats before these.


def check_run_folder(manifest: Mapping[str, Any], folder: object) -> None:
  """Checks that this version reads a run folder, by its manifest.

  Raises:
    ValueError: If the folder has another format.
  """
  found = manifest.get('format')
  if found != RUN_FOLDER:
    raise ValueError(
      f'{folder}: expected a run folder of format {RUN_FOLDER}, got format '
      f'{found}: {explain_mismatch(found, RUN_FOLDER)}'
    )


def explain_mismatch(found: Any, expected: int) -> str:
  """Returns which version of Syncopate reads another format, as a sentence."""
  if isinstance(found, int) and found > expected:
    return 'it was written by a later version of Syncopate.'
  commit = _LAST_COMMITS.get(found, _FIRST_COMMIT)
  return f'the last commit of Syncopate that reads it is {commit}.'
