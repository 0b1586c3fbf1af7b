"""Format numbers of what runs leave, and the message for other formats."""

from collections.abc import Mapping
from typing import Any

RUN_FOLDER = 3  # `format` in manifest.json.
CHECKPOINT = 8  # In every part of a checkpoint.

_LAST_COMMIT = '0045af2'  # Reads run folders of format 2, checkpoints of 7.


def check_run_folder(manifest: Mapping[str, Any], folder: object) -> None:
  """Checks that this version reads a run folder.

  Args:
    manifest: Content of its manifest.json.
    folder: Path, for the message.

  Raises:
    ValueError: If the folder has another format.
  """
  found = manifest.get('format')
  if found != RUN_FOLDER:
    raise ValueError(
      f'{folder}: expected a run folder of format {RUN_FOLDER}, got format '
      f'{found}: {other(found, RUN_FOLDER)}'
    )


def other(found: Any, expected: int) -> str:
  """Returns which version of Syncopate reads another format, as a sentence."""
  if isinstance(found, int) and found > expected:
    return 'it was written by a later version of Syncopate.'
  return f'the last commit of Syncopate that reads it is {_LAST_COMMIT}.'
