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
from collections.abc import Iterator, Mapping
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

  Returns:
    A dictionary with `path` and `digest`, hexadecimal, by path of the field,
    such as 'config.data.text.file'.  The digest is None if the file is not on
    this host.  Fields without a file are left out.

  Raises:
    OSError: If a file cannot be read.
  """
  found = {}
  for field, kind in _inputs():
    value = _read_used(config, field)
    if value is not None and (each := _digest(kind, config, value)):
      found[f'config.{field}'] = {'path': each[0], 'digest': each[1]}
  return found


def identified_fields(files: Mapping[str, Mapping[str, Any]]) -> set[str]:
  """Returns the fields whose files are identified by their content.

  Their values may change: files may move.  The name of a module stays, because
  checkpoints name its classes.
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

  Both arguments are results of `digests`.
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


def _inputs() -> Iterator[tuple[str, str]]:
  """Yields the fields that name files, and what they name: see `Field.file`."""
  for path, field in declared.iterate_fields():
    if field.file not in ('', 'unread'):
      yield path, field.file
  for section in user_parts.SUPPLIED:
    yield f'{section}.name', 'module'


def _digest(
  kind: str, config: Mapping[str, Any], value: str
) -> tuple[str, str | None] | None:
  """Returns path and digest, if it is here, of what a field names; or None."""
  path = pathlib.Path(value)
  match kind:
    case 'files':
      paths = [pathlib.Path(each) for each in value.split(',') if each]
      known = [digest for each in paths if (digest := _digest_file(each))]
      digest = ','.join(known) if len(known) == len(paths) else None
      return (value, digest) if paths else None
    case 'links':  # As `topology.forests.files.read_cluster` reads them.
      is_text = value in ('', 'probe') or ('(' in value and not path.exists())
      return None if is_text else (value, _digest_file(path))
    case 'file':
      path = path.expanduser()
      return (str(path), _digest_file(path)) if value else None
    case 'module':
      if not user_parts.is_own(value):
        return None
      file = getattr(sys.modules.get(value), '__file__', None)
      return (file, _digest_file(pathlib.Path(file))) if file else (value, None)
    case 'text' if not value:  # The one that comes with Python.
      return '', embedded.sha256()
    case 'data' if not value:
      return None
  # As `data.files.locate_file` finds it.
  folder = config['data']['dir'] or os.environ.get('SYNCOPATE_DATA', '')
  path = pathlib.Path(folder, value)
  match kind:
    case 'idx':
      return str(path), _digest_folder(path)
    case 'photographs':
      return str(path), _digest_names(path, 'val')
    case 'images':
      return str(path), _digest_names(path, test_folder(folder, value))
  return str(path), _digest_file(path)


def _digest_folder(folder: pathlib.Path) -> str | None:
  """Digests the IDX files of a folder."""
  if not folder.is_dir():
    return None
  whole = xxhash.xxh3_128()
  for path in sorted(folder.glob('*-ubyte*')):
    whole.update(f'{path.name} {_digest_file(path)};'.encode())
  return whole.hexdigest()


def _digest_names(folder: pathlib.Path, test: str) -> str | None:
  """Digests names and sizes of files by class, of training and of testing."""
  if not folder.is_dir():
    return None
  whole = xxhash.xxh3_128()
  parts = [sorted(folder.glob(f'{part}/*/')) for part in ('train', test)]
  for above in itertools.chain(*parts):
    with os.scandir(above) as entries:
      sizes = sorted((each.name, each.stat().st_size) for each in entries)
    whole.update(os.fsencode(f'{above.relative_to(folder)} {sizes};'))
  return whole.hexdigest()


def _digest_file(path: pathlib.Path) -> str | None:
  """Returns the digest of a file; None if there is none."""
  if not path.is_file():
    return None
  found = path.stat()
  return _digest_content(path, found.st_size, found.st_mtime_ns, found.st_ino)


@functools.cache
def _digest_content(path: pathlib.Path, *version: int) -> str:
  """Returns the digest of a file, which runs of a sweep share."""
  del version  # Part of the cache's key.
  digest, chunk = xxhash.xxh3_128(), bytearray(_CHUNK)
  with path.open('rb', buffering=0) as file:
    while size := file.readinto(chunk):
      digest.update(memoryview(chunk)[:size])
  return digest.hexdigest()
