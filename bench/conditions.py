"""Measures many short runs on hosts of a lab, in processes that they share.

The start of its processes dominates the time of a short run: imports take
longer than its iterations.  Therefore each host of a lab has one process that
takes part in one run after the other; it skips runs with fewer workers or
servers than its index.  The same runs under the virtual clock are predictions.

  python -m tools.launch ... --module=bench.conditions -- --runs=FILE

is the command of such a process; `measure` starts all processes and needs root.
"""

import argparse
import json
import math
import pathlib
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import train
from analysis import records
from bench import clusters
from bench.hosts import Case
from bench.routes import USABLE, write_links
from configs import default
from sweeps import outcomes, scratch

_START_SHARE = 0.25  # Share of a run that is omitted at its start.
_FIRST = 8  # Iterations of the prediction that sets the length of a run.
_LEAST, _MOST = 16, 80  # Iterations of a run.
_SEEDS = 5  # Of a prediction with servers.
_POLL_S = 0.05  # Interval of looking for the end of a run.
_LIMIT_S = 900.0
# Of plain TCP transfers in a lab: see docs/benchmarks.md.
_SHARE_SIGMA, _BURST_BYTES = 0.6, 60e3
# Of a push or a pull, beside its bytes, as bench.empty measures it.
LATENCY_S = 1e-3


class Lab(NamedTuple):
  """Hosts and their links.

  Attributes:
    name: Name of the lab.
    workers: Hosts of workers, and links among them.
    servers: Number of further hosts, for servers.
    server_mbit: Rate of each of their links, both ways, Mbit/s.
  """

  name: str
  workers: Case
  servers: int = 0
  server_mbit: int = 0


class Condition(NamedTuple):
  """Settings of a run, without its length and its links.

  Attributes:
    name: Name of the condition and of its folder.
    workers: Number of workers, on the first of the lab's hosts of workers.
    servers: Number of servers; 0 for a route among the workers.
    dedicated: True if servers have hosts of their own.
    fields: Values of config fields, by dotted name.
  """

  name: str
  workers: int
  servers: int
  dedicated: bool
  fields: Mapping[str, Any]

  @property
  def batch(self) -> int:
    """Mean examples of a worker's iteration."""
    default_batch = default.get_config().batching.worker_batch
    return self.fields.get('batching.worker_batch', default_batch)


def choose_iterations(lab: Lab, condition: Condition, seconds: float) -> int:
  """Returns the number of iterations of a run of about so many seconds."""
  predicted_s = _predict_once(lab, condition, _FIRST)
  return max(_LEAST, min(_MOST, math.ceil(seconds / predicted_s)))


def predict(
  lab: Lab,
  condition: Condition,
  iterations: int,
  *,
  latency_s: float = LATENCY_S,
) -> float:
  """Returns the seconds of an iteration under the virtual clock.

  With servers this is the mean of several seeds, as shares of links are random:
  the times of DSSP differ by 10 % and more from seed to seed.

  Args:
    lab: Hosts and links.
    condition: Kind of run.
    iterations: Iterations of each worker.
    latency_s: Seconds that a push or a pull takes beside its bytes.
  """
  seeds = range(_SEEDS if condition.servers else 1)
  times = [
    _predict_once(lab, condition, iterations, each, latency_s) for each in seeds
  ]
  return math.fsum(times) / len(times)


def virtual_fields(
  lab: Lab,
  condition: Condition,
  iterations: int,
  folder: pathlib.Path,
  *,
  latency_s: float = LATENCY_S,
) -> dict[str, Any]:
  """Returns the config fields of a run under the virtual clock.

  Args:
    lab: Hosts and links.
    condition: Kind of run.
    iterations: Iterations of each worker.
    folder: Folder for a file of links.
    latency_s: Seconds that a push or a pull takes beside its bytes.
  """
  return {
    **_timing_fields(condition, iterations),
    'cluster.workers': condition.workers,
    **_link_fields(lab, condition, folder, latency_s),
  }


