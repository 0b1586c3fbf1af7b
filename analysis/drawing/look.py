"""Colors, lines and labels that several pictures share."""

import textwrap
from typing import Any

# Okabe and Ito's colors, which color-blind people can tell apart; yellow is
# left out because lines of it vanish on white.
COLORS = (
  '#0072B2',
  '#D55E00',
  '#000000',
  '#009E73',
  '#CC79A7',
  '#56B4E9',
  '#E69F00',
)
# Each line has another style than its neighbors, so that one that lies exactly
# under another shows through.
_STYLES = ('-', (0, (4, 1.5)), (0, (1.2, 2.5)))


def line(index: int) -> dict[str, Any]:
  """Returns the look of one of several lines."""
  style = _STYLES[index % len(_STYLES)]
  return {'color': COLORS[index % len(COLORS)], 'linestyle': style}


def wrap(label: str) -> str:
  """Returns a label in lines that fit beside a picture."""
  return textwrap.fill(label, 30)
