"""Draws how many examples each worker's iterations had."""

import collections

from matplotlib.figure import Figure

from analysis import records
from analysis.records import RunRecord

_SHOWN = 10  # Workers with a line of their own, as many as there are colors.


def sizes(run: RunRecord) -> dict[int, list[tuple[float, int]]]:
  """Returns by worker when it pushed, seconds, and of how many examples.

  Nothing if all batches are equal, or if there are none.
  """
  if not records.has_events(run):
    return {}
  pushes = collections.defaultdict(list)
  for event in records.read_events(run.path):
    if event['event'] == 'push':
      pushes[event['worker']].append((event['time'], event['examples']))
  different = {size for found in pushes.values() for _, size in found}
  return dict(pushes) if len(different) > 1 else {}


def draw(label: str, run: RunRecord) -> Figure | None:
  """Draws a run's batches against time, one line per worker.

  Args:
    label: Title of the picture.
    run: Run whose batches are drawn.

  Returns:
    The picture; None if all batches are equal, or if there are none.
  """
  pushes = sizes(run)
  if not pushes:
    return None
  figure = Figure((9.5, 4))
  axes = figure.subplots()
  for worker in sorted(pushes)[:_SHOWN]:
    times, examples = zip(*pushes[worker], strict=True)
    axes.step(times, examples, label=f'worker {worker}', linewidth=1)
  if len(pushes) > _SHOWN:
    label = f'{label} ({_SHOWN} of {len(pushes)} workers)'
  axes.set(xlabel=records.time_label([run]), ylabel='worker batch (examples)')
  axes.set_xlim(left=0)
  axes.set_ylim(bottom=0)
  axes.set_title(label, loc='left', fontsize='medium')
  axes.grid(alpha=0.3)
  figure.legend(loc='outside right upper')
  return figure
