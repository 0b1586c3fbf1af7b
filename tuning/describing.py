"""Tables and files of a tuning."""

import datetime
import math
import pathlib
from typing import Any

from analysis import printing, recorded_configs
from diagnosis.costs import Estimate
from tuning import candidates, writing
from tuning.chain import Outcome
from tuning.deciding import Prediction, Trial
from tuning.measuring import Measurement

_HEAD = ('', 'predicted s', 'measured s', 'error', 'predicted time', '')


def describe(outcome: Outcome) -> str:
  """Returns a table of predictions and measurements, and the rejections."""
  rows: list[tuple[str, ...]] = [_HEAD]
  for measured in outcome.present:
    name = f'{candidates.name(outcome.config)} (present)'
    rows.append((name, *_cells(outcome.present_s, measured), '1.00', ''))
  trials = {id(trial.prediction): trial for trial in outcome.trials}
  for each in outcome.predictions:
    trial = trials.get(id(each))
    cells = _cells(each.iteration_s, trial.measured if trial else None)
    rows.append((each.candidate.name, *cells, _time(each), _note(trial)))
  lines = [printing.text(rows, align='r'), _SECONDS]
  if any(each.is_uncertain for each in outcome.predictions):
    lines.append(
      'Uncertain: how many examples it needs has the range in brackets, or is '
      'not known: --examples_from=SWEEP takes it from your own runs.'
    )
  lines += [
    f'Failed: {trial.prediction.candidate.name}: {trial.failure}'
    for trial in outcome.trials
    if trial.failure
  ]
  lines += [f'Skipped: {each.name}: {each.reason}' for each in outcome.rejected]
  return '\n'.join(lines)


def write(outcome: Outcome, out: pathlib.Path, file: str) -> str:
  """Writes the files of a tuning; returns the verdict as text.

  Args:
    out: Path of the winner's config, not written without a winner.
    file: File of the present config.

  Raises:
    OSError: If a file cannot be written.
  """
  beside = out.with_suffix('.json')
  writing.write_predictions(beside, content(outcome, file))
  winner, gain = outcome.decision.winner, outcome.decision.gain
  if winner is None or winner.measured is None or gain is None:
    return (
      f'Keep what you have: {outcome.decision.reason}.\n'
      f'All predictions are in {beside}.'
    )
  config = winner.prediction.candidate.config
  words = ' '.join(outcome.launcher.words(config, str(out)))
  command = outcome.launcher.command or 'python -m tools.launch'
  writing.write_config(out, config, about(outcome, file, f'{command} {words}'))
  changed = '\n'.join(
    f'  {field} = {new!r}' for field, new in _changed(outcome)
  )
  return (
    f'{winner.prediction.candidate.name} takes {gain.text()} of the time of '
    f'{file}.  It changes\n{changed}\nRun it with\n  {command} {words}\n'
    f'All predictions are in {beside}.'
  )


def about(outcome: Outcome, file: str, command: str) -> str:
  """Returns the docstring of the winner's config.

  Args:
    outcome: An outcome with a winner.
    file: File of the present config.
    command: Command that starts the winner.
  """
  winner, gain = outcome.decision.winner, outcome.decision.gain
  if winner is None or winner.measured is None or gain is None:
    raise ValueError('outcome: expected a winner, got none.')
  prediction = winner.prediction
  before = ' and '.join(each.iteration_s.text(4) for each in outcome.present)
  return f"""{prediction.candidate.name}, found by tools.tune.

Tuned from {file} for {outcome.launcher.workers} workers on \
{datetime.date.today()}.
Measured: {gain.text()} of its time; {winner.measured.iteration_s.text(4)} s an
iteration, instead of {before} s.
Predicted: {prediction.time.text()} of its time; {prediction.iteration_s:.4f} s
an iteration, instead of {outcome.present_s:.4f} s.
Intervals are of 95 %.

{command}"""


def content(outcome: Outcome, file: str) -> dict[str, Any]:
  """Returns predictions and measurements as plain data: see docs/files.md.

  Args:
    file: File of the present config.
  """
  trials = {id(trial.prediction): trial for trial in outcome.trials}
  rows = []
  for each in outcome.predictions:
    trial = trials.get(id(each))
    measured = trial.measured if trial else None
    rows.append(
      {
        'name': each.candidate.name,
        'changes': [*each.candidate.changes],
        'predicted_s': each.iteration_s,
        'predicted_time': _plain(each.time),
        'measured': _measured(measured),
        'error': _error(each.iteration_s, measured),
        'failure': trial.failure if trial else '',
      }
    )
  winner, gain = outcome.decision.winner, outcome.decision.gain
  return {
    'config': file,
    'date': f'{datetime.date.today()}',
    'workers': outcome.launcher.workers,
    'servers': outcome.launcher.servers,
    'dedicated': outcome.launcher.dedicated,
    'present': {
      'name': candidates.name(outcome.config),
      'predicted_s': outcome.present_s,
      'measured': [_measured(each) for each in outcome.present],
      'error': _error(outcome.present_s, outcome.present[0]),
    },
    'candidates': rows,
    'rejected': [each._asdict() for each in outcome.rejected],
    'winner': winner.prediction.candidate.name if winner else None,
    'gain': _plain(gain) if gain else None,
    'reason': outcome.decision.reason,
  }


_SECONDS = (
  'Seconds are those in which all workers compute as many examples as in an '
  'iteration of BSP\nwith equal batches; predicted time is that to a loss over '
  "the present config's."
)


def _cells(predicted_s: float, measured: Measurement | None) -> tuple[str, ...]:
  """Returns the cells of predicted and measured seconds, and the error."""
  if measured is None:
    return f'{predicted_s:.4f}', '', ''
  error = _error(predicted_s, measured)
  return f'{predicted_s:.4f}', measured.iteration_s.text(4), f'{error:+.1%}'


def _time(prediction: Prediction) -> str:
  text = f'{prediction.time.value:.2f}'
  if not prediction.is_uncertain:
    return text
  return f'{prediction.time.text()}, uncertain'


def _note(trial: Trial | None) -> str:
  if trial is None:
    return 'not run'
  return 'failed' if trial.failure else ''


def _error(predicted_s: float, measured: Measurement | None) -> float | None:
  """Returns the relative error of a prediction; None without measurement."""
  if measured is None:
    return None
  return predicted_s / measured.iteration_s.value - 1


def _measured(measured: Measurement | None) -> dict[str, Any] | None:
  if measured is None:
    return None
  return {
    'iteration_s': _plain(measured.iteration_s),
    'iterations': measured.iterations,
    'folder': measured.folder,
  }


def _plain(estimate: Estimate) -> dict[str, float | None]:
  """Returns an estimate as plain data, with None for what is not finite."""
  return {
    field: value if math.isfinite(value) else None
    for field, value in estimate._asdict().items()
  }


def _changed(outcome: Outcome) -> list[tuple[str, Any]]:
  """Returns the fields in which the winner differs from the present config."""
  winner = outcome.decision.winner
  if winner is None:
    return []
  before = dict(recorded_configs.changed_fields(outcome.config))
  config = winner.prediction.candidate.config
  after = dict(recorded_configs.changed_fields(config))
  return [
    (field, recorded_configs.field_value(config, field))
    for field in sorted({*before, *after})
    if before.get(field) != after.get(field)
  ]
