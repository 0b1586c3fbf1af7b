"""Command `clusters` of reproduce.py: predictions of what others measured.

Writes `clusters.json` with all figures, and the page CLUSTERS.md of them.  The
measured steps are read from the file that the user names, and are not stored.
"""

import hashlib
import json
import pathlib
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from claims.clusters import measured, prediction
from claims.clusters.measured import Setting
from claims.clusters.prediction import Calibration, Prediction, Row
from configs.checks import require
from outputs import atomic

NAME = 'clusters'  # Of the command.
RESULTS, PAGE = 'clusters.json', 'CLUSTERS.md'
_FORMAT = 1
_DIGITS = 6  # Of stored figures.
_ALGORITHMS = {'ddp': 'DDP', 'localsgd': 'LocalSGD', 'diloco': 'DiLoCo'}
_ROUTES = {'ring': 'ring', 'double_tree': 'double tree'}
_HEAD = """# Clusters of others

Steps of DDP, LocalSGD and DiLoCo that others measured, and what the virtual
cluster predicts for them. `reproduce.py clusters` writes this page; do not edit
it. `docs/clusters_of_others.md` describes it.

"""


def reproduce(data: str, *, out: str, about: Mapping[str, Any]) -> int:
  """Predicts the steps of a file, stores and prints the result.

  Args:
    data: Path of the CSV file of measured steps.
    out: Folder of results.
    about: Provenance of the results.

  Returns:
    The exit code, 0.

  Raises:
    ValueError: If the file cannot be read or lacks what the calibration needs.
    OSError: If a result cannot be written.
  """
  expected = 'the path of a CSV file of measured steps'
  require(bool(data), '--data', expected, data)
  start = time.monotonic()
  path = pathlib.Path(data)
  steps = measured.read(path)
  fitted = prediction.calibrate(steps)
  content: dict[str, Any] = {
    'format': _FORMAT,
    'about': {
      **about,
      'wall_s': round(time.monotonic() - start, 1),
      'source': measured.SOURCE,
      'file': path.name,
      'sha256': hashlib.sha256(path.read_bytes()).hexdigest(),
    },
    'calibration': _calibration_record(fitted),
    'rows': [_row_record(row) for row in prediction.compare(steps, fitted)],
    'forecast': [_forecast_record(*e) for e in prediction.forecast(fitted)],
  }
  folder = pathlib.Path(out)
  folder.mkdir(parents=True, exist_ok=True)
  atomic.write(folder / RESULTS, _dump(content))
  page = render(content)
  atomic.write(folder / PAGE, page)
  print(page.removeprefix(_HEAD))
  print(f'Results are in {folder / RESULTS} and {folder / PAGE}')
  return 0


def render(content: Mapping[str, Any]) -> str:
  """Returns the page of stored results, as Markdown.

  Args:
    content: Content of `clusters.json`.
  """
  about, fitted = content['about'], content['calibration']
  source = about['source']
  text = (
    f'Source: [{source["repository"]}]({source["repository"]}) at '
    f'{source["commit"]}, licence {source["licence"]}; the file '
    f'`{about["file"]}`, SHA-256 `{about["sha256"]}`. Four hosts with one L40S '
    f'each, NCCL over TCP, {prediction.SIZE_BYTES // 4:,} float32 '
    f'parameters.\n\n`{about["command"]}`, {about["date"]}, {about["cores"]} '
    f'cores, revision {str(about["git_revision"])[:10]}.\n\n'
  )
  text += f'## Calibration\n\n{_calibration_table(fitted)}\n'
  text += f'## Errors\n\n{_error_text(content["rows"])}\n'
  text += f'{_row_table(content["rows"])}\n'
  text += f'## Predictions\n\n{_forecast_table(content["forecast"])}'
  return _HEAD + text


def _calibration_record(fitted: Calibration) -> dict[str, Any]:
  record = fitted._asdict()
  record['setup_s'] = [
    {'algorithm': algorithm, 'bandwidth': bandwidth, 'seconds': seconds}
    for (algorithm, bandwidth), seconds in sorted(fitted.setup_s.items())
  ]
  return record


def _row_record(row: Row) -> dict[str, Any]:
  return {
    **row.setting._asdict(),
    'route': row.route,
    'is_first': row.is_first,
    'use': row.use,
    'count': row.outer_count,
    'outer_s': row.outer_s[0],
    'measured_outer_s': row.outer_s[1],
    'outer_miss': row.outer_miss,
    'iteration_s': row.iteration_s[0],
    'measured_iteration_s': row.iteration_s[1],
    'iteration_miss': row.iteration_miss,
  }


def _forecast_record(
  setting: Setting, route: str, predicted: Prediction
) -> dict[str, Any]:
  return {
    **setting._asdict(),
    'route': route,
    'outer_s': predicted.outer_s,
    'first_outer_s': predicted.outer_s + predicted.setup_s,
    'iteration_s': predicted.iteration_s,
  }


def _dump(content: Mapping[str, Any]) -> str:
  """Returns results as JSON with a line for each row."""
  parts = []
  for name, value in content.items():
    if isinstance(value, list):
      lines = ',\n'.join(f'  {json.dumps(_round(each))}' for each in value)
      parts.append(f' {json.dumps(name)}: [\n{lines}\n ]')
    else:
      parts.append(f' {json.dumps(name)}: {json.dumps(_round(value))}')
  return '{\n' + ',\n'.join(parts) + '\n}\n'


