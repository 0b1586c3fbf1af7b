"""Evaluation on a worker's accelerator, where the coordinator has none.

Dedicated servers, and so the coordinator, have a CPU alone.  It collects
the version that is due, and asks the first worker that has an accelerator,
which fetches the version (`cluster.membership.handover`) and evaluates it
beside its iterations, as a worker in the coordinator's process does on other
runs.  If that worker is lost, fails or is too slow, the next one is asked, and
in the end the coordinator evaluates by itself: the figures are of the same
version in any case.
"""

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

import jax
from absl import logging

from cluster.membership import handover
from cluster.membership.process import Settings
from cluster.network import messages
from cluster.network.errors import Corrupt, TransportError
from cluster.process.deadlines import Deadlines
from learning.digest import digest
from learning.learning import Evaluation

Say = Callable[[messages.FromWorker], None]


class Lost(Exception):
  """Raised if a worker will not answer; says why."""


class Asked(NamedTuple):
  """A question to a worker.

  Attributes:
    worker: Rank of the worker.
    life: Its incarnation number.
    answer: What is evaluated, by name; `Lost` if it will not come.
  """

  worker: int
  life: int
  answer: Future


class Evaluators(Protocol):
  """Workers that can evaluate, as the coordinator's reception knows them."""

  def ask(
    self, number: int, address: str, passed: set[tuple[int, int]]
  ) -> Asked | None:
    """Asks the first worker that has an accelerator for an evaluation.

    Args:
      number: Number of the evaluation, under which its version is fetched.
      address: Address where it is fetched.
      passed: Workers and incarnations that are not asked.

    Returns:
      The question; None if there is no such worker.
    """


class RemoteEvaluation:
  """Evaluation, by workers with accelerators; see `learning.learning`."""

  def __init__(
    self, own: Evaluation, *, settings: Settings, deadlines: Deadlines
  ):
    """Knows no workers yet.

    Args:
      own: Evaluates in this process.
      settings: Settings of this process.
      deadlines: Say how long an evaluation may take.
    """
    self._own = own
    self._settings, self._deadlines = settings, deadlines
    self._evaluators: Evaluators | None = None
    self._numbers = itertools.count()
    self._passed: set[tuple[int, int]] = set()
    self._longest_s = 0.0
    self._asked = False

  def attach(self, evaluators: Evaluators) -> None:
    """Names the workers."""
    self._evaluators = evaluators

  def is_finite(self, params: Any) -> bool:
    """Returns whether all parameters are finite."""
    return self._own.is_finite(params)

  def __call__(self, params: Any, stats: Any) -> Mapping[str, float]:
    """Returns accuracy, 0 to 1, and what else is evaluated, by name."""
    state = {'params': params, 'stats': stats}
    number = next(self._numbers)
    found = digest(state)
    with contextlib.closing(
      handover.Handover(
        self._settings.address,
        self._settings.security,
        functools.partial(_given, number, (state, found)),
      )
    ) as giving:
      while asked := self._evaluators.ask(number, giving.address, self._passed):
        self._asked = True
        start = time.monotonic()
        try:
          figures = asked.answer.result(self._limit_s())
        except TimeoutError:
          reason = f'no answer for {time.monotonic() - start:.1f} s'
        except Lost as error:
          reason = str(error)
        else:
          took_s = time.monotonic() - start
          self._longest_s = max(self._longest_s, took_s)
          return figures
        self._passed.add((asked.worker, asked.life))
        logging.warning(
          'Worker %d does not evaluate, which another process does now: %s',
          asked.worker,
          reason,
        )
    if self._asked:
      logging.warning(
        'The coordinator evaluates on its CPU: no worker with an accelerator '
        'can.'
      )
    return self._own(params, stats)

  def _limit_s(self) -> float:
    return self._deadlines.evaluation_s(self._longest_s or None)


def _given(number: int, state: tuple[Any, str], wanted: int) -> tuple[Any, str]:
  """Returns the state and digest of an evaluation, for a `Handover`."""
  if wanted != number:
    raise LookupError(f'expected evaluation {number}, got {wanted}')
  return state


class Evaluator:
  """Evaluates versions for the coordinator, in a worker."""

  def __init__(
    self, evaluate: Evaluation, like: tuple[Any, Any], settings: Settings
  ):
    """Evaluates nothing yet.

    Args:
      evaluate: Evaluates on JAX's default device.
      like: Parameters and statistics of the shapes of versions.
      settings: Settings of this process.
    """
    self._evaluate, self._like, self._settings = evaluate, like, settings

  def warm_up(self) -> None:
    """Compiles the evaluation."""
    self._evaluate.warm_up(*self._like)

  def answer(self, request: messages.Evaluate, say: Say) -> None:
    """Evaluates, and tells the coordinator the figures, or why there are none.

    Args:
      request: The request of the coordinator.
      say: Sends a message to the coordinator.
    """
    figures, error = None, None
    try:
      figures = self._figures(request.number, request.address)
    except (TransportError, jax.errors.JaxRuntimeError) as failed:
      error = f'{type(failed).__name__}: {failed}'
    with contextlib.suppress(TransportError):  # The coordinator notices, too.
      say(messages.Evaluated(request.number, figures, error))

  def _figures(self, number: int, address: str) -> dict[str, float]:
    settings = self._settings
    state, expected = handover.fetch(
      address, number, settings.security, settings.timeout_s
    )
    if (got := digest(state)) != expected:
      raise Corrupt(f'expected a version of digest {expected}, got {got}')
    return dict(self._evaluate(state['params'], state['stats']))
