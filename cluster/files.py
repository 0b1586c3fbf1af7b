"""The files of a run, all in one folder, written as the run goes.

manifest.json, metrics.jsonl, events.jsonl, trace.json (Chrome trace format),
TensorBoard events and summary.json.  What is not known is null, never NaN.
"""

import datetime
import json
import math
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import tensorboardX

_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'numpy', 'ml_collections')
_PLOTTED = ('accuracy', 'loss', 'learning_rate', 'waiting_share')


class RunFiles:
  """Writes one run's files."""

  def __init__(self, workdir: str | None):
    """Creates nothing yet.

    Args:
      workdir: Folder that holds no run yet; None names a new one under runs/.

    Raises:
      ValueError: If `workdir` is empty or already holds a run.
    """
    if workdir == '':
      raise ValueError("workdir: expected the path of a folder, got ''.")
    if workdir is None:
      now = datetime.datetime.now().strftime('%Y%m%d-%H%M%S-%f')
      workdir = f'runs/{now}-{os.getpid()}'
    self.workdir = pathlib.Path(workdir)
    if (self.workdir / 'manifest.json').exists():
      raise ValueError(
        f'workdir: expected a folder without a run, {workdir} holds one.'
      )

  def claim(self, manifest: Mapping[str, Any]) -> None:
    """Creates the folder and its manifest.

    Raises:
      OSError: If the folder cannot be made, or holds a run by now.
    """
    self.workdir.mkdir(parents=True, exist_ok=True)
    # Exclusively: of two runs that were given one folder, one fails here.
    with (self.workdir / 'manifest.json').open('x') as file:
      file.write(_pretty(manifest))

  def begin(self, *, num_workers: int) -> None:
    """Opens the files that are written during the run."""
    self._metrics = (self.workdir / 'metrics.jsonl').open('w')
    self._events = (self.workdir / 'events.jsonl').open('w')
    self._trace = (self.workdir / 'trace.json').open('w')
    self._board = tensorboardX.SummaryWriter(str(self.workdir))
    self._separator = '[\n'
    for worker in range(num_workers):
      name = {'name': f'worker {worker}'}
      self._timeline({'name': 'thread_name', 'ph': 'M', 'args': name}, worker)

  def metric(self, row: Mapping[str, Any]) -> None:
    """Appends a row to metrics.jsonl and plots it against examples."""
    self._metrics.write(_dumps(row) + '\n')
    self._metrics.flush()
    for field in _PLOTTED:
      if row[field] is not None:
        self._board.add_scalar(field, row[field], row['examples'])

  def event(self, row: Mapping[str, Any]) -> None:
    """Appends what the scheme was told and said to events.jsonl."""
    self._events.write(_dumps(row) + '\n')

  def span(self, worker: int, phase: str, start: float, end: float) -> None:
    """Adds a phase of a worker to the timeline; seconds."""
    times = {'ts': start * 1e6, 'dur': (end - start) * 1e6}
    self._timeline({'name': phase, 'ph': 'X', **times}, worker)

  def close(self, summary: Mapping[str, Any]) -> None:
    """Writes summary.json and closes everything."""
    (self.workdir / 'summary.json').write_text(_pretty(summary))
    self._trace.write('\n]\n')
    for file in (self._metrics, self._events, self._trace, self._board):
      file.close()

  def _timeline(self, event: Mapping[str, Any], worker: int) -> None:
    row = {**event, 'pid': 0, 'tid': worker}
    self._trace.write(self._separator + _dumps(row))
    self._separator = ',\n'


def manifest(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns what is needed to repeat a run: config, command, versions."""
  git = ['git', '-C', str(pathlib.Path(__file__).parent)]
  return {
    'config': _jsonable(config),
    'seed': config['seed'],
    'command': sys.argv,
    'python': platform.python_version(),
    'versions': {name: metadata.version(name) for name in _PACKAGES},
    'xla_flags': os.environ.get('XLA_FLAGS', ''),
    'git_revision': _output([*git, 'rev-parse', 'HEAD']),
    'git_changes': _output([*git, 'status', '--porcelain']),
  }


def _output(command: list[str]) -> str | None:
  """Returns what a command prints, or None if it is missing or fails."""
  try:
    done = subprocess.run(
      command, capture_output=True, text=True, timeout=10, check=False
    )
  except FileNotFoundError:
    return None
  return done.stdout.strip() if done.returncode == 0 else None


def _jsonable(value: Any) -> Any:
  """Infinite numbers become text: JSON has none."""
  if isinstance(value, Mapping):
    return {key: _jsonable(item) for key, item in value.items()}
  if isinstance(value, tuple):
    return [_jsonable(item) for item in value]
  if isinstance(value, float) and not math.isfinite(value):
    return str(value)
  return value


def _pretty(content: Mapping[str, Any]) -> str:
  return json.dumps(content, indent=2, allow_nan=False) + '\n'


def _dumps(row: Mapping[str, Any]) -> str:
  return json.dumps(row, allow_nan=False, separators=(',', ':'))
