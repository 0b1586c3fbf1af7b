"""Runs one process of a run, and reports its summary and its state.

  python -m bench.gpu.training --report=DIR --workdir=DIR
    [--config=vgg16_elastic] [--role=worker:0 --coordinator=HOST:PORT]
    [--config.SECTION.FIELD=VALUE ...]

tools.launch starts this module in place of main.py with --module.  The report
is DIR/PID.json: role, summary, digest of parameters and optimizer state, and
the platforms that JAX has started in this process, each with the number of its
arrays at the end.
"""

import argparse
import ast
import importlib
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
from jax._src import xla_bridge  # Lists platforms without starting any.
from ml_collections import ConfigDict

import train
from learning.digest import digest
from outputs import atomic

_FIELD = '--config.'


def main(argv: list[str] | None = None) -> None:
  """Trains the run and writes the report."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--report', required=True)
  parser.add_argument('--workdir', required=True)
  parser.add_argument('--config', default='default')
  parser.add_argument('--role', default='')
  parser.add_argument('--coordinator', default='')
  args, words = parser.parse_known_args(argv)
  process = {'role': args.role, 'coordinator': args.coordinator}
  run = train.build(
    config(args.config, words),
    workdir=args.workdir,
    process={name: value for name, value in process.items() if value},
    own_process=True,
  )
  result = run()
  report = {
    'role': args.role,
    'summary': result if isinstance(result, dict) else None,
    'digest': _digest(run),
    'platforms': platforms(),
  }
  folder = pathlib.Path(args.report)
  folder.mkdir(parents=True, exist_ok=True)
  atomic.write(folder / f'{os.getpid()}.json', json.dumps(report))


def config(name: str, words: Sequence[str]) -> ConfigDict:
  """Returns a config of configs/ with fields changed by flags.

  Args:
    name: Module of configs/.
    words: Flags, --config.SECTION.FIELD=VALUE.

  Raises:
    ValueError: If a flag has another form.
  """
  config = importlib.import_module(f'configs.{name}').get_config()
  fields = {}
  for word in words:
    field, has_value, text = word.partition('=')
    if not (field.startswith(_FIELD) and has_value):
      raise ValueError(f'flags: expected {_FIELD}FIELD=VALUE, got {word!r}.')
    fields[field.removeprefix(_FIELD)] = _value(text)
  config.update_from_flattened_dict(fields)
  return config


def flags(fields: dict[str, Any]) -> list[str]:
  """Returns the flags of config fields, in the form that `config` reads."""
  return [f'{_FIELD}{name}={value}' for name, value in fields.items()]


def platforms() -> dict[str, int]:
  """Returns the number of live arrays by platform in this process."""
  return {
    name: len(client.live_arrays())
    for name, client in xla_bridge._backends.items()
  }


def _value(text: str) -> Any:
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return float(text) if text == 'inf' else text


def _digest(run: Any) -> str | None:
  """Returns the digest of the parameters in this process; None without any."""
  store = getattr(run, 'store', None)  # For workers other than the coordinator.
  if isinstance(run, train.Run):
    store = run.runtime.coordinator.store
  replica = getattr(store, '_replica', store)
  learner = getattr(replica, 'learner', None)
  if learner is None or learner.learning_rate is None:
    return None
  return digest(jax.device_get(learner.state()))


if __name__ == '__main__':
  main()
