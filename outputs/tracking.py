"""Sends a run's parameters, metrics and end to MLflow (mlflow.org).

metrics.jsonl is the source: a thread of this process sends its rows, and notes
in mlflow.json how many bytes of it the server has.  So training never waits for
the server, and after a restart, or in another coordinator, the same MLflow run
continues where it was.  A server that does not answer is asked again, at longer
and longer intervals, and the end of the run waits for it for a limited time.
"""

import importlib.util
import json
import math
import os
import pathlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from absl import logging

from configs.checks import require
from outputs import atomic

FIELD = 'config.outputs.mlflow'
FILE = 'mlflow.json'
PLOTTED = (
  *('accuracy', 'loss', 'test_loss', 'perplexity', 'bits_per_byte'),
  *('loss_scale', 'learning_rate', 'waiting_share'),
)
_EXPERIMENT = 'syncopate'
_END_S = 10.0  # Time to send the rest at the end of a run.
_IMPORT_S = 60.0  # Longest time to import MLflow's client.
_BACKOFF_S = (1.0, 60.0)  # Delay after an error: the first, and the longest.
_ROWS = 100  # Rows of a request: MLflow takes at most 1000 metrics.
_PARAMS = 100  # Parameters of a request, as MLflow limits them.
_LONGEST = 6000  # Characters of a parameter's value, likewise.
# One request with little patience: the thread itself tries again.
_ENVIRONMENT = {
  'MLFLOW_HTTP_REQUEST_TIMEOUT': '10',
  'MLFLOW_HTTP_REQUEST_MAX_RETRIES': '0',
  'MLFLOW_DISABLE_TELEMETRY': 'true',
  'MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT': 'true',
}


def check(uri: str) -> None:
  """Checks the URI, and that MLflow is installed, if the run uses it.

  Config and command line are written to files, logs and MLflow itself, so a
  password does not belong there.

  Args:
    uri: `config.outputs.mlflow`.

  Raises:
    ValueError: If the URI has a password, which the error does not repeat, or
      if MLflow is not installed.
  """
  scheme, mark, rest = uri.partition('://')
  credentials, _, _ = (rest if mark else uri).rpartition('@')
  expected = (
    'a URI without a password, which would get into manifest and logs; MLflow '
    'takes it from MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD'
  )
  has_password = ':' in credentials
  require(
    not has_password, FIELD, expected, f'{scheme}://...' if mark else '...'
  )
  if uri:
    is_there = importlib.util.find_spec('mlflow') is not None
    install = f'{sys.executable} -m pip install -r requirements-mlflow.txt'
    require(is_there, FIELD, f'MLflow to be installed ({install})', uri)


def is_plotted(field: str) -> bool:
  """Returns whether a field of metrics.jsonl is a curve of its own."""
  return field in PLOTTED or field.endswith('_accuracy')


def status_of(summary: Mapping[str, Any]) -> str:
  """Returns the status in MLflow of a run with this summary."""
  if summary['ended'] == 'finished':
    return 'FINISHED'
  return 'KILLED' if summary['reason'] == 'stopped' else 'FAILED'


def flatten(config: Mapping[str, Any], prefix: str = '') -> dict[str, str]:
  """Returns the fields of a config by dotted name, as text."""
  found: dict[str, str] = {}
  for name, value in config.items():
    if isinstance(value, Mapping):
      found |= flatten(value, f'{prefix}{name}.')
    else:
      found[prefix + name] = str(value)[:_LONGEST]
  return found