def _round(value: Any) -> Any:
  """Returns plain data with floats rounded to `_DIGITS` significant digits."""
  if isinstance(value, float):
    return float(f'{value:.{_DIGITS}g}')
  if isinstance(value, Mapping):
    return {name: _round(each) for name, each in value.items()}
  if isinstance(value, (list, tuple)):
    return [_round(each) for each in value]
  return value


def _calibration_table(fitted: Mapping[str, Any]) -> str:
  rows = [
    ('fitted', 'to', 'value'),
    (
      'local step',
      'unshaped local steps of DiLoCo, mean of the medians by H',
      f'{1e3 * fitted["step_s"]:.2f} ms',
    ),
    (
      'rate of shaped links over the nominal one',
      'LocalSGD, H = 1, 1 Gbit/s',
      f'{fitted["shaped_share"]:.4f}',
    ),
    (
      'outer optimizer of DiLoCo',
      'DiLoCo less LocalSGD, H = 1, 1 Gbit/s',
      f'{1e3 * fitted["outer_s"]:.2f} ms',
    ),
    (
      'rate of unshaped links',
      'DiLoCo, H = 1, unshaped',
      f'{8e-9 * fitted["unshaped_Bps"]:.2f} Gbit/s',
    ),
    (
      'computing of DDP, and its optimizer',
      'DDP, unshaped',
      f'{1e3 * fitted["ddp_compute_s"]:.2f} ms, '
      f'{1e3 * fitted["ddp_optimizer_s"]:.2f} ms',
    ),
    (
      'allreduce of DDP: ring or double tree',
      'DDP, 1 Gbit/s',
      _ROUTES[fitted['ddp_route']],
    ),
  ]
  rows += [
    (
      f'set-up of the first allreduce, {_ALGORITHMS[each["algorithm"]]}',
      f'its first step, H = 1, {_bandwidth(each["bandwidth"])}',
      f'{each["seconds"]:.3f} s',
    )
    for each in fitted['setup_s']
  ]
  return _table(rows)


def _error_text(rows: Sequence[Mapping[str, Any]]) -> str:
  """Returns a summary of the errors of what was not fitted, as Markdown."""
  groups: dict[str, list[Mapping[str, Any]]] = {}
  for row in rows:
    if row['use'] == 'predicted' and row['algorithm'] != 'ddp':
      kind = 'first' if row['is_first'] else 'later'
      title = f'{_bandwidth(row["bandwidth"])}, {kind} outer steps'
      groups.setdefault(title, []).append(row)
  lines = [
    ('predicted rows', 'number', 'outer step', 'iteration'),
    *(
      (
        title,
        f'{len(found)}',
        *(
          f'{_signed(statistics.median(misses))} '
          f'({_signed(min(misses))} to {_signed(max(misses))})'
          for field in ('outer_miss', 'iteration_miss')
          for misses in [[row[field] for row in found]]
        ),
      )
      for title, found in sorted(groups.items())
    ),
  ]
  return (
    'Errors are signed, predicted over measured time less 1: below 0 the '
    'prediction is too fast. Medians, and ranges, of LocalSGD and DiLoCo:\n\n'
    f'{_table(lines)}'
  )


def _row_table(rows: Iterable[Mapping[str, Any]]) -> str:
  head = (
    *('algorithm', 'H', 'links', 'route', 'outer steps', 'use'),
    *('outer step s', 'measured', 'error'),
    *('iteration s', 'measured', 'error'),
  )
  lines = [head]
  for row in rows:
    kind = 'first' if row['is_first'] else 'later'
    lines.append(
      (
        _ALGORITHMS[row['algorithm']],
        f'{row["local_steps"]}',
        _bandwidth(row['bandwidth']),
        _ROUTES[row['route']],
        f'{row["count"]} {kind}',
        row['use'],
        *(
          text
          for part in ('outer', 'iteration')
          for text in (
            f'{row[f"{part}_s"]:.4f}',
            f'{row[f"measured_{part}_s"]:.4f}',
            _signed(row[f'{part}_miss']),
          )
        ),
      )
    )
  return _table(lines)


def _forecast_table(rows: Iterable[Mapping[str, Any]]) -> str:
  head = (
    *('algorithm', 'H', 'links', 'route', 'outer step s', 'first one s'),
    *('iteration s', 's per step'),
  )
  lines = [head]
  for row in rows:
    is_ddp = row['algorithm'] == 'ddp'
    lines.append(
      (
        _ALGORITHMS[row['algorithm']],
        f'{row["local_steps"]}',
        _bandwidth(row['bandwidth']),
        _ROUTES[row['route']],
        f'{row["outer_s"]:.4f}',
        '' if is_ddp else f'{row["first_outer_s"]:.4f}',
        f'{row["iteration_s"]:.4f}',
        f'{row["iteration_s"] / row["local_steps"]:.4f}',
      )
    )
  return _table(lines)


def _bandwidth(text: str) -> str:
  unit = {'m': 'Mbit/s', 'g': 'Gbit/s'}
  if text == measured.UNSHAPED:
    return text
  return f'{text[:-1]} {unit[text[-1]]}'


def _signed(share: float) -> str:
  """Returns a signed error as a percentage."""
  return f'{100 * share:+.1f} %'.replace('-0.0', '+0.0')


def _table(rows: Sequence[Sequence[str]]) -> str:
  lines = [rows[0], ['---'] * len(rows[0]), *rows[1:]]
  return ''.join(f'| {" | ".join(line)} |\n' for line in lines)
