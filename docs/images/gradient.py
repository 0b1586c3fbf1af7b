"""Draws gradient.svg: the path of one gradient through both runtimes.

  python docs/images/gradient.py

The picture belongs to docs/architecture.md; a test compares the files that it
names with the repository.
"""

import html
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

_WIDTH, _BOX, _HEIGHT, _STEP = 920, 250, 52, 88
# Colours of the four questions and of the rest.
_FILL = {
  'when': '#D6E8F5',
  'how much': '#FBE5C8',
  'what': '#D5EFE4',
  'where': '#F3DCE8',
  '': '#F4F4F4',
}


class Box(NamedTuple):
  """A station of the gradient.

  Attributes:
    column: Column, from the left.
    row: Row, from the top.
    action: Text of what happens to the gradient.
    module: Files with the code, separated by commas.
    question: Question that the station answers, a key of _FILL.
  """

  column: int
  row: int
  action: str
  module: str
  question: str = ''


class Arrow(NamedTuple):
  """A connection between two stations, by their numbers.

  Attributes:
    start: Number of the first station.
    end: Number of the second station.
    text: Label; '' for none.
  """

  start: int
  end: int
  text: str = ''


# Columns: worker, links, coordinator and learner.
VIRTUAL = (
  Box(0, 0, 'pulls a version', 'cluster/virtual/runtime.py'),
  Box(0, 1, 'computes its gradient', 'learning/gradient.py', 'how much'),
  Box(0, 2, 'encodes a message', 'learning/local_codec.py, wire/', 'what'),
  Box(
    1,
    2,
    'transfer takes simulated time',
    'cluster/virtual/transfers.py',
    'where',
  ),
  Box(2, 2, 'the whole push arrives', 'cluster/virtual/runtime.py'),
  Box(
    2,
    1,
    'the coordinator asks the scheme',
    'cluster/coordinator.py, sync/',
    'when',
  ),
  Box(2, 0, 'update sums and applies it', 'learning/learner.py'),
  Box(1, 0, 'accounts and rows', 'outputs/recorder.py'),
)
REAL = (
  Box(0, 0, 'pulls a version', 'cluster/parameter_server/worker.py'),
  Box(0, 1, 'computes its gradient', 'learning/gradient.py', 'how much'),
  Box(0, 2, 'encodes messages', 'learning/shard_codec.py, wire/', 'what'),
  Box(1, 2, 'stream to every server', 'cluster/network/streams.py', 'where'),
  Box(2, 2, 'all shards arrive', 'cluster/parameter_server/server.py'),
  Box(
    2,
    1,
    'the coordinator asks the scheme',
    'cluster/coordinator.py, sync/',
    'when',
  ),
  Box(
    2,
    0,
    'servers sum and apply it in order',
    'cluster/parameter_server/store.py',
  ),
  Box(1, 0, 'accounts and rows', 'outputs/recorder.py'),
)
_ARROWS = (
  *(Arrow(0, 1), Arrow(1, 2), Arrow(2, 3, 'push'), Arrow(3, 4)),
  *(Arrow(4, 5, 'header'), Arrow(5, 6, 'decision'), Arrow(6, 7)),
  Arrow(7, 0, 'release'),
)


def draw() -> str:
  """Returns the picture as SVG."""
  lanes = (
    ('Virtual clock: one process', VIRTUAL),
    ('Real hosts: workers, servers, the coordinator', REAL),
  )
  lane_height = 3 * _STEP + 46
  height = 2 * lane_height + 46
  lines = [
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
    'font-family="Helvetica, Arial, sans-serif" font-size="13" role="img">',
    '<title>The path of one gradient through both runtimes</title>',
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" '
    'markerWidth="8" markerHeight="8" orient="auto-start-reverse">'
    '<path d="M0 0 L8 4 L0 8 z" fill="#444"/></marker></defs>',
    f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
  ]
  for lane, (title, boxes) in enumerate(lanes):
    top = lane * lane_height
    lines.append(
      f'<text x="20" y="{top + 28}" font-size="15" font-weight="bold">'
      f'{title}</text>'
    )
    for arrow in _ARROWS:
      lines += _arrow(boxes, arrow, top + 44)
    for box in boxes:
      lines += _box(box, top + 44)
  lines += _legend(height - 34)
  return '\n'.join([*lines, '</svg>', ''])


def _corner(box: Box, top: int) -> tuple[int, int]:
  gap = (_WIDTH - 40 - 3 * _BOX) // 2
  return 20 + box.column * (_BOX + gap), top + box.row * _STEP


def _box(box: Box, top: int) -> Iterator[str]:
  x, y = _corner(box, top)
  yield (
    f'<rect x="{x}" y="{y}" width="{_BOX}" height="{_HEIGHT}" rx="6" '
    f'fill="{_FILL[box.question]}" stroke="#888"/>'
  )
  middle = x + _BOX / 2
  for dy, size, text in ((21, 13, box.action), (40, 10.5, box.module)):
    family = ' font-family="monospace"' if size < 12 else ''
    yield (
      f'<text x="{middle:g}" y="{y + dy}" font-size="{size}"{family} '
      f'text-anchor="middle">{html.escape(text)}</text>'
    )


def _arrow(boxes: tuple[Box, ...], arrow: Arrow, top: int) -> Iterator[str]:
  start, end = boxes[arrow.start], boxes[arrow.end]
  (ax, ay), (bx, by) = _corner(start, top), _corner(end, top)
  if start.column == end.column:
    down = end.row > start.row
    x0 = x1 = ax + _BOX / 2
    y0, y1 = (ay + _HEIGHT, by - 2) if down else (ay, by + _HEIGHT + 2)
  else:
    right = end.column > start.column
    x0, x1 = (ax + _BOX, bx - 2) if right else (ax, bx + _BOX + 2)
    y0, y1 = ay + _HEIGHT / 2, by + _HEIGHT / 2
  yield (
    f'<line x1="{x0:g}" y1="{y0:g}" x2="{x1:g}" y2="{y1:g}" stroke="#444" '
    'stroke-width="1.4" marker-end="url(#tip)"/>'
  )
  if arrow.text:
    x, y = (x0 + x1) / 2, (y0 + y1) / 2
    x, y = (x + 8, y + 4) if x0 == x1 else (x, y - 7)
    anchor = 'start' if x0 == x1 else 'middle'
    yield (
      f'<text x="{x:g}" y="{y:g}" font-size="12" font-style="italic" '
      f'fill="#444" text-anchor="{anchor}">{arrow.text}</text>'
    )


def _legend(top: int) -> Iterator[str]:
  x = 20
  for question, fill in _FILL.items():
    if question:
      yield (
        f'<rect x="{x}" y="{top}" width="16" height="16" fill="{fill}" '
        'stroke="#888"/>'
      )
      yield f'<text x="{x + 24}" y="{top + 13}">{question}</text>'
      x += 130


if __name__ == '__main__':
  pathlib.Path(__file__).with_suffix('.svg').write_text(draw())
