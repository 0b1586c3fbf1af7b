"""Many short runs on real hosts of a lab, in processes that all of them share.

What a short run costs is the start of its processes: imports take longer than
its iterations.  So each host of a lab has one process, which takes part in one
run after the other; those with fewer workers or servers leave it out.  The same
runs under the virtual clock are predictions.

  python -m tools.launch ... --module=bench.conditions -- --runs=FILE

is what such a process runs; `real` starts all of them, and needs root.
"""

import argparse
import contextlib
import io
import json
import math
import pathlib
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import train
from bench import clusters
from bench.routes import LEFT, write_links
from bench.shaped import Case
from configs import default
from tools.reading import records

_SETTLED = 0.25  # Share of a run that is left out at its start.
_FIRST = 8  # Iterations by which it is guessed how long others take.
_LEAST, _MOST = 16, 80  # Iterations of a run.
_LOOK_S = 0.05  # Between two looks whether a run has ended.
_LIMIT_S = 900.0


class Lab(NamedTuple):
  """Hosts and their links.

  Attributes:
    name: Of the lab.
    workers: Hosts of workers, and links among them.
    servers: Further hosts, of servers.
    server_mbit: Of the link of each of these, both ways.
  """

  name: str
  workers: Case
  servers: int = 0
  server_mbit: int = 0


class Condition(NamedTuple):
  """A run, but for its length and its links.

  Attributes:
    name: Of the condition, and of its folder.
    workers: On the first of the lab's hosts of workers.
    servers: How many; 0 for a route among the workers.
    dedicated: Whether they have hosts of their own.
    fields: Of its config, by dotted name.
  """

  name: str
  workers: int
  servers: int
  dedicated: bool
  fields: Mapping[str, Any]

  @property
  def batch(self) -> int:
    """Examples of an iteration of a worker, in the mean."""
    default_batch = default.get_config().batching.worker_batch
    return self.fields.get('batching.worker_batch', default_batch)


def iterations(lab: Lab, condition: Condition, seconds: float) -> int:
  """Returns how many iterations a run of about so many seconds has."""
  took_s = virtual(lab, condition, _FIRST)
  return max(_LEAST, min(_MOST, math.ceil(seconds / took_s)))


def virtual(lab: Lab, condition: Condition, iterations_: int) -> float:
  """Returns the predicted seconds of an iteration.

  Args:
    lab: Where it is run.
    condition: What is run.
    iterations_: Of each worker.
  """
  with tempfile.TemporaryDirectory() as folder:
    own = fields(lab, condition, iterations_, pathlib.Path(folder))
    config = default.get_config()
    config.update_from_flattened_dict(own)
    with contextlib.redirect_stdout(io.StringIO()):  # Its table.
      train.build(config, workdir=f'{folder}/run')()
    return iteration_s(pathlib.Path(folder, 'run'), condition)


def fields(
  lab: Lab,
  condition: Condition,
  iterations_: int,
  folder: pathlib.Path,
) -> dict[str, Any]:
  """Returns the fields of a virtual run, as `virtual` has them.

  Args:
    lab: Where it is run.
    condition: What is run.
    iterations_: Of each worker.
    folder: For a file of links.
  """
  return {
    **_moving(condition, iterations_),
    'cluster.workers': condition.workers,
    **_links(lab, condition, folder),
  }


def real(
  out: pathlib.Path,
  lab: Lab,
  runs: Sequence[tuple[Condition, int]],
) -> dict[str, float | str]:
  """Returns the measured seconds of an iteration by condition, or its error.

  After a run that fails, those behind it are run by new processes.  Those that
  have finished in the folder before are not run again.

  Args:
    out: Folder of all runs.
    lab: Where they are run.
    runs: Conditions, and iterations of each worker.
  """
  found: dict[str, float | str] = {}
  life = 0
  while left := [run for run in runs if run[0].name not in found]:
    folder, error = out / f'{lab.name}_{life}', ''
    life += 1
    if not folder.exists():
      error = _session(folder, lab, left) or 'there is no summary'
    for condition, _ in left:
      path = folder / condition.name
      if _finished(path):
        found[condition.name] = iteration_s(path, condition)
      elif error:
        found[condition.name] = error
        break
  return found


def iteration_s(path: pathlib.Path, condition: Condition) -> float:
  """Returns the mean seconds of an iteration of each worker, once settled."""
  if condition.servers:
    times = [e['time'] for e in records.events(path) if e['event'] == 'push']
    each = condition.workers
  else:
    rows = map(json.loads, (path / 'metrics.jsonl').read_text().splitlines())
    times = [row['time'] for row in rows if row['kind'] == 'barrier']
    each = 1
  first = round(_SETTLED * len(times) / each) * each
  return (times[-1] - times[first - 1]) / (len(times) - first) * each


