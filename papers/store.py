"""Files of results: the records of an entry's runs and where they come from."""

import datetime
import json
import os
import pathlib
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any, NamedTuple

from configs.checks import require
from outputs import atomic
from papers import schema

_FORMAT = 2
_DIGITS = 9
_PACKAGES = ('jax', 'numpy', 'scipy', 'statsmodels')
_ROOT = pathlib.Path(__file__).parents[1]


class Results(NamedTuple):
  """Results of an entry.

  Attributes:
    about: Command, date, machine, versions and revision.
    rules: Digest of the rules of each table when the runs started.
    records: Records of all runs, including failed ones.
  """

  about: Mapping[str, Any]
  rules: Mapping[str, str]
  records: Sequence[Mapping[str, Any]]


def rules_of(entry: schema.Entry) -> dict[str, str]:
  """Returns the digest of the rules of each table, by the table's name."""
  return {table.name: schema.rule_digest(table) for table in entry.table}


def path_of(folder: pathlib.Path, name: str) -> pathlib.Path:
  """Returns the path of the file with an entry's results."""
  return folder / f'{name}.json'


def write(
  folder: pathlib.Path, name: str, results: Results, fields: Sequence[str]
) -> pathlib.Path:
  """Writes the results of an entry; returns the file.

  Args:
    folder: Folder of results.
    name: Name of the entry.
    fields: Fields of records to store.  A field that a record lacks is null.

  Raises:
    OSError: If the file cannot be written.
  """
  errors = ['error'] if any('error' in r for r in results.records) else []
  columns = [*fields, *errors]
  head = {'format': _FORMAT, 'about': results.about, 'rules': results.rules}
  lines = [
    json.dumps([_round(record.get(field)) for field in columns])
    for record in results.records
  ]
  text = json.dumps({**head, 'fields': columns}, indent=1)
  body = ',\n'.join(f'  {line}' for line in lines)
  path = path_of(folder, name)
  folder.mkdir(parents=True, exist_ok=True)
  atomic.write(path, f'{text[:-2]},\n "records": [\n{body}\n ]\n}}\n')
  return path


def read(folder: pathlib.Path, name: str) -> Results | None:
  """Returns the stored results of an entry; None without any.

  Args:
    folder: Folder of results.
    name: Name of the entry.

  Raises:
    ValueError: If the file has another format, or comes from an interrupted
      write; names the file.
  """
  path = path_of(folder, name)
  if not path.exists():
    return None
  content = atomic.read_object(path)
  expected = 'complete results; remove the file and run the table again'
  require(content is not None, str(path), expected, 'half of a file')
  content = content or {}
  version = content.get('format')
  require(version == _FORMAT, str(path), f'format {_FORMAT}', version)
  records = [
    dict(zip(content['fields'], row, strict=True)) for row in content['records']
  ]
  return Results(content['about'], content['rules'], records)


def provenance(command: str) -> dict[str, Any]:
  """Returns command, date, machine, versions and revision of this process."""
  git = ['git', '-C', str(_ROOT), 'rev-parse', 'HEAD']
  revision = subprocess.run(git, capture_output=True, text=True, check=False)
  return {
    'command': command,
    'date': datetime.datetime.now(datetime.UTC).strftime('%d %B %Y'),
    'cores': len(os.sched_getaffinity(0)),
    'python': platform.python_version(),
    'versions': {each: metadata.version(each) for each in _PACKAGES},
    'git_revision': revision.stdout.strip() or None,
  }


def _round(value: Any) -> Any:
  return float(f'{value:.{_DIGITS}g}') if isinstance(value, float) else value
