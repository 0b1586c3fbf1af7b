"""Goodput of schemes by failure rate, under the virtual clock.

  python -m bench.goodput [--schemes=bsp,ssp,elastic,quorum] [--steps=1,16]
    [--between_s=600,120,60,30,15] [--workers=8] [--seconds=600] [--seeds=2]
    [--notice_s=2] [--restart_s=8] [--step_s=0.1] [--minimum=4] [--picture=FILE]

Workers die at random times, each on average --between_s after its start, and
rejoin --restart_s later.  The scheme hears of a death --notice_s after it, as a
coordinator does that waits for heartbeats: until then it waits for the worker.
Nothing else fails: two dedicated servers have links of 1 Gbit/s, and a push has
5 MB.  A local step takes --step_s, with 10 % jitter; an iteration has H of
them.

Goodput is the rate of applied examples over that of the same scheme and H
without failures; lost are the examples of iterations that ended with their
worker, as a share of those applied.  Means over --seeds.  capacity is the share
of the time in which a worker lives, which bounds goodput where workers do not
wait.

--picture also draws goodputs of real processes, measured by bench.soak with
four workers, one of which is killed every five seconds.
"""

import argparse
import dataclasses
import importlib
import math
import pathlib
import random
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

import train
from bench import clusters
from configs import default
from configs.checks import require
from outputs import console
from sync.scheme import Decision, Push, Scheme

_SCHEMES = ('bsp', 'ssp', 'elastic', 'quorum')
_SIZE_BYTES, _SERVERS = 5_000_000, 2
_EXCHANGE_S = 0.4  # Rough seconds of a push and a pull.


class RealPoint(NamedTuple):
  """Goodput of real processes.

  Attributes:
    scheme: Name of the scheme.
    local_steps: Steps of an iteration (H).
    between_s: Mean seconds between two failures of a worker.
    goodput: Rate with failures over that before.
  """

  scheme: str
  local_steps: int
  between_s: float
  goodput: float


# By `python -m bench.soak --kills=10 --servers=0 --mean_s=5
# --slowdown='(1.0,)'` with, in this order, `--scheme=bsp`, `--scheme=quorum`,
# and `--scheme=quorum --local_steps=16 --ahead=0`.
REAL = (
  RealPoint('bsp', 1, 20.0, 0.639),
  RealPoint('quorum', 1, 20.0, 0.536),
  RealPoint('quorum', 16, 20.0, 0.602),
)


class Outcome(NamedTuple):
  """Outcome of a run.

  Attributes:
    rate: Applied examples per second.
    lost: Lost examples over applied ones.
  """

  rate: float
  lost: float


@dataclasses.dataclass
class LateNotice:
  """Scheme that hears of a death some time after it.

  A dead worker that the scheme releases in this time does not start.

  Attributes:
    scheme: The scheme.
    notice_s: Seconds from a death to the scheme's `leave`.
    dead: Times at which the scheme hears of deaths, and workers, in order.
    wake_at: Time of the scheme's own wake; None without one.
  """

  is_state = True  # Plain data: checkpoints hold it.

  scheme: Scheme
  notice_s: float
  dead: list[tuple[float, int]] = dataclasses.field(default_factory=list)
  wake_at: float | None = None

  def start(self, time: float) -> Decision:
    """Releases the first iteration of every worker."""
    return self._take(self.scheme.start(time))

  def push(self, push: Push) -> Decision:
    """Passes a gradient on to the scheme."""
    return self._take(self.scheme.push(push))

  def wake(self, time: float) -> Decision:
    """Passes on the first death that is due, or the wake."""
    if self.dead and self.dead[0][0] <= time:
      _, worker = self.dead.pop(0)
      wake_at = self.wake_at
      decision = self._take(self.scheme.leave(worker, time))
      if wake_at is not None and wake_at <= time:  # Both are due now.
        decision = decision._replace(wake_at=time)
      return decision
    return self._take(self.scheme.wake(time))

  def leave(self, worker: int, time: float) -> Decision:
    """Records a death that the scheme hears of later."""
    self.dead.append((time + self.notice_s, worker))
    return self._take(Decision(wake_at=self.wake_at))

  def join(self, worker: int, time: float) -> Decision:
    """Passes a return on, which is later than the notice of the death."""
    return self._take(self.scheme.join(worker, time))

  def _take(self, decision: Decision) -> Decision:
    """Returns the scheme's decision, without dead workers."""
    self.wake_at = decision.wake_at
    dead = {worker for _, worker in self.dead}
    wakes = [self.wake_at] if self.wake_at is not None else []
    wakes += [due for due, _ in self.dead[:1]]
    return decision._replace(
      release=tuple(each for each in decision.release if each not in dead),
      wake_at=min(wakes, default=None),
    )


