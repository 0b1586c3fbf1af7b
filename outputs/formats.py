"""Format numbers of what runs leave, and the message for other formats."""

from collections.abc import Mapping
from typing import Any

RUN_FOLDER = 4  # `format` in manifest.json.
CHECKPOINT = 9  # In every part of a checkpoint.

# Last commits that read earlier formats, latest format first: run folders of
# 3 and 2, checkpoints of 8 and 7.
_LAST_COMMITS = ('8a71d1c', '0045af2')


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
      f'{found}: {explain_mismatch(found, RUN_FOLDER)}'
    )


def explain_mismatch(found: Any, expected: int) -> str:
  """Returns which version of Syncopate reads a format, as a sentence.

  Args:
    found: Format that was read, of any type.
    expected: Format of this version, another one.
  """
  age = expected - found if isinstance(found, int) else len(_LAST_COMMITS)
  if age < 0:
    return 'it was written by a later version of Syncopate.'
  commit = _LAST_COMMITS[min(age, len(_LAST_COMMITS)) - 1]
  return f'the last commit of Syncopate that reads it is {commit}.'