class Tracker:
  """Sender of one run to MLflow, in a thread of its own."""

  def __init__(
    self,
    folder: pathlib.Path,
    uri: str,
    manifest: Mapping[str, Any],
    *,
    size_bytes: int = 0,
    may_write: Callable[[], bool] = lambda: True,
  ):
    """Starts the thread.

    Args:
      folder: Folder of the run, with metrics.jsonl.
      uri: `config.outputs.mlflow`.  If the run was sent to another one before,
        it is sent as a new run, with all its rows.
      manifest: Manifest of the run.
      size_bytes: Bytes of metrics.jsonl now: what the server has of later ones
        belongs to iterations that are repeated.
      may_write: Returns False once another process writes the run.
    """
    self._folder, self._manifest, self._uri = folder, manifest, uri
    self._may_write = may_write
    self._lock = threading.Lock()  # Of the fields below; never held for long.
    known = atomic.read_object(folder / FILE) or {}
    self._run: dict[str, Any] = known if known.get('uri') == uri else {}
    self._run.pop('status', None)
    self._run['sent_bytes'] = min(self._run.get('sent_bytes', 0), size_bytes)
    self._rewinds = 0
    self._status: str | None = None
    self._is_running = False  # True once the server has the status RUNNING.
    self._stopped, self._wake = threading.Event(), threading.Event()
    self._imported = threading.Event()
    self._thread = threading.Thread(target=self._work, daemon=True)
    self._wake.set()
    self._thread.start()

  def notify(self) -> None:
    """Notes that metrics.jsonl has a new row."""
    self._wake.set()

  def rewind(self, size_bytes: int) -> None:
    """Notes that metrics.jsonl was cut off after so many bytes."""
    with self._lock:
      self._rewinds += 1
      self._run['sent_bytes'] = min(self._run['sent_bytes'], size_bytes)

  def abandon(self) -> None:
    """Sends nothing more: another process continues the run."""
    self._stopped.set()
    self._wake.set()

  def close(self, status: str, *, limit_s: float = _END_S) -> bool:
    """Sends the rest, and the end of the run; returns whether it was sent.

    Args:
      status: 'FINISHED', 'FAILED' or 'KILLED'.
      limit_s: Longest time to wait, seconds.
    """
    self._status = status
    self._wake.set()
    self._imported.wait(_IMPORT_S)  # Not the server's time.
    self._thread.join(limit_s)
    is_sent = bool(self._run.get('status') == status)
    if not is_sent:
      logging.warning(
        'MLflow (%s) has not got %d rows of metrics.jsonl and the end of the '
        'run: python -m tools.track %s sends them.',
        *(self._uri, sum(1 for _ in self._rows()), self._folder),
      )
    self.abandon()
    return is_sent

  def _work(self) -> None:
    """Sends what there is whenever it is woken, until the run has ended."""
    for name, value in _ENVIRONMENT.items():
      os.environ.setdefault(name, value)
    import mlflow.exceptions  # Slow: training does not wait for it.

    self._imported.set()
    client: Any = None
    delay_s, has_warned = _BACKOFF_S[0], False
    while True:
      self._wake.wait()
      self._wake.clear()
      ending = self._status
      if self._stopped.is_set() or not self._may_write():
        return
      try:
        client = client or mlflow.MlflowClient(tracking_uri=self._uri)
        self._send(client)
        if ending is not None:
          self._end(client, ending)
          return
      except (mlflow.exceptions.MlflowException, OSError) as error:
        if not has_warned:
          reason = str(error).splitlines()[0] if str(error) else repr(error)
          logging.warning(
            'MLflow (%s) does not take the run, which continues: %s  Rows stay '
            'in metrics.jsonl, and are sent once it answers.',
            *(self._uri, reason),
          )
          has_warned = True
        # An end of the run does not wait for the whole delay.
        self._stopped.wait(min(delay_s, 1.0) if self._status else delay_s)
        delay_s = min(2 * delay_s, _BACKOFF_S[1])
        self._wake.set()
      else:
        if has_warned:
          logging.info('MLflow (%s) has all rows again.', self._uri)
        delay_s, has_warned = _BACKOFF_S[0], False

  def _send(self, client: Any) -> None:
    """Sends all rows that the server lacks; creates its run before."""
    from mlflow.entities import Metric

    if 'run_id' not in self._run:
      self._create(client)
    if not self._run.get('has_params'):
      self._send_params(client)
    if not self._is_running:
      client.update_run(self._run['run_id'], status='RUNNING')
      self._is_running = True
    while True:
      with self._lock:
        rewinds = self._rewinds
        rows = list(zip(range(_ROWS), self._rows(), strict=False))
      if not rows:
        return
      metrics = [
        Metric(
          name,
          float(value),
          # The run's own clock: a row that is sent twice is one point.
          self._run['began_ms'] + round(row['time'] * 1000),
          row['examples'],
        )
        for _, (row, _) in rows
        for name, value in row.items()
        if is_plotted(name) and value is not None and math.isfinite(value)
      ]
      client.log_batch(self._run['run_id'], metrics=metrics)
      with self._lock:
        if rewinds == self._rewinds:
          self._run['sent_bytes'] = rows[-1][1][1]
      self._write()

  def _rows(self) -> Iterator[tuple[dict[str, Any], int]]:
    """Yields complete rows that were not sent, each with the bytes up to it."""
    path = self._folder / 'metrics.jsonl'
    if not path.exists():
      return
    with path.open('rb') as file:
      end = self._run['sent_bytes']
      file.seek(end)
      for line in file:
        end += len(line)
        if not line.endswith(b'\n'):
          return
        yield json.loads(line), end

  def _create(self, client: Any) -> None:
    """Creates the run, in the run of its sweep if it has one."""
    tags = {'mlflow.source.name': 'syncopate'}
    if self._manifest.get('git_revision'):
      tags['mlflow.source.git.commit'] = self._manifest['git_revision']
    above = self._folder.absolute().parent
    parent = None
    if (above / 'sweep.json').exists():
      parent = atomic.read_object(above / FILE)
    if parent is not None:
      tags['mlflow.parentRunId'] = parent['run_id']
    self._run |= _create(client, self._folder, self._uri, tags)
    self._write()

  def _send_params(self, client: Any) -> None:
    """Sends the config, which MLflow keeps as it was at the first start."""
    from mlflow.entities import Param

    flat = flatten(self._manifest['config'])
    params = [Param(name, value) for name, value in flat.items()]
    for first in range(0, len(params), _PARAMS):
      some = params[first : first + _PARAMS]
      client.log_batch(self._run['run_id'], params=some)
    self._run['has_params'] = True
    self._write()

  def _end(self, client: Any, status: str) -> None:
    run_id, summary = self._run['run_id'], self._folder / 'summary.json'
    if summary.exists():
      client.log_artifact(run_id, str(summary))
    client.set_terminated(run_id, status)
    self._run['status'] = status
    self._write()

  def _write(self) -> None:
    if self._may_write():
      atomic.write(self._folder / FILE, json.dumps(self._run, indent=2) + '\n')


