"""Folders of named arrays, written and read by Orbax, with checksums.

Any process writes folders on its own, also one of several that XLA has joined
(jax.distributed): Orbax's handler of NumPy arrays writes only in the first of
these, so that one of ours takes its place.

Every part of a checkpoint is such a folder: an Orbax checkpoint of one flat
dictionary of NumPy arrays, which `orbax.checkpoint.PyTreeCheckpointer` reads.
`checksums.json` lists the size and the checksum (XXH3) of each of its files.
They are compared before Orbax reads: damage that Orbax meets makes it print
tracebacks of its own.  What was written counts once Orbax finds all its arrays
again.  Orbax is imported by the first call, as that takes a third of a second.

Orbax takes some characters of a path for a pattern, and TensorStore takes each
path for UTF-8.  A folder with such a path is written and read through a link
that has a plain one.
"""

import asyncio
import contextlib
import functools
import json
import logging as log
import math
import pathlib
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import xxhash
from absl import logging

from configs.checks import require

_CHECKSUMS = 'checksums.json'
_READ_BYTES = 1 << 20
_PLAIN_PATH = re.compile(r'[A-Za-z0-9_.,+=@/ -]+')


def write(folder: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
  """Writes arrays into a new folder; does not flush it to the disk.

  Several threads, and several processes, may write folders of their own at
  once.

  Args:
    folder: Path of the folder, which must not exist.
    arrays: Arrays by name; none of them empty.

  Raises:
    OSError: If Orbax cannot write, or cannot read what it has written; parts of
      the folder may be left.
  """
  import orbax.checkpoint as ocp

  arguments = ocp.args.PyTreeSave(dict(arrays))
  expected = {name: (each.shape, each.dtype) for name, each in arrays.items()}
  with _plain_path(folder) as path:
    try:
      _checkpointer().save(path, args=arguments)
      found = _describe(path)
    # The errors of Orbax and TensorStore on a full disk are not documented.
    except Exception as error:
      raise OSError(f'{folder}: {error}') from error
  if found != expected:
    raise OSError(
      f'--workdir: expected a folder whose checkpoints can be read, got '
      f'{folder}, in which Orbax finds other arrays than it has written: '
      f'{found} instead of {expected}.'
    )
  text = json.dumps(_file_checksums(folder), indent=2)
  (folder / _CHECKSUMS).write_text(text)


def read(folder: pathlib.Path) -> dict[str, np.ndarray]:
  """Returns the arrays of a folder by name.

  Raises:
    ValueError: If a file is missing or differs from the one that was written,
      or the arrays would be larger than the files.
    OSError: If the folder or a file cannot be read.
    Exception: From Orbax, if it cannot read what it has written.
  """
  import orbax.checkpoint as ocp

  verify(folder)
  most = sum(each.stat().st_size for each in folder.rglob('*'))
  with _plain_path(folder) as path:
    described = _describe(path)
    # Those of a crafted description could take any memory.
    size = sum(math.prod(s) * dtype.itemsize for s, dtype in described.values())
    require(size <= most, f'{folder}', f'at most {most} bytes of arrays', size)
    arguments = ocp.args.PyTreeRestore()
    return dict(_checkpointer().restore(path, args=arguments))


def verify(folder: pathlib.Path) -> None:
  """Checks that the files of a folder are those that were written.

  Raises:
    ValueError: If a file is missing or differs.
    OSError: If the folder or a file cannot be read.
  """
  try:
    expected = json.loads((folder / _CHECKSUMS).read_text())
  except ValueError as error:
    raise ValueError(f'{folder / _CHECKSUMS}: {error}') from error
  found = _file_checksums(folder)
  require(isinstance(expected, dict), _CHECKSUMS, 'an object', expected)
  for name, checksum in expected.items():
    if found.get(name) != checksum:
      raise ValueError(
        f'{folder / name}: expected the file that was written, of '
        f'[size, checksum] {checksum}, got {found.get(name, "no file")}.'
      )


def _describe(path: pathlib.Path) -> dict[str, tuple[tuple[int, ...], Any]]:
  """Returns shape and dtype of the arrays that Orbax finds in a folder."""
  found = _checkpointer().metadata(path).item_metadata
  return {
    name: (tuple(each.shape), np.dtype(each.dtype))
    for name, each in found.items()
  }


@contextlib.contextmanager
def _plain_path(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Enters a context with a path of a folder that Orbax takes as it is."""
  path = folder.absolute()
  if _PLAIN_PATH.fullmatch(str(path)):
    yield path
    return
  with tempfile.TemporaryDirectory(prefix='syncopate-') as home:
    if not _PLAIN_PATH.fullmatch(home):
      raise OSError(
        f'--workdir: expected a path of letters, digits and "_.,+=@ -", got '
        f'{folder}; for another one, TMPDIR has to name a folder with such a '
        f'path, not {home}.'
      )
    link = pathlib.Path(home, 'parent')
    link.symlink_to(path.parent, target_is_directory=True)
    yield link / path.name


def _file_checksums(folder: pathlib.Path) -> dict[str, list[object]]:
  """Returns size in bytes and checksum in hex of all files but the list."""
  found: dict[str, list[object]] = {}
  for path in sorted(folder.rglob('*')):
    if path.is_file() and path.name != _CHECKSUMS:
      checksum = xxhash.xxh3_64()
      with path.open('rb') as file:
        while data := file.read(_READ_BYTES):
          checksum.update(data)
      name = path.relative_to(folder).as_posix()
      found[name] = [path.stat().st_size, checksum.hexdigest()]
  return found


@functools.cache
def _checkpointer() -> Any:
  """Returns a checkpointer that waits for no other process."""
  import orbax.checkpoint as ocp

  logging.get_absl_logger().addFilter(_is_of_interest)
  index = jax.process_index()
  options = ocp.options.MultiprocessingOptions(
    primary_host=index, active_processes={index}
  )
  registry = ocp.type_handlers.create_type_handler_registry(
    (np.ndarray, _array_handler(index)),
    (jax.Array, ocp.type_handlers.ArrayHandler()),  # Else Orbax warns.
  )
  handler = ocp.PyTreeCheckpointHandler(
    multiprocessing_options=options,
    type_handler_registry=registry,
    # It doubles the time of a save and makes random numbers 8 % smaller.
    use_compression=False,
  )
  return ocp.Checkpointer(handler, multiprocessing_options=options)


def _array_handler(index: int) -> Any:
  """Returns a handler that writes in process `index` of those XLA joins."""
  import orbax.checkpoint as ocp
  import tensorstore as ts

  async def write_one(value: np.ndarray, info: Any, arg: Any) -> None:
    await info.await_path_creation()
    spec = ocp.type_handlers.get_json_tspec_write(
      info,
      use_ocdbt=info.is_ocdbt_checkpoint,
      global_shape=value.shape,
      local_shape=value.shape,
      dtype=value.dtype,
      process_index=index,
      arg=arg,
    )
    context = info.ts_context
    store = await ts.open(
      ts.Spec(spec), create=True, open=True, context=context
    )
    await store.write(value)

  async def write_all(
    values: Sequence[np.ndarray], infos: Sequence[Any], args: Sequence[Any]
  ) -> None:
    await asyncio.gather(*map(write_one, values, infos, args))

  class ArrayHandler(ocp.type_handlers.NumpyHandler):  # type: ignore[misc]
    async def serialize(
      self,
      values: Sequence[np.ndarray],
      infos: Sequence[Any],
      args: Sequence[Any] | None = None,
    ) -> Sequence[Any]:
      args = args or [ocp.type_handlers.SaveArgs()] * len(values)
      writing = write_all(values, infos, args)
      return [ocp.future.CommitFutureAwaitingContractedSignals(writing)]

  return ArrayHandler()


def _is_of_interest(record: log.LogRecord) -> bool:
  """Returns False for Orbax's messages about each of its steps."""
  parts = pathlib.PurePath(record.pathname).parts
  return record.levelno >= log.WARNING or 'orbax' not in parts
