"""One process of a lab: python -m bench.lab.process FOLDER PLACE.

It takes part in the conditions of FOLDER/task.json, one after the other, as the
host at PLACE: dedicated servers come first, then workers.  It skips runs with
fewer workers or servers than its index.
"""

import json
import pathlib
import sys
import time
from typing import Any

import train
from bench.lab import conditions, sums
from bench.lab.conditions import RUN, Condition
from cluster.process import exits

_POLL_S = 0.05  # Interval of looking for the end of a run.
_LIMIT_S = 600.0
_PORT = 20_000  # First port of coordinators, below those that the kernel gives.


def main(folder: str, place: str) -> None:
  """Takes part in all conditions."""
  path = pathlib.Path(folder)
  task = json.loads((path / 'task.json').read_text())
  for number, row in enumerate(task['conditions']):
    condition = Condition(**row)
    if condition.system == RUN:
      _run(path, condition, int(place), task['servers'], _PORT + number)
    else:
      sums.run(path / condition.name, int(place), **condition.fields)


def _run(
  folder: pathlib.Path,
  condition: Condition,
  place: int,
  servers: int,
  port: int,
) -> None:
  """Takes part in a run as the host `place`; waits until it has finished."""
  path = folder / condition.name
  if role := find_role(condition, place, servers):
    config = conditions.base_config(condition)
    config.update_from_flattened_dict(_with_tuples(condition.fields))
    host = f'host{0 if condition.dedicated else servers}'
    process = {'role': role, 'coordinator': f'{host}:{port}'}
    with exits.ExitRecord(path, role):  # Tells followers of an island.
      train.build(config, workdir=str(path), process=process)()
  deadline = time.monotonic() + _LIMIT_S
  while not (path / 'summary.json').exists():
    if time.monotonic() > deadline:
      raise TimeoutError(f'{path}: no summary.json within {_LIMIT_S:g} s.')
    time.sleep(_POLL_S)


def find_role(condition: Condition, place: int, servers: int) -> str:
  """Returns the role of the process of a host, '' if it has none.

  Args:
    place: Number of the host.
    servers: Number of hosts of dedicated servers, which come first.
  """
  if place < servers:
    has_server = condition.dedicated and place < condition.servers
    return f'server:{place}' if has_server else ''
  each = condition.hosts_per_worker
  worker, member = divmod(place - servers, each)
  if worker >= condition.workers:
    return ''
  return f'worker:{worker}.{member}' if member else f'worker:{worker}'


def _with_tuples(fields: Any) -> dict[str, Any]:
  """Returns fields read from JSON, with tuples in place of lists."""
  return {
    name: tuple(value) if isinstance(value, list) else value
    for name, value in fields.items()
  }


if __name__ == '__main__':
  main(*sys.argv[1:])
