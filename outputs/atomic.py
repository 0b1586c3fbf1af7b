"""Atomic writes of files, which survive kills and losses of power.

`write` writes a temporary file, flushes it to the disk, renames it to its final
name and flushes the folder: an interruption leaves either the old file or the
new one.  `sync_tree` flushes a folder before it is renamed in the same way.
`read_object` reports files that another writer has left incomplete.
"""

import errno
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from absl import logging


def write(
  path: str | pathlib.Path, content: str | bytes, *, mode: int = 0o666
) -> None:
  """Replaces a file atomically, or creates it.

  If the path is a symbolic link, its target is replaced.  A path that is no
  regular file, such as /dev/stdout, is written to directly.

  Args:
    path: Path of the file; its folder must exist.
    content: Bytes, or text, which is written as UTF-8.
    mode: Permissions of a new file, before the umask.

  Raises:
    OSError: If the file cannot be written; the old file is unchanged.
  """
  data = content.encode() if isinstance(content, str) else content
  path = pathlib.Path(path)
  if path.exists() and not path.is_file():
    path.write_bytes(data)
    return
  target = pathlib.Path(os.path.realpath(path))
  # A hidden file, which searches for runs skip, one for each writing process.
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
    new.unlink(missing_ok=True)  # The disk may be full.
    raise
  sync_folder(target.parent)


def write_object(
  path: str | pathlib.Path, content: Mapping[str, Any], *, mode: int = 0o666
) -> None:
  """Replaces a JSON file atomically, or creates it: see `write`.

  Raises:
    ValueError: If a number is not finite.
  """
  text = json.dumps(content, indent=2, allow_nan=False)
  write(path, text + '\n', mode=mode)


def sync_folder(folder: pathlib.Path) -> None:
  """Flushes the entries of a folder to the disk.

  Does nothing on file systems that cannot flush a folder, such as CIFS and some
  of FUSE.

  Raises:
    OSError: If the flush fails.
  """
  handle = os.open(folder, os.O_RDONLY)
  try:
    os.fsync(handle)
  except OSError as error:
    if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
      raise
  finally:
    os.close(handle)


def sync_tree(folder: pathlib.Path) -> None:
  """Flushes a folder to the disk, with all files and folders in it.

  Raises:
    OSError: If a flush fails.
  """
  for path in folder.iterdir():
    if path.is_dir():
      sync_tree(path)
    else:
      with path.open('rb') as file:
        os.fsync(file.fileno())
  sync_folder(folder)


def read_object(path: pathlib.Path) -> dict[str, Any] | None:
  """Returns the object in a JSON file, or None without one.

  Also returns None, and logs a warning, if the file holds no JSON object, such
  as an empty or truncated file of an interrupted write.

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
