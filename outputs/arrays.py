"""Reads archives of `numpy.savez` in no more memory than the file's size.

NumPy itself trusts the sizes in a file, and checks them after allocation.
"""

import math
import pathlib
import zipfile

import numpy as np

from configs.checks import require

_CHUNK_BYTES = 1 << 20
_HEADERS = {
  (1, 0): np.lib.format.read_array_header_1_0,
  (2, 0): np.lib.format.read_array_header_2_0,
}


def read(path: pathlib.Path) -> dict[str, np.ndarray]:
  """Returns the arrays of a file by name.

  Raises:
    ValueError: If the file is damaged; says where.
    Exception: From zipfile, if the file is damaged.
    OSError: If the file cannot be read.
  """
  size = path.stat().st_size
  with zipfile.ZipFile(path) as archive:
    infos = archive.infolist()
    stored = all(info.compress_type == zipfile.ZIP_STORED for info in infos)
    fits = sum(info.file_size for info in infos) <= size
    expected = f'arrays of at most {size} bytes in all'
    require(stored and fits, path.name, expected, 'others')
    try:
      return {
        info.filename.removesuffix('.npy'): _array(archive, info)
        for info in infos
      }
    except EOFError as error:  # From zipfile, without a message.
      raise ValueError(f'{path.name}: expected more, got its end.') from error


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
  with archive.open(info) as file:
    version = np.lib.format.read_magic(file)
    require(version in _HEADERS, info.filename, 'version 1 or 2', version)
    shape, fortran, dtype = _HEADERS[version](file)
    left = info.file_size - file.tell()
    plain = not dtype.hasobject and all(length >= 0 for length in shape)
    valid = plain and math.prod(shape) * dtype.itemsize == left
    expected = f'an array of {left} bytes'
    require(valid, info.filename, expected, (shape, str(dtype)))
    array = np.empty(left, np.uint8)
    start = 0
    # To the end, where zipfile compares the checksum.
    while data := file.read(_CHUNK_BYTES):
      array[start : start + len(data)] = np.frombuffer(data, np.uint8)
      start += len(data)
  require(start == left, info.filename, expected, f'{start} bytes')
  if not left:
    return np.zeros(shape, dtype)
  return array.view(dtype).reshape(shape, order='F' if fortran else 'C')
