"""Paths in flags and in fields of configs.

A shell leaves '~' as it is in --workdir=~/runs and in files of configs.
"""

import copy
import os
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from configs import declared, sections

# Flags are those of the module that calls `define_path`, and in its --help.
flags.disclaim_key_flags()

# Kinds of files whose paths may begin with '~': see `configs.fields.field`.
_HOMES = ('unread', 'file', 'files', 'links')


class _Parser(flags.ArgumentParser[str]):
  """Parser of a path, in which '~' at the beginning is the home folder."""

  def parse(self, argument: Any) -> str:
    return os.path.expanduser(str(argument))

  def flag_type(self) -> str:
    return 'path'


def define_path(
  name: str, text: str, *, required: bool = False
) -> flags.FlagHolder[str | None]:
  """Defines a flag that is a path, by default None."""
  return flags.DEFINE(
    _Parser(),
    name,
    None,
    text,
    serializer=flags.ArgumentSerializer[str](),
    required=required,
  )


def require_config() -> None:
  """Ends the command with an example if its flag `config` is not given."""
  flags.register_validator(
    'config',
    lambda config: config is not None,
    message='expected a file, such as --config=configs/vgg16_bsp.py',
  )


def expand_home(config: ConfigDict) -> ConfigDict:
  """Returns a copy in which '~' at the beginning of a path is the home folder.

  Args:
    config: Config that `sections.check_fields` has passed.
  """
  expanded = copy.deepcopy(config)
  values = dict(sections.iterate_fields(config))
  for path, field in declared.iterate_fields():
    if field.file in _HOMES:
      value = values[path]
      several = value.split(',') if field.file == 'files' else [value]
      whole = ','.join(map(os.path.expanduser, several))
      expanded.update_from_flattened_dict({path: whole})
  return expanded
