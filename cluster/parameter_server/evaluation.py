"""Evaluation on a worker's accelerator, where the coordinator has none.

Dedicated servers, and with them the coordinator, have only a CPU.  The
coordinator collects the version that is due, and asks the first worker that has
an accelerator.  That worker fetches the version (`cluster.membership.handover`)
and evaluates it beside its iterations.  If it is lost, fails or is too slow,
the next one is asked; after the last one the coordinator evaluates by itself.
The figures are of the same version in any case.
"""

import contextlib
import functools
import itertools
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Protocol

import jax
from absl import logging

from cluster.membership import handover
from cluster.membership.process import Settings
from cluster.network import messages
from cluster.network.errors import Corrupt, TransportError
from cluster.parameter_server.session import Send
from cluster.process.deadlines import Deadlines
from learning.digest import digest
from learning.learning import Evaluation
from system import clock, threads


class EvaluationLost(Exception):
  """Raised if a worker cannot evaluate; carries the reason."""


class PendingEvaluation(NamedTuple):
  """An evaluation that was requested from a worker.

  Attributes:
    worker: Rank of the worker.
    incarnation: Its incarnation.
    figures: Future of the results by name; raises `EvaluationLost` if the
      worker cannot evaluate.
  """

  worker: int
  incarnation: int
  figures: threads.Future[Mapping[str, float]]


class Evaluators(Protocol):
  """Workers that can evaluate: see `ParameterServerReception`."""

  def request_evaluation(
    self,
    number: int,
    address: str,
    excluded: set[tuple[int, int]],
    names: Collection[str],
  ) -> PendingEvaluation | None:
    """Requests an evaluation from the first worker that has an accelerator.

    Args:
      number: Number of the evaluation, under which its version is fetched.
      address: Address from which the version is fetched.
      excluded: Workers and incarnations that are not asked.
      names: Names of the figures that it has to give.

    Returns:
      The request; None if there is no such worker.
    """


class RemoteEvaluation:
  """Evaluation by workers with accelerators; see `learning.learning`."""

  def __init__(
    self, local: Evaluation, *, settings: Settings, deadlines: Deadlines
  ):
    """Creates the evaluation without workers.

    Args:
      local: Evaluates in this process.
      settings: Settings of this process.
      deadlines: Limits of the duration of an evaluation.
    """
    self._local = local
    self._settings, self._deadlines = settings, deadlines
    self._evaluators: Evaluators | None = None
    self._numbers = itertools.count()
    self._excluded: set[tuple[int, int]] = set()
    self._longest_s: float | None = None
    self._has_asked = False

  def attach(self, evaluators: Evaluators) -> None:
    """Sets the workers."""
    self._evaluators = evaluators

  @property
  def measures(self) -> Mapping[str, str]:
    """Directions of its measures, the primary one first."""
    return self._local.measures

  def is_finite(self, params: Any) -> bool:
    """Returns whether all parameters are finite."""
    return self._local.is_finite(params)

  def warm_up(self, params: Any, stats: Any) -> None:
    """Compiles the evaluation in this process."""
    self._local.warm_up(params, stats)

  def __call__(self, params: Any, stats: Any) -> Mapping[str, float]:
    """Returns the measures by name; an accuracy is 0 to 1."""
    if self._evaluators is not None:
      figures = self._evaluate(
        self._evaluators, {'params': params, 'stats': stats}
      )
      if figures is not None:
        return figures
    if self._has_asked:
      logging.warning(
        'The coordinator evaluates on its CPU: no worker with an accelerator '
        'can.'
      )
    return self._local(params, stats)

  def _evaluate(
    self, evaluators: Evaluators, state: dict[str, Any]
  ) -> Mapping[str, float] | None:
    """Returns a worker's results; None if no worker can evaluate."""
    number = next(self._numbers)
    find = functools.partial(_find_version, number, (state, digest(state)))
    with contextlib.closing(
      handover.Handover(self._settings.port, find, self._settings.timeout_s)
    ) as source:
      while pending := evaluators.request_evaluation(
        number, source.address, self._excluded, self.measures
      ):
        self._has_asked = True
        start = clock.monotonic()
        limit_s = self._deadlines.evaluation_s(self._longest_s)
        try:
          figures = pending.figures.result(limit_s)
        except TimeoutError:
          reason = f'no answer for {clock.monotonic() - start:.1f} s'
        except EvaluationLost as error:
          reason = str(error)
        else:
          elapsed_s = clock.monotonic() - start
          self._longest_s = max(self._longest_s or 0.0, elapsed_s)
          return figures
        self._excluded.add((pending.worker, pending.incarnation))
        logging.warning(
          'Worker %d does not evaluate, which another process does now: %s',
          pending.worker,
          reason,
        )
    return None


def _find_version(
  number: int, version: tuple[Any, str], request: messages.StateRequest
) -> tuple[Any, str]:
  """Returns the state and digest of an evaluation, for a `Handover`."""
  if request.version != number:
    raise LookupError(f'expected evaluation {number}, got {request.version}')
  return version


class Evaluator:
  """Evaluates versions for the coordinator, in a worker."""

  def __init__(
    self, evaluate: Evaluation, like: tuple[Any, Any], settings: Settings
  ):
    """Creates the evaluator; compiles nothing yet.

    Args:
      evaluate: Evaluates on JAX's default device.
      like: Parameters and statistics of the shapes of versions.
      settings: Settings of this process.
    """
    self._evaluate, self._like, self._settings = evaluate, like, settings

  def warm_up(self) -> None:
    """Compiles the evaluation."""
    self._evaluate.warm_up(*self._like)

  def answer(self, request: messages.Evaluate, send: Send) -> None:
    """Evaluates a version, and sends the figures or the reason for none.

    Args:
      request: The request of the coordinator.
      send: Sends a message to the coordinator.
    """
    figures, error = None, None
    try:
      figures = self._figures(request.number, request.address)
    except (
      TransportError,
      jax.errors.JaxRuntimeError,
      FloatingPointError,  # The coordinator finds the same, and ends the run.
    ) as failure:
      error = f'{type(failure).__name__}: {failure}'
    with contextlib.suppress(TransportError):  # The coordinator notices, too.
      send(messages.Evaluated(request.number, figures, error))

  def _figures(self, number: int, address: str) -> dict[str, float]:
    settings = self._settings
    state, expected = handover.fetch(
      [(0, address)], number, settings.security, settings.timeout_s
    )
    if (got := digest(state)) != expected:
      raise Corrupt(f'expected a version of digest {expected}, got {got}')
    return dict(self._evaluate(state['params'], state['stats']))