def main(argv: list[str] | None = None) -> None:
  """Prints a table per number of local steps."""
  parser = argparse.ArgumentParser(
    prog='bench.goodput', description=__doc__.splitlines()[0]
  )
  parser.add_argument('--schemes', default=','.join(_SCHEMES))
  parser.add_argument('--steps', default='1,16', help='H')
  parser.add_argument('--between_s', default='600,120,60,30,15')
  parser.add_argument('--workers', type=int, default=8)
  parser.add_argument('--seconds', type=float, default=600.0, help='of a run')
  parser.add_argument('--seeds', type=int, default=2)
  parser.add_argument('--notice_s', type=float, default=2.0)
  parser.add_argument('--restart_s', type=float, default=8.0)
  parser.add_argument('--step_s', type=float, default=0.1)
  parser.add_argument('--minimum', type=int, default=4, help='of a quorum')
  parser.add_argument('--picture', help='file of a picture of all goodputs')
  flags = parser.parse_args(argv)
  schemes = flags.schemes.split(',')
  if {*schemes} - {*_SCHEMES}:
    parser.error(f'expected schemes of {[*_SCHEMES]}, got {schemes}')
  # A worker rejoins once its death is known.
  require(
    0 <= flags.notice_s < flags.restart_s,
    '--notice_s',
    f'0 to less than --restart_s, {flags.restart_s}',
    flags.notice_s,
  )
  means_s = [*map(float, flags.between_s.split(','))]
  goodputs = {}
  for local_steps in map(int, flags.steps.split(',')):
    goodputs[local_steps] = print_table(schemes, local_steps, means_s, flags)
  if flags.picture:
    draw(goodputs, means_s, REAL).savefig(flags.picture)


def print_table(
  schemes: Sequence[str],
  local_steps: int,
  means_s: Sequence[float],
  flags: argparse.Namespace,
) -> dict[str, list[float]]:
  """Prints goodput and losses of schemes; returns the goodputs by scheme.

  Args:
    schemes: Names of the schemes.
    local_steps: Steps of an iteration (H).
    means_s: Mean seconds from a worker's start to its death.
    flags: Parsed flags of the command line.
  """
  head = [f'{name}: goodput, lost' for name in schemes]
  rows = [('s between failures', 'capacity', *head)]
  usual = {
    name: simulate(name, local_steps, (), flags).rate for name in schemes
  }
  rate_cells = [f'{rate:.1f} examples/s' for rate in usual.values()]
  rows.append(('none', '1', *rate_cells))
  goodputs: dict[str, list[float]] = {name: [] for name in schemes}
  for mean_s in means_s:
    cells = []
    for name in schemes:
      runs = [
        simulate(name, local_steps, make_script(seed, mean_s, flags), flags)
        for seed in range(flags.seeds)
      ]
      goodput = goodput_of([each.rate for each in runs], usual[name])
      lost = statistics.mean(each.lost for each in runs)
      goodputs[name].append(goodput)
      cells.append(f'{goodput:.3f}, {lost:.2%}')
    share = capacity(mean_s, flags.restart_s)
    rows.append((f'{mean_s:g}', f'{share:.3f}', *cells))
  print(
    f'\nH = {local_steps}, {flags.workers} workers, deaths known after '
    f'{flags.notice_s:g} s, restarts after {flags.restart_s:g} s\n\n'
    f'{clusters.table(*rows)}',
    flush=True,
  )
  return goodputs


def goodput_of(rates: Sequence[float], usual: float) -> float:
  """Returns the mean of rates over the rate without failures."""
  return statistics.mean(rates) / usual


def capacity(mean_s: float, restart_s: float) -> float:
  """Returns the share of the time in which a worker lives.

  Args:
    mean_s: Mean seconds from its start to its death.
    restart_s: Seconds from its death to its next start.
  """
  return mean_s / (mean_s + restart_s)


def outcome(summary: Mapping[str, Any]) -> Outcome:
  """Returns the outcome of a run with this summary."""
  unused = [*summary['lost'], *summary['dropped']]
  lost = sum(each['examples'] for each in unused)
  return Outcome(
    summary['examples'] / summary['virtual_s'], lost / summary['examples']
  )


