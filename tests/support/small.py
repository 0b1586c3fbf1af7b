"""Small runs of an MLP on synthetic data, for tests."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import Any

import jax
from ml_collections import ConfigDict

import train
from configs import default
from tests.support import accelerators

_ROOT = pathlib.Path(__file__).parents[2]


def config(**changed: Any) -> ConfigDict:
  """Returns the config of a run of some seconds.

  Speeds are constant and unequal, links are unlimited, and learning is plain
  SGD, so that runs can be compared with closed forms.

  Args:
    **changed: Changed fields by dotted name, with '__' for '.'.
  """
  result = default.get_config()
  has_servers = changed.get('route__name', 'server') == 'server'
  hosts = ('worker', 'server') if has_servers else ('worker',)
  ideal = {'up_Bps': float('inf'), 'down_Bps': float('inf'), 'latency_s': 0.0}
  fields = {
    'epochs': 2.0,
    'cluster.workers': 3,
    'cluster.speed.name': 'constant',
    'cluster.speed.slowdown': (1.0, 1.3, 3.1),
    **{
      f'cluster.network.{host}_{link}': (value,)
      for host in hosts
      for link, value in ideal.items()
    },
    'batching.worker_batch': 8,
    'checkpoint.every_s': float('inf'),
    'data.name': 'synthetic',
    'data.synthetic.num_train': 192,
    'data.synthetic.num_test': 64,
    'data.synthetic.pixels': 4,
    'data.synthetic.channels': 1,
    'model.name': 'mlp',
    'model.mlp.hidden': (16,),
    'optimizer.learning_rate': 0.01,
    **{name.replace('__', '.'): value for name, value in changed.items()},
  }
  result.update_from_flattened_dict(fields)
  return result


def timing(
  *, size_bytes: int = 1768, num_train: int = 192, **changed: Any
) -> ConfigDict:
  """Returns `config(**changed)` without a model, for a timing-only run."""
  result, defaults = config(**changed), default.get_config()
  for section in ('data', 'optimizer', 'model'):
    result[section] = defaults[section]
  result.model.name = 'none'
  result.model.none.update({'size_bytes': size_bytes, 'num_train': num_train})
  result.update_from_flattened_dict(
    {name.replace('__', '.'): value for name, value in changed.items()}
  )
  return result


def build(config_: ConfigDict, **arguments: Any) -> train.Run:
  """Returns a run in a new temporary folder; arguments are of train.build."""
  return train.build(config_, workdir=f'{tempfile.mkdtemp()}/run', **arguments)


def size_bytes(run: train.Run) -> int:
  """Returns the bytes of the parameters and statistics of a virtual run."""
  learner = run.runtime.coordinator.store.learner
  leaves = jax.tree.leaves((learner.params, learner.stats))
  return sum(leaf.nbytes for leaf in leaves)


def rows(run: train.Run, name: str) -> list[dict[str, Any]]:
  """Returns the rows of a .jsonl file of a run."""
  lines = (pathlib.Path(run.files.workdir) / name).read_text().splitlines()
  return [json.loads(line) for line in lines]


def execute(**changed: Any) -> tuple[train.Run, dict[str, Any]]:
  """Executes a run with `config(**changed)`; returns it and its summary."""
  run = build(config(**changed))
  return run, run()


def timeless(row: dict[str, Any]) -> dict[str, Any]:
  """Returns a row or a summary without wall times."""
  return {k: v for k, v in row.items() if not k.startswith('wall_')}


def outputs_of(code: str, *seeds: str) -> set[str]:
  """Returns the outputs of code, run once with each seed of Python's hashes."""
  outputs = set()
  for seed in seeds:
    process = python('-c', code, PYTHONHASHSEED=seed)
    process.check_returncode()
    outputs.add(process.stdout)
  return outputs


def python(
  *argv: str, cwd: pathlib.Path = _ROOT, **environment: str
) -> subprocess.CompletedProcess:
  """Runs Python in a new process that finds the project's modules."""
  return subprocess.run(
    [sys.executable, *argv],
    cwd=cwd,
    env=os.environ | accelerators.inherited() | environment,
    capture_output=True,
    text=True,
    timeout=100,
    check=False,
  )


def copy_with_change(folder, name, change):
  """Returns a copy of a run with changed content of a JSON file."""
  copy = pathlib.Path(tempfile.mkdtemp(), 'copy')
  shutil.copytree(folder, copy)
  content = json.loads((copy / name).read_text())
  change(content)
  (copy / name).write_text(json.dumps(content))
  return copy
