"""Does a start continue the run of a folder?  Manifests are compared here."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from outputs import inputs, manifests
from outputs.manifests import DISPLAY, LOCAL

# Fields of a manifest that must be equal for bit-identical results.
_EXACT = ('versions', 'cores', 'xla_flags', 'git_revision')
# Fields that may change when a run on real hosts resumes.
_HOSTS = (
  *LOCAL,
  *('config.route.server.servers', 'config.route.server.dedicated'),
  *('config.cluster.workers', 'config.cluster.speed.slowdown'),
  'config.cluster.min_workers',
  *('config.cluster.timeout_s', 'config.cluster.start_s'),
  'config.cluster.faults',
)


class Comparison(NamedTuple):
  """Differences between the run of a folder and a start.

  Attributes:
    refused: Sentences on fields that identify the run; a start with any of them
      is another run.
    changed: Fields of the config that may change, and have.
    warnings: Sentences on other differences.
    is_longer: Whether the start has more epochs.
  """

  refused: Sequence[str]
  changed: Sequence[str]
  warnings: Sequence[str]
  is_longer: bool


def compare(
  before: Mapping[str, Any], manifest: Mapping[str, Any]
) -> Comparison:
  """Compares the manifests of a folder and of a start."""
  configs = before['config'], manifest['config']
  is_longer = configs[0]['epochs'] < configs[1]['epochs']
  runtimes = {config['cluster']['runtime'] for config in configs}
  free = _HOSTS if runtimes == {'distributed'} else ()
  differing = dict(_differences(before, manifest))
  if is_longer:
    differing.pop('config.epochs', None)
  changed = [field for field in differing if field in free]
  warnings = [
    f'The run continues with another {differing[field]}' for field in changed
  ]
  warnings += [
    f'The run began with {field} {before[field]} and continues with '
    f'{manifest[field]}: its results may differ in the last bits from those of '
    'an uninterrupted one.'
    for field in _EXACT
    if before[field] != manifest[field]
  ]
  for number, start in enumerate(before.get('starts', [])):
    if start['devices'] != manifest['devices']:
      warnings.append(
        f'The run resumes on {describe_kinds(manifest["devices"])}; '
        f'{"it was" if number else "it began"} on '
        f'{describe_kinds(start["devices"])}: its digits may differ from those '
        'of an uninterrupted one.'
      )
      break
  refused = [line for field, line in differing.items() if field not in free]
  return Comparison(refused, changed, warnings, is_longer)


def describe_kinds(kinds: Sequence[str]) -> str:
  """Returns kinds of devices as text, such as '2 x NVIDIA A100, cpu'."""
  numbers = collections.Counter(kinds)
  each = [f'{n} x {kind}' if n > 1 else kind for kind, n in numbers.items()]
  return ', '.join(each) or 'no device'


def _differences(
  before: Mapping[str, Any], now: Mapping[str, Any]
) -> list[tuple[str, str]]:
  """Returns the parts of a run's identity that differ, each with a sentence."""
  read = before.get('files', {}), now['files']  # Earlier versions had none.
  moved = inputs.identified_fields(read[0]) & inputs.identified_fields(read[1])
  known, got = (
    manifests.flatten(
      {part: each.get(part, {}) for part in ('config', 'own', 'random')}
    )
    for each in (before, now)
  )
  found = []
  for field in sorted(known.keys() | got.keys()):
    old, new = known.get(field), got.get(field)
    if old == new or field in moved or field in DISPLAY:
      continue
    line = f'{field}: expected {old!r}, got {new!r}.'
    if old is None and not field.startswith('own.'):
      line = f'{field}: younger than the run, which has none; got {new!r}.'
    found.append((field, line))
  return found + inputs.find_changes(*read)
