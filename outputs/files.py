"""The files of a run, all in one folder, written as the run goes.

manifest.json, metrics.jsonl, events.jsonl, trace.json (Chrome trace format),
TensorBoard events and summary.json.  What is not known is null, never NaN.
"""

import contextlib
import copy
import datetime
import fcntl
import functools
import json
import math
import operator
import os
import pathlib
import platform
import subprocess
import sys
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

import jax
import numpy as np
from absl import logging

_FORMAT = 2  # Of a run's folder.
_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'numpy', 'ml_collections')
# Of a manifest: with the same ones, the same numbers come out.
_EXACT = ('versions', 'devices', 'cores', 'xla_flags', 'git_revision')
# Of a config: what each host may have in its own way.
_LOCAL = (
  *('config.cluster.interface', 'config.cluster.devices_per_worker'),
  *('config.cluster.token_file', 'config.cluster.certificate_file'),
  *('config.cluster.key_file', 'config.cluster.tls_name'),
)
# And what may be another when a run on real hosts goes on.
_HOSTS = (
  *_LOCAL,
  *('config.route.server.servers', 'config.route.server.dedicated'),
  *('config.cluster.workers', 'config.cluster.speed.slowdown'),
  *('config.cluster.timeout_s', 'config.cluster.start_s'),
  'config.cluster.faults',
)
_BOARD = 'events.out.tfevents.*'
_APPENDED = ('metrics.jsonl', 'events.jsonl', 'trace.json')
_PLOTTED = ('accuracy', 'loss', 'learning_rate', 'waiting_share')
_PLOTTED += ('loss_scale',)