def measure(
  out: pathlib.Path,
  lab: Lab,
  runs: Sequence[tuple[Condition, int]],
) -> dict[str, float | str]:
  """Returns the measured seconds of an iteration by condition, or its error.

  After a run that fails, new processes train the next ones.  Runs that have
  finished in the folder before are not trained again.

  Args:
    out: Folder of all runs.
    lab: Hosts and links.
    runs: Conditions, and iterations of each worker.
  """
  results: dict[str, float | str] = {}
  attempt = 0
  while missing := [run for run in runs if run[0].name not in results]:
    folder, error = out / f'{lab.name}_{attempt}', ''
    attempt += 1
    if not folder.exists():
      error = _train_on_lab(folder, lab, missing) or 'there is no summary'
    for condition, _ in missing:
      path = folder / condition.name
      if outcomes.read_outcome(path).status == 'finished':
        results[condition.name] = iteration_s(path, condition)
      elif error:
        results[condition.name] = error
        break
  return results


def iteration_s(path: pathlib.Path, condition: Condition) -> float:
  """Returns the mean seconds of a worker's iteration after the start phase.

  Args:
    path: Folder of the run.
    condition: Kind of run.
  """
  if condition.servers:
    times = [
      e['time'] for e in records.read_events(path) if e['event'] == 'push'
    ]
    each = condition.workers
  else:
    rows = map(json.loads, (path / 'metrics.jsonl').read_text().splitlines())
    times = [row['time'] for row in rows if row['kind'] == 'barrier']
    each = 1
  first = round(_START_SHARE * len(times) / each) * each
  return (times[-1] - times[first - 1]) / (len(times) - first) * each


