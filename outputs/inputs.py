"""Files that a run reads.  Their content, not their path, identifies the run.

The declarations of fields say which of them name such files; credentials, on
which no result depends, are none.  The modules of a user's own parts are among
the files; of these the dotted path is part of the identity, too.
"""

import functools
import itertools
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import xxhash

from configs import declared, user_parts
from data import embedded
from data.files import test_folder

_CHUNK = 1 << 20  # Bytes that are read at once.
_DIRECTORY = 'data.dir'  # Folder of the data files.


def digests(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
  """Returns path and digest of each file or folder that a run reads.

  Files are read once, in one pass; XXH3 takes 0.1 to 0.2 s per GB beside the
  time of the disk.  Of photographs, which stay on disk, names and sizes
  count: 25 us each.

  Args:
    config: Checked config, as a dictionary.

  Returns:
    A dictionary with `path` and `digest`, hexadecimal, by path of the field,
    such as 'config.data.text.file'.  The digest is None if the file is not on
    this host.  Fields without a file are left out.

  Raises:
    OSError: If a file cannot be read.
  """
  found = {}
  for field, digest in _inputs():
    value = _read_used(config, field)
    if value is not None and (each := digest(config, value)):
      found[f'config.{field}'] = {'path': each[0], 'digest': each[1]}
  return found


def identified_fields(files: Mapping[str, Mapping[str, Any]]) -> set[str]:
  """Returns the fields whose files are identified by their content.

  Their values may change: files may move.  The name of a module stays, because
  checkpoints name its classes.

  Args:
    files: Result of `digests`.
  """
  modules = {f'config.{section}.name' for section in user_parts.SUPPLIED}
  fields = {field for field, file in files.items() if file['digest']} - modules
  if any(field.startswith('config.data.') for field in fields):
    fields.add(f'config.{_DIRECTORY}')
  return fields


def find_changes(
  before: Mapping[str, Mapping[str, Any]],
  now: Mapping[str, Mapping[str, Any]],
) -> list[tuple[str, str]]:
  """Returns the fields whose files have another content, with messages.

  Args:
    before: Result of `digests` when the run began.
    now: Result of `digests` now.
  """
  found = []
  for field in sorted(before.keys() & now.keys()):
    old, new = before[field], now[field]
    if old['digest'] != new['digest']:
      line = (
        f'{field}: expected the content that {old["path"] or "the text"} had '
        f'when the run began, of digest {old["digest"]}, got '
        f'{new["path"] or "the text"} of digest {new["digest"]}.'
      )
      found.append((field, line))
  return found


def _read_used(config: Mapping[str, Any], field: str) -> str | None:
  """Returns the value of a field; None if the run does not use it."""
  is_virtual = config['cluster']['runtime'] == 'virtual'
  if field.startswith('data.') and config['model']['name'] == 'none':
    return None
  if field == 'cluster.links' and not is_virtual:
    return None
  is_timed = is_virtual or config['cluster']['speed']['injected']
  if field.startswith('cluster.speed.') and not is_timed:
    return None
  *sections, name = field.split('.')
  section: Mapping[str, Any] = config
  for each in sections:
    if section.get('name', each) != each:  # Another part is chosen.
      return None
    section = section[each]
  return str(section[name])


# Path and digest; the digest is None if there is no such file here.
_Found = tuple[str, str | None]


def _digest_list(config: Mapping[str, Any], value: str) -> _Found | None:
  """Digests files whose paths are separated by commas."""
  del config
  paths = [each for each in value.split(',') if each]
  found = [_digest_file(pathlib.Path(each)) for each in paths]
  if not found:
    return None
  known = [each for each in found if each is not None]
  return value, ','.join(known) if len(known) == len(found) else None


def _digest_path(config: Mapping[str, Any], value: str) -> _Found | None:
  """Digests one file."""
  del config
  if not value:
    return None
  path = pathlib.Path(value).expanduser()
  return str(path), _digest_file(path)


def _digest_links(config: Mapping[str, Any], value: str) -> _Found | None:
  """Digests a file of links or layers, unless a call or a word describes them.

  The rule is that of `topology.forests.files.read_cluster`.
  """
  del config
  path = pathlib.Path(value)
  if value in ('', 'probe') or ('(' in value and not path.exists()):
    return None
  return value, _digest_file(path)


def _digest_data(config: Mapping[str, Any], value: str) -> _Found | None:
  """Digests a file of the data folder."""
  if not value:
    return None
  path = _data_path(config, value)
  return str(path), _digest_file(path)


def _digest_text(config: Mapping[str, Any], value: str) -> _Found | None:
  """Digests a text, by default the one that comes with Python."""
  return _digest_data(config, value) or ('', embedded.sha256())


def _digest_folder(config: Mapping[str, Any], value: str) -> _Found | None:
  """Digests the IDX files of a folder."""
  folder = _data_path(config, value)
  if not folder.is_dir():
    return str(folder), None
  whole = xxhash.xxh3_128()
  for path in sorted(folder.glob('*-ubyte*')):
    whole.update(f'{path.name} {_digest_file(path)};'.encode())
  return str(folder), whole.hexdigest()


def _digest_photographs(config: Mapping[str, Any], value: str) -> _Found:
  """Digests names and sizes of the photographs of ImageNet."""
  return _digest_names(_data_path(config, value), 'val')


def _digest_images(config: Mapping[str, Any], value: str) -> _Found:
  """Digests names and sizes of the images of a folder."""
  folder = _data_path(config, value)
  return _digest_names(folder, test_folder(str(folder.parent), folder.name))


def _digest_names(folder: pathlib.Path, test: str) -> _Found:
  """Digests names and sizes of files by class, of training and of testing."""
  if not folder.is_dir():
    return str(folder), None
  whole = xxhash.xxh3_128()
  parts = [sorted(folder.glob(f'{part}/*/')) for part in ('train', test)]
  for above in itertools.chain(*parts):
    with os.scandir(above) as entries:
      sizes = sorted((each.name, each.stat().st_size) for each in entries)
    whole.update(os.fsencode(f'{above.relative_to(folder)} {sizes};'))
  return str(folder), whole.hexdigest()


def _digest_module(config: Mapping[str, Any], value: str) -> _Found | None:
  """Digests the source of a user's module, which this process has imported."""
  del config
  if not user_parts.is_own(value):
    return None
  file = getattr(sys.modules.get(value), '__file__', None)
  return (file, _digest_file(pathlib.Path(file))) if file else (value, None)


# Functions that find and digest what a field names: see `Field.file`.
_DIGESTS: dict[str, Callable[[Mapping[str, Any], str], _Found | None]] = {
  'file': _digest_path,
  'files': _digest_list,
  'links': _digest_links,
  'data': _digest_data,
  'text': _digest_text,
  'idx': _digest_folder,
  'photographs': _digest_photographs,
  'images': _digest_images,
}


def _inputs() -> Iterator[
  tuple[str, Callable[[Mapping[str, Any], str], _Found | None]]
]:
  """Yields the fields that name files, each with its function."""
  for path, field in declared.iterate_fields():
    if field.file in _DIGESTS:
      yield path, _DIGESTS[field.file]
  for section in user_parts.SUPPLIED:
    yield f'{section}.name', _digest_module


def _data_path(config: Mapping[str, Any], name: str) -> pathlib.Path:
  """Returns the path of a data file, as `data.files.locate_file` finds it."""
  directory = config['data']['dir'] or os.environ.get('SYNCOPATE_DATA', '')
  return pathlib.Path(directory, name)


def _digest_file(path: pathlib.Path) -> str | None:
  """Returns the digest of a file; None if there is none."""
  if not path.is_file():
    return None
  found = path.stat()
  return _digest_content(path, found.st_size, found.st_mtime_ns, found.st_ino)


@functools.cache
def _digest_content(path: pathlib.Path, *version: int) -> str:
  """Returns the digest of a file, read once for each of its versions.

  A sweep has many runs with the same file.
  """
  del version  # Part of the cache's key.
  digest, chunk = xxhash.xxh3_128(), bytearray(_CHUNK)
  with path.open('rb', buffering=0) as file:
    while size := file.readinto(chunk):
      digest.update(memoryview(chunk)[:size])
  return digest.hexdigest()