class RunFiles:
  """Writes one run's files.

  Attributes:
    workdir: The folder.
    named: Whether somebody has named it.
  """

  def __init__(self, workdir: str | None):
    """Creates nothing yet.

    Args:
      workdir: New folder, or one that holds a run to go on with; None names a
        new one under runs/.

    Raises:
      ValueError: If `workdir` is empty.
    """
    if workdir == '':
      raise ValueError("workdir: expected the path of a folder, got ''.")
    self.named = workdir is not None
    if workdir is None:
      now = datetime.datetime.now().strftime('%Y%m%d-%H%M%S-%f')
      workdir = f'runs/{now}-{os.getpid()}'
    self.workdir = pathlib.Path(workdir)

  def claim(self, manifest: Mapping[str, Any]) -> None:
    """Creates the folder and its manifest, or takes over those of this run.

    The folder is this object's until it is closed.

    Args:
      manifest: From `manifest`.

    Raises:
      OSError: If the folder cannot be made.
      ValueError: If somebody else writes to it, or if it holds a run of another
        config; names the fields.
    """
    self.workdir.mkdir(parents=True, exist_ok=True)
    self._lock()
    with self.given_back():
      self._check(manifest)

  @contextlib.contextmanager
  def given_back(self) -> Iterator[None]:
    """Lets others have the folder if what is done within fails."""
    try:
      yield
    except BaseException:
      self.release()
      raise

  def _check(self, manifest: Mapping[str, Any]) -> None:
    """Writes the manifest, or compares it with the one that there is."""
    path = self.workdir / 'manifest.json'
    if not path.exists():
      self._check_free()
      _write(path, manifest)
      return
    before = json.loads(path.read_text())
    if before.get('format') != _FORMAT:
      raise ValueError(
        f'workdir: {self.workdir} holds a run of another version of Syncopate, '
        'with which this one cannot go on; name a new folder.'
      )
    differing = [
      (field, line)
      for part in ('config', 'own')
      for field, line in _differences(before[part], manifest[part], part)
    ]
    both = before['config'], manifest['config']
    runtimes = {config['cluster']['runtime'] for config in both}
    free = _HOSTS if runtimes == {'distributed'} else ()
    for field, line in differing:
      if field in free:
        logging.warning('The run goes on with another %s', line)
    refused = [line for field, line in differing if field not in free]
    if refused:
      raise ValueError(
        f'workdir: {self.workdir} holds a run of another config.  '
        + '  '.join(refused)
      )
    for field in _EXACT:
      if before[field] != manifest[field]:
        logging.warning(
          'The run began with %s %s and goes on with %s: its results may '
          'differ in the last bits from those of an uninterrupted one.',
          field,
          before[field],
          manifest[field],
        )

  def finished(self) -> dict[str, Any] | None:
    """Returns the summary if the folder holds a run that has finished."""
    path = self.workdir / 'summary.json'
    summary = json.loads(path.read_text()) if path.exists() else None
    return summary if summary and summary['ended'] == 'finished' else None

  def check(self, sizes: Mapping[str, int]) -> None:
    """Checks that the files can be gone on with.

    Args:
      sizes: What `state` returned.

    Raises:
      ValueError: If a file has become shorter than it was.
    """
    for name, size in sizes.items():
      path = self.workdir / name
      found = path.stat().st_size if path.exists() else 0
      if found < size:
        raise ValueError(
          f'workdir: expected {path} to have {size} bytes, as when the '
          f'checkpoint was made, got {found}.'
        )

  def begin(
    self, *, num_workers: int, sizes: Mapping[str, int] | None = None
  ) -> None:
    """Opens the files that are written during the run.

    Args:
      num_workers: Number of workers.
      sizes: What `state` returned, to go on from there; None starts anew.
    """
    sizes = sizes or {}
    self._files = {name: (self.workdir / name).open('a') for name in _APPENDED}
    for name, file in self._files.items():
      file.truncate(sizes.get(name, 0))
      file.seek(0, os.SEEK_END)  # Truncating does not move it.
    (self.workdir / 'summary.json').unlink(missing_ok=True)
    for path in self.workdir.glob(_BOARD):
      path.unlink()
    import tensorboardX  # Slow, and only for who leads.

    self._board = tensorboardX.SummaryWriter(str(self.workdir))
    if sizes:
      for line in (self.workdir / 'metrics.jsonl').read_text().splitlines():
        self._plot(json.loads(line))
      return
    trace = self._files['trace.json']
    for worker in range(num_workers):
      name = {'name': f'worker {worker}'}
      row = {'name': 'thread_name', 'ph': 'M', 'args': name}
      row |= {'pid': 0, 'tid': worker}
      trace.write((',\n' if worker else '[\n') + _dumps(row))

  def state(self) -> dict[str, int]:
    """Returns how many bytes each file has, all of them on the disk."""
    for file in self._files.values():
      file.flush()
      os.fsync(file.fileno())
    return {name: file.tell() for name, file in self._files.items()}

  def metric(self, row: Mapping[str, Any]) -> None:
    """Appends a row to metrics.jsonl and plots it against examples."""
    self._files['metrics.jsonl'].write(_dumps(row) + '\n')
    self._files['metrics.jsonl'].flush()
    self._plot(row)

  def event(self, row: Mapping[str, Any]) -> None:
    """Appends what the scheme was told and said to events.jsonl."""
    self._files['events.jsonl'].write(_dumps(row) + '\n')

  def span(
    self, worker: int, phase: str, start: float, end: float, examples: int
  ) -> None:
    """Adds a phase of a worker's iteration to the timeline; seconds."""
    # By hand: thousands of workers have millions of these.
    self._files['trace.json'].write(
      f',\n{{"name":"{phase}","ph":"X","ts":{start * 1e6!r},'
      f'"dur":{(end - start) * 1e6!r},"pid":0,"tid":{worker},'
      f'"args":{{"examples":{examples}}}}}'
    )

  def rates(self, time: float, rates: Sequence[Mapping[str, Any]]) -> None:
    """Adds counters to the timeline: what links carried from a time on.

    Args:
      time: Seconds.
      rates: Of each link `src`, `dst`, `Bps` and `planned_Bps`.
    """
    name = {'name': 'process_name', 'ph': 'M', 'args': {'name': 'links'}}
    self._files['trace.json'].write(f',\n{_dumps(name | {"pid": 1})}')
    for row in rates:
      shown = {'measured': row.get('Bps'), 'planned': row['planned_Bps']}
      counter = {
        'name': f'worker {row["src"]} to {row["dst"]}, MB/s',
        'ph': 'C',
        'ts': time * 1e6,
        'pid': 1,
        'args': {
          name: Bps / 1e6 for name, Bps in shown.items() if Bps is not None
        },
      }
      self._files['trace.json'].write(f',\n{_dumps(counter)}')

  def close(self, summary: Mapping[str, Any]) -> None:
    """Writes summary.json, closes everything and gives the folder back."""
    try:
      _write(self.workdir / 'summary.json', summary)
      self._files['trace.json'].write('\n]\n')
    finally:
      with contextlib.ExitStack() as stack:
        stack.callback(self.release)
        for file in (*self._files.values(), self._board):
          stack.callback(file.close)

  def release(self) -> None:
    """Lets other runs have the folder."""
    self._unlock()

  def _check_free(self) -> None:
    for pattern in (*_APPENDED, 'summary.json', 'checkpoints', _BOARD):
      for path in self.workdir.glob(pattern):
        raise ValueError(
          'workdir: expected a new folder, or one that holds a run, but there '
          f'is {path} and no manifest.json.'
        )

  def _plot(self, row: Mapping[str, Any]) -> None:
    for field in _PLOTTED:
      if row.get(field) is not None:
        self._board.add_scalar(field, row[field], row['examples'])

  def _lock(self) -> None:
    lock = os.open(self.workdir / '.lock', os.O_RDWR | os.O_CREAT, 0o666)
    self._unlock = weakref.finalize(self, os.close, lock)
    try:
      # The system lets go of it when the process ends, however it does.
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      raise ValueError(
        f'workdir: expected a folder of its own, but another run writes to '
        f'{self.workdir} at this moment.'
      ) from error


