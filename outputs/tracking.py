"""Sends a run's parameters, metrics and end to MLflow (mlflow.org).

A thread of this process calls MLflow's own client, which tries a request again
as its environment variables say.  So training never waits for the server.  What
the client gives up is not in MLflow, but in metrics.jsonl.  mlflow.json names
the MLflow run: it continues after a restart, or in another coordinator.
"""

import importlib.util
import math
import os
import pathlib
import queue
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging

from configs.checks import require
from outputs import atomic

_FIELD = 'config.outputs.mlflow'
FILE = 'mlflow.json'
# Fields of rows that are no measures of evaluations, and those without a curve.
_CURVES = ('loss', 'loss_scale', 'learning_rate', 'waiting_share')
_NO_CURVES = (
  *('kind', 'time', 'examples', 'epoch', 'iterations', 'updates'),
  *('staleness_mean', 'skipped', 'wall_s', 'wall_examples_per_s'),
  *('batch_sum', 'batch_least', 'batch_largest', 'predictor_fallback'),
)
NO_MEASURES = _CURVES + _NO_CURVES
_EXPERIMENT = 'syncopate'
_WAIT_S = 30.0  # Longest wait for MLflow, at a sweep's start and at an end.
_METRICS = 1000  # Metrics of a request, as MLflow limits them.
_PARAMS = 100  # Parameters of a request, as MLflow limits them.
_LONGEST = 6000  # Characters of a parameter's value, as MLflow limits them.
_ENVIRONMENT = {
  'MLFLOW_DISABLE_TELEMETRY': 'true',
  'MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT': 'true',
}


def check(uri: str) -> None:
  """Raises ValueError if the run uses MLflow, which is not installed."""
  if uri:
    is_there = importlib.util.find_spec('mlflow') is not None
    install = f'{sys.executable} -m pip install -r requirements-mlflow.txt'
    require(is_there, _FIELD, f'MLflow to be installed ({install})', uri)


def is_plotted(field: str) -> bool:
  """Returns whether a field of metrics.jsonl is a curve of its own."""
  return field not in _NO_CURVES


def status_of(summary: Mapping[str, Any]) -> str:
  """Returns the status in MLflow of a run with this summary."""
  if summary['ended'] == 'finished':
    return 'FINISHED'
  return 'KILLED' if summary['reason'] == 'stopped' else 'FAILED'


