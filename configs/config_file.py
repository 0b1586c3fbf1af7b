"""The flag --config of every command."""

from absl import flags
from ml_collections import ConfigDict, config_flags

# The flag is that of the module that calls `define_flag`, and in its --help.
flags.disclaim_key_flags()


def define_flag(
  default: str | None,
  text: str,
  *,
  flag_values: flags.FlagValues = flags.FLAGS,
  argv: list[str] | None = None,
) -> flags.FlagHolder[ConfigDict]:
  """Defines --config, a file, and its --config.SECTION.FIELD=VALUE.

  The sections of users' own parts take any field: they are not locked, unlike
  the rest of `configs.default`.  Their fields are checked with the modules.

  Args:
    default: Default file; None for none.
    text: Help of the flag.
    flag_values: Flags to add it to.
    argv: Command line; None for that of this process.
  """
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