def manifest(
  config: Mapping[str, Any], own: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns what is needed to repeat a run: config, command, versions.

  Args:
    config: As a dictionary.
    own: Parts that the config does not describe, by name: pytrees of arrays
      and of what `repr` tells apart; None for those that it does.
  """
  git = ['git', '-C', str(pathlib.Path(__file__).parents[1])]
  return {
    'format': _FORMAT,
    **described(config, own),
    'seed': config['seed'],
    'command': sys.argv,
    'host': platform.node(),
    'python': platform.python_version(),
    'versions': {name: metadata.version(name) for name in _PACKAGES},
    'devices': [device.device_kind for device in jax.local_devices()],
    'cores': len(os.sched_getaffinity(0)),
    'xla_flags': os.environ.get('XLA_FLAGS', ''),
    'git_revision': _output([*git, 'rev-parse', 'HEAD']),
    'git_changes': _output([*git, 'status', '--porcelain']),
  }


def described(
  config: Mapping[str, Any], own: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns what of a manifest tells a run from others; takes the same."""
  prints = {k: v if v is None else _fingerprint(v) for k, v in own.items()}
  return {'config': _jsonable(config), 'own': prints}


def fingerprint(described: Mapping[str, Any]) -> str:
  """Returns what tells a run from others, of what `manifest` returns.

  What each host may have in its own way is no part of it.
  """
  parts = {'config': copy.deepcopy(described['config'])}
  del parts['config']['checkpoint']
  for field in _LOCAL:
    *above, name = field.split('.')
    section = functools.reduce(operator.getitem, above, parts)
    del section[name]
  parts['own'] = described['own']
  return f'{zlib.crc32(json.dumps(parts, sort_keys=True).encode()):08x}'


def _fingerprint(value: Any) -> str:
  """Returns what tells a value from others: arrays by a sample of theirs."""
  return ' '.join(map(_printed, jax.tree.leaves(value)))


def _printed(leaf: Any) -> str:
  if not hasattr(leaf, 'shape'):
    return repr(leaf)
  rows = np.asarray(leaf[:64] if leaf.shape else leaf)
  return f'{tuple(leaf.shape)}:{zlib.crc32(rows.tobytes()):08x}'


def _differences(before: Any, now: Any, path: str) -> list[tuple[str, str]]:
  """Returns the fields that are not the same, each with what is said of it."""
  if path == 'config.checkpoint':
    return []  # How often a run is saved changes nothing in it.
  if not (isinstance(before, dict) and isinstance(now, dict)):
    line = f'{path}: expected {before!r}, got {now!r}.'
    return [] if before == now else [(path, line)]
  return [
    difference
    for field in sorted(before.keys() | now.keys())
    for difference in _differences(
      before.get(field), now.get(field), f'{path}.{field}'
    )
  ]


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


def _write(path: pathlib.Path, content: Mapping[str, Any]) -> None:
  """Writes a file that is never seen half."""
  new = path.with_suffix('.new')
  new.write_text(json.dumps(content, indent=2, allow_nan=False) + '\n')
  new.replace(path)


_dumps = json.JSONEncoder(allow_nan=False, separators=(',', ':')).encode
