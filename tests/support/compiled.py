"""A folder in which programs that JAX has compiled stay between test runs.

JAX's cache has no bound without the package `filelock`, writes entries in
place, and never replaces one: an entry that a killed process has cut short is
read, and its program compiled, again and again.  `prune` removes such entries
and the oldest ones.
"""

import hashlib
import os
import pathlib
import platform
from collections.abc import Mapping
from importlib import metadata

try:  # As JAX chooses it: Zstandard is in Python 3.14 or later.
  from compression.zstd import ZstdError as DecompressError
  from compression.zstd import decompress
except ImportError:
  from zlib import decompress
  from zlib import error as DecompressError

LIMIT_BYTES = 2**30
# Lines of /proc/cpuinfo that distinguish the processors that XLA compiles for.
_KINDS = ('vendor_id', 'cpu family', 'model', 'model name', 'stepping', 'flags')
_KINDS += ('CPU implementer', 'CPU part', 'CPU variant', 'Features')
_CPUINFO = pathlib.Path('/proc/cpuinfo')
_CHECKED = 'checked'  # File as old as the latest search for cut entries.


def root(environ: Mapping[str, str]) -> pathlib.Path:
  """Returns the folder of all caches of the user's test runs."""
  caches = environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  return pathlib.Path(caches, 'syncopate/tests')


def subfolder() -> str:
  """Returns the name of the cache for this JAX and this processor.

  JAX's keys name neither the processor nor the number of cores: with a program
  of another one, results differ in their last bits, or the process ends.
  """
  cores = len(os.sched_getaffinity(0))
  lines = _CPUINFO.read_text() if _CPUINFO.exists() else platform.processor()
  kinds = sorted(
    {line for line in lines.splitlines() if line.split('\t')[0] in _KINDS}
  )
  text = '\n'.join([platform.machine(), *kinds])
  digest = hashlib.sha256(text.encode()).hexdigest()[:12]
  versions = [metadata.version(name) for name in ('jax', 'jaxlib')]
  return '-'.join([*versions, f'{cores}cores', digest])


def prune(folder: pathlib.Path, limit_bytes: int) -> None:
  """Removes entries that were cut short, then those read longest ago.

  Other processes may read and write entries meanwhile: JAX compiles what it
  cannot read.

  Args:
    folder: Folder of caches; there need be none.
    limit_bytes: Size of the entries that stay, at most.
  """
  for cache in filter(pathlib.Path.is_dir, folder.glob('*')):
    _remove_cut(cache)
  entries = [(path, path.stat()) for path in folder.glob('*/*-cache')]
  # Not every file system records each time at which a file is read.
  entries.sort(key=lambda entry: max(entry[1].st_atime, entry[1].st_mtime))
  size_bytes = sum(status.st_size for _, status in entries)
  for path, status in entries:
    if size_bytes <= limit_bytes:
      return
    path.unlink(missing_ok=True)
    size_bytes -= status.st_size


def _remove_cut(cache: pathlib.Path) -> None:
  """Removes the cut ones of the entries written since the last search."""
  mark = cache / _CHECKED
  checked = mark.stat().st_mtime_ns if mark.exists() else 0
  mark.touch()
  for path in cache.glob('*-cache'):
    if path.stat().st_mtime_ns >= checked and not _is_whole(path.read_bytes()):
      path.unlink(missing_ok=True)


def _is_whole(entry: bytes) -> bool:
  """Returns whether an entry can be decompressed."""
  try:
    decompress(entry)
  except DecompressError:
    return False
  return True
