"""Records of a fabricated measurement, for tests of the engine."""

import pathlib

TOML = """
paper = 'A paper (2026)'
published = 'a set-up'
ours = 'fabricated'
evidence = 'timed'
seeds = { quick = 6, full = 6 }

[runs]
function = 'tests.papers.fabricated:records'

[[table]]
name = 'Table I'
title = 'time over that of the baseline'
measure = 's'
over = { scheme = 'base' }
match = 0.1
same = 'side'
figure = true
columns = [
  { name = 'A & B', where = { links = 'fast' } },
  { name = 'seconds', needs = '512 GPUs' },
]
rows = [
  { name = 'matches', of = { scheme = 'half' }, published = [0.5, 12.0] },
  { name = 'same side', of = { scheme = 'half' }, published = [0.8, '-'] },
  { name = 'other side', of = { scheme = 'half' }, published = [1.5, '-'] },
  { name = 'noise', of = { scheme = 'noise' }, published = [0.9, '-'] },
  { name = 'alike', of = { scheme = 'base too' }, published = [0.9, '-'] },
]

[[table]]
name = 'Text'
title = 'accuracy minus that of the baseline, and seconds'
certainty = 'text'
columns = [{ name = 'ours' }]
rows = [
  { name = 'no loss', measure = 'accuracy', of = { scheme = 'half' }, \
minus = { scheme = 'base' }, match = [-0.01, 0.01], published = ['near 0'] },
  { name = 'seconds', measure = 's', of = { scheme = 'half' }, \
match = [0.4, 0.6], published = ['half'] },
  { name = 'never acts', measure = 's', of = { scheme = 'base too' }, \
same_as = { scheme = 'base' }, match = [0, 2], published = ['1'] },
]
"""
_SECONDS = {'base': 1.0, 'base too': 1.0, 'half': 0.5}


def records(*, seed: int, scale: str, folder: pathlib.Path) -> list[dict]:
  """Returns a record of each scheme, and counts its calls in the folder."""
  del scale
  (folder / 'called').write_text('once')
  common = {'links': 'fast', 'accuracy': 0.9 + 0.001 * seed}
  found = [
    {'scheme': scheme, 's': s * (1 + 0.01 * seed), **common}
    for scheme, s in _SECONDS.items()
  ]
  noise = {'scheme': 'noise', 's': 0.5 if seed % 2 else 1.6, **common}
  return [*found, noise]
