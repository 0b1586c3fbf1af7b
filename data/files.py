"""Files of data sets: their paths, and the archives of CIFAR."""

import hashlib
import pathlib
import pickle
import tarfile
from collections.abc import Callable, Iterator

import numpy as np

from data.dataset import Split


def locate_file(
  directory: str | None, file: str, *, field: str = 'file'
) -> pathlib.Path:
  """Returns the path of `file` in `directory`.

  Args:
    directory: Path of a folder; None if there is none.
    field: Name of the field that names the file, for the message.

  Raises:
    ValueError: If it is not there; names the field.
  """
  return _located(field, directory, file, pathlib.Path.is_file)


def locate_folder(directory: str | None, folder: str) -> pathlib.Path:
  """Returns the path of `folder` in `directory`.

  Args:
    directory: Path of a folder; None if there is none.
    folder: Name of a folder in it.

  Raises:
    ValueError: If it is not there; names the field `folder`.
  """
  return _located('folder', directory, folder, pathlib.Path.is_dir)


def test_folder(directory: str | None, folder: str) -> str:
  """Returns which part of a folder is for testing: 'test', or 'val'.

  Args:
    directory: Path of the folder that has `folder`; None if there is none.
    folder: Name of a folder with images by class.
  """
  has_test = (pathlib.Path(directory or '') / folder / 'test').is_dir()
  return 'test' if has_test else 'val'


def read_archive(
  path: pathlib.Path, *, md5: str, members: tuple[str, ...], labels: bytes
) -> list[Split]:
  """Returns pickled members of an official CIFAR archive.

  The archive's md5 is checked first, because unpickling runs code that a file
  contains.  Nothing is unpacked to disk.

  Args:
    md5: MD5 of the official archive, hexadecimal.
    members: Names of files in it, without folders.
    labels: Key of the classes; the key of the images is b'data'.

  Returns:
    Images, uint8 [N, 32, 32, 3], and classes of each member.

  Raises:
    ValueError: If the md5 differs; names the field `file`.
  """
  with path.open('rb') as file:
    digest = hashlib.file_digest(file, 'md5').hexdigest()
    if digest != md5:
      raise ValueError(
        f'file: expected the official archive, of md5 {md5}, got {path} of '
        f'md5 {digest}.'
      )
    file.seek(0)
    with tarfile.open(fileobj=file, mode='r:gz') as archive:
      splits = dict(_unpickled(archive, members, labels))
  return [splits[name] for name in members]


def _unpickled(
  archive: tarfile.TarFile, members: tuple[str, ...], labels: bytes
) -> Iterator[tuple[str, Split]]:
  for member in archive:
    name = pathlib.PurePosixPath(member.name).name
    if name in members:
      content = archive.extractfile(member)
      if content is None:  # A folder or a link.
        continue
      batch = pickle.load(content, encoding='bytes')
      planes = batch[b'data'].reshape(-1, 3, 32, 32)
      inputs = np.ascontiguousarray(np.moveaxis(planes, 1, -1))
      yield name, Split(inputs, np.asarray(batch[labels], np.int32))


def _located(
  field: str,
  directory: str | None,
  name: str,
  is_there: Callable[[pathlib.Path], bool],
) -> pathlib.Path:
  expected = (
    f'{field}: expected {name!r} in the folder that config.data.dir or the '
    'environment variable SYNCOPATE_DATA names'
  )
  if not directory:
    raise ValueError(f'{expected}, but neither names one.')
  path = pathlib.Path(directory) / name
  if not is_there(path):
    raise ValueError(f'{expected}, got {directory!r}, which lacks it.')
  return path
