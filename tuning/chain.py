"""The chain of a tuning: measure, predict, run the best, decide."""

import math
import pathlib
import tempfile
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from ml_collections import ConfigDict

from analysis import recorded_configs
from configs.checks import require
from tuning import candidates, deciding, measuring, recorded, simulating
from tuning.candidates import Candidate, Rejection
from tuning.clusters import ClusterDescription
from tuning.deciding import Decision, Prediction, Trial
from tuning.examples import Ratios
from tuning.measuring import Launcher, Measurement, RunError
from tuning.simulating import Workload

_SHORT = 0.5  # Length of a run that only measures the cluster, over the others.


class Outcome(NamedTuple):
  """Result of a tuning.

  Attributes:
    config: The present config.
    launcher: Way in which runs were started.
    present_s: Predicted seconds per iteration of the present config.
    present: Its measurements.
    predictions: Predictions of the candidates, the best first.
    trials: Candidates that have run.
    rejected: Candidates that cannot run.
    decision: The decision.
  """

  config: ConfigDict
  launcher: Launcher
  present_s: float
  present: Sequence[Measurement]
  predictions: Sequence[Prediction]
  trials: Sequence[Trial]
  rejected: Sequence[Rejection]
  decision: Decision


def tune(
  config: ConfigDict,
  launcher: Launcher,
  *,
  folder: pathlib.Path,
  run_s: float,
  ratios: Ratios,
  allow: Collection[str] = (),
  log: Callable[[str], None] = lambda text: None,
  run: Callable[..., Measurement] = measuring.run,
) -> Outcome:
  """Measures, predicts, runs the best candidates, and decides.

  The present config runs before the candidates, and again after them if one is
  faster: a machine that has become slower or faster meanwhile is no gain.

  Args:
    config: Present config.
    launcher: Starts runs on the cluster.
    folder: New folder for the runs.
    run_s: Seconds of each run.
    ratios: Examples that combinations need, as far as known: see
      `examples.read_ratios`.
    allow: Changes of learning that are allowed.
    log: Receives lines on the progress.
    run: Runs a config: see `measuring.run`.

  Raises:
    ValueError: If the config is refused, or a run is too short.
    RunError: If the present config, or BSP, fails.
    OSError: If a file cannot be read or written.
  """
  exists = folder.exists()
  require(not exists, '--workdir', 'a folder that does not exist', str(folder))
  candidates.check_present(config, launcher.workers)
  found, rejected = candidates.propose(
    config,
    workers=launcher.workers,
    allow=allow,
    ratios=ratios,
  )
  plain = candidates.measuring_config(config)
  is_plain = plain == config

  log(_describe_length(run_s, is_plain=is_plain))

  def measure_base(config: ConfigDict, name: str) -> Measurement:
    seconds = run_s if config == plain and is_plain else _SHORT * run_s
    return run(launcher, config, folder / name, seconds)

  log('Runs BSP to measure speeds and links.')
  base = measure_base(plain, 'bsp')
  among = base
  if plain.route.name == 'server' and _routes(found) - {'server'}:
    among = _measure_links(config, found, base, measure_base, log)
  present = [base]
  if not is_plain:
    log('Runs the present config.')
    present = [run(launcher, config, folder / 'present', run_s)]
  log(f'Predicts {len(found)} candidates.')
  with tempfile.TemporaryDirectory() as times:
    problems = []
    for name, each in (('bsp', base), ('links', among)):
      path = pathlib.Path(times, name)
      path.mkdir()
      problems.append(recorded.read_run(each.folder, path))

    def simulate(config: ConfigDict) -> float:
      problem = problems[config.route.name != 'server']
      return simulate_s(config, launcher, *problem)

    present_s = simulate(config)
    predictions, unknown = deciding.predict(found, present_s, simulate)

  def measure(candidate: Candidate) -> Measurement:
    log(f'Runs {candidate.name}.')
    name = f'candidate{next(numbers)}'
    return run(launcher, candidate.config, folder / name, run_s)

  numbers = iter(range(1, len(predictions) + 1))
  trials = deciding.try_best(predictions, measure)
  decision = deciding.decide(present, trials)
  if decision.winner:
    log('Runs the present config again.')
    present.append(run(launcher, config, folder / 'present_again', run_s))
    decision = deciding.decide(present, trials)
  return Outcome(
    config=config,
    launcher=launcher,
    present_s=present_s,
    present=present,
    predictions=predictions,
    trials=trials,
    rejected=[*rejected, *unknown],
    decision=decision,
  )


def _describe_length(run_s: float, *, is_plain: bool) -> str:
  """Returns the time that a tuning takes, as text for the log."""
  # `is_plain`: the present config is that of the first measurement.
  # The cluster and its links, the present config twice, the candidates.
  least_s = run_s * (1 + (0 if is_plain else _SHORT))
  most_s = run_s * (_SHORT + deciding.MOST + 2 + (0 if is_plain else _SHORT))
  return (
    f'Takes {least_s / 60:.1f} to {most_s / 60:.1f} minutes of training, up to '
    f'{measuring.LONGEST} times as long where iterations are slow, and the '
    f'starts of up to {deciding.MOST + (3 if is_plain else 4)} runs.'
  )


def _routes(found: Sequence[Candidate]) -> set[str]:
  """Returns the routes of candidates."""
  return {each.config.route.name for each in found}


def _measure_links(
  config: ConfigDict,
  found: Sequence[Candidate],
  base: Measurement,
  run: Callable[[ConfigDict, str], Measurement],
  log: Callable[[str], None],
) -> Measurement:
  """Returns the run from which routes among workers are predicted."""
  # With a server in each worker every transfer crosses the slowest link, so
  # that the run `base` of BSP does not tell which host has it.  It is returned
  # if the other run fails.
  routes = _routes(found)
  route = 'forest' if 'forest' in routes else min(routes - {'server'})
  log(f'Runs BSP over a {route} to measure the links among workers.')
  plain = candidates.measuring_config(config, route)
  try:
    return run(plain, 'links')
  except (RunError, ValueError) as error:
    log(f'Failed; predicts from the run over servers: {error}')
    return base


def simulate_s(
  config: ConfigDict,
  launcher: Launcher,
  cluster: ClusterDescription,
  workload: Workload,
) -> float:
  """Returns the simulated seconds per iteration, as `Measurement.iteration_s`.

  Raises:
    ValueError: If the cluster lacks links that the config needs.
  """
  uses_servers = config.route.name == 'server'
  expected = 'one among workers, as links to servers were not measured'
  known = cluster.has_server_links or not uses_servers
  require(known, 'config.route.name', expected, config.route.name)
  virtual = recorded_configs.virtual_config(config)
  if uses_servers:
    divides = config.optimizer.clip_norm == math.inf
    divides = divides or config.batching.local_steps > 1
    chosen = launcher.workers if divides else 1
    virtual.route.server.servers = launcher.servers or chosen
  pace = simulating.simulate_config(cluster, workload, virtual)
  return launcher.workers * workload.batch / pace.examples_per_s
