"""Files that are whole at any moment, whenever a process is killed.

A file is written under another name, flushed to the disk and renamed, and its
folder is flushed: a kill, or a loss of power, leaves the old file or the new
one.  Earlier versions did not flush, so that there may be empty files.
"""

import errno
import json
import os
import pathlib
from typing import Any

from absl import logging


def write(
  path: str | pathlib.Path, content: str | bytes, *, mode: int = 0o666
) -> None:
  """Writes a file in the place of any other of that name.

  A link stays: what it leads to is replaced.  What is no regular file, such as
  /dev/stdout, is written to.

  Args:
    path: Of the file; its folder exists.
    content: Bytes, or text, which is written as UTF-8.
    mode: Permissions of the file, less those that the umask takes away.

  Raises:
    OSError: If it cannot be written; the file of before is as it was.
  """
  data = content.encode() if isinstance(content, str) else content
  path = pathlib.Path(path)
  if path.exists() and not path.is_file():
    path.write_bytes(data)
    return
  target = pathlib.Path(os.path.realpath(path))
  # Hidden from those who look for runs, and one for each process that writes.
  new = target.with_name(f'.{target.name}.{os.getpid()}.new')
  try:
    new.unlink(missing_ok=True)
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(handle, 'wb') as file:
      file.write(data)
      file.flush()
      os.fsync(file.fileno())
    new.replace(target)
  except OSError:
    new.unlink(missing_ok=True)  # It may hold what a disk lacks.
    raise
  sync_folder(target.parent)


def sync_folder(folder: pathlib.Path) -> None:
  """Returns once the names in a folder are on the disk.

  Some file systems, such as CIFS and some of FUSE, cannot flush a folder; there
  nothing is done.

  Raises:
    OSError: If the system fails.
  """
  handle = os.open(folder, os.O_RDONLY)
  try:
    os.fsync(handle)
  except OSError as error:
    if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
      raise
  finally:
    os.close(handle)


def read_object(path: pathlib.Path) -> dict[str, Any] | None:
  """Returns the object in a JSON file; None without a file that has one.

  A file that is empty, cut short or otherwise no JSON object is what an
  interrupted write leaves: a warning names it.

  Args:
    path: Of the file.

  Raises:
    OSError: If there is a file, but it cannot be read.
  """
  try:
    data = path.read_bytes()
  except FileNotFoundError:
    return None
  try:
    found = json.loads(data)
  except ValueError as error:
    logging.warning(
      '%s is left of an interrupted write: expected a JSON object, got %d '
      'bytes: %s',
      *(path, len(data), error),
    )
    return None
  if not isinstance(found, dict):
    kind = type(found).__name__
    logging.warning('%s: expected a JSON object, got a %s', path, kind)
    return None
  return found
