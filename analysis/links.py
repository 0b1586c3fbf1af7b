"""Verdicts on the links of a run, from its recorded traffic."""

import pathlib
from collections.abc import Sequence

from analysis import records, traffic
from diagnosis import server_links, verdicts


def judge(path: pathlib.Path) -> list[verdicts.Verdict]:
  """Returns the verdicts on the links of an allreduce run.

  Args:
    path: Folder of the run.

  Raises:
    ValueError: If there is no such run, or a row is broken.
    OSError: If a file cannot be read.
  """
  epochs = traffic.read_epochs(path)
  if not epochs:
    return []
  epoch = max(epochs, key=lambda epoch: epoch.iterations)
  windows = [
    verdicts.Traffic(
      start=window.start,
      iterations=window.iterations,
      exposed=_exposed(window),
      slowness={
        ends: link.planned_Bps / link.Bps
        for ends, link in window.links.items()
        if link.Bps and link.planned_Bps
      },
    )
    for window in epoch.windows
  ]
  rates = {
    ends: (link.Bps, link.planned_Bps)
    for ends, link in epoch.sum_links().items()
    if link.Bps
  }
  known = bool(epoch.plan and epoch.plan.has_rates)
  return verdicts.judge_links(windows, rates, is_planned=known)


def judge_servers(
  path: pathlib.Path, hosts: Sequence[str]
) -> list[verdicts.Verdict]:
  """Returns the verdicts on the links of hosts that have servers.

  Args:
    path: Folder of the run.
    hosts: Host of each worker; '' if unknown.

  Raises:
    ValueError: If there is no such run, or a row is broken.
    OSError: If a file cannot be read.
  """
  windows, rates = [], []
  for row in records.read_link_events(path):
    if row['did'] != 'servers':
      continue
    try:
      found = {
        each['host']: server_links.Rates(each['Bps'], each['usual_Bps'])
        for each in row['rates']
      }
      windows.append(
        verdicts.Traffic(
          start=row['since'],
          iterations=row['iterations'],
          exposed=row['exposed'],
          slowness={key: each.slowness for key, each in found.items()},
        )
      )
    except (KeyError, TypeError) as error:
      raise ValueError(
        f'{path}/events.jsonl: expected rates of links to servers, got '
        f'{str(row)[:80]}: {error!r}.'
      ) from error
    rates.append(found)
  return verdicts.judge_server_links(
    windows, server_links.medians(rates), hosts
  )


def _exposed(window: traffic.TrafficWindow) -> float:
  """Returns the share of an iteration that is exposed communication."""
  parts = [window.compute_s, window.wait_s, window.push_s]
  total = sum(part or 0.0 for part in parts)
  return (window.push_s or 0.0) / total if total else 0.0