def main(argv: list[str] | None = None) -> None:
  """Takes part in all runs of a file, as one host."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  for flag in ('runs', 'role', 'coordinator', 'workdir'):
    parser.add_argument(f'--{flag}', required=True)
  given, others = parser.parse_known_args(argv)
  told = dict(word.removeprefix('--config.').split('=', 1) for word in others)
  shared = {
    f'cluster.{field}': told[f'cluster.{field}']
    for field in ('interface', 'token_file')
  }
  hosts_of_servers = int(told['route.server.servers'])
  port = int(given.coordinator.rpartition(':')[2])
  kind, _, index = given.role.partition(':')
  for number, run in enumerate(
    json.loads(pathlib.Path(given.runs).read_text())
  ):
    most = run['workers']
    if kind == 'server':
      most = run['servers'] * run['dedicated']
    folder = pathlib.Path(given.workdir, run['name'])
    if int(index) < most:
      config = default.get_config()
      config.update_from_flattened_dict(_plain(run['fields']) | shared)
      coordinator = 0 if run['dedicated'] else hosts_of_servers
      process = {
        'role': given.role,
        'coordinator': f'host{coordinator}:{port + number}',
      }
      train.build(config, workdir=str(folder), process=process)()
    while not (folder / 'summary.json').exists():
      time.sleep(_LOOK_S)


def _session(
  folder: pathlib.Path, lab: Lab, runs: Sequence[tuple[Condition, int]]
) -> str:
  """Runs what can be run by the same processes; returns the error, or ''."""
  folder.mkdir(parents=True)
  shape = folder / 'lab.json'
  shape.write_text(json.dumps(_hosts(lab).links))
  rows = []
  for condition, count in runs:
    own = _moving(condition, count) | {
      'cluster.workers': condition.workers,
      'cluster.runtime': 'distributed',
      'cluster.speed.injected': True,
      'cluster.timeout_s': 20.0,
    }
    if condition.servers:
      own['route.server.servers'] = condition.servers
      own['route.server.dedicated'] = condition.dedicated
    else:
      links = folder / f'{condition.name}_links.json'
      _write(links, lab, condition)
      own |= _told(condition, links)
    rows.append({**condition._asdict(), 'fields': own})
  listed = folder / 'runs.json'
  listed.write_text(json.dumps(rows))
  rate = max((lab.server_mbit, *lab.workers.up))
  words = [sys.executable, '-m', 'tools.lab', f'--link={rate}mbit']
  words += [f'--hosts={lab.servers + len(lab.workers.up)}', f'--links={shape}']
  words += ['--', sys.executable, '-m', 'tools.launch', '--restarts=0']
  words += [f'--workers={len(lab.workers.up)}', f'--servers={lab.servers}']
  words += ['--dedicated'] * bool(lab.servers)
  words += [f'--workdir={folder}', '--module=bench.conditions']
  words += ['--', f'--runs={listed}']
  log = folder.with_name(f'{folder.name}.log')
  try:
    clusters.finish(clusters.start(words, log), log, _LIMIT_S)
  except RuntimeError as error:
    return str(error)
  return ''


def _finished(path: pathlib.Path) -> bool:
  file = path / 'summary.json'
  return file.exists() and json.loads(file.read_text())['ended'] == 'finished'


def _hosts(lab: Lab) -> Case:
  """Returns all hosts of a lab, those of servers first."""
  own, more = lab.workers, lab.servers
  first = [lab.server_mbit] * more
  return Case(
    [*first, *own.up],
    [*first, *own.down],
    {(a + more, b + more): mbit for (a, b), mbit in own.pairs.items()},
    [(tuple(n + more for n in some), mbit) for some, mbit in own.groups],
  )


def _first(case: Case, count: int) -> Case:
  """Returns the first hosts of several."""
  return Case(
    case.up[:count],
    case.down[:count],
    {ends: mbit for ends, mbit in case.pairs.items() if max(ends) < count},
    case.groups,
  )


def _moving(condition: Condition, iterations_: int) -> dict[str, Any]:
  """Returns what makes a config one that only moves bytes."""
  examples = iterations_ * condition.workers * condition.batch
  return {
    'epochs': 1.0,
    'eval_every': 1.0,
    'log_every': 10_000,
    'outputs.timeline': False,
    'outputs.board': False,
    'model.name': 'none',
    'model.none.num_train': examples,
    'cluster.speed.per_example_s': 0.0,
    'cluster.speed.slowdown': (1.0,),
    'checkpoint.every_s': math.inf,
    **condition.fields,
  }


def _links(
  lab: Lab, condition: Condition, folder: pathlib.Path
) -> dict[str, Any]:
  """Returns the fields of virtual links."""
  own: dict[str, Any] = {'cluster.network.worker_latency_s': (0.0,)}
  if not condition.servers:
    links = folder / 'links.json'
    _write(links, lab, condition)
    return own | {'cluster.links': str(links)} | _told(condition, links)
  case, per_mbit = (
    _first(lab.workers, condition.workers),
    1e6 / 8 * float(LEFT),
  )
  for way in ('up', 'down'):
    rates = tuple(mbit * per_mbit for mbit in getattr(case, way))
    own[f'cluster.network.worker_{way}_Bps'] = rates
    if condition.dedicated:
      rate = lab.server_mbit * per_mbit
      own[f'cluster.network.server_{way}_Bps'] = (rate,)
  if condition.dedicated:
    own['cluster.network.server_latency_s'] = (0.0,)
  own['cluster.network.servers_in_workers'] = not condition.dedicated
  own['route.server.servers'] = condition.servers
  return own


def _told(condition: Condition, links: pathlib.Path) -> dict[str, Any]:
  route = condition.fields['route.name']
  return {f'route.{route}.cluster': str(links)}


def _write(path: pathlib.Path, lab: Lab, condition: Condition) -> None:
  nominal = _first(lab.workers, condition.workers).cluster
  write_links(path, nominal)


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
  """Returns fields from JSON, whose lists are tuples."""
  return {
    name: tuple(value) if isinstance(value, list) else value
    for name, value in fields.items()
  }


if __name__ == '__main__':
  main()
