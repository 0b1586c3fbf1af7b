"""Measures conditions on the hosts of labs.

The start of its processes dominates the time of a short run: imports take
longer than its iterations.  Therefore each host of a lab has one process
(`bench.lab.process`, or `torch_rank`), which takes part in one condition after
the other.
"""

import json
import os
import pathlib
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bench.lab import conditions, sums
from bench.lab.conditions import RUN, SUM, TORCH, Condition, Lab
from cluster.network import memory
from launch import hosts, processes
from launch import lab as labs
from launch.processes import Command
from sweeps import outcomes

_TORCH_RANK = pathlib.Path(__file__).with_name('torch_rank.py')
_TORCH_PORT = 29_500
_LIMIT_S, _LIMIT_EACH_S = 300.0, 120.0  # Of processes: and of each condition.


def measure(
  out: pathlib.Path,
  lab: Lab,
  wanted: Sequence[Condition],
  *,
  python: str = '',
) -> dict[str, dict[str, Any]]:
  """Returns the figures of each condition by its name.

  Figures are those of `Times` for a run; for others `median_s`, and sums have
  `cpu_s_per_GB`.  A condition that fails has `error` alone, and new processes
  measure the next ones.

  Args:
    wanted: Conditions with different names.
    python: Path of an interpreter that has torch, if a condition needs it.
  """
  results: dict[str, dict[str, Any]] = {}
  for group in conditions.group_by_processes(wanted):
    attempt = 0
    while missing := [each for each in group if each.name not in results]:
      folder = out / f'{lab.name}, {missing[0].name}, {attempt}'
      attempt += 1
      error = _run(folder, lab, missing, python)
      for place, condition in enumerate(missing):
        figures = _read(folder, condition, place)
        failed = {'error': error or 'there is no result'}
        results[condition.name] = figures or failed
        if not figures:
          break
  return results


def require_finished(
  name: str, figures: Mapping[str, Any]
) -> Mapping[str, Any]:
  """Returns the figures of a condition.

  Raises:
    RuntimeError: If it has failed.
  """
  if 'error' in figures:
    raise RuntimeError(f'{name}: {figures["error"]}')
  return figures


def run_on_hosts(
  folder: pathlib.Path,
  links: hosts.Links,
  commands: Sequence[Sequence[str]],
  limit_s: float,
) -> None:
  """Runs a command on each host of a new lab, until all have ended.

  Args:
    folder: Folder of the logs of all commands.
    limit_s: Time after which all are killed.

  Raises:
    ProcessError: If one fails, or they take too long.
    ValueError: If this machine allows no lab.
  """
  with labs.made(links) as name:
    environ = {**memory.ENVIRONMENT, 'JAX_PLATFORMS': 'cpu'}
    wanted = [
      Command(host, labs.command(host, words, name), environ)
      for host, words in zip(links.up, commands, strict=True)
    ]
    with processes.start(wanted, folder) as group:
      group.finish(limit_s)


def _run(
  folder: pathlib.Path, lab: Lab, group: Sequence[Condition], python: str
) -> str:
  """Measures conditions with the same processes; returns the error, or ''."""
  folder.mkdir(parents=True)
  case = lab.hosts
  count = len(case.up)
  if group[0].system == TORCH:
    task = {
      'ranks': count,
      'address': 'host0',
      'port': _TORCH_PORT,
      'interface': 'eth0',
      'threads': max((os.cpu_count() or 1) // count, 1),
      'jobs': [each.fields for each in group],
    }
    words = [python, '-P', str(_TORCH_RANK)]
  else:
    task = {
      'servers': lab.servers,
      'conditions': [
        {**each._asdict(), 'fields': _fields(lab, each, folder)}
        for each in group
      ],
    }
    words = [sys.executable, '-m', 'bench.lab.process']
  (folder / 'task.json').write_text(json.dumps(task))
  rate = f'{max(*case.up, *case.down)}mbit'
  links = hosts.parse_links(count, rate, json.dumps(case.links))
  commands = [[*words, str(folder.resolve()), str(n)] for n in range(count)]
  try:
    limit_s = _LIMIT_S + _LIMIT_EACH_S * len(group)
    run_on_hosts(folder, links, commands, limit_s)
  except processes.ProcessError as error:
    return str(error)
  return ''


def _fields(
  lab: Lab, condition: Condition, folder: pathlib.Path
) -> Mapping[str, Any]:
  """Returns the fields of a condition that its processes receive."""
  if condition.system == RUN:
    return conditions.real_fields(lab, condition, folder)
  return sums.with_forest(condition.fields, lab.workers.cluster)


def _read(
  folder: pathlib.Path, condition: Condition, place: int
) -> dict[str, Any] | None:
  """Returns the figures of a condition; None if it has not finished."""
  if condition.system == RUN:
    path = folder / condition.name
    if outcomes.read_outcome(path).status != 'finished':
      return None
    return conditions.read_times(path)._asdict()
  if condition.system == SUM:
    results = sums.read_results(folder / condition.name, condition.workers)
    return _combine(results) if results else None
  files = [folder / f'{rank}.json' for rank in range(condition.workers)]
  if not all(path.exists() for path in files):
    return None
  return _combine([json.loads(path.read_text())[place] for path in files])


def _combine(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """Returns the figures of all ranks, with a median in place of their times."""
  figures = dict(ranks[0])
  if 'rounds' in figures:
    rounds = zip(*(rank['rounds'] for rank in ranks), strict=True)
    times = [
      max(end for _, end in each) - min(start for start, _ in each)
      for each in rounds
    ]
    del figures['rounds']
  else:
    times = [took_s for rank in ranks for took_s in rank['steps_s']]
    figures['compute_s'] = max(rank['compute_s'] for rank in ranks)
    del figures['steps_s']
  figures['median_s'] = statistics.median(times)
  cpu_s, sent_bytes = (
    sum(rank.get(name, 0.0) for rank in ranks)
    for name in ('cpu_s', 'sent_bytes')
  )
  if sent_bytes:
    figures['cpu_s_per_GB'] = 1e9 * cpu_s / sent_bytes
  return {k: v for k, v in figures.items() if k not in ('cpu_s', 'sent_bytes')}
