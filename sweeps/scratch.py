"""Executes virtual runs in this process, and deletes their files afterwards.

A prediction under the virtual clock takes less time than the start of a
process.  Programs that need many predictions, such as tools.tune,
therefore execute them here, one after the other.
"""

import contextlib
import pathlib
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

import train
from outputs import console


class ScratchRun(NamedTuple):
  """Summary and folder of a run that has ended.

  Attributes:
    summary: Content of its summary.json.
    folder: Folder of its files, which are deleted with the context.
  """

  summary: Mapping[str, Any]
  folder: pathlib.Path


@contextlib.contextmanager
def execute(config: ConfigDict) -> Iterator[ScratchRun]:
  """Executes a virtual run in a temporary folder, and yields its result.

  The console shows only the warnings of the run.

  Args:
    config: Config of a run under the virtual clock.

  Raises:
    ValueError: If the config is refused; names the field.
  """
  with tempfile.TemporaryDirectory() as parent:
    folder = pathlib.Path(parent, 'run')
    with console.hidden():
      summary = train.build(config, workdir=str(folder))()
    yield ScratchRun(summary or {}, folder)
