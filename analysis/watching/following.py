"""Reading of rows that a running process appends to a file."""

import json
import os
import pathlib
from typing import Any


class Follower:
  """Reader of the rows of a JSON lines file, as they are written.

  Attributes:
    path: The file; it need not exist yet.
    changed_at: Unix time of its last change; None before it exists.
  """

  def __init__(self, path: pathlib.Path):
    """Creates a reader that begins with the first row."""
    self.path = path
    self.changed_at: float | None = None
    self._offset, self._inode = 0, -1

  def read(self) -> tuple[list[dict[str, Any]], bool]:
    """Returns the rows since the last call, and whether all are new.

    All rows are new after the file was replaced or has become shorter, as when
    a run returns to a checkpoint or to a mirror.  A last line without its end
    is left for the next call.

    Raises:
      ValueError: If a whole line is no JSON object; names file and position.
      OSError: If the file exists and cannot be read.
    """
    try:
      file = self.path.open('rb')
    except FileNotFoundError:
      return [], False
    with file:
      status = os.fstat(file.fileno())
      self.changed_at = status.st_mtime
      is_new = status.st_ino != self._inode or status.st_size < self._offset
      if is_new:
        self._offset, self._inode = 0, status.st_ino
      file.seek(self._offset)
      whole, end, _ = file.read().rpartition(b'\n')
    lines = (whole + end).splitlines(keepends=True)
    rows = []
    for line in lines:
      rows.append(_object(line, f'{self.path}, byte {self._offset}'))
      self._offset += len(line)
    return rows, is_new


def _object(line: bytes, where: str) -> dict[str, Any]:
  try:
    row = json.loads(line)
  except ValueError as error:
    got = line[:80].decode(errors='replace')
    raise ValueError(f'{where}: expected JSON, got {got!r}.') from error
  if not isinstance(row, dict):
    raise ValueError(f'{where}: expected an object, got {str(row)[:80]}.')
  return row