def make_script(
  seed: int, mean_s: float, flags: argparse.Namespace
) -> tuple[tuple[float, str, int], ...]:
  """Returns deaths and returns of workers, for `config.cluster.script`.

  The times of lives are exponential, and in proportion to their mean for the
  same seed.  They last for ten times --seconds, longer than any run.

  Args:
    seed: Seed of the times.
    mean_s: Mean seconds from a worker's start to its death.
    flags: Parsed flags of the command line.
  """
  entries = []
  for worker in range(flags.workers):
    rng, time = random.Random(f'{seed}-{worker}'), 0.0
    while (time := time + mean_s * rng.expovariate(1)) < 10 * flags.seconds:
      entries.append((time, 'leave', worker))
      time += flags.restart_s
      entries.append((time, 'join', worker))
  return tuple(sorted(entries))


def simulate(
  name: str,
  local_steps: int,
  script: Sequence[tuple[float, str, int]],
  flags: argparse.Namespace,
) -> Outcome:
  """Returns the outcome of a virtual run.

  Args:
    name: Name of the scheme.
    local_steps: Steps of an iteration (H).
    script: Deaths and returns of workers.
    flags: Parsed flags of the command line.
  """
  config = default.get_config()
  batch = config.batching.worker_batch * local_steps
  iteration_s = local_steps * flags.step_s + _EXCHANGE_S
  iterations = math.ceil(flags.seconds / iteration_s)
  options = config.sync[name].to_dict()
  if name == 'quorum':
    options['minimum'] = flags.minimum
  module = importlib.import_module(f'sync.{name}')
  scheme = module.make(num_workers=flags.workers, **options)
  fields = {
    'epochs': 1.0,
    'eval_every': 1.0,
    'log_every': 10**6,
    'outputs.timeline': False,
    'outputs.events': False,
    'outputs.board': False,
    'batching.local_steps': local_steps,
    'route.server.servers': _SERVERS,
    'model.name': 'none',
    'model.none.size_bytes': _SIZE_BYTES,
    'model.none.num_train': iterations * flags.workers * batch,
    'cluster.workers': flags.workers,
    'cluster.script': tuple(script),
    'cluster.speed.fixed_s': local_steps * flags.step_s,
    'cluster.speed.per_example_s': 0.0,
    'cluster.speed.slowdown': (1.0,),
    'checkpoint.every_s': math.inf,
  }
  config.update_from_flattened_dict(fields)
  with tempfile.TemporaryDirectory() as parent, console.hidden():
    workdir = str(pathlib.Path(parent, 'run'))
    late = LateNotice(scheme, flags.notice_s)
    summary = train.build(config, workdir=workdir, scheme=late)()
  return outcome(summary or {})


def draw(
  goodputs: Mapping[int, Mapping[str, Sequence[float]]],
  means_s: Sequence[float],
  real: Sequence[RealPoint] = (),
) -> Figure:
  """Returns a picture of goodput by failure rate, a panel for each H.

  Args:
    goodputs: Goodputs by H and scheme, one for each of `means_s`.
    means_s: Mean seconds from a worker's start to its death.
    real: Goodputs of real processes, of which those of the same H and scheme
      are drawn as crosses.
  """
  figure = Figure((5 * len(goodputs), 3.6), layout='constrained', dpi=110)
  panels = figure.subplots(1, len(goodputs), sharey=True, squeeze=False)[0]
  for axes, (local_steps, by_scheme) in zip(
    panels, goodputs.items(), strict=True
  ):
    for name, values in by_scheme.items():
      (line,) = axes.plot(means_s, values, marker='o', label=name)
      points = [
        (each.between_s, each.goodput)
        for each in real
        if (each.scheme, each.local_steps) == (name, local_steps)
      ]
      axes.plot(
        *np.reshape(points, (-1, 2)).T,
        marker='x',
        markersize=9,
        linestyle='none',
        color=line.get_color(),
        label=f'{name}, real processes' if points else None,
      )
    axes.set(
      xscale='log',
      xticks=means_s,
      xlabel='seconds between failures of a worker',
      title=f'H = {local_steps}',
    )
    axes.set_xticks([], minor=True)
    axes.set_xticklabels([f'{mean_s:g}' for mean_s in means_s])
    axes.grid(alpha=0.3)
    axes.legend()
  panels[0].set_ylabel('goodput')
  return figure


if __name__ == '__main__':
  main()
