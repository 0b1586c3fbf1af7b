"""The flags --config and --help_fields of every command that takes a config."""

import sys
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from configs import reference

# Flags are those of the module that calls `define_flag`, and in its --help.
flags.disclaim_key_flags()


class _HelpFields(flags.Flag[str]):
  """Flag that prints fields of a config and ends the process."""

  def parse(self, argument: Any) -> None:
    try:
      print(reference.as_text(str(argument)))
    except ValueError as error:
      raise flags.IllegalFlagValueError(str(error)) from error
    sys.exit(0)


def define_flag(
  default: str | None,
  text: str,
  *,
  flag_values: flags.FlagValues = flags.FLAGS,
  argv: list[str] | None = None,
) -> flags.FlagHolder[ConfigDict]:
  """Defines the flag --config, a file, and its --config.SECTION.FIELD=VALUE.

  The sections of users' own parts take any field: they are not locked, unlike
  the rest of `configs.default`.  Their fields are checked with the modules.

  Also defines the flag --help_fields, which prints fields and ends the process.

  Args:
    default: Default file; None for none.
    text: Help of the flag.
    flag_values: Flags that they are added to.
    argv: Command line; None for that of this process.
  """
  flags.DEFINE_flag(
    _HelpFields(
      flags.ArgumentParser[str](),
      flags.ArgumentSerializer[str](),
      'help_fields',
      None,
      'Prints the fields of a section of the config, such as sync.ssp, and '
      "ends; '' for all.",
    ),
    flag_values,
  )
  holder: flags.FlagHolder[ConfigDict] = config_flags.DEFINE_config_file(
    'config',
    default,
    text,
    flag_values=flag_values,
    lock_config=False,
    accept_new_attributes=True,
    sys_argv=argv,
  )
  return holder
