"""Diagnosis of a run from its files: what is slow, since when, at what cost."""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from analysis import iterations, recorded_configs, sentences, traffic
from analysis.runs import Run
from analysis.sentences import Cluster, Verdict
from configs import user_parts
from configs.checks import require
from diagnosis import costs, departures, rule, server_links, workers
from diagnosis.costs import Iterations
from diagnosis.traffic import Traffic


def diagnose_run(run: Run) -> list[Verdict]:
  """Returns the verdicts on a run, the most costly first.

  Without the code of its scheme there are no costs.  That is a scheme of the
  caller, or a user's module that this process has not imported.

  Raises:
    ValueError: If there is too little of the run, or a file is broken.
    OSError: If a file cannot be read.
  """
  found, cluster = iterations.read_run(run)
  count = len(cluster.names)
  name = run.config['sync']['name']
  is_known = run.manifest['own']['scheme'] is None
  is_known = is_known and not (
    user_parts.is_own(name) and name not in sys.modules
  )

  def replay(part: Iterations, seconds: np.ndarray) -> float:
    if not is_known:
      return float('nan')
    scheme = recorded_configs.make_scheme(run.config, count)
    return costs.replay_s(part, seconds, scheme, count)

  judged = judge_workers(found, cluster, replay)
  if judged[0].kind == 'insufficient':
    return judged
  away = sentences.on_departures(
    departures.measure(run.read_event_rows(), count)
  )
  if cluster.has_links:
    of_links = _judge_servers(run, cluster.hosts)
  else:
    of_links = _judge_links(run)
  is_sufficient = all(each.kind != 'insufficient' for each in of_links)
  if judged[0].kind == 'none' and (away or (of_links and is_sufficient)):
    judged = []  # Something else is to blame.
  if cluster.has_links and is_sufficient:
    return [*away, *of_links, *judged]
  return [*away, *judged, *of_links]


def diagnose_csv(file: Path) -> list[Verdict]:
  """Returns the verdicts on a CSV file, whose iterations end in barriers.

  Args:
    file: The file: see `iterations.read_csv`.

  Raises:
    ValueError: If the file is wrong.
    OSError: If the file cannot be read.
  """
  return judge_workers(*iterations.read_csv(file), costs.barrier_s)


def judge_workers(
  found: Iterations, cluster: Cluster, replay: workers.Replay
) -> list[Verdict]:
  """Returns the verdicts on workers and their links, the most costly first.

  Args:
    found: Iterations of a run.
    cluster: What else is known of the workers.
    replay: Replay of iterations, as `costs.share` takes it.

  Raises:
    ValueError: If there are fewer than two workers.
  """
  count = len(cluster.names)
  require(count > 1, 'workers', 'at least 2 to compare', count)
  rounds = int(found.rounds[-1]) + 1 if len(found.rounds) else 0
  if rounds < rule.LEAST:
    return sentences.on_too_few_rounds(rounds)
  slow = workers.find_slow(
    found,
    count,
    replay,
    has_links=cluster.has_links,
    factors=cluster.factors,
  )
  if slow:
    return sentences.on_workers(slow, found, cluster)
  return sentences.on_spread(workers.measure_spread(found, count, replay))


def _judge_links(run: Run) -> list[Verdict]:
  """Returns the verdicts on the links of an allreduce run."""
  epochs = traffic.read_epochs(run)
  if not epochs:
    return []
  epoch = max(epochs, key=lambda epoch: epoch.iterations)
  windows = [
    Traffic(
      start=window.start,
      iterations=window.iterations,
      exposed=window.exposed_share,
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
  is_planned = bool(epoch.plan and epoch.plan.has_rates)
  return sentences.on_links(windows, rates, is_planned=is_planned)


def _judge_servers(run: Run, hosts: Sequence[str]) -> list[Verdict]:
  """Returns the verdicts on the links of hosts that have servers."""
  windows, rates = [], []
  for row in run.link_rows:
    if row['did'] != 'servers':
      continue
    try:
      found = {
        each['host']: server_links.Rates(each['Bps'], each['usual_Bps'])
        for each in row['rates']
      }
      windows.append(
        Traffic(
          start=row['since'],
          iterations=row['iterations'],
          exposed=row['exposed'],
          slowness={key: each.slowness for key, each in found.items()},
        )
      )
    except (KeyError, TypeError) as error:
      raise ValueError(
        f'{run.path}/events.jsonl: expected rates of links to servers, got '
        f'{str(row)[:80]}: {error!r}.'
      ) from error
    rates.append(found)
  return sentences.on_server_links(windows, server_links.medians(rates), hosts)
