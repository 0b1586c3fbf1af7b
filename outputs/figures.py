"""Measures of evaluations and times to thresholds, as displays show them."""

from collections.abc import Iterator, Mapping
from typing import Any

_FORMATS = {
  **dict.fromkeys(('loss', 'test_loss', 'bits_per_byte'), '.4f'),
  'perplexity': '.3f',
}
_LABELS = {'loss': 'training loss'}


def label(name: str) -> str:
  """Returns a measure's name as words."""
  return _LABELS.get(name) or name.replace('_', ' ')


def is_share(name: str) -> bool:
  """Returns whether a measure is a share, which is shown in percent."""
  return name == 'accuracy' or name.endswith('_accuracy')


def number_format(name: str) -> str:
  """Returns the format of a measure that is no share, such as '.4g'."""
  return _FORMATS.get(name, '.4g')


def text(name: str, value: float | None) -> str:
  """Returns the value of a measure as text; a dash for None."""
  if value is None:
    return '-'
  return format(value, '.2%' if is_share(name) else number_format(name))


def final(summary: Mapping[str, Any]) -> dict[str, float | None]:
  """Returns the measures of a run's last evaluation by name.

  An accuracy that is None is left out where there are others.
  """
  found = dict(_fields(summary, 'final_'))
  if len(found) > 1 and found['accuracy'] is None:
    del found['accuracy']  # The task has none.
  return found


def times(summary: Mapping[str, Any]) -> dict[str, float | None]:
  """Returns seconds to a run's thresholds by text, such as '90%' or 'mse 0.1'.

  A threshold that was not reached has None.
  """
  accuracies = {
    f'{100 * float(wanted):g}%': time_s
    for wanted, time_s in summary['time_to'].items()
  }
  others = {
    f'{label(name)} {wanted}': reached['time_s']
    for name, values in _fields(summary, 'to_')
    if name != 'accuracy'
    for wanted, reached in values.items()
  }
  return accuracies | others


def _fields(
  summary: Mapping[str, Any], prefix: str
) -> Iterator[tuple[str, Any]]:
  """Yields the fields of a summary that begin with a prefix, without it."""
  for name, value in summary.items():
    if name.startswith(prefix):
      yield name.removeprefix(prefix), value
