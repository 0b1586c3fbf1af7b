"""Links of runs with servers: of each worker, and of all servers together."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from analysis import printing
from analysis.runs import Run
from cluster.virtual import applying
from tuning.calibrating import links, placement, tables, timeline
from tuning.calibrating.links import FittedLinks, Transfers
from tuning.calibrating.timeline import Timeline

# Config sections in which two runs have to agree, besides those of all
# families, so that one can predict the other.
SHARED = ('route',)
_LATE_S = 1e-6  # Rounding of the timeline.


class ServerLinks(NamedTuple):
  """Measured links of a run with servers.

  Attributes:
    size_bytes: Bytes of a push and of a pull.
    down: The links that pulls used.
    up: The links that pushes used.
    server_work: Work of the slowest server, as `messages.ServerWork` has it;
      None if the run has not measured it.
  """

  size_bytes: int
  down: FittedLinks
  up: FittedLinks
  server_work: Mapping[str, float] | None

  @property
  def cluster(self) -> None:
    """None: all links are those of hosts, up and down."""
    return None


def measure(
  recorded: Timeline,
  config: ConfigDict,
  run: Mapping[str, Any],
  times: Sequence[Sequence[float]],
) -> ServerLinks:
  """Returns the links of a run, and puts them into a config.

  Args:
    config: Config of the run under the virtual clock, which is changed.
    run: The run's own config, as its manifest has it.
    times: Not used.

  Raises:
    ValueError: If there are too few transfers.
  """
  del times
  size_bytes = timeline.size_bytes(recorded)
  pulls, pushes = (
    timeline.transfers(recorded, phase) for phase in ('pull', 'push')
  )
  if work := recorded.summary.get('server_work'):
    pulls = _after_work(pulls, recorded.run, work)
  try:
    down, up = links.fit(
      pulls,
      pushes,
      num_workers=config.cluster.workers,
      size_bytes=size_bytes,
    )
  except ValueError as error:
    raise ValueError(f'{recorded.run.path}: {error}') from error
  _put(config, down, up)
  if work:
    share_bytes, slot_bytes = work['share_bytes'], work['slot_bytes']
    config.cluster.server.sum_Bps = share_bytes / work['sum_s']
    config.cluster.server.update_Bps = (share_bytes + slot_bytes) / work[
      'update_s'
    ]
  if placement.in_workers(run):
    placement.put(config, down, up)
  return ServerLinks(size_bytes, down, up, work)


def describe(
  found: ServerLinks, config: ConfigDict, times: Sequence[Sequence[float]]
) -> str:
  """Returns a table of the measurements, and warnings on missing ones.

  Args:
    found: Result of `measure`.
    config: Config under the virtual clock, as `measure` has changed it.
    times: Seconds that each worker computed, by iteration.
  """
  up, down = found.up, found.down
  servers = config.route.server.servers
  head = ('host', 'up MB/s', 'down MB/s', 'compute s', 'error', 'transfers')
  rows: list[tuple[str, ...]] = [head]
  for worker, own in enumerate(times):
    rates = [
      tables.rate(each.worker_Bps[worker], each.worker_bound[worker])
      for each in (up, down)
    ]
    errors = [f'{each.error[worker]:.1%}' for each in (up, down)]
    used = [f'{each.used[worker]}' for each in (up, down)]
    mean = f'{statistics.fmean(own):.4g}'
    row = (f'worker {worker}', *rates, mean, ' '.join(errors), ' '.join(used))
    rows.append(row)
  # Servers receive the bytes that workers send.
  rates = [
    tables.rate(each.servers_Bps / servers, each.servers_bound)
    for each in (down, up)
  ]
  all_errors = ' '.join(f'{each.errors:.1%}' for each in (up, down))
  all_used = ' '.join(f'{each.used.sum()}' for each in (up, down))
  name = 'server' if servers == 1 else f'each of {servers} servers'
  rows.append((name, *rates, '', all_errors, all_used))
  lines = [
    f'A transfer has {found.size_bytes / 1e6:.4g} MB and takes, beside '
    f'its time on the links, {1e3 * up.latency_s:.1f} ms (push)\nor '
    f'{1e3 * down.latency_s:.1f} ms (pull); stalls add '
    f'{1e3 * up.excess_s:z.1f} and {1e3 * down.excess_s:z.1f} ms in the mean.  '
    'Error: median,\nrelative, of durations; push and pull.',
    printing.text(rows, align='r'),
  ]
  if work := found.server_work:
    lines.append(
      f'A server adds a push in {1e3 * work["sum_s"]:.3g} ms and applies '
      f'an update in {1e3 * work["update_s"]:.3g} ms.'
    )
  bound = (
    bound
    for each in (up, down)
    for bound in (*each.worker_bound, each.servers_bound)
  )
  if not all(bound):
    lines.append(
      'WARNING: >= marks links that never held a transfer back: they may be '
      'faster, and\nschemes that would use them more may be faster than '
      'predicted.'
    )
  return '\n'.join(lines)


def _after_work(
  pulls: Transfers, run: Run, work: Mapping[str, float]
) -> Transfers:
  """Returns pulls without the time in which servers work before them."""
  # A pull of `pulls` starts with the release of its worker.
  servers = applying.Servers(work['sum_s'], work['update_s'])
  events, start = run.events, pulls.start.copy()
  times, is_push = events['time'].tolist(), events['event'] == 'push'
  applied = np.bincount(run.commits['event'], minlength=len(times)).tolist()
  event = 0
  for place, released in enumerate(pulls.start):
    while event < len(times) and times[event] <= released + _LATE_S:
      if is_push[event]:
        servers.add(times[event])
      servers.update(times[event], servers.version + applied[event])
      event += 1
    # A server may have been faster than it was measured.
    latest = released + pulls.seconds[place] / 2
    start[place] = min(max(released, servers.busy_until), latest)
  seconds = pulls.seconds - (start - pulls.start)
  # A short pull may now begin before the one that was released before it.
  order = np.argsort(start, kind='stable')
  return Transfers(pulls.worker[order], start[order], seconds[order])


def _put(config: ConfigDict, down: FittedLinks, up: FittedLinks) -> None:
  """Changes a config's cluster to one with these links."""
  servers = config.route.server.servers
  # One latency counts both ways, so an iteration has the sum of the two; with
  # the stalls, or it would be shorter in the mean than it was.
  beside_s = (each.latency_s + each.excess_s for each in (down, up))
  latency_s = max(sum(beside_s) / 2, 0.0)
  config.cluster.network.update(
    {
      'worker_up_Bps': placement.round_values(up.worker_Bps),
      'worker_down_Bps': placement.round_values(down.worker_Bps),
      'worker_latency_s': placement.round_values([latency_s]),
      'server_up_Bps': placement.round_values([down.servers_Bps / servers]),
      'server_down_Bps': placement.round_values([up.servers_Bps / servers]),
      'server_latency_s': (0.0,),
    }
  )
