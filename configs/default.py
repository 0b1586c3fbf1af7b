"""Defaults of all config fields: VGG16 at 1/8 width on digits, with BSP.

configs/fields/ declares them, with meanings and ranges.
"""

from typing import Any

import ml_collections
from ml_collections import ConfigDict, FieldReference

from configs import declared, user_parts
from configs.fields.field import Section


def get_config() -> ml_collections.ConfigDict:
  """Returns the defaults, locked: a misspelt field is an error."""
  config = _build(declared.RUN)
  config.lock()
  for path in user_parts.SUPPLIED:
    section = config
    for part in path.split('.'):
      section = section[part]
    section.own.unlock()  # Its fields depend on the user's module.
  config.time_to_measure.unlock()  # Its fields depend on the task.
  return config


def read_section(path: str) -> dict[str, Any]:
  """Returns the default of each field of a section, such as 'sync.ssp'.

  They are the arguments of `make` of the section's module, for use without a
  run.
  """
  fields: dict[str, Any] = _build(declared.find_section(path)).to_dict()
  return fields


def _build(section: Section) -> ConfigDict:
  """Returns the defaults of a section."""
  config = ConfigDict()
  for name, member in section.members.items():
    if isinstance(member, Section):
      config[name] = _build(member)
    elif member.takes_text:
      config[name] = FieldReference(member.default, field_type=object)
    else:
      config[name] = member.default
  return config