def main(argv: list[str] | None = None) -> None:
  """Trains the runs of a file one after the other, as one process of a lab."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  for flag in ('runs', 'role', 'coordinator', 'workdir'):
    parser.add_argument(f'--{flag}', required=True)
  args, others = parser.parse_known_args(argv)
  flags = dict(word.removeprefix('--config.').split('=', 1) for word in others)
  # Processes of a run find its token in its folder.
  shared = {'cluster.interface': flags['cluster.interface']}
  hosts_of_servers = int(flags['route.server.servers'])
  port = int(args.coordinator.rpartition(':')[2])
  kind, _, index = args.role.partition(':')
  for number, run in enumerate(json.loads(pathlib.Path(args.runs).read_text())):
    processes = run['workers']
    if kind == 'server':
      processes = run['servers'] * run['dedicated']
    folder = pathlib.Path(args.workdir, run['name'])
    if int(index) < processes:
      config = default.get_config()
      config.update_from_flattened_dict(_with_tuples(run['fields']) | shared)
      coordinator = 0 if run['dedicated'] else hosts_of_servers
      process = {
        'role': args.role,
        'coordinator': f'host{coordinator}:{port + number}',
      }
      train.build(config, workdir=str(folder), process=process)()
    while not (folder / 'summary.json').exists():
      time.sleep(_POLL_S)


def _predict_once(
  lab: Lab,
  condition: Condition,
  iterations: int,
  seed: int = 0,
  latency_s: float = LATENCY_S,
) -> float:
  with tempfile.TemporaryDirectory() as folder:
    fields = virtual_fields(
      lab, condition, iterations, pathlib.Path(folder), latency_s=latency_s
    )
    config = default.get_config()
    config.update_from_flattened_dict(fields | {'seed': seed})
    with scratch.execute(config) as run:
      return iteration_s(run.folder, condition)


def _train_on_lab(
  folder: pathlib.Path, lab: Lab, runs: Sequence[tuple[Condition, int]]
) -> str:
  """Trains runs by one process per host; returns the first error, or ''."""
  folder.mkdir(parents=True)
  shape = folder / 'lab.json'
  shape.write_text(json.dumps(_hosts(lab).links))
  rows = []
  for condition, count in runs:
    fields = _timing_fields(condition, count) | {
      'cluster.workers': condition.workers,
      'cluster.runtime': 'distributed',
      'cluster.speed.injected': True,
      'cluster.timeout_s': 20.0,
    }
    if condition.servers:
      fields['route.server.mirror_s'] = 0.0
      fields['route.server.servers'] = condition.servers
      fields['route.server.dedicated'] = condition.dedicated
    else:
      links = folder / f'{condition.name}_links.json'
      _write_links(links, lab, condition)
      fields |= _route_fields(condition, links)
    rows.append({**condition._asdict(), 'fields': fields})
  run_list = folder / 'runs.json'
  run_list.write_text(json.dumps(rows))
  rate = max((lab.server_mbit, *lab.workers.up))
  words = [sys.executable, '-m', 'tools.lab', f'--link={rate}mbit']
  words += [f'--hosts={lab.servers + len(lab.workers.up)}', f'--links={shape}']
  words += ['--', sys.executable, '-m', 'tools.launch', '--restarts=0']
  words += [f'--workers={len(lab.workers.up)}', f'--servers={lab.servers}']
  words += ['--dedicated'] * bool(lab.servers)
  words += [f'--workdir={folder}', '--module=bench.conditions']
  words += ['--', f'--runs={run_list}']
  log = folder.with_name(f'{folder.name}.log')
  try:
    clusters.finish(clusters.start(words, log), log, _LIMIT_S)
  except RuntimeError as error:
    return str(error)
  return ''


def _hosts(lab: Lab) -> Case:
  """Returns all hosts of a lab, those of servers first."""
  workers, servers = lab.workers, lab.servers
  rates = [lab.server_mbit] * servers
  return Case(
    [*rates, *workers.up],
    [*rates, *workers.down],
    {(a + servers, b + servers): r for (a, b), r in workers.pairs.items()},
    [(tuple(n + servers for n in group), r) for group, r in workers.groups],
  )


def _first_hosts(case: Case, count: int) -> Case:
  """Returns the first `count` hosts of a case."""
  return Case(
    case.up[:count],
    case.down[:count],
    {ends: mbit for ends, mbit in case.pairs.items() if max(ends) < count},
    case.groups,
  )


def _timing_fields(condition: Condition, iterations: int) -> dict[str, Any]:
  """Returns the fields of a run that moves bytes but trains no model."""
  examples = iterations * condition.workers * condition.batch
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


def _link_fields(
  lab: Lab, condition: Condition, folder: pathlib.Path, latency_s: float
) -> dict[str, Any]:
  """Returns the fields of virtual links."""
  fields: dict[str, Any] = {'cluster.network.worker_latency_s': (0.0,)}
  if not condition.servers:
    links = folder / 'links.json'
    _write_links(links, lab, condition)
    fields['cluster.links'] = str(links)
    return fields | _route_fields(condition, links)
  # A transfer to a server in a worker has the latencies of two workers.
  each_s = latency_s if condition.dedicated else latency_s / 2
  fields['cluster.network.worker_latency_s'] = (each_s,)
  case = _first_hosts(lab.workers, condition.workers)
  per_mbit = 1e6 / 8 * float(USABLE)
  for way in ('up', 'down'):
    rates = tuple(mbit * per_mbit for mbit in getattr(case, way))
    fields[f'cluster.network.worker_{way}_Bps'] = rates
    if condition.dedicated:
      rate = lab.server_mbit * per_mbit
      fields[f'cluster.network.server_{way}_Bps'] = (rate,)
  if condition.dedicated:
    fields['cluster.network.server_latency_s'] = (0.0,)
  fields['cluster.network.servers_in_workers'] = not condition.dedicated
  fields['cluster.network.share_sigma'] = _SHARE_SIGMA
  fields['cluster.network.burst_bytes'] = _BURST_BYTES
  fields['route.server.servers'] = condition.servers
  return fields


def _route_fields(condition: Condition, links: pathlib.Path) -> dict[str, Any]:
  """Returns the fields that give the route its file of links."""
  route = condition.fields['route.name']
  return {f'route.{route}.cluster': str(links)}


def _write_links(path: pathlib.Path, lab: Lab, condition: Condition) -> None:
  nominal = _first_hosts(lab.workers, condition.workers).cluster
  write_links(path, nominal)


def _with_tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
  """Returns fields read from JSON, with tuples in place of lists."""
  return {
    name: tuple(value) if isinstance(value, list) else value
    for name, value in fields.items()
  }


if __name__ == '__main__':
  main()