class SweepRun:
  """The MLflow run of a sweep, in which the runs of the sweep are nested."""

  def __init__(self, folder: pathlib.Path, uri: str):
    """Creates the run, or continues that of the folder; waits at most 10 s.

    Without an answer a warning is logged, and the sweep's runs have no parent.

    Args:
      folder: Folder of the sweep.
      uri: `config.outputs.mlflow` of its runs; '' for none.
    """
    self._folder, self._uri = folder, uri
    if uri:
      self._do(self._start)

  def close(self, status: str) -> None:
    """Ends the run, as `Tracker.close`."""
    if self._uri:
      self._do(lambda client: self._set(client, status))

  def _start(self, client: Any) -> None:
    if atomic.read_object(self._folder / FILE) is None:
      run = _create(client, self._folder, self._uri, {})
      atomic.write(self._folder / FILE, json.dumps(run, indent=2) + '\n')
    self._set(client, 'RUNNING')

  def _set(self, client: Any, status: str) -> None:
    run = atomic.read_object(self._folder / FILE)
    if run is None:
      return
    if status == 'RUNNING':
      client.update_run(run['run_id'], status=status)
    else:
      client.set_terminated(run['run_id'], status)

  def _do(self, function: Callable[[Any], None]) -> None:
    for name, value in _ENVIRONMENT.items():
      os.environ.setdefault(name, value)
    import mlflow.exceptions

    errors = [f'no answer in {_END_S:g} s']

    def work() -> None:
      try:
        function(mlflow.MlflowClient(tracking_uri=self._uri))
        errors.clear()
      except (mlflow.exceptions.MlflowException, OSError) as error:
        errors[:] = [str(error).splitlines()[0] if str(error) else repr(error)]

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(_END_S)
    if errors:
      logging.warning(
        'MLflow (%s) does not take the run of the sweep: %s', self._uri, *errors
      )


def _create(
  client: Any, folder: pathlib.Path, uri: str, tags: Mapping[str, str]
) -> dict[str, Any]:
  """Creates a run in MLflow; returns the first content of mlflow.json."""
  name = os.environ.get('MLFLOW_EXPERIMENT_NAME') or _EXPERIMENT
  experiment = client.get_experiment_by_name(name)
  experiment_id = (
    client.create_experiment(name)
    if experiment is None
    else experiment.experiment_id
  )
  began_ms = round(time.time() * 1000)
  run = client.create_run(
    experiment_id,
    start_time=began_ms,
    tags=dict(tags),
    run_name=folder.absolute().name,
  )
  return {
    'uri': uri,
    'experiment_id': experiment_id,
    'run_id': run.info.run_id,
    'began_ms': began_ms,
  }
