"""Files of tools.tune: the winner's config, and all predictions."""

import json
import pathlib
from typing import Any

from ml_collections import ConfigDict

from analysis import recorded_configs
from outputs import atomic

FORMAT = 1
_FILE = '''"""{about}
"""

from math import inf  # noqa: F401

import ml_collections

from configs import default

# All fields that differ from their defaults.
_FIELDS = {{
{fields}}}


def get_config() -> ml_collections.ConfigDict:
  """Returns the config."""
  config = default.get_config()
  config.update_from_flattened_dict(_FIELDS)
  return config
'''


def write_config(path: pathlib.Path, config: ConfigDict, about: str) -> None:
  """Writes a config as a file for main.py.

  Args:
    path: File, which is replaced if it is there.
    config: Config, of which the fields that are not at their defaults are
      written.
    about: Docstring of the file.

  Raises:
    OSError: If it cannot be written.
  """
  quoted = about.replace('\\', '\\\\').replace('"""', "'''")
  fields = recorded_configs.fields_text(config)
  atomic.write(path, _FILE.format(about=quoted, fields=fields))


def write_predictions(path: pathlib.Path, content: dict[str, Any]) -> None:
  """Writes predictions and measurements as JSON; see docs/files.md.

  Raises:
    OSError: If the file cannot be written.
  """
  text = json.dumps({'format': FORMAT} | content, indent=1, allow_nan=False)
  atomic.write(path, text + '\n')
