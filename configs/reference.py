"""Reference of all fields, as text for --help_fields and as a page."""

import textwrap
from collections.abc import Iterator

from configs import declared, user_parts
from configs.fields.field import Field, Section

_WIDTH = 80


def as_text(path: str) -> str:
  """Returns the fields at a path or below it, for a terminal.

  Args:
    path: Path such as 'sync.ssp' or 'sync.ssp.bound', with or without
      'config.' before it; '' for all.

  Raises:
    ValueError: If there is neither a section nor a field at the path.
  """
  path = f'{path}.'.removeprefix('config.').removesuffix('.')
  member: Field | Section = declared.RUN
  try:
    if path:
      above, _, name = path.rpartition('.')
      member = declared.find_section(above).members[name]
  except KeyError as error:
    raise ValueError(
      f'help_fields: expected a path such as sync.ssp, got {path!r}.'
    ) from error
  if isinstance(member, Field):
    return '\n'.join(_describe(path, member))
  blocks = []
  for found, section in _sections(path, member):
    title = f'config.{found}'.removesuffix('.')
    lines = [title, *textwrap.wrap(section.doc, _WIDTH)]
    for below, field in _fields(found):
      lines += _describe(below, field)
    blocks.append('\n'.join(lines))
  return '\n\n'.join(blocks)


def as_markdown() -> str:
  """Returns tables of all fields, one for each section."""
  lines = []
  for path, section in _sections('', declared.RUN):
    title = f'config.{path}'.removesuffix('.')
    lines += [f'## {title}', '', _escape(section.doc), '']
    rows = [
      f'| `{below.rpartition(".")[2]}` | `{field.default!r}` '
      f'| {_escape(_expected(below, field))} | {_escape(field.doc)} |'
      for below, field in _fields(path)
    ]
    if rows:
      lines += ['| field | default | value | meaning |', '| --- ' * 4 + '|']
      lines += [*rows, '']
  return '\n'.join(lines)


def _sections(path: str, section: Section) -> Iterator[tuple[str, Section]]:
  """Yields a section and those below it, but none of users' own parts."""
  yield path, section
  for name, member in section.members.items():
    if isinstance(member, Section) and name != user_parts.SECTION:
      yield from _sections(f'{path}.{name}'.removeprefix('.'), member)


def _fields(section: str) -> Iterator[tuple[str, Field]]:
  """Yields paths and fields of a section without those below it."""
  for name, member in declared.find_section(section).members.items():
    if isinstance(member, Field):
      yield f'{section}.{name}'.removeprefix('.'), member


def _describe(path: str, field: Field) -> list[str]:
  """Returns the lines of a field, with its flag."""
  wrapped = textwrap.wrap(
    f'{field.doc}  Expected: {_expected(path, field)}.',
    _WIDTH,
    initial_indent='    ',
    subsequent_indent='    ',
  )
  return [f'  --config.{path}={field.default!r}', *wrapped]


def _expected(path: str, field: Field) -> str:
  """Returns the expectation of a field; of a `name`, the choices."""
  section, _, name = path.rpartition('.')
  if name != 'name':
    return field.expected
  is_open = user_parts.SECTION in declared.find_section(section).members
  own = ', or the dotted path of a module of your own' if is_open else ''
  return f'one of {declared.options(section)}{own}'


def _escape(text: str) -> str:
  """Returns text in which Markdown finds neither columns nor emphasis."""
  for mark in '\\|*[<':
    text = text.replace(mark, f'\\{mark}')
  return text