class Tracker:
  """One run of MLflow, which a thread creates or continues, feeds and ends.

  What happens if MLflow does not answer before its client gives up:

    at the start  A warning; MLflow has nothing of this start of the run.
    later         A warning, one per outage; MLflow lacks the rows of it.
    at the end    `close` returns after `_WAIT_S` with a warning; the status in
                  MLflow stays RUNNING.

  Args:
    folder: Folder of the run, or of a sweep, in which runs are nested.
    uri: `config.outputs.mlflow`.  If mlflow.json has another one, the run is a
      new one in MLflow.
    manifest: Manifest of the run; empty for a sweep.
    may_write: Returns False once another process writes the run.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    uri: str,
    manifest: Mapping[str, Any],
    *,
    may_write: Callable[[], bool] = lambda: True,
  ):
    self._folder, self._uri, self._manifest = folder, uri, manifest
    self._may_write = may_write
    # Rows; last the status at the end of the run, or None if it is abandoned.
    self._items: queue.SimpleQueue[Mapping[str, Any] | str | None] = (
      queue.SimpleQueue()
    )
    self._is_started = threading.Event()  # Or never will be.
    self._is_ended = False  # True once MLflow has the status of the end.
    self._thread = threading.Thread(target=self._work, daemon=True)
    self._thread.start()

  def await_start(self) -> None:
    """Waits until mlflow.json names the run, or for `_WAIT_S`."""
    self._is_started.wait(_WAIT_S)

  def log(self, row: Mapping[str, Any]) -> None:
    """Sends a row of metrics.jsonl, later and by another thread.

    Does nothing if the run could not begin in MLflow, or if another process has
    taken it over.
    """
    if self._thread.is_alive():
      self._items.put(row)

  def abandon(self) -> None:
    """Sends nothing more: another process continues the run."""
    self._items.put(None)

  def close(self, status: str, *, limit_s: float = _WAIT_S) -> bool:
    """Sends summary.json and the end of the run; returns whether it was sent.

    Args:
      status: 'FINISHED', 'FAILED' or 'KILLED'.
      limit_s: Longest time to wait, seconds.
    """
    self._items.put(status)
    self._thread.join(limit_s)
    if not self._is_ended:
      logging.warning(
        'MLflow (%s) has not got the end of the run; %s has all of it.',
        *(self._uri, self._folder),
      )
    return self._is_ended

  def _work(self) -> None:
    for name, value in _ENVIRONMENT.items():
      os.environ.setdefault(name, value)
    import mlflow.exceptions  # Slow: training does not wait for it.

    failures = (mlflow.exceptions.MlflowException, OSError)
    try:
      client = mlflow.MlflowClient(tracking_uri=self._uri)
      run_id, began_ms = self._start(client)
    except failures as error:
      self._warn('the run', error)
      return
    finally:
      self._is_started.set()
    is_away = False
    while True:
      rows, end, is_over = self._next()
      if not self._may_write():
        return
      try:
        _log(client, run_id, rows, began_ms)
        is_away = False
        if end is not None:
          self._end(client, run_id, end)
      except failures as error:
        if not is_away:
          self._warn('rows', error)
        is_away = True
      if is_over:
        return

  def _next(self) -> tuple[list[Mapping[str, Any]], str | None, bool]:
    """Waits for items; returns all rows, the status, and whether it is over."""
    rows: list[Mapping[str, Any]] = []
    while True:
      item = self._items.get()
      if item is None or isinstance(item, str):
        return rows, item, True
      rows.append(item)
      if self._items.empty():
        return rows, None, False

  def _warn(self, what: str, error: Exception) -> None:
    reason = str(error).splitlines()[0] if str(error) else repr(error)
    logging.warning(
      'MLflow (%s) does not take %s of %s, which continues: %s',
      *(self._uri, what, self._folder, reason),
    )

  def _start(self, client: Any) -> tuple[str, int]:
    """Creates or continues the run; returns its id and start, Unix time, ms."""
    known = atomic.read_object(self._folder / FILE)
    if known is not None and known.get('uri') == self._uri:
      client.update_run(known['run_id'], status='RUNNING')
      run = client.get_run(known['run_id'])
    else:
      run = self._create(client)
    return run.info.run_id, run.info.start_time

  def _create(self, client: Any) -> Any:
    """Creates the run, in the run of its sweep if it has one."""
    from mlflow.entities import Param

    tags = {'mlflow.source.name': 'syncopate'}
    if self._manifest.get('git_revision'):
      tags['mlflow.source.git.commit'] = self._manifest['git_revision']
    above = self._folder.absolute().parent
    if (above / 'sweep.json').exists():
      parent = atomic.read_object(above / FILE)
      if parent is not None:
        tags['mlflow.parentRunId'] = parent['run_id']
    name = os.environ.get('MLFLOW_EXPERIMENT_NAME') or _EXPERIMENT
    experiment = client.get_experiment_by_name(name)
    experiment_id = (
      client.create_experiment(name)
      if experiment is None
      else experiment.experiment_id
    )
    run = client.create_run(
      experiment_id, tags=tags, run_name=self._folder.absolute().name
    )
    params = []
    if self._manifest:
      from outputs.manifests import flatten  # Imports JAX, unlike a sweep.

      params = [
        Param(name, str(value)[:_LONGEST])
        for name, value in flatten(self._manifest['config']).items()
      ]
    for first in range(0, len(params), _PARAMS):
      some = params[first : first + _PARAMS]
      client.log_batch(run.info.run_id, params=some)
    content = {
      'uri': self._uri,
      'experiment_id': experiment_id,
      'run_id': run.info.run_id,
    }
    if self._may_write():
      atomic.write_object(self._folder / FILE, content)
    return run

  def _end(self, client: Any, run_id: str, status: str) -> None:
    summary = self._folder / 'summary.json'
    if summary.exists():
      client.log_artifact(run_id, str(summary))
    client.set_terminated(run_id, status)
    self._is_ended = True


def _log(
  client: Any, run_id: str, rows: Sequence[Mapping[str, Any]], began_ms: int
) -> None:
  """Sends the curves of rows, at the times of the run's own clock."""
  from mlflow.entities import Metric

  metrics = [
    Metric(
      name,
      float(value),
      began_ms + round(row['time'] * 1000),
      row['examples'],
    )
    for row in rows
    for name, value in row.items()
    if is_plotted(name) and value is not None and math.isfinite(value)
  ]
  for first in range(0, len(metrics), _METRICS):
    client.log_batch(run_id, metrics=metrics[first : first + _METRICS])
